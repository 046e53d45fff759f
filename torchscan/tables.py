"""A table of models for a paper, one in a row: what each has and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from torchscan import units
from torchscan._version import __version__
from torchscan.errors import InputError
from torchscan.figures import FIGURES, Measured, Question, measure
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.precision import Precision
from torchscan.recording.request import Mode
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.report.remarks import missed_text, unpriced_text
from torchscan.report.table import Cell, Column, Row, Table

DEFAULT_FIGURES = ("params", "macs", "flops", "activation_memory", "receptive_field")


def model_table(
    models: Mapping[str, nn.Module],
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    figures: Sequence[str] | None = None,
    title: str = "Models",
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    mode: Mode | None = None,
    training: bool = False,
    optimizer: OptimizerChoice | None = None,
    precision: Precision | None = None,
    device: str | None = None,
) -> Table:
    """Several models in a table, one in a row, by their names: ``str()`` of it is text, ``write("latex")`` what a paper takes.

    Inputs, ``batch_size`` and ``mode`` are those of :func:`record`; ``training``, ``optimizer``, ``precision`` and
    ``device``, for memory and latency, those of :func:`estimate_memory` and :func:`analyze_roofline`. ``figures`` are any of
    ``params trainable_params model_size macs flops dmas activation_memory peak_memory receptive_field latency``.
    """
    if not models:
        raise InputError("there are no models: give them by name, {'resnet50': model}")
    given: dict[str, Any] = {
        "input_shape": input_shape,
        "dtype": dtype,
        "args": args,
        "kwargs": kwargs,
        "batch_size": batch_size,
    }
    given |= {"mode": mode, "training": training, "optimizer": optimizer, "precision": precision, "device": device}
    rows = {name: measured_row(Question(module, **given), figures) for name, module in models.items()}
    return table_of(rows, figures, title=title)


def measured_row(question: Question, figures: Sequence[str] | None = None) -> Measured:
    """What one row needs: its ``figures``, by default counts, memory and receptive field, and of a device the latency."""
    return measure(question, _chosen(question.device is not None, figures))


def table_of(measured: Mapping[str, Measured], figures: Sequence[str] | None = None, *, title: str = "Models") -> Table:
    """One row for each model, with the ``figures`` that were measured."""
    chosen = _chosen(all(each.roofline is not None for each in measured.values()), figures)
    return Table(
        title=title,
        columns=[
            Column(key="model", heading="Model", is_number=False, narrowest=12),
            *(Column(key=name, heading=FIGURES[name].heading) for name in chosen),
        ],
        rows=[Row(cells=[Cell(name, name), *(_cell(figure, each) for figure in chosen)]) for name, each in measured.items()],
        remarks=_remarks(chosen, list(measured.values())),
        noun="models",
    )


def _chosen(has_latency: bool, figures: Sequence[str] | None) -> list[str]:
    unknown = [name for name in figures or () if name not in FIGURES]
    if unknown:
        raise InputError(f"there is no figure {unknown[0]!r}: there are {', '.join(FIGURES)}")
    if figures is not None:
        return list(figures)
    return [*DEFAULT_FIGURES, *(["latency"] if has_latency else [])]


def _cell(name: str, measured: Measured) -> Cell:
    figure = FIGURES[name]
    value = figure.value(measured)
    return Cell(value, figure.written(value, is_complete=measured.is_complete))


def _remarks(figures: Sequence[str], measured: Sequence[Measured]) -> list[str]:
    """What the figures are figures of, in a sentence for each thing that must be known."""
    provenances = [each.info["provenance"] for each in measured]
    inputs = dict.fromkeys(_inputs(each) for each in provenances)
    of_what = "; ".join(inputs) if len(inputs) == 1 else "as each model takes them"
    remarks = [f"Inputs: {of_what}, {provenances[0]['mode']} mode."]
    if not {"macs", "flops", "dmas"}.isdisjoint(figures):
        remarks.append("Counts are of the forward pass: a MAC is a multiply and an add of a product, FLOPs are all arithmetic.")
    step = "a training step" if any(each.question is not None and each.question.training for each in measured) else "inference"
    if not {"activation_memory", "peak_memory"}.isdisjoint(figures):
        remarks.append(f"Memory: the most bytes at one time in {step}.")
    rooflines = [each.roofline for each in measured if each.roofline is not None]
    if rooflines:
        precision = rooflines[0].precision or "as the model is"
        remarks.append(f"Latency: of {step}, estimated for {rooflines[0].device}, {precision}, from its data sheet.")
    return [
        *remarks,
        *_reservations(measured),
        f"Counted by torchscan {__version__} with torch {provenances[0]['torch_version']}.",
    ]


def _reservations(measured: Sequence[Measured]) -> list[str]:
    """What was assumed, and what is not known."""
    assumed = dict.fromkeys(text for each in measured for text in each.info["provenance"]["assumptions"])
    unknown = dict.fromkeys(name for each in measured for name in each.info["unpriced"])
    missed = dict.fromkeys(name for each in measured for name in each.info["provenance"]["missed"])
    bounds = [write(", ".join(names)) for write, names in ((unpriced_text, unknown), (missed_text, missed)) if names]
    return [*(f"Assumed {text}." for text in assumed), *bounds]


def _inputs(provenance: Mapping[str, object]) -> str:
    inputs = provenance["inputs"]
    assert isinstance(inputs, list)  # noqa: S101 - for the type checker
    return ", ".join(f"{each['dtype']} {units.shape(each['shape'])}" for each in inputs)
