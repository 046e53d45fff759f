"""Times of calls and passes over all steps of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.inspecting.facts import InspectedCall
from torchscan.plain import stored_as

_NANOSECONDS = 1e-9
#: modules that are named if a step takes too long
_MAX_LAYERS = 5


@stored_as(min="least", max="most")
class Latency(NamedTuple):
    """Seconds that something took in several steps."""

    #: median over the steps, in seconds
    median: float
    #: minimum over the steps, in seconds
    min: float
    #: maximum over the steps, in seconds
    max: float
    #: lower quartile over the steps, in seconds; None in runs saved by older versions
    lower_quartile: float | None = None
    #: upper quartile over the steps, in seconds; None in runs saved by older versions
    upper_quartile: float | None = None

    @classmethod
    def of(cls, nanoseconds: Iterable[int]) -> Latency:
        """Return the latency over several steps."""
        seconds = sorted(each * _NANOSECONDS for each in nanoseconds)
        if not seconds:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        quarter = num_outside_quartile(len(seconds))
        quartiles = seconds[quarter], seconds[-1 - quarter]
        return cls(statistics.median(seconds), seconds[0], seconds[-1], *quartiles)


def num_outside_quartile(num_steps: int) -> int:
    """Return the number of steps below the lower quartile, and of those above the upper one."""
    return max(num_steps - 1, 0) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRun(InspectedCall):
    """A call over all steps, with everything inside it."""

    #: host times of the forward pass
    forward: Latency
    #: host times of the autograd nodes that the call created
    backward: Latency
    #: forward times on the device, or None without one; they may add up to more than the host's
    device_forward: Latency | None
    #: backward times on the device, or None without one
    device_backward: Latency | None
    #: MACs of the forward pass with everything inside it, or None if not known
    macs: int | None
    #: FLOPs of the forward pass with everything inside it, or None if not known
    flops: int | None
    #: expected seconds of the forward pass with everything inside it, or None
    expected_forward: float | None
    #: expected seconds of the backward pass with everything inside it, or None
    expected_backward: float | None

    @property
    def device_time(self) -> float | None:
        """Seconds on the device, forward and backward, in the median, or None without one."""
        latencies = (self.device_forward, self.device_backward)
        times = [each.median for each in latencies if each is not None]
        return sum(times) if times else None

    @property
    def time(self) -> float:
        """Seconds forward and backward, in the median: on the device or, without one, the host."""
        device_time = self.device_time
        return self.forward.median + self.backward.median if device_time is None else device_time

    @property
    def flops_per_second(self) -> float | None:
        """FLOP/s of the forward pass, on the device if there is one, else on the host."""
        latency = self.forward if self.device_forward is None else self.device_forward
        return None if self.flops is None or not latency.median else self.flops / latency.median

    @property
    def expected_time(self) -> float | None:
        """Expected seconds, forward and backward, or None if nothing is expected."""
        expected = (self.expected_forward, self.expected_backward)
        times = [each for each in expected if each is not None]
        return sum(times) if times else None

    def name_in(self, calls: Sequence[CallRun]) -> str:
        """Return the path of the module as seen from the call that it is in.

        The path of another part of the model is complete.
        """
        outer = "" if self.parent is None else calls[self.parent].path
        return self.path.removeprefix(f"{outer}." if outer else "") or self.type_name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRun:
    """The passes of a step on the device."""

    #: device times of the forward pass
    forward: Latency
    #: device times of the backward pass
    backward: Latency
    #: device times of accumulating gradients, in the backward pass
    storing_gradients: Latency
    #: device times of the backward pass outside modules
    outside_modules: Latency
    #: share of the time in which the device had finished all its work and waited for the host
    waiting: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRun:
    """Forward passes without a backward pass in a run that trains, for example of a validation."""

    #: number of passes
    passes: int
    #: number of timed passes: the most common kind and, of more than a thousand, a sample
    timed: int
    #: host times of the model's call
    forward: Latency
    #: device times of the model's call, or None without a device
    device_forward: Latency | None
    calls: tuple[CallRun, ...]

    @property
    def time(self) -> float:
        """Seconds of a pass, in the median: on the host or, if that takes longer, on the device."""
        on_device = 0.0 if self.device_forward is None else self.device_forward.median
        return max(self.forward.median, on_device)


def slowest_modules(calls: Sequence[CallRun]) -> list[tuple[str, float]]:
    """Return the modules that call no others and their times in seconds, the slowest first."""
    outer = {call.parent for call in calls}
    inner = [call for number, call in enumerate(calls) if number not in outer]
    times = [(f"{call.path or 'the model'} ({call.type_name})", call.time) for call in inner]
    return sorted(times, key=lambda each: -each[1])[:_MAX_LAYERS]
