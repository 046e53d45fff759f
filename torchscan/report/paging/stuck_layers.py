"""The finding that no layer of a network learns, which no comparison of layers shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torchscan.notes import Note
from torchscan.report.paging.layer_findings import (
    MIN_STILL,
    UNCHANGED,
    LayerValues,
    can_be_stuck,
)

#: share of the columns at the end in which nothing has changed
_MIN_SHARE = 0.5
#: fall of the loss after which a network has converged and may stand still
_MIN_FALL = 0.1


def find_stuck_network(
    layers: Sequence[LayerValues],
    first: Sequence[int],
    rate_by_step: Mapping[int, float],
    losses: Sequence[tuple[int, float]],
) -> list[Note]:
    """Return since when no layer has learned, with the gradients and the learning rate.

    A network that stands still after its loss fell is not reported: it may have converged.
    """
    network = _Network([layer for layer in layers if can_be_stuck(layer)])
    still = network.still
    if len(still) < max(MIN_STILL, _MIN_SHARE * len(network.known)):
        return []
    since = None if still == network.known else first[still[0]]
    if since is not None and not _is_as_high_as_before(losses, since):
        return []

    steps = {first[at] for at in still}
    rates = [rate for step, rate in rate_by_step.items() if step in steps]
    if rate_by_step and not rates:
        return []  # gradients are accumulated, and the optimizer steps between recorded steps
    return [
        Note.of(
            "network-stuck",
            layers=network.num_layers,
            update=network.update,
            gradient=network.gradient,
            rate=max(rates, default=None),
            step=since,
        )
    ]


class _Network:
    """The largest update and gradient of all layers, by column."""

    def __init__(self, layers: Sequence[LayerValues]) -> None:
        self.num_layers = len(layers)
        self.updates = _largest_by_column([layer.update for layer in layers])
        self.gradients = _largest_by_column([layer.gradient for layer in layers])
        #: columns with updates
        self.known = [at for at, value in enumerate(self.updates) if math.isfinite(value)]
        #: the last of them, in which all gradients are zero or no layer changes
        self.still = max(
            self._last_below(self.gradients, 0.0),
            self._last_below(self.updates, UNCHANGED),
            key=len,
        )

    def _last_below(self, values: Sequence[float], limit: float) -> list[int]:
        """Return the last columns in which values are at most as large as a limit."""
        found: list[int] = []
        for at in reversed(self.known):
            if not values[at] <= limit:
                break
            found.append(at)
        return found[::-1]

    @property
    def update(self) -> float:
        """Largest update in these columns."""
        return max(self.updates[at] for at in self.still)

    @property
    def gradient(self) -> float:
        """Largest known gradient norm in these columns."""
        gradients = [self.gradients[at] for at in self.still]
        return max(filter(math.isfinite, gradients), default=math.nan)


def _largest_by_column(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the largest known value of each column; NaN where there is none."""
    found = []
    for column in zip(*rows, strict=True):
        known = [value for value in column if math.isfinite(value)]
        found.append(max(known, default=math.nan))
    return found


def _is_as_high_as_before(losses: Sequence[tuple[int, float]], since: int) -> bool:
    """Return whether the loss from a step on is not clearly below the first one."""
    after = [loss for step, loss in losses if step >= since]
    if not after:
        return False
    _, start = losses[0]
    end = sorted(after)[len(after) // 2]
    return end > start - _MIN_FALL * abs(start)
