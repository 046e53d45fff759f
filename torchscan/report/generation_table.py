"""Table of the costs of text generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.report.make_table import ColumnOf, make_table, number, words
from torchscan.report.table import Cell, Table
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
    return make_table(
        "Generation",
        (
            words("figure", "Metric", lambda figure: figure[0]),
            number("value", "Value", lambda figure: Cell(*figure[1:])),
        ),
        _format_values(generation, {**OF_MODEL, **OF_BATCH}),
        summary=[f"{_question(generation)}, batch size {generation.batch_size}"],
        remarks=_remarks(generation),
        noun="figures",
    )


def _swept(sweep: GenerationSweep) -> Table:
    first = sweep.generations[0]
    of_model = [f"{name}: {text}" for name, _, text in _format_values(first, OF_MODEL)]
    return make_table(
        "Generation by batch size",
        _columns(sweep),
        sweep.generations,
        summary=[_question(first), *of_model],
        remarks=[*_unfit(sweep), *_remarks(first), f"{sweep.num_traces} passes were recorded."],
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


def _format_values(
    generation: Generation, figures: Mapping[str, tuple[str, Callable[[Any], str]]]
) -> list[tuple[str, Any, str]]:
    """Return the heading, value and text of each attribute."""
    written = []
    for name, (heading, text) in figures.items():
        value = getattr(generation, name)
        written.append((heading, value, text(value)))
    return written


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
