"""A table of models for a paper, one model per row."""

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
from torchscan.report.table import Column, ColumnRemark, ModelTable, in_unit
from torchscan.report.table_rows import Cell, Row
from torchscan.scan import Scan

DEFAULT_METRICS = ("params", "macs", "flops", "activation_memory", "receptive_field")
#: metrics that are left out if there is no room for all, the last one first
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
    """Return a table of several models, one per row, to print or to write with ``to_latex()``.

    Args:
        models: the models, by the names to show in the table.
        metrics: what to list for each model, any of ``params trainable_params model_size macs flops
            dmas activation_memory peak_memory receptive_field latency``.
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
    scans = {}
    for name, module in models.items():
        scan = Scan(module, input_shape, dtype, **asked)
        with naming(name):  # in errors
            scans[name] = read(scan, chosen)
    return table_of(scans, chosen, title=title)


def read(scan: Scan, metrics: Sequence[str]) -> Scan:
    """Compute metrics of a scan while its model can still be built with data, and return it."""
    for name in metrics:
        METRICS[name].value(scan)
    return scan


def chosen_metrics(metrics: Sequence[str] | None, device: str | None) -> list[str]:
    """Return the requested metrics.

    By default they are counts, memory and receptive field, and with a device the latency.
    """
    if metrics is not None:
        chosen = list(metrics)
    else:
        chosen = list(DEFAULT_METRICS)
        if can_estimate_for(device):
            chosen.append("latency")
    choices = ", ".join(METRICS)
    if not chosen:
        raise InputError(f"there is no metric: choose from {choices}")
    for name in chosen:
        if name not in METRICS:
            raise InputError(f"{name!r} is not a metric: choose from {choices}")
    require_device(chosen, device)
    return chosen


def table_of(
    scans: Mapping[str, Scan], metrics: Sequence[str], *, title: str = "Models"
) -> ModelTable:
    """Return a table with a row for each model."""
    columns = [Column(key="model", heading="Model", is_number=False, min_width=12)]
    cells_by_model = {name: [Cell(name, name)] for name in scans}
    for metric in metrics:
        column, cells = _written(metric, list(scans.values()))
        columns.append(column)
        for row, cell in zip(cells_by_model.values(), cells, strict=True):
            row.append(cell)
    return ModelTable(
        title=title,
        columns=columns,
        rows=[Row(cells=cells) for cells in cells_by_model.values()],
        remarks=_remarks(metrics, scans),
        noun="models",
    )


def _written(name: str, scans: Sequence[Scan]) -> tuple[Column, list[Cell]]:
    """Return a column and its cells, whose values share their unit."""
    metric = METRICS[name]
    values = [metric.value(scan) for scan in scans]
    scale = None if metric.scale is None else metric.scale(values)
    priority = _LEFT_OUT.index(name) + 1 if name in _LEFT_OUT else 0
    column = Column(key=name, heading=metric.heading, priority=priority)
    cells = [
        Cell(value, metric.read(scan, scale)) for value, scan in zip(values, scans, strict=True)
    ]
    if scale is not None:
        column = in_unit(column, scale)
    first, *_ = scans
    if name == "latency" and first.roofline.basis:
        parts = [first.roofline.basis]
        if scale is not None:
            parts.append(scale.unit)
        column = replace(column, heading=f"{metric.heading} ({', '.join(parts)})")
    return column, cells


_COSTS = frozenset({"macs", "flops", "dmas"})
_MEMORY = frozenset({"activation_memory", "peak_memory"})


def _remarks(names: Sequence[str], by_name: Mapping[str, Scan]) -> list[str]:
    """Return what a reader must know about the values, one sentence each."""
    scans = list(by_name.values())
    # The forward pass first, whose inputs are as given.
    metrics = sorted((METRICS[name] for name in names), key=lambda metric: metric.record)
    read = [(metric, scan) for scan in scans for metric in metrics]
    provenances = [metric.trace(scan).provenance for metric, scan in read]
    first, *_ = provenances

    remarks = [_inputs_note(metrics[0], scans, first.mode).sentence]
    remarks += _column_remarks(names, by_name)
    assumptions = dict.fromkeys(note for each in provenances for note in each.assumptions)
    remarks += [note.sentence for note in assumptions]
    remarks += _bounds([(metric, scan) for metric, scan in read if metric.is_cost])
    versions = Note.of("table-versions", torchscan=__version__, torch=first.torch_version)
    return [*remarks, versions.sentence]


def _inputs_note(metric: Metric, scans: Sequence[Scan], mode: str) -> Note:
    """Return a note of the inputs in the trace of a metric, which may be those of all models."""
    texts = []
    for scan in scans:
        inputs = metric.trace(scan).provenance.inputs
        types = [str(each.dtype).removeprefix("torch.") for each in inputs]
        shapes = [units.shape(each.shape) for each in inputs]
        texts.append(", ".join(map(" ".join, zip(types, shapes, strict=True))))
    if len(set(texts)) > 1:
        return Note.of("table-inputs-differ", mode=mode)
    return Note.of("table-inputs", inputs=texts[0], mode=mode)


def _column_remarks(names: Sequence[str], scans: Mapping[str, Scan]) -> list[str]:
    """Return the sentences about single columns."""
    first, *_ = scans.values()
    training = first.question.training
    remarks: list[str] = []
    if not _COSTS.isdisjoint(names):
        remarks.append(ColumnRemark(Note.of("table-costs").sentence, _COSTS))
    if not _MEMORY.isdisjoint(names):
        memory = Note.of("table-memory", training=training)
        remarks.append(ColumnRemark(memory.sentence, _MEMORY))
    if "receptive_field" in names:
        remarks.append(ColumnRemark(Note.of("table-fields").sentence, ["receptive_field"]))
    if "latency" in names:
        latency = Note.of(
            "table-latency",
            training=training,
            device=first.roofline.device,
            precision=first.roofline.precision,
        )
        texts = (latency.sentence, *_ranges(scans))
        remarks += [ColumnRemark(text, ["latency"]) for text in texts]
    return remarks


def _ranges(scans: Mapping[str, Scan]) -> list[str]:
    """Return what the error margins rest on, with the models if it differs between them."""
    names: dict[str, list[str]] = {}
    for name, scan in scans.items():
        names.setdefault(scan.roofline.error_margin.label, []).append(name)
    if len(names) == 1:
        return [f"{label}." for label in names]
    return [f"{', '.join(models)}: {label}." for label, models in names.items()]


def _bounds(read: Sequence[tuple[Metric, Scan]]) -> list[str]:
    """Return why some values are lower bounds."""
    unknown: dict[str, None] = {}
    unrecorded: dict[str, None] = {}
    for metric, scan in read:
        unknown |= dict.fromkeys(metric.without_formula(scan))
        unrecorded |= dict.fromkeys(metric.trace(scan).provenance.unrecorded_modules)

    bounds = []
    if unknown:
        bounds.append(unknown_cost_text(", ".join(unknown)))
    if unrecorded:
        bounds.append(unrecorded_text(", ".join(unrecorded)))
    return bounds
