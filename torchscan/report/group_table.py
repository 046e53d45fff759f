"""What was measured of processes that train together, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torchscan.errors import InputError
from torchscan.report.make_table import ColumnOf, durations, make_table, number, words
from torchscan.report.table import Cell, FullRemark, Table
from torchscan.runtime.group_run import GroupRun
from torchscan.runtime.run import RunFacts
from torchscan.wrong_arguments import explain_wrong_types

GroupRows = Literal["process", "layer"]


@explain_wrong_types
def group_table(group: GroupRun, by: GroupRows = "process") -> Table:
    """A process a row, with how far it is behind the fastest in a step; or a layer a row, with the least and most of all.

    Args:
        group: what :func:`open_run` reads of a folder that several processes have saved their inspections to.
        by: "process" or "layer".
    """
    if by not in get_args(GroupRows):
        raise InputError.of_choice("by", by, get_args(GroupRows))
    if by == "process":
        return make_table(
            "Processes",
            _columns_of_processes(group),
            group.runs,
            remarks=_remarks(group),
            noun="processes",
        )
    calls = group.runs[0].calls
    return make_table(
        "Processes",
        _columns_of_layers(group),
        range(len(calls)),
        [{"depth": call.depth} for call in calls],
        remarks=[*_remarks(group), *_unlike(group)],
        noun="calls",
    )


def _columns_of_processes(group: GroupRun) -> list[ColumnOf[RunFacts]]:
    lags = dict(zip(map(group.rank_of, group.runs), group.lags, strict=True))
    return [
        words("process", "Process", group.rank_of),
        durations("forward", "Forward", lambda run: run.forward.median or None),
        durations("backward", "Backward", lambda run: run.backward.median or None),
        durations("optimizer", "Optimizer", lambda run: run.optimizer.median or None, priority=2),
        durations("between", "Between", lambda run: run.between.median or None, priority=1),
        durations("period", "Step to step", lambda run: run.period.median or None, priority=3),
        durations("late", "Behind", lambda run: lags[group.rank_of(run)]),
    ]


def _columns_of_layers(group: GroupRun) -> list[ColumnOf[int]]:
    """Return columns for the indices of the calls that all processes have."""
    first = group.runs[0]
    runs = [run for run in group.runs if _keys(run) == _keys(first)]
    times = [[run.calls[index].time for run in runs] for index in range(len(first.calls))]

    def find_slowest(index: int) -> int | None:
        run = max(runs, key=lambda run: run.calls[index].time)
        return group.rank_of(run) if any(times[index]) else None

    def name(index: int) -> Cell:
        return Cell(first.calls[index].path, first.calls[index].name_in(first.calls))

    return [
        words("path", "Layer", name, min_width=12, truncate="head"),
        words("type", "Type", lambda index: first.calls[index].type_name, min_width=8, priority=1),
        durations("least", "Least", lambda index: min(times[index]) or None),
        durations("most", "Most", lambda index: max(times[index]) or None),
        number("slowest", "Slowest process", find_slowest, priority=2),
    ]


def _keys(run: RunFacts) -> list[tuple[str, int]]:
    return [(call.path, call.invocation) for call in run.calls]


def _unlike(group: GroupRun) -> list[str]:
    other = [str(group.rank_of(run)) for run in group.runs if _keys(run) != _keys(group.runs[0])]
    waits = ["Times include waiting, so that the slow process itself may show the least."]
    return [
        *waits,
        *(
            [f"Left out, because they have other calls: processes {', '.join(other)}."]
            if other
            else []
        ),
    ]


def _remarks(group: GroupRun) -> list[str]:
    said = [FullRemark(f"{str(each)[0].upper()}{str(each)[1:]}.") for each in group.stragglers]
    missing = (
        [f"Missing: {_listed(group.missing)} of {group.num_ranks}, which saved nothing."]
        if group.missing
        else []
    )
    return [*missing, *said, *_how(group)]


def _how(group: GroupRun) -> list[str]:
    run = group.runs[0]
    medians = f"Medians of {run.num_timed} steps on {run.provenance.device}"
    if not any(each.exchanges for each in group.runs):
        return [
            f"{medians}. Nothing is known of their collectives, so that nobody can be told to be "
            "behind."
        ]
    if None in group.lags:
        return [
            f"{medians}. Their collectives came too seldom to tell who is behind: measure more "
            "steps (steps=40, say)."
        ]
    number = len(run.exchanges)
    each = f"{number} collectives in a step" if number > 1 else "one collective in a step"
    behind = (
        "“Behind” is what a process needs for work of its own beyond what the others do, "
        "if clocks of several machines agree"
    )
    return [f"{medians}, with {each}. {behind}."]


def _listed(ranks: Sequence[int]) -> str:
    return f"process{'es' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
