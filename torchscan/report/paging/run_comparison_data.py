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
    Change,
    RunComparison,
    TimeChange,
    median_or_zero,
)
from torchscan.report.paging.compared_rows import PageSide, PairedRows, row_of_call
from torchscan.report.paging.comparison_data import title_of
from torchscan.report.paging.page_data import verdict_of
from torchscan.report.paging.row_values import label_of, rounded, truncate_text
from torchscan.report.run_comparison_table import run_remarks, share_text


def run_comparison_data(
    comparison: RunComparison, names: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Return the data of the page: times of steps, and of calls as a tree by their paths."""
    calls = {(call.path, call.invocation): call for call in comparison.calls}
    ordered = _in_tree_order([calls[key] for key in comparison._order])
    sides = _side(ordered, "before", "added"), _side(ordered, "after", "removed")
    shown = list(map(printable, names or ("first run", "second run")))
    pages = []
    for title, side in zip(shown, sides, strict=True):
        pages.append({"title": title, "question": [], **side.content})
    return {
        "title": title_of(shown),
        "question": ["two inspected runs"],
        "verdicts": _verdicts(comparison.totals),
        "rows": _paired_rows(ordered, *sides),
        "sides": pages,
        "remarks": list(map(printable, run_remarks(comparison, "~"))),
        "error": "",
    }


def _paired_rows(
    calls: Sequence[CallChange], before: PageSide, after: PageSide
) -> list[dict[str, Any]]:
    """Return the rows of both runs, with the passes whose time may have changed by chance."""

    def describe(_: int, other: int) -> list[str]:
        texts = []
        for name, label in PASSES_OF_CALLS.items():
            change: TimeChange = getattr(calls[after.layers[other]], name)
            if change.is_clear:
                texts.append(f"{label.lower()} {share_text(change)} %")
        return texts

    aligned = {index: index for index in range(len(calls))}
    rows = PairedRows(before, after, aligned, describe).rows()
    for row in rows:
        one, other = row["sides"]
        if one is not None and other is not None:
            call = calls[after.layers[other]]
            row["unclear"] = [name for name in PASSES_OF_CALLS if not getattr(call, name).is_clear]
    return rows


def _in_tree_order(calls: Sequence[CallChange]) -> list[CallChange]:
    """Return the calls so that each comes after the call that it is in."""
    paths = {call.path for call in calls}
    inside: dict[str | None, list[CallChange]] = {}
    for call in calls:
        inside.setdefault(_parent_of(call.path, paths), []).append(call)
    ordered: list[CallChange] = []
    waiting = list(reversed(inside.get(None, [])))
    while waiting:
        call = waiting.pop()
        ordered.append(call)
        waiting += reversed(inside.pop(call.path, []))  # in its first call
    return ordered


def _parent_of(path: str, paths: set[str]) -> str | None:
    """Return the path of the nearest module around this one, or None if there is none."""
    while path:
        path = path.rpartition(".")[0]
        if path in paths:
            return path
    return None


def _side(calls: Sequence[CallChange], when: str, missing: Change) -> PageSide:
    """Return the rows of one run, which has all calls but those that are ``missing``."""
    present = {call.path for call in calls if call.kind != missing}
    first: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    layers = []
    for index, call in enumerate(calls):
        if call.kind == missing:
            continue
        parent = _parent_of(call.path, present)
        relative = call.path.removeprefix(f"{parent}.") if parent else call.path
        above = None if parent is None else first[parent]
        row = row_of_call(call.path, call.invocation, call.type_name, above)
        row["name"] = truncate_text(label_of(relative or call.type_name, call.invocation))
        for name in PASSES_OF_CALLS:
            latency = getattr(getattr(call, name), when)
            if latency is not None:
                row[name] = rounded(latency.median)
        first.setdefault(call.path, len(rows))
        rows.append(row)
        layers.append(index)
    return PageSide(rows=rows, layers=layers)


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
