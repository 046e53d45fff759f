"""Everything that the page of a comparison of two inspected runs shows, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchscan import units
from torchscan.escapes import printable
from torchscan.report.compare_runs import (
    PARTS_OF_STEPS,
    PASSES_OF_CALLS,
    CallChange,
    PlacedCall,
    RunComparison,
)
from torchscan.report.paging.compared_rows import PageSide, PairedRows, row_of_call
from torchscan.report.paging.comparison_data import title_of
from torchscan.report.paging.page_data import verdict_of
from torchscan.report.paging.row_values import label_of, rounded, truncate_text
from torchscan.report.run_comparison_table import run_remarks, share_text
from torchscan.report.time_changes import TimeChange, median_or_zero


def run_comparison_data(
    comparison: RunComparison, names: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Return the data of the page: times of steps, and of calls as a tree, aligned as in text."""
    sides = [
        _side(order, comparison.calls, when)
        for order, when in zip(comparison._orders, ("before", "after"), strict=True)
    ]
    shown = list(map(printable, names or ("first run", "second run")))
    pages = []
    for title, side in zip(shown, sides, strict=True):
        pages.append({"title": title, "question": [], **side.content})
    return {
        "title": title_of(shown),
        "question": ["two inspected runs"],
        "verdicts": _verdicts(comparison.totals),
        "rows": _paired_rows(comparison, *sides),
        "sides": pages,
        "remarks": list(map(printable, run_remarks(comparison, "~"))),
        "error": "",
    }


def _side(order: Sequence[PlacedCall], calls: Sequence[CallChange], when: str) -> PageSide:
    """Return the rows of one run."""
    rows = []
    for placed in order:
        row = row_of_call(placed.path, placed.invocation, placed.type_name, placed.parent)
        row["name"] = truncate_text(label_of(placed.name, placed.invocation))
        for name in PASSES_OF_CALLS:
            latency = getattr(getattr(calls[placed.number], name), when)
            if latency is not None:
                row[name] = rounded(latency.median)
        rows.append(row)
    return PageSide(rows=rows, layers=range(len(rows)))


def _paired_rows(
    comparison: RunComparison, before: PageSide, after: PageSide
) -> list[dict[str, Any]]:
    """Return the rows of both runs, with the passes whose time may have changed by chance."""
    old, new = comparison._orders
    index_after = {placed.number: index for index, placed in enumerate(new)}
    aligned = {}
    for index, placed in enumerate(old):
        if placed.number in index_after:
            aligned[index] = index_after[placed.number]

    def describe(_: int, other: int) -> list[str]:
        texts = []
        for name, label in PASSES_OF_CALLS.items():
            change: TimeChange = getattr(comparison.calls[new[other].number], name)
            if change.is_clear:
                texts.append(f"{label.lower()} {share_text(change)} %")
        return texts

    rows = PairedRows(before, after, aligned, describe).rows()
    for row in rows:
        one, other = row["sides"]
        if one is not None and other is not None:
            call = comparison.calls[new[other].number]
            row["unclear"] = [name for name in PASSES_OF_CALLS if not getattr(call, name).is_clear]
    return rows


def _verdicts(totals: Mapping[str, TimeChange]) -> list[dict[str, Any]]:
    """Return the times of a step before and after at the top of the page."""
    verdicts = []
    for name, change in totals.items():
        before, after = median_or_zero(change.before), median_or_zero(change.after)
        if not before and not after:
            continue
        value = f"{units.duration(before)} → {units.duration(after)}"
        share = share_text(change).strip("()")
        facts = [f"{share} %" if share and share != "=" else "no difference"]
        if not change.is_clear:
            facts.append("within the variation between steps")
        verdicts.append(verdict_of(PARTS_OF_STEPS[name], value, *facts))
    return verdicts
