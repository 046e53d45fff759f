"""A table of models for a paper: what each has and costs, one model per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from torch import nn

from torchscan import units
from torchscan._version import __version__
from torchscan.errors import Argument, InputError, naming
from torchscan.hardware.device_specs import can_estimate_for
from torchscan.metrics import METRICS, Metric, require_device
from torchscan.notes import Note
from torchscan.question import asking
from torchscan.recording.arguments import StepArguments
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.report.remarks import unknown_cost_text, unrecorded_text
from torchscan.report.table import Cell, Column, ColumnRemark, ModelTable, Row, in_unit
from torchscan.scan import Scan
from torchscan.trace.events import Provenance

DEFAULT_METRICS = ("params", "macs", "flops", "activation_memory", "receptive_field")
#: where there is no room for all, the last of these first
_LEFT_OUT = ("receptive_field", "activation_memory", "flops")


@asking
def model_table(
    models: Mapping[str, nn.Module],
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    metrics: Sequence[str] | None = None,
    title: str = "Models",
    **asked: Unpack[StepArguments],
) -> ModelTable:
    """Return a table of several models, one per row: print it, or write it with ``to_latex()`` for a paper.

    Args:
        models: the models, by the names to show in the table.
        metrics: what to list for each model, any of ``params trainable_params model_size macs flops dmas activation_memory
            peak_memory receptive_field latency``.
        title: the caption of the table.
    """
    if not isinstance(models, Mapping):
        raise InputError(
            Argument("models"),
            f" is a {type(models).__name__}: give models by name, {{'resnet50': model}}",
        )
    if not models:
        raise InputError("there are no models: give them by name, {'resnet50': model}")
    chosen = chosen_metrics(metrics, asked.get("device"))
    scans = {
        name: _named(name, Scan(module, input_shape, dtype, **asked), chosen)
        for name, module in models.items()
    }
    return table_of(scans, chosen, title=title)


def _named(name: str, scan: Scan, metrics: Sequence[str]) -> Scan:
    """Compute the metrics of a model. Errors name the model."""
    with naming(name):
        return read(scan, metrics)


def read(scan: Scan, metrics: Sequence[str]) -> Scan:
    """The scan, with these metrics computed while its model can still be built with data."""
    for name in metrics:
        METRICS[name].value(scan)
    return scan


def chosen_metrics(metrics: Sequence[str] | None, device: str | None) -> list[str]:
    """The metrics asked for; by default counts, memory and receptive field, and with a device the latency."""
    chosen = (
        [*DEFAULT_METRICS, *(["latency"] if can_estimate_for(device) else [])]
        if metrics is None
        else list(metrics)
    )
    unknown = [name for name in chosen if name not in METRICS]
    if unknown or not chosen:
        problem = f"{unknown[0]!r} is not a metric" if unknown else "there is no metric"
        raise InputError(f"{problem}: choose from {', '.join(METRICS)}")
    require_device(chosen, device)
    return chosen


def table_of(
    scans: Mapping[str, Scan], metrics: Sequence[str], *, title: str = "Models"
) -> ModelTable:
    """One row for each model."""
    written = [_written(name, list(scans.values())) for name in metrics]
    return ModelTable(
        title=title,
        columns=[
            Column(key="model", heading="Model", is_number=False, min_width=12),
            *(column for column, _ in written),
        ],
        rows=[
            Row(cells=[Cell(name, name), *(cells[number] for _, cells in written)])
            for number, name in enumerate(scans)
        ],
        remarks=_remarks(metrics, scans),
        noun="models",
    )


def _written(name: str, scans: Sequence[Scan]) -> tuple[Column, list[Cell]]:
    """A column, whose figures share their unit."""
    metric = METRICS[name]
    values = [metric.value(scan) for scan in scans]
    scale = None if metric.scale is None else metric.scale(values)
    column = Column(
        key=name,
        heading=metric.heading,
        priority=_LEFT_OUT.index(name) + 1 if name in _LEFT_OUT else 0,
    )
    cells = [
        Cell(value, metric.read(scan, scale)) for value, scan in zip(values, scans, strict=True)
    ]
    if scale is not None:
        column = in_unit(column, scale)
    if name == "latency" and scans[0].roofline.basis:
        parts = [scans[0].roofline.basis, *([scale.unit] if scale is not None else [])]
        column = replace(column, heading=f"{metric.heading} ({', '.join(parts)})")
    return column, cells


_COSTS = frozenset({"macs", "flops", "dmas"})
_MEMORY = frozenset({"activation_memory", "peak_memory"})


def _remarks(names: Sequence[str], by_name: Mapping[str, Scan]) -> list[str]:
    """Return what a reader must know about the values, one sentence each."""
    scans = list(by_name.values())
    names = sorted(
        names, key=lambda name: METRICS[name].record
    )  # the forward pass first, whose inputs are as given
    read = [(METRICS[name], scan) for scan in scans for name in names]
    provenances = [metric.trace(scan).provenance for metric, scan in read]
    inputs = list(
        dict.fromkeys(_inputs(METRICS[names[0]].trace(scan).provenance) for scan in scans)
    )
    mode = provenances[0].mode
    note = Note.of("table-inputs-differ", mode=mode)
    if len(inputs) == 1:
        note = Note.of("table-inputs", inputs=inputs[0], mode=mode)
    remarks = [note.sentence]
    if not _COSTS.isdisjoint(names):
        remarks.append(ColumnRemark(Note.of("table-costs").sentence, _COSTS))
    training = scans[0].question.training
    if not _MEMORY.isdisjoint(names):
        memory = Note.of("table-memory", training=training)
        remarks.append(ColumnRemark(memory.sentence, _MEMORY))
    if "receptive_field" in names:
        remarks.append(ColumnRemark(Note.of("table-fields").sentence, ["receptive_field"]))
    if "latency" in names:
        latency = Note.of(
            "table-latency",
            training=training,
            device=scans[0].roofline.device,
            precision=scans[0].roofline.precision,
        )
        texts = (latency.sentence, *_ranges(by_name))
        remarks += [ColumnRemark(text, ["latency"]) for text in texts]
    assumptions = dict.fromkeys(note for each in provenances for note in each.assumptions)
    return [
        *remarks,
        *(note.sentence for note in assumptions),
        *_bounds([(metric, scan) for metric, scan in read if metric.is_cost]),
        Note.of(
            "table-versions", torchscan=__version__, torch=provenances[0].torch_version
        ).sentence,
    ]


def _ranges(scans: Mapping[str, Scan]) -> list[str]:
    """Return what the error margins rest on, with the models if it differs between them."""
    names: dict[str, list[str]] = {}
    for name, scan in scans.items():
        names.setdefault(scan.roofline.error_margin.label, []).append(name)
    return [
        f"{said}." if len(names) == 1 else f"{', '.join(of)}: {said}." for said, of in names.items()
    ]


def _bounds(read: Sequence[tuple[Metric, Scan]]) -> list[str]:
    """Return why some values are lower bounds."""
    unknown = dict.fromkeys(name for metric, scan in read for name in metric.without_formula(scan))
    missed = dict.fromkeys(
        name for metric, scan in read for name in metric.trace(scan).provenance.unrecorded_modules
    )
    return [
        write(", ".join(names))
        for write, names in ((unknown_cost_text, unknown), (unrecorded_text, missed))
        if names
    ]


def _inputs(provenance: Provenance) -> str:
    return ", ".join(
        f"{str(each.dtype).removeprefix('torch.')} {units.shape(each.shape)}"
        for each in provenance.inputs
    )
