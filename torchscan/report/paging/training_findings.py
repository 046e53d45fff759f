"""Findings about a training run as notes: all of them, and those from its curves.

Each threshold is far from what healthy runs of common models show, so that a finding is worth a
look: transformers, ResNets and GANs that train well have none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torchscan.notes import Note
from torchscan.report.paging.layer_findings import (
    MIN_RECENT,
    LayerValues,
    find_dead_layers,
    find_slow_layers,
    find_trend_over_depth,
)
from torchscan.report.paging.stuck_layers import find_stuck_network

#: growth of the gradient norm since the start: healthy runs stay below 100
_MIN_GROWTH = 1e3
#: losses before a spike that it is compared with, and how many of the following stay above them
_SPIKE_WINDOW, _MIN_BEFORE, _SPIKE_AFTER, _MIN_ABOVE = 100, 20, 6, 3
#: height of a spike above the median before it, in standard deviations and as a share of its size
_SPIKE_DEVIATIONS, _SPIKE_SHARE = 8.0, 0.3
#: first losses whose median is the start, at least so many and one of so many; and a size that
#: smaller losses are taken for, as a penalty that starts at 0 rises by any factor
_NUM_FIRST, _ONE_OF, _MIN_SIZE = 5, 50, 0.1
#: rise from the start to the last losses, in sizes of the start, and the rise that all later ones
#: have
_DIVERGED, _STAYS_ABOVE = 4.0, 1.0
#: the same from the first loss alone, if the next ones are already far above it
_DIVERGED_AT_ONCE, _STAYS_ABOVE_FIRST = 30.0, 10.0
#: losses since a divergence, as a share of all and at least so many: a spike has passed by then
_DIVERGED_SHARE, _MIN_DIVERGED = 0.1, 10
#: evaluations after the best one, and the rise of their loss from it, that overfitting needs
_MIN_AFTER_BEST, _MIN_RISE = 4, 0.1
#: fall of the training loss meanwhile, and how many losses each of its two medians has
_MIN_FALL, _LOSSES_OF_MEDIAN = 0.05, 50
#: median absolute deviation of a normal distribution with a standard deviation of 1
_MAD = 0.6745


@dataclass(frozen=True, kw_only=True)
class CurveValues:
    """Losses, gradient norms and learning rates by step; None where one is not known."""

    steps: Sequence[int]
    losses: Sequence[float | None]
    gradient_norms: Sequence[float | None]
    learning_rates: Sequence[float | None] = ()

    @property
    def rate_by_step(self) -> dict[int, float]:
        """Known learning rates by step."""
        rates = zip(self.steps, self.learning_rates, strict=False)
        return {step: rate for step, rate in rates if rate is not None}

    @property
    def finite_losses(self) -> list[tuple[int, float]]:
        """Steps with finite losses, and the losses."""
        finite = []
        for step, loss in zip(self.steps, self.losses, strict=True):
            if loss is not None and math.isfinite(loss):
                finite.append((step, loss))
        return finite


def find_problems(
    curves: CurveValues,
    layers: Sequence[LayerValues],
    first: Sequence[int],
    evaluations: Sequence[tuple[int, float]] = (),
) -> list[Note]:
    """Return what is wrong with a run, the worst first; nothing for a healthy one.

    ``layers``: modules with values of their own, in the order of the model. ``first``: the first
    step of each column. ``evaluations``: steps with their losses.
    """
    dead = find_dead_layers(layers, first)
    over_depth = find_trend_over_depth(layers)
    divergence = find_divergence(curves)
    found = [*find_nonfinite_loss(curves), *divergence, *find_growing_gradients(curves)]
    stuck = find_stuck_network(layers, first, curves.rate_by_step, curves.finite_losses)
    found += [*stuck, *over_depth, *dead]
    if not (stuck or dead or over_depth):
        found += find_slow_layers(layers)
    found += find_overfitting(curves, evaluations)
    return found if divergence else [*found, *find_spike(curves)]


def find_nonfinite_loss(curves: CurveValues) -> list[Note]:
    """Return the first step whose loss is NaN or infinite."""
    before = None
    for step, loss in zip(curves.steps, curves.losses, strict=True):
        if loss is not None and not math.isfinite(loss):
            value = "NaN" if math.isnan(loss) else "infinite"
            return [Note.of("loss-not-finite", step=step, value=value, before=before)]
        before = step if loss is not None else before
    return []


def find_nonfinite_loss_before(curves: CurveValues, step: int) -> Note | None:
    """Return the first loss that is not finite if it was before a step, and stayed so until it."""
    for note in find_nonfinite_loss(curves):
        first = note.values["step"]
        if first >= step:
            return None
        for at, loss in zip(curves.steps, curves.losses, strict=True):
            if first < at < step and loss is not None and math.isfinite(loss):
                return None
        return note
    return None


def find_divergence(curves: CurveValues) -> list[Note]:
    """Return since when the loss is far above its start, if it has stayed there until the end."""
    steps = [step for step, _ in curves.finite_losses]
    losses = [loss for _, loss in curves.finite_losses]
    last = [loss for loss in curves.losses if loss is not None][-1:]
    if len(losses) <= _MIN_DIVERGED or last != losses[-1:]:
        return []
    smooth = [statistics.median(losses[max(0, at - 2) : at + 3]) for at in range(len(losses))]
    size = max(_MIN_DIVERGED, round(_DIVERGED_SHARE * len(losses)))
    end = statistics.median(losses[-size:])
    first = losses[: max(_NUM_FIRST, len(losses) // _ONE_OF)]
    start = statistics.median(first)
    unit = max(abs(start), _MIN_SIZE)
    limit = max(start + _STAYS_ABOVE * unit, *first)
    since = _rises_above(smooth, limit)
    if end < start + _DIVERGED * unit or len(losses) - since < size:
        start = losses[0]
        unit = max(abs(start), _MIN_SIZE)
        limit = start + _STAYS_ABOVE_FIRST * unit
        since = _rises_above(smooth, limit)
        if end < start + _DIVERGED_AT_ONCE * unit or since >= _NUM_FIRST:
            return []
    step = steps[max(1, since)]
    return [Note.of("loss-diverges", start=start, end=end, step=step, limit=limit)]


def _rises_above(losses: Sequence[float], limit: float) -> int:
    """Return the place from which on all losses are above a limit."""
    since = len(losses)
    while since and losses[since - 1] > limit:
        since -= 1
    return since


def find_growing_gradients(curves: CurveValues) -> list[Note]:
    """Return the growth of the gradient norm, if it ends far above where it began."""
    known: list[tuple[int, float]] = []
    for step, norm in zip(curves.steps, curves.gradient_norms, strict=True):
        if norm is not None and 0 < norm < math.inf:
            known.append((step, norm))
    if len(known) < 4 * MIN_RECENT:
        return []
    size = max(MIN_RECENT, len(known) // 20)
    start = statistics.median(norm for _, norm in known[: len(known) // 4])
    end = statistics.median(norm for _, norm in known[-size:])
    if end < _MIN_GROWTH * start:
        return []
    return [Note.of("gradients-grow", start=start, end=end, step=known[-1][0])]


def find_overfitting(curves: CurveValues, evaluations: Sequence[tuple[int, float]]) -> list[Note]:
    """Return since when the evaluation loss has risen although the training loss fell."""
    known = [(step, loss) for step, loss in evaluations if math.isfinite(loss)]
    if len(known) <= _MIN_AFTER_BEST:
        return []
    best_step, best = min(known, key=lambda each: each[1])
    after = [loss for step, loss in known if step > best_step]
    if not _has_risen(best, after):
        return []
    before, now = _train_loss_until(curves, best_step), _train_loss_until(curves, math.inf)
    if before is None or now is None or now > (1 - _MIN_FALL) * before:
        return []
    last = after[-1]
    return [Note.of("overfitting", step=best_step, best=best, last=last, count=len(after))]


def _has_risen(best: float, after: Sequence[float]) -> bool:
    """Return whether losses after the best one are higher, and do not come down again."""
    if len(after) < _MIN_AFTER_BEST or best <= 0:
        return False
    half = len(after) // 2
    first_half = statistics.median(after[:half])
    last_half = statistics.median(after[half:])
    return last_half >= (1 + _MIN_RISE) * best and last_half > first_half


def _train_loss_until(curves: CurveValues, last_step: float) -> float | None:
    """Return the median of the last losses up to a step, or None if there are too few."""
    known = [loss for step, loss in curves.finite_losses if step <= last_step]
    recent = known[-_LOSSES_OF_MEDIAN:]
    return statistics.median(recent) if len(recent) >= MIN_RECENT else None


def find_spike(curves: CurveValues) -> list[Note]:
    """Return the highest spike of the loss: far above all before it, for more than one step."""
    steps = [step for step, _ in curves.finite_losses]
    losses = [loss for _, loss in curves.finite_losses]
    heights = {}
    for at in range(_MIN_BEFORE, len(losses) - 1):
        height = _spike_height(losses, at)
        if height is not None:
            heights[at] = height
    if not heights:
        return []
    at = max(heights, key=heights.__getitem__)
    before = losses[at] - heights[at]
    return [Note.of("loss-spike", step=steps[at], loss=losses[at], before=before)]


def _spike_height(losses: Sequence[float], at: int) -> float | None:
    """Return how far a loss is above the median before it, or None if it is not a spike."""
    before = losses[max(0, at - _SPIKE_WINDOW) : at]
    if losses[at] <= max(before):
        return None
    middle = statistics.median(before)
    spread = statistics.median(abs(each - middle) for each in before) / _MAD
    limit = max(_SPIKE_DEVIATIONS * spread, _SPIKE_SHARE * abs(middle))
    after = losses[at : at + _SPIKE_AFTER]
    num_above = sum(each > middle + limit / 2 for each in after)
    if losses[at] - middle <= limit or num_above < _MIN_ABOVE:
        return None
    return losses[at] - middle
