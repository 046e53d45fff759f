"""Findings about the layers of a training run, from values at sampled steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torchscan.notes import Note

#: sampled columns at the end of the run that count as "now": a share of all, and at least so many
_RECENT_SHARE, MIN_RECENT = 0.2, 3
#: layers with weights that a trend over the depth needs
_MIN_LAYERS = 5
#: decades by which gradients fall or rise over the depth: with SGD such layers learn 10,000 times
#: slower than others; healthy networks stay within two decades
_MIN_DECADES = 4.0
#: share of the variance of log gradient norms that the depth explains
_MIN_EXPLAINED = 0.5
#: known shares of dead units, which are computed in some steps only
_MIN_KNOWN_SHARES = 2
#: share of units of a layer that are zero for all inputs; small batches alone give half
DEAD_SHARE = 0.95
#: update ÷ weight below which a layer is called slow: 1e-3 is usual, and with 1e-5 a change by
#: 10 % takes 10,000 steps
SLOW_UPDATE = 1e-5
#: and share of the median layer's, since all updates are small when the learning rate is
_SLOW_BESIDE_OTHERS = 0.01
#: update ÷ weight below which 32-bit weights hardly change: their neighbors are 1.2e-7 apart
UNCHANGED = 1e-7
#: columns in which a layer has to stand still
MIN_STILL = 8


@dataclass(frozen=True, kw_only=True)
class LayerValues:
    """The values of one module over the columns of the run; NaN where there is none."""

    path: str
    name: str
    type_name: str = ""
    gradient: Sequence[float]
    update: Sequence[float]
    dead: Sequence[float]


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
    # the layer with the smallest value in the first half, and the largest in the second
    half = (len(known) + 1) // 2
    inner, _ = min(known[:half], key=lambda each: sign * each[1])
    outer, _ = max(known[half:], key=lambda each: sign * each[1])
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
    since = 0
    is_high = True
    for step, share in zip(first, dead, strict=True):
        if math.isnan(share):
            continue
        was_high, is_high = is_high, share >= DEAD_SHARE
        if is_high and not was_high:
            since = step
    return since


def find_slow_layers(layers: Sequence[LayerValues]) -> list[Note]:
    """Return layers whose weights hardly change although those of other layers do.

    A network of fewer than three layers has no typical one: its layers are slow if they stand
    still.
    """
    medians = _median_updates(layers)
    moving = [value for layer, value in medians if not _is_still(layer)]
    typical = statistics.median(moving) if moving else 0.0
    if typical <= UNCHANGED:
        return []
    limit = 0.0
    if len(medians) >= MIN_RECENT:
        limit = min(SLOW_UPDATE, _SLOW_BESIDE_OTHERS * typical)
    slow = []
    for layer, value in medians:
        if value < limit or _is_still(layer):
            slow.append((layer, value))
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


def _median_updates(layers: Sequence[LayerValues]) -> list[tuple[LayerValues, float]]:
    """Return the layers that have gradients, with their median update."""
    medians = []
    for layer in layers:
        known = [value for value in layer.update if math.isfinite(value)]
        has_gradient = any(map(math.isfinite, layer.gradient))
        if len(known) >= MIN_RECENT and has_gradient:
            medians.append((layer, statistics.median(known)))
    return medians


def can_be_stuck(layer: LayerValues) -> bool:
    """Return whether a layer has gradients, and updates that show if it stands still.

    Few rows of an embedding change in a step, and sampled values may not be among them.
    """
    has_gradient = any(map(math.isfinite, layer.gradient))
    has_update = any(map(math.isfinite, layer.update))
    return has_gradient and has_update and "Embedding" not in layer.type_name


def _is_still(layer: LayerValues) -> bool:
    """Return whether the weights of a layer have hardly changed in any column."""
    if not can_be_stuck(layer):
        return False
    known = [value for value in layer.update if math.isfinite(value)]
    return len(known) >= MIN_STILL and max(known) <= UNCHANGED


def recent_values(values: Sequence[float]) -> list[float]:
    """Return the known values of the last columns."""
    known = [value for value in values if math.isfinite(value)]
    return known[-max(MIN_RECENT, round(_RECENT_SHARE * len(known))) :]


def recent_median(values: Sequence[float]) -> float | None:
    """Return the median of the last columns, or None if there are too few."""
    recent = recent_values(values)
    return statistics.median(recent) if len(recent) >= MIN_RECENT else None
