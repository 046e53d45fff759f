"""The largest batch with which a pass fits on a device, found by recording the pass at other batch sizes."""

from __future__ import annotations

from dataclasses import replace

from torchscan.analyses.memory_estimate import LARGEST_BATCH
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.hardware.devices import Device
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest


class BatchSearch:
    """Records a pass at batch sizes that close in on the largest that fits."""

    def __init__(self, request: PassRequest, device: Device, asked: Placement) -> None:
        self._request = request
        self._device = device
        self._asked = asked

    def largest(self) -> int:
        """The largest batch. The bound by growth ignores rounding and gaps: go down from it in growing steps, then bisect."""
        size = self._request.batch_size
        low, high = (size, LARGEST_BATCH + 1) if self._asked.fits else (0, size)
        guess = min(max(self._bound_by_growth(), low + 1), high - 1)
        step = 1 + guess // 256
        while guess > low:
            if self._placed(guess).fits:
                low = guess
                break
            high, guess, step = guess, guess - step, 2 * step
        while high - low > 1:
            guess = (low + high) // 2 if high <= LARGEST_BATCH else min(low + step, LARGEST_BATCH)
            low, high = (guess, high) if self._placed(guess).fits else (low, guess)
            step *= 2
        return low

    def _placed(self, batch_size: int) -> Placement:
        trace = record_pass(replace(self._request, batch_size=batch_size))
        return Placement(trace, MemoryTimeline(trace), self._device)

    def _bound_by_growth(self) -> int:
        """The largest batch for which ``a + b·batch`` bytes fit the device at every moment."""
        size = self._request.batch_size
        sizes = (size, 2 * size) if size > 1 else (2, 4)  # a model may treat a batch of one differently
        first = self._asked if size > 1 else self._placed(2)
        small, large = first.needed, self._placed(sizes[1]).needed
        if len(small) != len(large):
            small, large = (max(small),), (max(large),)
        bounds = [_bound(self._device.room_bytes, sizes, pair) for pair in zip(small, large, strict=True)]
        return max(min(bounds, default=0), 0)


def _bound(room: int, sizes: tuple[int, int], needed: tuple[int, int]) -> int:
    slope = (needed[1] - needed[0]) / (sizes[1] - sizes[0])
    at_zero = needed[0] - slope * sizes[0]
    if slope <= 0:
        return LARGEST_BATCH if at_zero <= room else 0
    return int((room - at_zero) // slope)
