"""What an inspection found, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchscan import units
from torchscan.report.run_remarks import remarks_of
from torchscan.report.table import (
    NONE,
    Cell,
    Column,
    Row,
    Scaling,
    Table,
    in_one_unit,
    totals_table,
)
from torchscan.runtime.expected import Expected
from torchscan.runtime.run import CallRun, Inspected, Latency, RunFacts
from torchscan.wrong_arguments import explain_wrong_types

#: a call that takes a smaller share of the step is not worth a mark
_MIN_SHARE = 0.01
_SLOW = "* "
#: how soon text that is too narrow leaves a column out
_HOST, _EVALUATION, _MEMORY, _RATE, _EXPECTED, _TYPE = 6, 5, 4, 3, 2, 1
#: counts of values that are not finite, and how they are called
_COUNTS = {"forward": "", "grad_out": "grad ", "grad_in": "grad in "}


@explain_wrong_types
def run_table(run: Inspected, *, max_depth: int | None = 3) -> Table:
    """Each call with everything in it, down to ``max_depth`` (None: all); the totals have what belongs to no module.

    CSV and JSON always have all columns.
    """
    run = run.facts
    shown = [call for call in run.calls if max_depth is None or call.depth <= max_depth]
    figures = [*_names(run), *_times(run), *_expectation(run), *_others(run)]
    columns, cells = zip(*(each.written(shown) for each in figures), strict=True)
    return Table(
        title="Measured steps",
        columns=columns,
        rows=[_row(*each) for each in zip(shown, zip(*cells, strict=True), strict=True)],
        totals=_totals(run),
        remarks=[*remarks_of(run), *_deeper(run, max_depth)],
        noun="calls",
    )


@dataclass(frozen=True, slots=True)
class _Figure:
    """A column, and how it is taken from a call."""

    column: Column
    cell: Callable[[CallRun], Cell]
    #: the unit that its figures share; None: they are written one by one
    scale: Scaling | None = None

    def written(self, calls: Sequence[CallRun]) -> tuple[Column, list[Cell]]:
        cells = [self.cell(call) for call in calls]
        return (
            (self.column, cells)
            if self.scale is None
            else in_one_unit(self.column, [each.value for each in cells], self.scale)
        )


def _deeper(run: RunFacts, max_depth: int | None) -> list[str]:
    number = sum(max_depth is not None and call.depth > max_depth for call in run.calls)
    return [f"{number} calls deeper than {max_depth} are in those above them."] if number else []


def _row(call: CallRun, cells: Sequence[Cell]) -> Row:
    return Row(cells=cells, depth=call.depth, full_name=call.path)


# -- columns -------------------------------------------------------------------------------------------------------------


def _names(run: RunFacts) -> list[_Figure]:
    path = Column(key="path", heading="Layer", is_number=False, min_width=16, truncate="head")
    type_ = Column(key="type", heading="Type", is_number=False, min_width=10, priority=_TYPE)
    return [
        _Figure(path, lambda call: Cell(call.path, _name(call, run))),
        _Figure(
            _for_programs("invocation"), lambda call: Cell(call.invocation, str(call.invocation))
        ),
        _Figure(_for_programs("is_again"), lambda call: Cell(call.is_again, str(call.is_again))),
        _Figure(type_, lambda call: Cell(call.type_name, call.type_name)),
    ]


def _name(call: CallRun, run: RunFacts) -> str:
    marks = [
        *([str(call.invocation + 1)] if call.invocation else []),
        *(["again"] if call.is_again else []),
    ]
    return call.name_in(run.calls) + (f" ({', '.join(marks)})" if marks else "")


def _times(run: RunFacts) -> list[_Figure]:
    """Those of the device first, where there is one."""
    is_on_device = run.device is not None
    trains = bool(run.backward.median)
    host = " on host" if is_on_device else ""
    share = Column(key="share", heading="of time", bars="memory")
    return [
        _time("device_forward", "Forward", is_shown=is_on_device),
        _time("device_backward", "Backward", is_shown=is_on_device and trains),
        _time("forward", f"Forward{host}", priority=_HOST if is_on_device else 0),
        _time(
            "backward", f"Backward{host}", is_shown=trains, priority=_HOST if is_on_device else 0
        ),
        _evaluation(run),
        _Figure(
            share,
            lambda call: Cell(found := _share(call, run), units.share(found) if found else NONE),
        ),
    ]


def _evaluation(run: RunFacts) -> _Figure:
    """Return the time of the same call in forward passes without a backward pass."""
    calls = () if run.evaluation is None else run.evaluation.calls
    times = {(call.path, call.invocation): call.device_forward or call.forward for call in calls}
    column = Column(
        key="evaluation",
        heading="Evaluation",
        unit="s",
        is_shown=bool(times),
        priority=_EVALUATION,
    )
    return _Figure(
        column,
        lambda call: _duration(times.get((call.path, call.invocation))),
        units.scale_of_durations,
    )


def _time(key: str, heading: str, **options: Any) -> _Figure:
    column = Column(key=key, heading=heading, unit="s", **options)
    return _Figure(column, lambda call: _duration(getattr(call, key)), units.scale_of_durations)


def _duration(latency: Latency | None) -> Cell:
    return _seconds(None if latency is None else latency.median)


def _seconds(time: float | None) -> Cell:
    return Cell(time, units.duration(time) if time else NONE)


def _share(call: CallRun, run: RunFacts) -> float:
    """Of a step, forward and backward."""
    return call.time / run.step_time if run.step_time else 0.0


def _expectation(run: RunFacts) -> list[_Figure]:
    is_known = run.expected is not None
    expected = Column(
        key="expected", heading="Expected", unit="s", is_shown=is_known, priority=_EXPECTED
    )
    return [
        _Figure(expected, lambda call: _seconds(call.expected_time), units.scale_of_durations),
        _Figure(
            Column(key="ratio", heading="×", is_shown=is_known), lambda call: _ratio(call, run)
        ),
    ]


def _ratio(call: CallRun, run: RunFacts) -> Cell:
    """What was measured, of what is expected."""
    if not call.expected_time or not call.time:
        return Cell(None, NONE)
    ratio = call.time / call.expected_time
    is_slow = (
        run.expected is not None
        and ratio > 1 + run.expected.share_off
        and _share(call, run) >= _MIN_SHARE
    )
    return Cell(ratio, f"{_SLOW if is_slow else ''}{ratio:.{1 if ratio < 100 else 0}f}")


def _others(run: RunFacts) -> list[_Figure]:
    has_rates = any(call.flops_per_second for call in run.calls)
    rate = Column(key="flops_per_second", heading="FLOP/s", is_shown=has_rates, priority=_RATE)
    memory = Column(key="total_memory", heading="Memory", unit="B", priority=_MEMORY)
    return [
        _Figure(rate, lambda call: Cell(call.flops_per_second, ""), units.scale_of_counts),
        _Figure(memory, lambda call: Cell(call.total_memory, ""), units.scale_of_memory),
        *(
            _count(f"{where}_{what.lower()}", f"{said}{what}", run)
            for where, said in _COUNTS.items()
            for what in ("NaN", "Inf")
        ),
    ]


def _count(key: str, said: str, run: RunFacts) -> _Figure:
    """Shown if there are any; what enters a module is the gradient that what it was given gets, and left to programs."""
    is_shown = not key.startswith("grad_in") and any(getattr(call, key) for call in run.calls)
    column = Column(key=key, heading=said[0].upper() + said[1:], is_shown=is_shown)
    return _Figure(
        column,
        lambda call: Cell(found := getattr(call, key), units.exact(found) if found else NONE),
    )


def _for_programs(key: str) -> Column:
    return Column(key=key, heading=key, is_shown=False)


# -- totals --------------------------------------------------------------------------------------------------------------


def _totals(run: RunFacts) -> list[Table]:
    attained = (
        []
        if run.expected is None or run.attained is None
        else [_attained(run.expected, run.attained)]
    )
    return [_phases(run), *attained] if run.steps else []


def _phases(run: RunFacts) -> Table:
    """Of the whole step; both passes on the device, where there is one."""
    passes = run.device or run
    rows = [("Forward", passes.forward, "forward")]
    if run.backward.median:
        rows += [
            ("Backward", passes.backward, "backward"),
            ("of which storing gradients", passes.storing, "storing"),
        ]
        rows += [("of which no module's", passes.unowned, "unowned")]
    rows += [("Optimizer", run.optimizer, "optimizer")] if run.optimizer.median else []
    if run.period.median:
        rows += [("Between steps", run.between, "between"), ("Step to step", run.period, "period")]
    if run.evaluation is not None:
        evaluation = run.evaluation.device_forward or run.evaluation.forward
        rows += [("Evaluation, forward only", evaluation, "evaluation")]
    cells = [
        [Cell(key, name), _duration(each), _range(each), *_expected(key, run.expected)]
        for name, each, key in rows
    ]
    return totals_table(
        cells, ("", "median", "least … most", *(["expected"] if run.expected else []))
    )


def _range(latency: Latency) -> Cell:
    return Cell(
        (latency.min, latency.max),
        f"{units.duration(latency.min)} … {units.duration(latency.max)}",
    )


def _expected(key: str, expected: Expected | None) -> list[Cell]:
    if expected is None:
        return []
    time = {"forward": expected.forward, "backward": expected.backward}.get(key)
    return [Cell(time, units.duration(time) if time else "")]


def _attained(expected: Expected, attained: float) -> Table:
    peaks = ", ".join(
        f"{units.count(peak, 'FLOP/s', 1)} {form}" for form, peak in expected.peaks.items()
    )
    said = f"of {peaks}, dense, on {expected.device}" if peaks else f"on {expected.device}"
    percent = f"{100 * attained:.{1 if attained >= _MIN_SHARE else 3}f} %"
    table = totals_table(
        [[Cell("attained", "MFU"), Cell(attained, percent), Cell(said, said)]], ("", "", "")
    )
    *figures, words = table.columns
    return replace(table, columns=[*figures, replace(words, key="of", is_number=False)])
