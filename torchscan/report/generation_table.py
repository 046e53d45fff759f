"""What generating text costs, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.report.table import Cell, Column, FullRemark, Row, Table
from torchscan.wrong_arguments import explain_wrong_types

#: attributes of a generation, each with its heading and how it is written: what does not depend on the batch, and what does
OF_MODEL: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "params": ("Parameters", units.count),
    "active_params": ("Active parameters", units.count),
    "weights_bytes": ("Weights", units.memory),
    "cache_bytes": ("Cache of a sequence", units.memory),
    "cache_bytes_per_token": ("Cache per token", units.memory),
    "max_batch_size": ("Largest batch", lambda number: _most(number, "sequences")),
}
OF_BATCH: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "max_context": ("Largest context", lambda number: _most(number, "tokens")),
    "first_token": ("First token after", units.duration),
    "per_token": ("Each further token after", units.duration),
    "tokens_per_second": ("New tokens per second", lambda number: f"{number:,.0f}"),
    "limiter": ("Limited by", str),
}
#: columns that a narrow page leaves out first
_DISPENSABLE = {"max_context": 2, "limiter": 1}


@explain_wrong_types
def generation_table(generation: Generation | GenerationSweep) -> Table:
    """What it takes and how fast it answers: a figure a row, or of a sweep a batch size a row.

    Args:
        generation: of ``analyze_generation``.
    """
    return _swept(generation) if isinstance(generation, GenerationSweep) else _one(generation)


def _one(generation: Generation) -> Table:
    figures = _written(generation, {**OF_MODEL, **OF_BATCH})
    return Table(
        title="Generation",
        columns=[
            Column(key="figure", heading="Figure", is_number=False),
            Column(key="value", heading="Value"),
        ],
        rows=[Row(cells=(Cell(name, name), Cell(value, text))) for name, value, text in figures],
        summary=[f"{_question(generation)}, batch size {generation.batch_size}"],
        remarks=_remarks(generation),
        noun="figures",
    )


def _swept(sweep: GenerationSweep) -> Table:
    first = sweep.generations[0]
    columns = [
        ("batch_size", "Batch"),
        ("first_token", "First token"),
        ("per_token", "Per token"),
        ("tokens_per_second", "Tokens/s"),
        ("limiter", "Limited by"),
        ("max_context", "Context"),
        *([("price_per_million", "Price of 1M")] if sweep.price is not None else []),
    ]
    return Table(
        title="Generation by batch size",
        columns=[
            Column(
                key=key,
                heading=heading,
                is_number=key != "limiter",
                priority=_DISPENSABLE.get(key, 0),
            )
            for key, heading in columns
        ],
        rows=[Row(cells=_cells(sweep, each)) for each in sweep.generations],
        summary=[_question(first), *_sentences(first)],
        remarks=[*_unfit(sweep), *_remarks(first), f"{sweep.num_traces} passes were recorded."],
        noun="batch sizes",
    )


def _cells(sweep: GenerationSweep, each: Generation) -> tuple[Cell, ...]:
    price = sweep.price_per_million(each)
    return (
        Cell(each.batch_size, f"{each.batch_size:,}{'' if each.fits else ' (no room)'}"),
        Cell(each.first_token, units.duration(each.first_token)),
        Cell(each.per_token, units.duration(each.per_token)),
        Cell(each.tokens_per_second, f"{each.tokens_per_second:,.0f}"),
        Cell(each.limiter, each.limiter),
        Cell(each.max_context, _most(each.max_context, "")),
        *([] if price is None else [Cell(price, f"{price:,.2f}")]),
    )


def _sentences(first: Generation) -> list[str]:
    return [f"{name}: {text}" for name, _, text in _written(first, OF_MODEL)]


def _unfit(sweep: GenerationSweep) -> list[str]:
    if all(each.fits for each in sweep.generations):
        return []
    most = sweep.generations[0].max_batch_size
    if not most:
        return ["Warning: the memory is too small for the model."]
    return [
        f"Warning: there is memory for only {most:,} {'sequence' if most == 1 else 'sequences'}."
    ]


def _written(
    generation: Generation, figures: Mapping[str, tuple[str, Callable[[Any], str]]]
) -> list[tuple[str, Any, str]]:
    """Heading, value and text of each."""
    values = {name: getattr(generation, name) for name in figures}
    return [
        (heading, values[name], text(values[name])) for name, (heading, text) in figures.items()
    ]


def _remarks(generation: Generation) -> list[str]:
    return [
        *(FullRemark(f"Warning: {text}.") for text in generation.warnings),
        f"{generation.decode.error_margin.label}.",
        *(f"Assumed: {text}." for text in generation.assumptions),
    ]


def _most(number: int | None, what: str) -> str:
    return (
        "no limit"
        if number is None
        else f"{number:,.0f} {what}".strip()
        if number
        else "does not fit"
    )


def _question(generation: Generation) -> str:
    formats = [
        generation.precision or "the model's own precision",
        *(f"weights in {each}" for each in [generation.weights] if each),
        *(f"cache in {each}" for each in [generation.cache] if each),
    ]
    return f"{_devices(generation)}, {', '.join(formats)}; {generation.prompt:,} tokens given and {generation.new:,} new"


def _devices(generation: Generation) -> str:
    if generation.mesh is None:
        return generation.device
    mesh = " × ".join(f"{size} {name}" for name, size in generation.mesh.items())
    return f"One of {generation.devices} {generation.device} ({mesh})"
