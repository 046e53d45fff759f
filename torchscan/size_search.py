"""The search for the largest batch, or the longest sequence, that fits on a device.

It records the pass at other sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

from torchscan.analyses.memory_estimate import LARGEST_BATCH
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.hardware.device_specs import Device
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest
from torchscan.recording.sequences import (
    length_of,
    positions_of,
    with_complete_arguments,
    with_length,
)


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
    fits: bool
    fits_within_margin: bool


class SizeSearch:
    """Records a pass at sizes that close in on the largest that fits."""

    def __init__(self, sizes: Sizes, device: Device, asked: Placement) -> None:
        self._sizes = sizes
        self._device = device
        self._compiled = asked.compiled
        self._known = {sizes.asked: _fit_of(asked)}

    def largest(self) -> int:
        """Return the largest size that fits by the estimate."""
        return self._sizes.unit * self._largest()

    def _largest(self) -> int:
        """Return it in units.

        The bound by growth ignores rounding and gaps: go down in growing steps, then bisect.
        """
        size, most = self._sizes.asked, self._sizes.most
        if self._fit(size).fits:
            low, high = size, most + 1
        else:
            low, high = 0, size
        guess = min(max(self._bound_by_growth(), low + 1), high - 1)
        step = 1 + guess // 256
        while guess > low:
            if self._fit(guess).fits:
                low = guess
                break
            high = guess
            guess -= step
            step *= 2
        while high - low > 1:
            guess = (low + high) // 2 if high <= most else min(low + step, most)
            if self._fit(guess).fits:
                low = guess
            else:
                high = guess
            step *= 2
        return low

    def largest_within_margin(self) -> int:
        """Return a size that fits even if everything takes the most that it may.

        It is at most 1 % below the largest such size.
        """
        return self._sizes.unit * self._largest_within_margin()

    def _largest_within_margin(self) -> int:
        largest = self._largest()
        if largest == 0 or self._fit(largest).fits_within_margin:
            return largest
        fitting = [size for size, fit in self._known.items() if fit.fits_within_margin]
        low = max((size for size in fitting if size < largest), default=0)
        high = min(size for size in self._known if size > low and size not in fitting)
        while high - low > max(1, low // 100):
            guess = (low + high) // 2
            if self._fit(guess).fits_within_margin:
                low = guess
            else:
                high = guess
        return low

    def _fit(self, size: int) -> _Fit:
        if size not in self._known:
            trace = record_pass(self._sizes.request_of(size))
            timeline = MemoryTimeline(trace, compiled=self._compiled)
            self._known[size] = _fit_of(Placement(trace, timeline, self._device))
        return self._known[size]

    def _bound_by_growth(self) -> int:
        """Return the largest size for which ``a + b·size`` bytes fit the device at every moment."""
        small, large = self._sizes_to_compare()
        of_small = self._fit(small).required_bytes
        of_large = self._fit(large).required_bytes
        if len(of_small) != len(of_large):
            of_small, of_large = (max(of_small),), (max(of_large),)

        room = self._device.room_bytes
        bounds = []
        for before, after in zip(of_small, of_large, strict=True):
            slope = (after - before) / (large - small)
            at_zero = before - slope * small
            if slope > 0:
                bounds.append(int((room - at_zero) // slope))
            else:
                bounds.append(LARGEST_BATCH if at_zero <= room else 0)
        return max(min(bounds, default=0), 0)

    def _sizes_to_compare(self) -> tuple[int, int]:
        """Return two sizes, preferably above 1: a model may treat a single sample differently."""
        known = self._sizes.asked
        if known == 1:
            return 2, 4
        if 2 * known <= self._sizes.most:
            return known, 2 * known
        return known // 2, known


def _fit_of(placement: Placement) -> _Fit:
    return _Fit(placement.required_bytes, placement.fits, placement.fits_within_margin)
