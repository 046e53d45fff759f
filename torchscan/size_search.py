"""The largest batch or longest sequence that fits, found by recording the pass at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, gcd
from operator import attrgetter
from typing import NamedTuple

from torchscan.analyses.memory_estimate import LARGEST_BATCH
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.hardware.device_specs import Device
from torchscan.once import once
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest
from torchscan.recording.sequences import (
    length_of,
    positions_of,
    with_complete_arguments,
    with_length,
)

#: guesses by Newton's steps before bisection
_NUM_STEPS = 6
#: by how much a size within the margin may be smaller than one that is not
_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The size to enlarge, in units: the requested one, the largest one, and the pass of a size."""

    asked: int
    most: int
    request_of: Callable[[int], PassRequest]
    unit: int = 1


def batches(request: PassRequest, multiple: int = 1) -> Sizes:
    """Return the sizes of the batch.

    The number of rows stays a multiple of ``multiple`` if it is one in this pass.
    """
    unit = gcd(request.batch_size, multiple)
    return Sizes(
        asked=request.batch_size // unit,
        most=LARGEST_BATCH // unit,
        request_of=lambda size: replace(request, batch_size=size * unit),
        unit=unit,
    )


def lengths(request: PassRequest, multiple: int = 1) -> Sizes:
    """Return the lengths of a sequence, up to the positions that the model has.

    The number of rows stays a multiple of ``multiple`` if it is one in this pass.
    """
    complete = with_complete_arguments(request)
    asked = length_of(complete)
    most = max(asked, positions_of(request.module) or LARGEST_BATCH)
    unit = gcd(asked, multiple)
    return Sizes(
        asked=asked // unit,
        most=most // unit,
        request_of=lambda size: with_length(complete, size * unit),
        unit=unit,
    )


class _Fit(NamedTuple):
    """The memory of a pass of one size. Its trace is not kept."""

    #: bytes at each moment
    required_bytes: tuple[int, ...]
    #: bytes beyond what the device has: the pass fits if there are none
    excess: int
    #: the same if everything takes the most that it may
    excess_within_margin: int


class SizeSearch:
    """Records a pass at sizes that close in on the largest that fits."""

    def __init__(self, sizes: Sizes, device: Device, asked: Placement) -> None:
        self._sizes = sizes
        self._device = device
        self._compiled = asked.compiled
        self._known = {sizes.asked: _fit_of(asked)}

    def largest(self) -> int:
        """Return the largest size that fits by the estimate: one more does not."""
        return self._sizes.unit * self._largest()

    def largest_within_margin(self) -> int:
        """Return a size that fits even if everything takes the most that it may.

        A size that is at most 1 % larger does not. Workspaces of cuDNN shrink at some sizes, so
        that a much larger one may fit again.
        """
        return self._sizes.unit * self._largest_within_margin()

    def _largest(self) -> int:
        size = self._sizes.asked
        low, high = 0, size
        if self._fit(size).excess <= 0:
            low, high = size, self._sizes.most + 1
        guess = self._bound_by_growth()
        return self._close_in(low, high, guess, attrgetter("excess"), tolerance=0)

    def _largest_within_margin(self) -> int:
        largest = self._largest()
        if largest == 0:
            return 0
        excess = self._fit(largest).excess_within_margin
        if excess <= 0:
            return largest
        known = self._known.items()
        smaller = [each for each, fit in known if each < largest and fit.excess_within_margin <= 0]
        low, guess = max(smaller, default=0), largest - self._step_of(excess)
        excess_of = attrgetter("excess_within_margin")
        return self._close_in(low, largest, guess, excess_of, tolerance=_TOLERANCE)

    def _close_in(
        self, low: int, high: int, guess: int, excess_of: Callable[[_Fit], int], tolerance: float
    ) -> int:
        """Return a size without excess, with one that is at most ``tolerance`` larger and has some.

        ``low`` has none and ``high`` has some. Newton's steps lead near the limit; excess does not
        grow evenly there, so that bisection finds the rest.
        """
        num_guesses = 0
        while high - low > max(1, int(tolerance * low)):
            guess = min(max(guess, low + 1), high - 1)
            excess = excess_of(self._fit(guess))
            if excess > 0:
                high = guess
            else:
                low = guess
            num_guesses += 1
            if num_guesses >= _NUM_STEPS:
                guess = (low + high) // 2
            elif excess > 0:
                guess -= self._step_of(excess)
            else:
                guess += max(self._step_of(-excess), int(tolerance * low))
        return low

    def _step_of(self, excess: int) -> int:
        """Return the number of sizes by which this excess grows, at least 1."""
        return max(1, ceil(excess / self._growth)) if self._growth > 0 else 1

    def _fit(self, size: int) -> _Fit:
        if size not in self._known:
            trace = record_pass(self._sizes.request_of(size))
            timeline = MemoryTimeline(trace, compiled=self._compiled)
            self._known[size] = _fit_of(Placement(trace, timeline, self._device))
        return self._known[size]

    def _bound_by_growth(self) -> int:
        """Return the largest size for which ``a + b·size`` bytes fit the device at every moment."""
        sizes = self._pair(self._sizes.asked)
        small, large = (self._fit(size).required_bytes for size in sizes)
        if len(small) != len(large):
            small, large = (max(small),), (max(large),)
        room = self._device.room_bytes
        less, more = sizes
        bounds: list[int] = []
        for few, many in zip(small, large, strict=True):
            slope = (many - few) / (more - less)
            at_zero = few - slope * less
            if slope > 0:
                bounds.append(int((room - at_zero) // slope))
            else:
                bounds.append(LARGEST_BATCH if at_zero <= room else 0)
        return max(min(bounds, default=0), 0)

    @once
    def _growth(self) -> float:
        """The bytes by which the peak grows from a size to the next one."""
        small, large = self._pair(self._sizes.asked)
        grown = max(self._fit(large).required_bytes) - max(self._fit(small).required_bytes)
        return grown / (large - small)

    def _pair(self, known: int) -> tuple[int, int]:
        """Two sizes to compare. A model may treat a single sample differently."""
        if known == 1:
            return 2, 4
        return (known, 2 * known) if 2 * known <= self._sizes.most else (known // 2, known)


def _fit_of(placement: Placement) -> _Fit:
    return _Fit(placement.required_bytes, placement.excess_bytes, placement.excess_within_margin)
