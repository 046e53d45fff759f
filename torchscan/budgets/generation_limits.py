"""Limits for text generation on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypedDict

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation
from torchscan.budgets.budget_definition import Budget, GenerationBudget
from torchscan.budgets.excess_layers import Layers, launch_overhead, slowest_layers
from torchscan.budgets.outcome import Outcome, compare_with_limits
from torchscan.generation import analyze_generation
from torchscan.generation_metrics import OF_GENERATION
from torchscan.notes import Note
from torchscan.targets import Built
from torchscan.units import Tokens


class GenerationLimits(TypedDict, total=False):
    """The most that generating text may take, and the least that it may give.

    Limits are numbers, or text with a unit.

    Args:
        max_time_per_token: seconds from one new token to the next: ``"60 ms"``.
        max_time_per_token_under_load: the same with the prompts of other requests.
        max_first_token: seconds until the first new token is there.
        min_tokens_per_second: new tokens of all sequences in a second.
        max_weights: bytes of parameters and buffers, as they are stored: ``"20 GiB"``.
        max_cache_per_token: bytes by which a token makes the cache of a sequence grow:
            ``"128 KiB"``.
        min_context: tokens of each sequence, prompt included, for which there is memory: ``8192``,
            ``"8k"``.
        min_batch_size: sequences of ``prompt + new`` tokens for which there is memory.
    """

    max_time_per_token: float | str | None
    max_time_per_token_under_load: float | str | None
    max_first_token: float | str | None
    min_tokens_per_second: float | str | None
    max_weights: float | str | None
    max_cache_per_token: float | str | None
    min_context: Tokens | None
    min_batch_size: float | str | None


def check_generation(
    budget: Budget, asked: GenerationBudget, built: Built, given: Mapping[str, Any]
) -> Outcome:
    """Check what an existing model takes to generate; ``given`` arguments take precedence."""
    arguments: dict[str, Any] = {}
    for name in ("batch_size", "precision", "device"):
        arguments[name] = given.get(name, getattr(budget, name))
    for each in fields(asked):
        if each.name != "limits":
            arguments[each.name] = getattr(asked, each.name)
    made = analyze_generation(built.module, **arguments, progress=False)
    metrics = {name: OF_GENERATION[name] for name in asked.limits}
    return compare_with_limits(
        budget.name,
        made,
        metrics,
        asked.limits,
        layers_of_generation,
        strict=budget.strict,
        place=budget.place,
        remarks=warnings_of_generation(made),
    )


def layers_of_generation(name: str, made: Generation) -> Layers:
    """Return the slowest layers for a time, what occupies memory for a batch, and () for a context.

    A context may end with the model's positions.
    """
    if name == "batch_size":
        held = (("weights", made.weights_bytes), ("cache of a sequence", made.cache_bytes))
        return tuple((what, units.memory(size)) for what, size in held)
    if OF_GENERATION[name].error_share is None:
        return ()
    is_first = name == "first_token"
    if name == "tokens_per_second":
        is_first = made.first_token > (made.new - 1) * made.per_token
    roofline = made.prefill if is_first else made.decode
    overhead = launch_overhead(roofline, is_per_sample=name == "tokens_per_second")
    return overhead or slowest_layers(roofline)


def warnings_of_generation(made: Generation) -> tuple[Note, ...]:
    """Return the warnings of a generation, and first that its batch does not fit, if so."""
    if made.fits:
        return made.warnings
    note = Note.of(
        "no-room",
        device=made.device,
        batch_size=made.batch_size,
        tokens=made.prompt + made.new,
    )
    return (note, *made.warnings)
