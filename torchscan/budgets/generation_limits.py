"""Whether generating text stays within limits on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypedDict, Unpack

from torch import nn

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.roofline import GroupLoad, Roofline
from torchscan.budgets.budget_file import Budget, GenerationBudget
from torchscan.budgets.outcome import (
    Layers,
    Outcome,
    bounds_among,
    excesses_among,
    launch_overhead,
    shares_off_among,
    slowest,
)
from torchscan.errors import BudgetError, InputError, warn_user
from torchscan.escapes import printable
from torchscan.generation import analyze_generation
from torchscan.metrics import OF_GENERATION, limits_of
from torchscan.precisions import Precision
from torchscan.recording.generation_passes import Step
from torchscan.signatures import spelled_out
from torchscan.targets import Built
from torchscan.units import Tokens


class GenerationLimits(TypedDict, total=False):
    """The most that generating text may take, and the least that it may give, as numbers or as text with a unit.

    Args:
        max_time_per_token: seconds from one new token to the next: ``"60 ms"``.
        max_first_token: seconds until the first new token is there.
        min_tokens_per_second: new tokens of all sequences in a second.
        max_weights: bytes of parameters and buffers, as they are stored: ``"20 GiB"``.
        max_cache_per_token: bytes by which a token makes the cache of a sequence grow: ``"128 KiB"``.
        min_context: tokens of each sequence, prompt included, for which there is memory: ``8192``, ``"8k"``.
        min_batch_size: sequences of ``prompt + new`` tokens for which there is memory.
    """

    max_time_per_token: float | str | None
    max_first_token: float | str | None
    min_tokens_per_second: float | str | None
    max_weights: float | str | None
    max_cache_per_token: float | str | None
    min_context: Tokens | None
    min_batch_size: float | str | None


@spelled_out({}, [GenerationLimits])
def assert_generation(
    module: nn.Module,
    prompt: Tokens = 512,
    new: Tokens = 128,
    *,
    batch_size: int = 1,
    device: str | None = None,
    precision: Precision | None = None,
    weights: str | None = None,
    cache: str | None = None,
    eager: bool = False,
    step: Step | None = None,
    strict: bool = True,
    progress: bool = True,
    **limits: Unpack[GenerationLimits],
) -> None:
    """Raise :class:`BudgetError`, an ``AssertionError``, if generating text with ``module`` exceeds a limit.

    Times are compared as they are estimated; the message says how far they may be off.

    Args:
        module: the model, as for :func:`analyze_generation`, like all that is not a limit.
        prompt: tokens that each sequence begins with: a number, or a text such as "4k".
        new: tokens that are generated for each.
        batch_size: sequences at once.
        device: the card, which must be named: a budget is not for whichever machine checks it.
        precision: what the model is converted to.
        weights: the format in which weights are stored.
        cache: the format in which keys and values are stored.
        eager: as plain PyTorch runs it.
        step: how the model is called.
        strict: raise :class:`UnpricedError` if only a bound is known for what is limited.
        progress: say what takes more than a second.
    """
    __tracebackhide__ = True  # pytest shows the test, and the message
    given: dict[str, Any] = dict(limits)
    chosen = limits_of(given, OF_GENERATION)
    if not chosen:
        raise InputError(
            'no limit was given: try assert_generation(model, device="NVIDIA L4", max_time_per_token="60 ms")'
        )
    made = analyze_generation(
        module,
        prompt,
        new,
        batch_size=batch_size,
        device=_named(device),
        precision=precision,
        weights=weights,
        cache=cache,
        eager=eager,
        step=step,
        progress=progress,
    )
    outcome = _compared(type(module).__name__, made, chosen, strict=strict)
    for remark in outcome.remarks:
        warn_user(remark)
    if not outcome.is_fine:
        raise BudgetError(str(outcome))


def _named(device: str | None) -> str:
    if device is None:
        raise InputError(
            "generating text is limited on a device: give device='NVIDIA L4', say (torchscan devices lists them)"
        )
    return device


def check_generation(
    budget: Budget, asked: GenerationBudget, built: Built, given: Mapping[str, Any]
) -> Outcome:
    """Whether what an existing model generates stays within its budget; ``given`` arguments take precedence."""
    shared = {
        name: given.get(name, getattr(budget, name))
        for name in ("batch_size", "precision", "device")
    }
    own = {each.name: getattr(asked, each.name) for each in fields(asked) if each.name != "limits"}
    made = analyze_generation(built.module, **shared, **own, progress=False)
    return _compared(budget.name, made, asked.limits, strict=budget.strict, place=budget.place)


def _compared(
    name: str, made: Generation, limits: Mapping[str, float], *, strict: bool, place: str = ""
) -> Outcome:
    metrics = {each: OF_GENERATION[each] for each in limits}
    return Outcome(
        name=printable(name),
        bounds=bounds_among(place or name, made, metrics, strict=strict),
        values={each: metric.value(made) for each, metric in metrics.items()},
        excesses=excesses_among(made, metrics, limits, _largest_layers),
        shares_off=shares_off_among(made, metrics),
        remarks=(*_without_room(made), *made.warnings),
    )


def _largest_layers(name: str, made: Generation) -> Layers:
    """Of times the slowest layers, and of the batch what occupies memory; a context may end with the model's positions."""
    if name == "batch_size":
        held = (("weights", made.weights_bytes), ("cache of a sequence", made.cache_bytes))
        return tuple((what, units.memory(size)) for what, size in held)
    if OF_GENERATION[name].share_off is None:
        return ()
    is_first = name == "first_token" or (
        name == "tokens_per_second" and made.first_token > (made.new - 1) * made.per_token
    )
    roofline = made.prefill if is_first else made.decode
    return launch_overhead(roofline, is_per_sample=name == "tokens_per_second") or slowest(
        _leaves(roofline)
    )


def _leaves(roofline: Roofline) -> list[GroupLoad]:
    """The layers that have no others inside."""
    parents = {each.name.rpartition(".")[0] for each in roofline.layers}
    return [each for each in roofline.layers if each.name not in parents]


def _without_room(made: Generation) -> list[str]:
    sequences = f"{made.batch_size:,} sequences" if made.batch_size > 1 else "a sequence"
    of_length = f"{sequences} of {made.prompt + made.new:,} tokens"
    return [] if made.fits else [f"{made.device} has no memory for {of_length}"]
