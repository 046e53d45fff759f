"""What was measured of processes that train together, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.table import NONE, Cell, Column, FullRemark, Row, Table, in_one_unit
from torchscan.runtime.group_run import GroupRun
from torchscan.runtime.run import RunFacts
from torchscan.wrong_arguments import explain_wrong_types

GroupRows = Literal["process", "layer"]

#: what is told of each process; what a narrow page leaves out first has the largest number
_FIGURES: Sequence[tuple[str, str, int, Callable[[RunFacts], float]]] = (
    ("forward", "Forward", 0, lambda run: run.forward.median),
    ("backward", "Backward", 0, lambda run: run.backward.median),
    ("optimizer", "Optimizer", 2, lambda run: run.optimizer.median),
    ("between", "Between", 1, lambda run: run.between.median),
    ("period", "Step to step", 3, lambda run: run.period.median),
)


@explain_wrong_types
def group_table(group: GroupRun, by: GroupRows = "process") -> Table:
    """A process a row, with how far it is behind the fastest in a step; or a layer a row, with the least and most of all.

    Args:
        group: what :func:`open_run` reads of a folder that several processes have saved their inspections to.
        by: "process" or "layer".
    """
    if by not in get_args(GroupRows):
        raise InputError(f"by is {by!r}: choose one of {', '.join(map(repr, get_args(GroupRows)))}")
    columns, cells = zip(
        *(_by_process(group) if by == "process" else _by_layer(group)), strict=True
    )
    depths = (
        [0] * len(group.runs) if by == "process" else [call.depth for call in group.runs[0].calls]
    )
    return Table(
        title="Processes",
        columns=columns,
        rows=[
            Row(cells=row, depth=depth)
            for row, depth in zip(zip(*cells, strict=True), depths, strict=True)
        ],
        remarks=[*_remarks(group), *(_unlike(group) if by == "layer" else [])],
        noun="processes" if by == "process" else "calls",
    )


def _by_process(group: GroupRun) -> list[tuple[Column, list[Cell]]]:
    rank = Column(key="process", heading="Process", is_number=False)
    late = Column(key="late", heading="Behind", unit="s")
    return [
        (rank, [Cell(each := group.rank_of(run), f"{each}") for run in group.runs]),
        *(
            in_one_unit(
                Column(key=key, heading=heading, unit="s", priority=priority),
                [figure(run) or None for run in group.runs],
                units.scale_of_durations,
            )
            for key, heading, priority, figure in _FIGURES
        ),
        in_one_unit(
            late,
            [each if each is None else each or 0.0 for each in group.lags],
            units.scale_of_durations,
        ),
    ]


def _by_layer(group: GroupRun) -> list[tuple[Column, list[Cell]]]:
    """Of the calls that all processes have."""
    calls = group.runs[0].calls
    runs = [run for run in group.runs if _keys(run) == _keys(group.runs[0])]
    times = [[run.calls[place].time for run in runs] for place in range(len(calls))]
    slowest = [
        group.rank_of(runs[max(range(len(each)), key=each.__getitem__)]) if any(each) else None
        for each in times
    ]
    least, most = (
        Column(key=key, heading=heading, unit="s")
        for key, heading in (("least", "Least"), ("most", "Most"))
    )
    return [
        (
            Column(key="path", heading="Layer", is_number=False, min_width=12, truncate="head"),
            [Cell(call.path, call.name_in(calls)) for call in calls],
        ),
        (
            Column(key="type", heading="Type", is_number=False, min_width=8, priority=1),
            [Cell(call.type_name, call.type_name) for call in calls],
        ),
        in_one_unit(least, [min(each) or None for each in times], units.scale_of_durations),
        in_one_unit(most, [max(each) or None for each in times], units.scale_of_durations),
        (
            Column(key="slowest", heading="Slowest process", priority=2),
            [Cell(each, NONE if each is None else f"{each}") for each in slowest],
        ),
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
            f"{medians}. Nothing is known of their collectives, so that nobody can be told to be behind."
        ]
    if None in group.lags:
        return [
            f"{medians}. Their collectives came too seldom to tell who is behind: measure more steps (steps=40, say)."
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
