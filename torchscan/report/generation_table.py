"""Table of the costs of text generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.report.make_table import ColumnOf, make_table, number, words
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

#: headings and texts of the attributes of a generation that do not depend on the batch size
OF_MODEL: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "params": ("Parameters", units.count),
    "active_params": ("Active parameters", units.count),
    "weights_bytes": ("Weights", units.memory),
    "cache_bytes": ("Cache of a sequence", units.memory),
    "cache_bytes_per_token": ("Cache per token", units.memory),
    "max_batch_size": ("Largest batch", lambda number: _most(number, "sequences")),
}
#: those of attributes that do
OF_BATCH: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "max_context": ("Largest context", lambda number: _most(number, "tokens")),
    "first_token": ("First token after", units.duration),
    "first_token_of_all": ("First token of all after", units.duration),
    "per_token": ("Each further token after", units.duration),
    "per_token_under_load": ("The same under load", units.duration),
    "tokens_per_second": ("New tokens per second", lambda number: f"{number:,.0f}"),
    "limiter": ("Limited by", str),
}


@explain_wrong_types
def generation_table(generation: Generation | GenerationSweep) -> Table:
    """Return memory and speed, one value per row, or one batch size per row for a sweep.

    Args:
        generation: of ``analyze_generation``.
    """
    return _swept(generation) if isinstance(generation, GenerationSweep) else _one(generation)


def _one(generation: Generation) -> Table:
    question = f"{_question(generation)}, batch size {generation.batch_size}"
    metrics = _metrics_of(generation, {**OF_MODEL, **OF_BATCH})
    columns = (
        words("figure", "Metric", "name"),
        number("value", "Value", lambda metric: Cell(metric.value, metric.text)),
    )
    remarks = _remarks(generation)
    return make_table(
        "Generation", columns, metrics, summary=[question], remarks=remarks, noun="figures"
    )


def _swept(sweep: GenerationSweep) -> Table:
    first = sweep.generations[0]
    summary = [_question(first)]
    summary += [f"{metric.name}: {metric.text}" for metric in _metrics_of(first, OF_MODEL)]
    remarks = _unfit(sweep) + _remarks(first)
    remarks.append(f"{sweep.num_traces} passes were recorded.")
    return make_table(
        "Generation by batch size",
        _columns(sweep),
        sweep.generations,
        summary=summary,
        remarks=remarks,
        noun="batch sizes",
    )


def _columns(sweep: GenerationSweep) -> list[ColumnOf[Generation]]:

    def batch(generation: Generation) -> Cell:
        size = generation.batch_size
        return Cell(size, f"{size:,}" if generation.fits else f"{size:,} (no room)")

    def context(generation: Generation) -> Cell:
        return Cell(generation.max_context, _most(generation.max_context, ""))

    columns = [
        number("batch_size", "Batch", batch),
        number("first_token", "First token", text=units.duration),
        number("per_token", "Per token", text=units.duration),
        number("per_token_under_load", "Under load", text=units.duration),
        number("tokens_per_second", "Tokens/s", text="{:,.0f}".format),
        words("limiter", "Limited by", priority=1),
        number("max_context", "Context", context, priority=2),
    ]
    if sweep.price is not None:
        price = sweep.price_per_million
        columns.append(number("price_per_million", "Price of 1M", price, "{:,.2f}".format))
    return columns


def _unfit(sweep: GenerationSweep) -> list[str]:
    if all(each.fits for each in sweep.generations):
        return []
    most = sweep.generations[0].max_batch_size
    if not most:
        return ["Warning: the memory is too small for the model."]
    noun = "sequence" if most == 1 else "sequences"
    return [f"Warning: there is memory for only {most:,} {noun}."]


class _Metric(NamedTuple):
    """A value of a generation, as a table names and writes it."""

    name: str
    value: Any
    text: str


def _metrics_of(
    generation: Generation, attributes: Mapping[str, tuple[str, Callable[[Any], str]]]
) -> list[_Metric]:
    """Return the values of these attributes."""
    metrics = []
    for attribute, (name, text) in attributes.items():
        value = getattr(generation, attribute)
        metrics.append(_Metric(name, value, text(value)))
    return metrics


def _remarks(generation: Generation) -> list[str]:
    remarks: list[str] = [f"Warning: {note}." for note in generation.warnings]
    remarks.append(f"Time per token: {generation.margin.label}.")
    return remarks + [note.sentence for note in generation.assumptions]


def _most(number: int | None, what: str) -> str:
    if number is None:
        return "no limit"
    return f"{number:,.0f} {what}".strip() if number else "does not fit"


def _question(generation: Generation) -> str:
    formats = [generation.precision or "the model's own precision"]
    if generation.weights:
        formats.append(f"weights in {generation.weights}")
    if generation.cache:
        formats.append(f"cache in {generation.cache}")
    if generation.compute:
        formats.append(f"products in {generation.compute}")
    device = generation.device
    if generation.mesh is not None:
        mesh = " × ".join(f"{size} {name}" for name, size in generation.mesh.items())
        device = f"One of {generation.devices} {device} ({mesh})"
    served = f"{device}, {generation.engine.name}, {', '.join(formats)}"
    return f"{served}; prompt of {generation.prompt:,} tokens, {generation.new:,} new"
