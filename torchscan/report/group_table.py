"""Tables of the ranks of an inspected run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal, get_args

from torchscan.errors import InputError
from torchscan.inspecting.group_run import GroupRun
from torchscan.inspecting.run import RunFacts
from torchscan.report import verdict_texts  # noqa: F401 - registers sentences of verdicts
from torchscan.report.make_table import ColumnOf, durations, make_table, number, words
from torchscan.report.run_texts import to_remark
from torchscan.report.table import Conclusion, Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

GroupRows = Literal["process", "layer"]


@explain_wrong_types
def group_table(group: GroupRun, by: GroupRows = "process") -> Table:
    """Return one row per rank, with its lag, or one per layer, with the min and max of all ranks.

    Args:
        group: what :func:`open_run` reads from a folder that several ranks have saved their
            inspections to.
        by: "process" or "layer".
    """
    if by not in get_args(GroupRows):
        raise InputError.of_choice("by", by, get_args(GroupRows))
    if by == "process":
        return make_table(
            "Ranks",
            _columns_of_ranks(group),
            group.runs,
            remarks=_remarks(group),
            noun="ranks",
        )
    calls = group.runs[0].calls
    return make_table(
        "Layers of all ranks",
        _columns_of_layers(group),
        range(len(calls)),
        [{"depth": call.depth} for call in calls],
        remarks=[*_remarks(group), *_notes_on_layers(group)],
        noun="calls",
    )


def _columns_of_ranks(group: GroupRun) -> list[ColumnOf[RunFacts]]:
    lags = dict(zip(map(group.rank_of, group.runs), group.lags, strict=True))
    return [
        words("process", "Rank", group.rank_of),
        durations("forward", "Forward", _median("forward")),
        durations("backward", "Backward", _median("backward")),
        durations("optimizer", "Optimizer", _median("optimizer"), priority=2),
        durations("between", "Between", _median("between"), priority=1),
        durations("period", "Step to step", _median("period"), priority=3),
        durations("late", "Lag", lambda run: lags[group.rank_of(run)]),
    ]


def _median(interval: str) -> Callable[[RunFacts], float | None]:
    """Return a function for the median of an interval, which returns None for 0."""
    take = attrgetter(f"{interval}.median")
    return lambda run: take(run) or None


def _columns_of_layers(group: GroupRun) -> list[ColumnOf[int]]:
    """Return columns for the indices of the calls that all ranks have."""
    calls = group.runs[0].calls
    keys = _keys(group.runs[0])
    runs = [run for run in group.runs if _keys(run) == keys]
    times_by_run = [map(attrgetter("time"), run.calls) for run in runs]
    times = list(zip(*times_by_run, strict=True))

    def find_slowest(index: int) -> int | None:
        slowest = times[index].index(max(times[index]))
        return group.rank_of(runs[slowest]) if any(times[index]) else None

    def name(index: int) -> Cell:
        return Cell(calls[index].path, calls[index].name_in(calls))

    return [
        words("path", "Layer", name, min_width=12, truncate="head"),
        words("type", "Type", lambda index: calls[index].type_name, min_width=8, priority=1),
        durations("least", "Min", lambda index: min(times[index]) or None),
        durations("most", "Max", lambda index: max(times[index]) or None),
        number("slowest", "Slowest rank", find_slowest, priority=2),
    ]


def _keys(run: RunFacts) -> list[tuple[str, int]]:
    return [(call.path, call.invocation) for call in run.calls]


def _notes_on_layers(group: GroupRun) -> list[str]:
    waits = "Times include waiting, so the slowest rank itself may show the minimum."
    other = [group.rank_of(run) for run in group.runs if _keys(run) != _keys(group.runs[0])]
    if not other:
        return [waits]
    verb = "has" if len(other) == 1 else "have"
    return [waits, f"Left out: {_name_ranks(other)}, which {verb} different calls."]


def _remarks(group: GroupRun) -> list[str]:
    remarks = []
    if group.missing:
        ranks = f"{_name_ranks(group.missing)} of {group.num_ranks}"
        remarks.append(f"Missing: {ranks}, which saved nothing.")
    remarks += [to_remark(each) for each in group.stragglers]
    remarks.append(_note_on_lags(group))
    if group.verdict is not None:
        remarks.append(Conclusion(f"Verdict: {group.verdict}."))
    return remarks


def _note_on_lags(group: GroupRun) -> str:
    run = group.runs[0]
    medians = f"Medians of {run.num_timed} steps on {run.provenance.device}"
    if not any(each.exchanges for each in group.runs):
        return f"{medians}. No collectives were recorded, so stragglers cannot be identified."
    if None in group.lags:
        return (
            f"{medians}. Too few collectives were recorded to identify stragglers: measure 40 "
            "steps or more."
        )
    number = len(run.exchanges)
    each = f"{number} collectives in a step" if number > 1 else "one collective in a step"
    return (
        f"{medians}, with {each}. Lag is the extra time of a rank's own work, compared with the "
        "other ranks. Clocks of several machines must agree."
    )


def _name_ranks(ranks: Sequence[int]) -> str:
    noun = "ranks" if len(ranks) > 1 else "rank"
    return f"{noun} {', '.join(map(str, ranks))}"
