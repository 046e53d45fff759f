"""Who keeps whom waiting, for arrivals that were thought up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

import torchscan
from tests.opening import group_run
from torchscan.inspecting.exchanges import Exchange, Process
from torchscan.inspecting.group_run import GroupRun, group_run_of
from torchscan.inspecting.step_timeline import Slice, Timeline
from torchscan.types import RunFacts

MS = 1_000_000
#: seconds after which each came: (group, its processes, number in it, milliseconds)
Came = tuple[str, tuple[int, ...], int, int]


@pytest.fixture(scope="module")
def alone() -> RunFacts:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torchscan.inspect(model) as run:
        for _ in range(2):
            model(torch.rand(2, 4)).sum().backward()
    return run.facts


def run_of(
    alone: RunFacts,
    rank: int,
    number: int,
    came: Sequence[Came],
    launch: str = "a",
    step: int = 100,
) -> RunFacts:
    """A run of five steps of 100 ms each, whose collectives are all in the first layer, forward."""
    exchanges = tuple(
        Exchange(
            kind="all-reduce",
            group=group,
            ranks=ranks,
            call=1,
            phase="forward",
            at=when * MS,
            numbers=tuple(place + 1000 * each for each in range(5)),
            arrivals=tuple((when + step * each) * MS for each in range(5)),
        )
        for group, ranks, place, when in came
    )
    timeline = Timeline(forward=(Slice(0, 0, 100 * MS), Slice(1, 0, 90 * MS)))
    process = Process(rank=rank, num_ranks=number, launch=launch, began=1.0 + (launch == "b"))
    period = alone.period._replace(median=step / 1000)
    return replace(alone, process=process, exchanges=exchanges, timeline=timeline, period=period)


def group_of(alone: RunFacts, *came: Sequence[Came]) -> GroupRun:
    return group_run_of([run_of(alone, rank, len(came), each) for rank, each in enumerate(came)])


def test_one_that_comes_late_is_behind_and_those_that_waited_are_not(alone: RunFacts) -> None:
    both = (0, 1)
    early = [
        ("0", both, 1, 10),
        ("0", both, 2, 60),
    ]  # the second 20 ms after the other came to the first
    late = [("0", both, 1, 40), ("0", both, 2, 60)]
    group = group_of(alone, early, late)
    # before the first of the second step: from 60 to 110 and to 140; before the second: from 40 to 60, both
    assert group.lags == pytest.approx((0.0, 0.030))
    (straggler,) = group.stragglers
    assert straggler.rank == 1
    assert (straggler.seconds, straggler.share) == pytest.approx((0.030, 0.30))
    assert "rank 1 lags by 30.0 ms in each step (30 %)" in str(straggler)
    assert (straggler.kind, straggler.waits_in) == ("all-reduce", "0")


def test_a_collective_outside_of_the_model_is_in_no_layer(alone: RunFacts) -> None:
    """For example, a training loop that reduces the loss: the collective has no module path."""
    runs = []
    for rank, when in ((0, 10), (1, 40)):
        run = run_of(alone, rank, 2, [("0", (0, 1), 1, when)])
        outside = [replace(each, call=None) for each in run.exchanges]
        runs.append(replace(run, exchanges=tuple(outside)))
    (straggler,) = group_run_of(runs).stragglers
    assert (straggler.rank, straggler.kind, straggler.waits_in) == (1, "all-reduce", "")


def test_who_waits_for_one_is_not_blamed_by_others(alone: RunFacts) -> None:
    """Tensor parallelism in rows (0, 1) and (2, 3), data parallelism in columns: 1 keeps 0 waiting, and both the other row."""
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    came = [
        [("row", rows[0], 1, 10), ("column", columns[0], 1, 45)],
        [("row", rows[0], 1, 40), ("column", columns[1], 1, 45)],
        [("row", rows[1], 1, 10), ("column", columns[0], 1, 15)],
        [("row", rows[1], 1, 10), ("column", columns[1], 1, 15)],
    ]
    group = group_of(alone, *came)
    # before the row's of the second step, since the column's at 45 of the first: 65 and 95 ms, elsewhere 65
    assert group.lags == pytest.approx((0.0, 0.030, 0.0, 0.0))
    assert [each.rank for each in group.stragglers] == [1]


def test_who_has_other_collectives_is_not_compared_by_them(alone: RunFacts) -> None:
    """0 and 2 have one more between them; all come to those of all at once."""
    everyone, some = (0, 1, 2), (0, 2)
    more = [("all", everyone, 1, 1), ("some", some, 1, 95), ("all", everyone, 2, 99)]
    assert group_of(
        alone, more, [each for each in more if each[0] == "all"], more
    ).lags == pytest.approx((0.0, 0.0, 0.0))


def test_what_nobody_waits_in_is_lost_once(alone: RunFacts) -> None:
    """As of hosts that run ahead of their devices: 20 ms at the start, then 40 collectives a millisecond apart."""
    both = (0, 1)
    early, late = (
        [("0", both, place, start + place) for place in range(1, 41)] for start in (0, 20)
    )
    assert group_of(alone, early, late).lags == pytest.approx((0.0, 0.020), abs=0.0011)


def test_of_several_backward_passes_the_time_from_one_sum_to_the_next_counts(
    alone: RunFacts,
) -> None:
    """Four to each collective, of 25 ms: one that is 40 ms late is so by 40 % of 100 ms."""
    both = (0, 1)
    early, late = ([("0", both, 1, when), ("0", both, 2, 90)] for when in (10, 50))
    runs = [run_of(alone, rank, 2, each) for rank, each in enumerate((early, late))]
    (straggler,) = group_run_of(
        [replace(run, period=run.period._replace(median=0.025)) for run in runs]
    ).stragglers
    assert straggler.share == pytest.approx(0.40)


def test_a_module_is_named_in_which_more_is_lost_than_elsewhere(alone: RunFacts) -> None:
    both = (0, 1)
    early, late = ([("0", both, 1, 10), ("0", both, 2, when)] for when in (20, 60))
    (straggler,) = group_of(alone, early, late).stragglers
    assert (straggler.layer, straggler.type_name, straggler.phase) == ("0", "Linear", "forward")
    assert straggler.lost == pytest.approx(0.040)


def test_files_of_an_earlier_start_are_no_part_of_the_run(alone: RunFacts) -> None:
    came = [("0", (0, 1, 2), 1, 10)]
    runs = [run_of(alone, rank, 3, came, launch) for rank, launch in ((0, "b"), (1, "b"), (2, "a"))]
    group = group_run_of(runs)
    assert ([each.process.rank for each in group.runs if each.process], group.missing) == (
        [0, 1],
        (2,),
    )
    assert "Missing: rank 2 of 3, which saved nothing." in str(group)


def test_a_table_by_layer_has_the_least_and_the_most(alone: RunFacts) -> None:
    runs = [run_of(alone, rank, 2, []) for rank in range(2)]
    slow = tuple(
        replace(call, forward=call.forward._replace(median=call.forward.median + 1))
        for call in runs[1].calls
    )
    table = group_run_of([runs[0], replace(runs[1], calls=slow)]).table(by="layer")
    cells = {
        row.cells[0].value: {
            c.key: cell.value for c, cell in zip(table.columns, row.cells, strict=True)
        }
        for row in table.rows
    }
    assert cells["0"]["least"] == pytest.approx(alone.calls[1].time)
    assert cells["0"]["most"] == pytest.approx(alone.calls[1].time + 1)
    assert cells["0"]["slowest"] == 1


def test_in_a_file_and_back(alone: RunFacts, tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "run"
    came = [
        [("0", (0, 1), 1, 10), ("0", (0, 1), 2, 20)],
        [("0", (0, 1), 1, 10), ("0", (0, 1), 2, 60)],
    ]
    for rank, each in enumerate(came):
        run_of(alone, rank, 2, each).save(folder)
    read = group_run(folder)
    assert read == group_of(alone, *came)
    assert read.to_dict()["stragglers"][0]["rank"] == 1
