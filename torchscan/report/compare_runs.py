"""Comparison of two inspected runs: times of calls, and whether a change exceeds their range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Literal

from torchscan import units
from torchscan.inspecting.run import CallRun, Latency, RunFacts
from torchscan.plain import to_plain
from torchscan.report.make_table import ColumnOf, make_table, number, totals_table, words
from torchscan.report.table import Cell, Table
from torchscan.results import RowsResult

Change = Literal["added", "removed", "changed"]

#: what is compared of a call, and what of a whole step, with what it is called
_OF_CALLS = {"forward": "Forward", "backward": "Backward"}
_OF_STEPS = {
    **_OF_CALLS,
    "storing_gradients": "of which storing gradients",
    "outside_modules": "of which outside modules",
}
#: how often, at most, a time that is the same in both runs may be marked
_MAX_CHANCE = 0.01
_SIGNS: Mapping[Change, str] = {"added": "+", "removed": "−", "changed": ""}
_CLEAR = "*"
_NONE = "–"


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
        return _median(self.after) - _median(self.before)

    @property
    def share(self) -> float | None:
        """The difference as a share of what it took before; None if that was nothing."""
        before = _median(self.before)
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
class RunComparison(RowsResult):
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

    @property
    def clear(self) -> tuple[CallChange, ...]:
        """The calls whose time has changed by more than the spread."""
        return tuple(call for call in self.calls if call.is_clear)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        content: dict[str, Any] = to_plain(self)
        return content

    def __repr__(self) -> str:
        """Short: there may be thousands of calls."""
        return f"<RunComparison: {len(self.calls)} calls, {len(self.clear)} changed beyond the variation>"


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
    return RunComparison(
        totals={
            name: _compare_times(getattr(before, name), getattr(after, name), steps)
            for name in _OF_STEPS
        },
        calls=tuple(changes),
        steps=steps,
        num_compared=num_compared,
        provenance=find_differences(provenance, asdict(after.provenance), provenance),
        on_device=(before.device is not None, after.device is not None),
        num_reshaped=len(reshaped),
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
        for name in _OF_CALLS
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
    if before is not None and after is not None and _are_enough(steps):
        is_clear = after.min > before.max or after.max < before.min
    return TimeChange(before=before, after=after, is_clear=is_clear)


def _are_enough(steps: tuple[int, int]) -> bool:
    return _chance(*steps) < _MAX_CHANCE


def _chance(before: int, after: int) -> float:
    """Return the probability that two ranges do not overlap by chance.

    Of the (m + n)! / (m! n!) equally likely orders of the steps of two runs, two have no overlap.
    """
    return min(1.0, 2 / math.comb(before + after, before))


def _median(latency: Latency | None) -> float:
    return 0.0 if latency is None else latency.median


# -- writing -------------------------------------------------------------------------------------


def run_comparison_table(comparison: RunComparison) -> Table:
    """The totals before and after, and the calls, those whose time changed most first."""
    columns = [
        words("change", "", _sign),
        words("layer", "Layer", _name, min_width=12, truncate="head"),
    ]
    for name in _OF_CALLS:
        if any(_medians(getattr(call, name)) for call in comparison.calls):
            columns += _columns(name)
    return make_table(
        "What changed",
        columns,
        comparison.calls,
        totals=[_totals(comparison)],
        totals_first=True,
        remarks=_remarks(comparison),
        noun="calls",
    )


def _sign(call: CallChange) -> Cell:
    return Cell(call.kind, _CLEAR if call.is_clear else _SIGNS[call.kind])


def _name(call: CallChange) -> str:
    repeated = f" ({call.invocation + 1})" if call.invocation else ""
    return f"{call.path or call.type_name}{repeated}"


def _columns(name: str) -> list[ColumnOf[CallChange]]:
    def cell(index: int) -> Callable[[CallChange], Cell]:
        return lambda call: _cells(getattr(call, name))[index]

    return [
        number(f"{name}_before", _OF_CALLS[name], cell(0), unit="s"),
        number(f"{name}_after", "now", cell(1), unit="s"),
        number(f"{name}_change", "%", cell(2)),
    ]


def _cells(change: TimeChange) -> list[Cell]:
    share = Cell(change.share, _share_text(change))
    return [*map(_latency_cell, (change.before, change.after)), share]


def _latency_cell(latency: Latency | None) -> Cell:
    if latency is None:
        return Cell(None, _NONE)
    return Cell(latency.median, units.duration(latency.median) if latency.median else _NONE)


def _share_text(change: TimeChange) -> str:
    """Return the change, in brackets where it is within the spread."""
    if change.share is None:
        return ""
    if not change.share:
        return "="
    text = f"{100 * change.share:+.1f}".replace("-", "−")
    return text if change.is_clear else f"({text})"


def _totals(comparison: RunComparison) -> Table:
    changes = [(name, change) for name, change in comparison.totals.items() if _medians(change)]
    rows = [[Cell(name, _OF_STEPS[name]), *_cells(change)] for name, change in changes]
    return totals_table(rows, ("", "before", "now", "%"))


def _medians(change: TimeChange) -> float:
    return _median(change.before) + _median(change.after)


def _remarks(comparison: RunComparison) -> list[str]:
    """Return what a reader must know to interpret the times."""
    remarks = _explain_marks(comparison)
    if any(comparison.on_device):
        times = {(True, True): "", (True, False): " before", (False, True): " now"}
        when = times[comparison.on_device]
        remarks.append(f"Times of calls are device times{when}; the totals are host times.")
    if comparison.num_reshaped:
        remarks.append(f"{comparison.num_reshaped} calls had inputs of different shapes.")
    return remarks + describe_differences("runs", comparison.provenance)


def _explain_marks(comparison: RunComparison) -> list[str]:
    """Return what the values are of, and which changes are marked."""
    before, after = comparison.steps
    medians = f"Medians of {before} steps before and {after} now."
    if not _are_enough(comparison.steps):
        return [medians, f"No change is marked: {_too_few(comparison.steps)}"]
    if not _are_enough(comparison.num_compared):
        one, other = comparison.num_compared
        those = f"their times are of {one} and {other} steps with the same calls"
        return [medians, f"No call is marked: {those}, and {_too_few(comparison.num_compared)}"]
    ranges = "the ranges of the steps, from min to max, do not overlap"
    return [
        medians,
        f"{_CLEAR} marks a change beyond the variation between steps: {ranges}.",
        "Changes in brackets are within that variation.",
    ]


def _too_few(steps: tuple[int, int]) -> str:
    chance = 100 * _chance(*steps)
    enough = next(number for number in count(1) if _are_enough((number, number)))
    often = f"{chance:.{0 if chance >= 9.95 else 1}f} %"
    return f"with so few steps, ranges differ by chance in {often} of cases. Measure {enough} steps of each."
