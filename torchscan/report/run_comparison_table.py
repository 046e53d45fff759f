"""Comparison of two inspected runs as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from operator import attrgetter

from torchscan import units
from torchscan.report.layer_moves import describe_moves
from torchscan.report.make_table import ColumnOf, make_table, number, totals_table, words
from torchscan.report.run_comparison import (
    PARTS_OF_STEPS,
    PASSES_OF_CALLS,
    CallChange,
    Change,
    RunComparison,
    describe_differences,
)
from torchscan.report.sentence_formats import name_call
from torchscan.report.table import Table
from torchscan.report.table_rows import NONE, Cell
from torchscan.report.time_changes import (
    TimeChange,
    are_enough,
    chance_of_no_overlap,
    median_or_zero,
)

_SIGNS: Mapping[Change, str] = {"added": "+", "removed": "−", "changed": ""}
_CLEAR = "*"
#: number of steps of each run from which on quartiles are rarely apart by chance
_MIN_STEPS_OF_QUARTILES = 14


def run_comparison_table(comparison: RunComparison) -> Table:
    """Return the totals before and after, and the calls, those whose time changed most first."""

    def sign(call: CallChange) -> Cell:
        return Cell(call.kind, _CLEAR if call.is_clear else _SIGNS[call.kind])

    def name_of(call: CallChange) -> str:
        return name_call(call.path or call.type_name, call.invocation)

    columns = [
        words("change", "", sign),
        words("layer", "Layer", name_of, min_width=12, truncate="head"),
    ]
    changes = [(name, change) for name, change in comparison.totals.items() if _medians(change)]
    totals = [[Cell(name, PARTS_OF_STEPS[name]), *_cells(change)] for name, change in changes]
    priority = 0
    for name in PASSES_OF_CALLS:
        if any(_medians(getattr(call, name)) for call in comparison.calls):
            columns += _columns(name, priority)
            priority += 1
    return make_table(
        "What changed",
        columns,
        comparison.calls,
        totals=[totals_table(totals, ("", "before", "now", "%"))],
        totals_first=True,
        remarks=run_remarks(comparison),
        noun="calls",
    )


def _columns(name: str, priority: int) -> list[ColumnOf[CallChange]]:
    """Return the three columns of a pass, which are hidden together."""
    take = attrgetter(name)

    def cell(index: int) -> Callable[[CallChange], Cell]:
        return lambda call: _cells(take(call))[index]

    return [
        number(f"{name}_before", PASSES_OF_CALLS[name], cell(0), unit="s", priority=priority),
        number(f"{name}_after", "now", cell(1), unit="s", priority=priority),
        number(f"{name}_change", "%", cell(2), priority=priority),
    ]


def _cells(change: TimeChange) -> list[Cell]:
    cells = []
    for latency in (change.before, change.after):
        median = None if latency is None else latency.median
        cells.append(Cell(median, units.duration(median) if median else NONE))
    return [*cells, Cell(change.share, share_text(change))]


def share_text(change: TimeChange) -> str:
    """Return the change, in brackets where it is within the spread."""
    if change.share is None:
        return ""
    if not change.share:
        return "="
    text = units.change(change.share, 1)
    if change.is_clear:
        return text
    return f"({text})"


def _medians(change: TimeChange) -> float:
    return median_or_zero(change.before) + median_or_zero(change.after)


def run_remarks(comparison: RunComparison, mark: str = _CLEAR) -> list[str]:
    """Return what a reader must know to interpret the times, and where ``mark`` stands."""
    remarks = [*describe_moves(comparison.moved), *_explain_marks(comparison, mark)]
    was_on_device, is_on_device = comparison.on_device
    if was_on_device or is_on_device:
        when = ""
        if not is_on_device:
            when = " before"
        elif not was_on_device:
            when = " now"
        remarks.append(f"Times of calls are device times{when}; the totals are host times.")
    if comparison.num_reshaped:
        remarks.append(f"{comparison.num_reshaped} calls had inputs of different shapes.")
    return remarks + describe_differences("runs", comparison.provenance)


def _explain_marks(comparison: RunComparison, mark: str) -> list[str]:
    """Return what the values are of, and which changes are marked."""
    before, after = comparison.steps
    medians = f"Medians of {before} steps before and {after} now."
    if not are_enough(comparison.steps):
        return [medians, f"No change is marked: {_too_few(comparison.steps)}"]
    if not are_enough(comparison.num_compared):
        one, other = comparison.num_compared
        those = f"their times are of {one} and {other} steps with the same calls"
        return [medians, f"No call is marked: {those}, and {_too_few(comparison.num_compared)}"]
    has_quartiles = any(total.has_quartiles for total in comparison.totals.values())
    has_enough = are_enough(comparison.num_compared, for_quartiles=True)
    by_quartiles = "interquartile ranges of the step times"
    compared = "ranges of the steps, from min to max,"
    if has_quartiles and has_enough:
        compared = by_quartiles
    rule = (
        f"{mark} marks a change beyond the variation between steps: the {compared} do not overlap"
    )
    if has_quartiles and not has_enough and are_enough(comparison.steps, for_quartiles=True):
        rule += f"; for totals, which are of more steps, the {by_quartiles}"
    within = "Changes in brackets are within that variation."
    if not has_enough:
        within += (
            " One slow step widens a range: measure at least "
            f"{_MIN_STEPS_OF_QUARTILES} steps of each run to compare quartiles."
        )
    elif not has_quartiles:
        within += " One slow step widens a range: save both runs with this version of torchscan."
    return [medians, f"{rule}.", within]


def _too_few(steps: tuple[int, int]) -> str:
    percent = 100 * chance_of_no_overlap(*steps)
    digits = 0 if percent >= 9.95 else 1
    enough = next(number for number in count(1) if are_enough((number, number)))
    return (
        f"with so few steps, ranges differ by chance in {percent:.{digits}f} % of cases. Measure "
        f"{enough} steps of each."
    )
