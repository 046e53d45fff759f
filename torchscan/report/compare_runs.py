"""Comparison of two inspected runs: times of calls, and whether a change exceeds their range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torchscan.inspecting.call_run import CallRun, Latency
from torchscan.inspecting.run import RunFacts
from torchscan.plain import to_plain
from torchscan.report.alignment import merge_orders
from torchscan.report.page_result import PageResult

Change = Literal["added", "removed", "changed"]

#: names of the passes that are compared of a call, and of the parts of a complete step
PASSES_OF_CALLS = {"forward": "Forward", "backward": "Backward"}
PARTS_OF_STEPS = {
    **PASSES_OF_CALLS,
    "storing_gradients": "of which storing gradients",
    "outside_modules": "of which outside modules",
}
#: probability, at most, that a time is marked that is the same in both runs
_MAX_CHANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChange:
    """A time before and after, or None where there was none."""

    before: Latency | None
    after: Latency | None
    #: True if the ranges (minimum to maximum) do not overlap, with enough steps that chance is
    #: unlikely
    is_clear: bool

    @property
    def difference(self) -> float:
        """Seconds after minus seconds before."""
        return median_or_zero(self.after) - median_or_zero(self.before)

    @property
    def share(self) -> float | None:
        """The difference as a share of what it took before; None if that was nothing."""
        before = median_or_zero(self.before)
        if not before or self.after is None:
            return None
        return self.difference / before


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChange:
    """One call of a module in both runs, or in one of them. Times are those of everything in it."""

    path: str
    invocation: int
    type_name: str
    kind: Change
    #: time on the device, if there is one, else on the host
    forward: TimeChange
    backward: TimeChange

    @property
    def is_clear(self) -> bool:
        """True if one of the times changed clearly: the ranges do not overlap."""
        return self.forward.is_clear or self.backward.is_clear

    @property
    def difference(self) -> float:
        """Seconds after minus seconds before, forward and backward together."""
        return self.forward.difference + self.backward.difference


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison(PageResult):
    """The difference between two inspected runs."""

    #: times of complete steps: "forward", "backward", and of the backward pass "storing_gradients"
    #: and "outside_modules"
    totals: Mapping[str, TimeChange]
    #: all calls, those whose time changed most first
    calls: tuple[CallChange, ...]
    #: measured steps, before and after
    steps: tuple[int, int]
    #: steps whose calls are compared, before and after; other steps have other calls
    num_compared: tuple[int, int]
    #: fields of the provenance that differ, with their values before and after
    provenance: Mapping[str, tuple[Any, Any]]
    #: number of calls with different input shapes
    num_reshaped: int
    #: True if the times of calls are the device's, before and after
    on_device: tuple[bool, bool]
    #: path and number of each call in the order of the model
    _order: tuple[tuple[str, int], ...] = field(default=(), repr=False, compare=False)

    @property
    def clear(self) -> tuple[CallChange, ...]:
        """The calls whose time has changed by more than the spread."""
        return tuple(call for call in self.calls if call.is_clear)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        content: dict[str, Any] = to_plain(self)
        del content["_order"]
        return content

    def __repr__(self) -> str:
        """Return a short text, as there may be thousands of calls."""
        clear = f"{len(self.clear)} changed beyond the variation"
        return f"<RunComparison: {len(self.calls)} calls, {clear}>"


def compare_runs(before: RunFacts, after: RunFacts) -> RunComparison:
    """Return the changes between two runs, with calls matched by module path and number."""
    old = {(call.path, call.invocation): call for call in before.calls}
    new = {(call.path, call.invocation): call for call in after.calls}
    steps = (before.steps, after.steps)
    num_compared = (before.num_timed, after.num_timed)
    keys = dict.fromkeys([*new, *old])
    changes = [_compare_calls(old.get(key), new.get(key), num_compared) for key in keys]
    changes.sort(key=lambda change: -abs(change.difference))
    common = old.keys() & new.keys()
    reshaped = [key for key in common if old[key].input_shapes != new[key].input_shapes]
    provenance = asdict(before.provenance)
    totals = {}
    for name in PARTS_OF_STEPS:
        totals[name] = _compare_times(getattr(before, name), getattr(after, name), steps)
    return RunComparison(
        totals=totals,
        calls=tuple(changes),
        steps=steps,
        num_compared=num_compared,
        provenance=find_differences(provenance, asdict(after.provenance), provenance),
        on_device=(before.device is not None, after.device is not None),
        num_reshaped=len(reshaped),
        _order=tuple(merge_orders(list(old), list(new))),
    )


def change_of(before: object | None, after: object | None) -> Change:
    """Return how a row changed that is missing before, or after, if it is None there."""
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def find_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], names: Iterable[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the values before and after of the names that differ."""
    differences = {}
    for name in names:
        old, new = before.get(name), after.get(name)
        if old != new:
            differences[name] = (old, new)
    return differences


def describe_differences(
    what: str, differences: Mapping[str, tuple[Any, Any]], text: Callable[[Any], str] = str
) -> list[str]:
    """Return a sentence for each value that differs between two reports or runs."""
    sentences = []
    for name, (before, after) in differences.items():
        values = f"{text(before)} before, {text(after)} now"
        sentences.append(f"The {what} differ in {name.replace('_', ' ')}: {values}.")
    return sentences


def _compare_calls(
    before: CallRun | None, after: CallRun | None, steps: tuple[int, int]
) -> CallChange:
    call = after or before
    assert call is not None  # noqa: S101 - one of them is there
    times = {
        name: _compare_times(_latency_of(before, name), _latency_of(after, name), steps)
        for name in PASSES_OF_CALLS
    }
    return CallChange(
        path=call.path,
        invocation=call.invocation,
        type_name=call.type_name,
        kind=change_of(before, after),
        **times,
    )


def _latency_of(call: CallRun | None, name: str) -> Latency | None:
    if call is None:
        return None
    host: Latency = getattr(call, name)
    device: Latency | None = getattr(call, f"device_{name}")
    return host if device is None else device


def _compare_times(
    before: Latency | None, after: Latency | None, steps: tuple[int, int]
) -> TimeChange:
    is_clear = False
    if before is not None and after is not None and are_enough(steps):
        is_clear = after.min > before.max or after.max < before.min
    return TimeChange(before=before, after=after, is_clear=is_clear)


def are_enough(steps: tuple[int, int]) -> bool:
    """Return whether ranges of so many steps are unlikely to differ by chance."""
    return chance_of_no_overlap(*steps) < _MAX_CHANCE


def chance_of_no_overlap(before: int, after: int) -> float:
    """Return the probability that two ranges do not overlap by chance.

    Of the (m + n)! / (m! n!) equally likely orders of the steps of two runs, two have no overlap.
    """
    return min(1.0, 2 / math.comb(before + after, before))


def median_or_zero(latency: Latency | None) -> float:
    """Return the median in seconds, or 0 if there was no such call."""
    return 0.0 if latency is None else latency.median
