"""Findings about a training run, from its curves and the values of its layers, as notes.

Each threshold is far from what healthy runs of common models show, so that a finding is worth a
look: transformers, ResNets and GANs that train well have none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torchscan.notes import Note

#: sampled columns at the end of the run that count as "now": a share of all, and at least so many
_RECENT_SHARE, _MIN_RECENT = 0.2, 3
#: layers with weights that a trend over the depth needs
_MIN_LAYERS = 5
#: decades by which gradients fall or rise over the depth: with SGD such layers learn 10,000 times
#: slower than others; healthy networks stay within two decades
_MIN_DECADES = 4.0
#: share of the variance of log gradient norms that the depth explains
_MIN_EXPLAINED = 0.5
#: growth of the gradient norm since the start: healthy runs stay below 100
_MIN_GROWTH = 1e3
#: known shares of dead units, which are computed in some steps only
_MIN_KNOWN_SHARES = 2
#: share of units of a layer that are zero for all inputs; small batches alone give half
DEAD_SHARE = 0.95
#: update ÷ weight below which a layer is called slow: 1e-3 is usual, and with 1e-5 a change by
#: 10 % takes 10,000 steps
SLOW_UPDATE = 1e-5
#: and share of the median layer's, since all updates are small when the learning rate is
_SLOW_BESIDE_OTHERS = 0.01
#: losses before a spike that it is compared with, and how many of the following stay above them
_SPIKE_WINDOW, _MIN_BEFORE, _SPIKE_AFTER, _MIN_ABOVE = 100, 20, 6, 3
#: height of a spike above the median before it, in standard deviations and as a share of its size
_SPIKE_DEVIATIONS, _SPIKE_SHARE = 8.0, 0.3
#: evaluations after the best one, and the rise of their loss from it, that overfitting needs
_MIN_AFTER_BEST, _MIN_RISE = 4, 0.1
#: fall of the training loss meanwhile, and how many losses each of its two medians has
_MIN_FALL, _LOSSES_OF_MEDIAN = 0.05, 50
#: median absolute deviation of a normal distribution with a standard deviation of 1
_MAD = 0.6745


@dataclass(frozen=True, kw_only=True)
class LayerValues:
    """The values of one module over the columns of the run; NaN where there is none."""

    path: str
    name: str
    gradient: Sequence[float]
    update: Sequence[float]
    dead: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class CurveValues:
    """Losses and gradient norms by step; None where one is not known."""

    steps: Sequence[int]
    losses: Sequence[float | None]
    gradient_norms: Sequence[float | None]


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
    found = [*find_nonfinite_loss(curves), *find_growing_gradients(curves), *over_depth, *dead]
    if not dead and not over_depth:
        found += find_slow_layers(layers)
    return [*found, *find_overfitting(curves, evaluations), *find_spike(curves)]


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


def find_growing_gradients(curves: CurveValues) -> list[Note]:
    """Return the growth of the gradient norm, if it ends far above where it began."""
    known = [
        (step, norm)
        for step, norm in zip(curves.steps, curves.gradient_norms, strict=True)
        if norm is not None and math.isfinite(norm) and norm > 0
    ]
    if len(known) < 4 * _MIN_RECENT:
        return []
    size = max(_MIN_RECENT, len(known) // 20)
    start = statistics.median(norm for _, norm in known[: len(known) // 4])
    end = statistics.median(norm for _, norm in known[-size:])
    if end < _MIN_GROWTH * start:
        return []
    return [Note.of("gradients-grow", start=start, end=end, step=known[-1][0])]


def find_trend_over_depth(layers: Sequence[LayerValues]) -> list[Note]:
    """Return vanishing or exploding gradients: norms that fall or rise steadily over the depth."""
    known = _recent_norms(layers)
    if len(known) < _MIN_LAYERS:
        return []
    norms = [norm for _, norm in known]
    if max(norms) - min(norms) < _MIN_DECADES:
        return []
    places = range(len(norms))
    decades = statistics.linear_regression(places, norms).slope * (len(norms) - 1)
    explained = statistics.correlation(places, norms) ** 2
    if abs(decades) < _MIN_DECADES or explained < _MIN_EXPLAINED:
        return []
    sign = 1 if decades > 0 else -1
    (inner, _), (outer, _) = _extremes([(layer, sign * norm) for layer, norm in known])
    by_layer = {layer.path: 10**norm for layer, norm in known}
    late_norm, early_norm = by_layer[outer.path], by_layer[inner.path]
    if decades > 0:
        return [
            Note.of(
                "gradients-vanish",
                late=outer.name,
                late_norm=late_norm,
                early=inner.name,
                early_norm=early_norm,
                path=inner.path,
            )
        ]
    return [
        Note.of(
            "gradients-explode",
            late=outer.name,
            late_norm=late_norm,
            early=inner.name,
            early_norm=early_norm,
            path=inner.path,
        )
    ]


def _recent_norms(layers: Sequence[LayerValues]) -> list[tuple[LayerValues, float]]:
    """Return the layers that have gradients, with the logarithm of their present norm."""
    known = []
    for layer in layers:
        gradient = recent_median(layer.gradient)
        if gradient is not None and gradient > 0:
            known.append((layer, math.log10(gradient)))
    return known


def _extremes(
    known: Sequence[tuple[LayerValues, float]],
) -> tuple[tuple[LayerValues, float], tuple[LayerValues, float]]:
    """Return the layer with the smallest value in the first half, and the largest in the second."""
    half = (len(known) + 1) // 2
    early = min(known[:half], key=lambda each: each[1])
    late = max(known[half:], key=lambda each: each[1])
    return early, late


def find_dead_layers(layers: Sequence[LayerValues], first: Sequence[int]) -> list[Note]:
    """Return layers whose units have been zero for all inputs in all recent steps."""
    found = []
    for layer in layers:
        recent = recent_values(layer.dead)
        if len(recent) < _MIN_KNOWN_SHARES or min(recent) < DEAD_SHARE:
            continue
        since = _step_since(layer.dead, first)
        found.append((layer, recent[-1], since))
    if not found:
        return []
    layer, share, since = found[0]
    return [
        Note.of(
            "layer-dead",
            layer=layer.name,
            path=layer.path,
            share=share,
            step=since,
            others=len(found) - 1,
        )
    ]


def _step_since(dead: Sequence[float], first: Sequence[int]) -> int:
    """Return the first step from which on all known shares are high."""
    if min(value for value in dead if not math.isnan(value)) >= DEAD_SHARE:
        return 0
    since = first[-1]
    for step, share in zip(reversed(first), reversed(dead), strict=True):
        if share < DEAD_SHARE:
            break
        since = step if not math.isnan(share) else since
    return since


def find_slow_layers(layers: Sequence[LayerValues]) -> list[Note]:
    """Return layers whose weights hardly change although those of other layers do."""
    medians = []
    for layer in layers:
        known = [value for value in layer.update if math.isfinite(value)]
        has_gradient = any(math.isfinite(value) for value in layer.gradient)
        if len(known) >= _MIN_RECENT and has_gradient:
            medians.append((layer, statistics.median(known)))
    if len(medians) < _MIN_RECENT:
        return []
    typical = statistics.median(value for _, value in medians)
    limit = min(SLOW_UPDATE, _SLOW_BESIDE_OTHERS * typical)
    slow = [(layer, value) for layer, value in medians if value < limit]
    if not slow:
        return []
    layer, value = min(slow, key=lambda each: each[1])
    return [
        Note.of(
            "layer-does-not-learn",
            layer=layer.name,
            path=layer.path,
            update=value,
            typical=typical,
            others=len(slow) - 1,
        )
    ]


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
    known = []
    for step, loss in zip(curves.steps, curves.losses, strict=True):
        if step <= last_step and loss is not None and math.isfinite(loss):
            known.append(loss)
    recent = known[-_LOSSES_OF_MEDIAN:]
    return statistics.median(recent) if len(recent) >= _MIN_RECENT else None


def find_spike(curves: CurveValues) -> list[Note]:
    """Return the highest spike of the loss: far above all before it, for more than one step."""
    steps, losses = [], []
    for step, loss in zip(curves.steps, curves.losses, strict=True):
        if loss is not None and math.isfinite(loss):
            steps.append(step)
            losses.append(loss)
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


def recent_values(values: Sequence[float]) -> list[float]:
    """Return the known values of the last columns."""
    known = [value for value in values if math.isfinite(value)]
    return known[-max(_MIN_RECENT, round(_RECENT_SHARE * len(known))) :]


def recent_median(values: Sequence[float]) -> float | None:
    """Return the median of the last columns, or None if there are too few."""
    recent = recent_values(values)
    return statistics.median(recent) if len(recent) >= _MIN_RECENT else None
