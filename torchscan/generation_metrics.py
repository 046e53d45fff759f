"""Metrics of text generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation
from torchscan.measures import Measure
from torchscan.report.generation_table import OF_BATCH, OF_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMetric(Measure[Generation]):
    """One number about text generation."""

    #: True if it depends on all weights; else it depends on all operators
    has_weights: bool = False

    def doubts(self, answer: Generation) -> list[str]:
        """Return the reasons why it is a bound.

        They are operators without a formula, unrecorded modules, and unreadable weights.
        """
        if self.has_weights:
            return [str(weights) for weights in answer.unreadable_weights]
        if self.error_share is None:
            return []
        return list(answer.without_formula)


def _generated(name: str, parse: Callable[[str], float], **rest: Any) -> GenerationMetric:
    """Return the metric of an attribute of a generation, whose None means no limit."""
    heading, format_value = {**OF_MODEL, **OF_BATCH}[name]

    def value(made: Generation) -> float:
        found = getattr(made, name)
        return math.inf if found is None else float(found)

    def text(found: float) -> str:
        return format_value(None if found == math.inf else found)

    return GenerationMetric(heading=heading, value=value, text=text, parse=parse, **rest)


def _share_per_token(made: Generation) -> float:
    """Return the error margin of a token after the first."""
    return max(abs(made.margin.low), abs(made.margin.high))


def _share_of_prefill(made: Generation) -> float:
    """Return the error margin of the first token."""
    return made.prefill.error_margin.share


def _share_of_all(made: Generation) -> float:
    """Return the error margin of an answer: those of both phases, weighted by their times."""
    rest = (made.new - 1) * made.per_token
    first = made.first_token_of_all
    off = first * _share_of_prefill(made) + rest * _share_per_token(made)
    return off / (first + rest)


_PER_TOKEN = _generated("per_token", units.parse_duration, error_share=_share_per_token)
_UNDER_LOAD = _generated("per_token_under_load", units.parse_duration, error_share=_share_per_token)
_FIRST_TOKEN = _generated("first_token", units.parse_duration, error_share=_share_of_prefill)
_SPEED = _generated("tokens_per_second", units.parse_count, is_min=True, error_share=_share_of_all)
_CONTEXT = _generated("max_context", units.parse_tokens, is_min=True, has_weights=True)
_BATCH_SIZE = _generated("max_batch_size", units.parse_count, is_min=True, has_weights=True)

#: the metrics by name
OF_GENERATION: Mapping[str, GenerationMetric] = {
    "time_per_token": _PER_TOKEN,
    "time_per_token_under_load": _UNDER_LOAD,
    "first_token": _FIRST_TOKEN,
    "tokens_per_second": _SPEED,
    "weights": _generated("weights_bytes", units.parse_memory, has_weights=True),
    "cache_per_token": _generated("cache_bytes_per_token", units.parse_memory),
    "context": _CONTEXT,
    "batch_size": _BATCH_SIZE,
}
