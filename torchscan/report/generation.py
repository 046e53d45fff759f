"""What generating text costs, as a table."""

from __future__ import annotations

from typing import Any

from torchscan import units
from torchscan.analyses.generation.result import Generation
from torchscan.report.table import Cell, Column, Row, Table


def generation_table(generation: Generation) -> Table:
    """What it takes and how fast it answers, a figure a row."""
    rows = [Row(cells=(Cell(name, name), Cell(value, text))) for name, value, text in _figures(generation)]
    return Table(
        title="Generation",
        columns=[Column(key="figure", heading="", is_number=False), Column(key="value", heading="")],
        rows=rows,
        summary=[_question(generation)],
        remarks=[
            *(f"Warning: {text}." for text in generation.warnings),
            f"{generation.decode.spread.said}.",
            *(f"Assumed: {text}." for text in generation.assumptions),
        ],
        noun="figures",
    )


def _figures(generation: Generation) -> list[tuple[str, Any, str]]:
    return [
        ("Parameters", generation.params, units.count(generation.params)),
        ("of which a token meets", generation.active_params, units.count(generation.active_params)),
        ("Weights", generation.weights_bytes, units.memory(generation.weights_bytes)),
        ("Cache of a sequence at its end", generation.cache_bytes, units.memory(generation.cache_bytes)),
        ("and of one more token", generation.cache_bytes_per_token, units.memory(generation.cache_bytes_per_token)),
        ("Largest context", generation.max_context, _most(generation.max_context, "tokens")),
        ("Largest batch", generation.max_batch, _most(generation.max_batch, "sequences")),
        ("First token after", generation.first_token, units.duration(generation.first_token)),
        ("Each further token after", generation.per_token, units.duration(generation.per_token)),
        ("New tokens per second", generation.tokens_per_second, f"{generation.tokens_per_second:,.0f}"),
        ("Limited by", generation.limiter, generation.limiter),
    ]


def _most(number: int | None, what: str) -> str:
    return "no limit" if number is None else f"{number:,} {what}" if number else "does not fit"


def _question(generation: Generation) -> str:
    formats = [
        generation.precision or "the model's own precision",
        *(f"weights in {each}" for each in [generation.weights] if each),
        *(f"cache in {each}" for each in [generation.cache] if each),
    ]
    lengths = f"{generation.prompt:,} tokens given and {generation.new:,} new, batch size {generation.batch_size}"
    return f"{generation.device}, {', '.join(formats)}; {lengths}"
