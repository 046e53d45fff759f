"""Models in stages: bubbles against their closed forms, orders against torch's own, and memory by hand."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
import torch
from matplotlib.colors import to_rgb
from torch import nn

from tests.versions import skip_before
from torchscan import InputError, estimate_memory, parallel
from torchscan.analyses.pipeline_schedule import (
    StageTimes,
    Task,
    actions_of,
    ideal_bubble,
    order_of,
)
from torchscan.notes import Note
from torchscan.recording.pretended_group import pretended

FORWARD, BACKWARD = 1.0, 2.0


def span(
    schedule: Any, processes: int, microbatches: int, chunks: int, transfer_time: float = 0.0
) -> float:
    """Of passes of equal stages; a process has FORWARD + BACKWARD to do for each microbatch."""
    stages = processes * chunks
    times = [StageTimes(FORWARD / chunks, BACKWARD / chunks, transfer_time)] * stages
    return max(
        each.end for each in actions_of(order_of(schedule, processes, microbatches, stages), times)
    )


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize(
    ("processes", "microbatches"), [(1, 4), (2, 2), (4, 4), (4, 8), (8, 32), (4, 3), (16, 64)]
)
def test_a_step_takes_as_long_as_its_microbatches_and_the_bubble(
    schedule: Any, processes: int, microbatches: int
) -> None:
    """``(m + p − 1) (f + b)``, of which ``m (f + b)`` is work."""
    took = span(schedule, processes, microbatches, 1)
    assert took == pytest.approx((microbatches + processes - 1) * (FORWARD + BACKWARD))
    assert 1 - microbatches * (FORWARD + BACKWARD) / took == pytest.approx(
        ideal_bubble(processes, microbatches)
    )


@pytest.mark.parametrize(
    ("processes", "microbatches", "chunks"),
    [(2, 2, 2), (2, 4, 2), (4, 8, 2), (4, 16, 4), (8, 32, 2), (8, 64, 5)],
)
def test_several_stages_in_each_process_divide_the_bubble(
    processes: int, microbatches: int, chunks: int
) -> None:
    """``(m + (p − 1)/v) (f + b)``."""
    took = span("Interleaved1F1B", processes, microbatches, chunks)
    assert took == pytest.approx((microbatches + (processes - 1) / chunks) * (FORWARD + BACKWARD))
    assert 1 - microbatches * (FORWARD + BACKWARD) / took == pytest.approx(
        ideal_bubble(processes, microbatches, chunks)
    )


def test_the_way_between_stages_is_waited_for_where_the_pipeline_fills_and_empties() -> None:
    """``(m + p − 1) (f + b) + 2 (p − 1) t`` of GPipe: each of its two halves has the way through all stages once."""
    assert span("GPipe", 4, 8, 1, transfer_time=0.25) == pytest.approx(11 * 3.0 + 2 * 3 * 0.25)


@pytest.mark.parametrize(
    ("processes", "microbatches", "chunks"),
    [(2, 4, 1), (4, 8, 1), (4, 3, 1), (2, 4, 2), (4, 8, 2), (4, 16, 3)],
)
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
def test_orders_are_those_of_torch(
    schedule: str, processes: int, microbatches: int, chunks: int
) -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    kind = getattr(pipelining, f"Schedule{schedule}")
    if (chunks > 1) != (schedule == "Interleaved1F1B") or (
        schedule == "1F1B" and microbatches < processes
    ):
        pytest.skip("torch has no such schedule")
    if microbatches < processes:
        skip_before("2.13", "GPipe needs a microbatch for each stage")
    ours = order_of(schedule, processes, microbatches, processes * chunks)  # type: ignore[arg-type]
    for rank in range(processes):
        with pretended({"pp": processes}, rank):
            stages = [
                pipelining.PipelineStage(
                    nn.Linear(2, 2),
                    chunk * processes + rank,
                    processes * chunks,
                    torch.device("cpu"),
                )
                for chunk in range(chunks)
            ]
            loss = nn.functional.mse_loss
            made = kind(stages if chunks > 1 else stages[0], microbatches, loss_fn=loss)
            theirs = made.pipeline_order if chunks > 1 else _single(made)
        if theirs is None:
            pytest.skip("this torch does not tell the order")
        passes = [
            each for each in theirs[rank] if each is not None and each.microbatch_index is not None
        ]
        found: list[Any] = [
            (each.stage_index, _direction(each), each.microbatch_index) for each in passes
        ]
        expected: list[Any] = [tuple(each) for each in ours[rank]]
        if schedule == "1F1B":  # of the last process torch counts forward passes from 1
            found, expected = [each[:2] for each in found], [each[:2] for each in expected]
        assert found == expected


def _single(schedule: Any) -> Any:
    tell = getattr(schedule, "_get_pipeline_order", None)
    return None if tell is None else tell()


def _direction(action: Any) -> str:
    return "forward" if action.computation_type.name == "FORWARD" else "backward"


def test_what_waits_for_itself_is_an_error() -> None:
    backwards = [[Task(0, "backward", 0), Task(0, "forward", 0)]]
    with pytest.raises(ValueError, match="wait for each other"):
        actions_of(backwards, [StageTimes(1.0, 1.0, 0.0)])


# -- recorded stages -------------------------------------------------------------------------------------------------------

WIDTH, ROWS, LAYERS = 1024, 512, 4
F32 = 4


def stage() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def planned(schedule: Any = "1F1B", stages: int = 4, microbatches: int = 8, **options: Any) -> Any:
    return parallel.pipeline(
        [stage() for _ in range(stages)],
        (WIDTH,),
        batch_size=ROWS,
        schedule=schedule,
        microbatches=microbatches,
        device="H100",
        optimizer="AdamW",
        **options,
    )


@pytest.mark.parametrize(
    ("schedule", "in_flight"), [("GPipe", [8, 8, 8, 8]), ("1F1B", [4, 3, 2, 1])]
)
def test_each_microbatch_in_flight_keeps_its_activations(
    schedule: Any, in_flight: list[int]
) -> None:
    """Parameters, gradients and two of the optimizer; of each microbatch in flight the inputs of the layers, and the result.

    A backward pass needs a gradient of a weight before it is added to the others, and those of a result and an input.
    """
    plan = planned(schedule)
    weights, batch = LAYERS * WIDTH * WIDTH * F32, ROWS * WIDTH * F32
    assert [each.in_flight for each in plan.ranks] == in_flight
    for each, number in zip(plan.ranks, in_flight, strict=True):
        (held,) = (plan.stages[stage] for stage in each.stages)
        assert held.resident_bytes == pytest.approx(
            4 * weights, abs=100
        )  # and the step of the optimizer
        assert held.saved_bytes == (LAYERS + 1) * batch
        backward = held.resident_bytes + (number - 1) * held.saved_bytes + held.backward_bytes
        assert each.peak_bytes == max(backward, held.resident_bytes + held.optimizer_bytes)
        assert (
            held.saved_bytes
            < held.backward_bytes
            <= held.saved_bytes + WIDTH * WIDTH * F32 + 2 * batch
        )


def test_stages_hand_over_what_they_return_and_the_first_sends_nothing_back() -> None:
    plan = planned()
    assert [each.sent_bytes for each in plan.stages] == [ROWS * WIDTH * F32] * 3 + [0]
    assert plan.stages[-1].transfer_time == 0.0
    # over NVLink, which carries 450 GB/s in one direction
    assert all(each.transfer_time > ROWS * WIDTH * F32 / 450e9 for each in plan.stages[:-1])
    # the first of the devices of its stage
    assert [each.plan.rank for each in plan.stages] == [0] * 4
    assert plan.params == 4 * LAYERS * WIDTH * WIDTH
    assert "Sending to the next stage overlaps with computation" in " ".join(str(plan).split())
    assert all(type(each) is Note for each in plan.assumptions)
    first, second = (each.plan.macs for each in plan.stages[:2])
    # three products in each layer; the first layer of all needs no gradient of its input
    assert second == 3 * LAYERS * ROWS * WIDTH * WIDTH
    assert first == second - ROWS * WIDTH * WIDTH


def test_stages_of_one_rank_hand_over_without_a_way() -> None:
    stages = [nn.Linear(8, 8), nn.Linear(8, 8)]
    options: dict[str, Any] = {"schedule": "Interleaved1F1B", "num_ranks": 1, "microbatches": 2}
    plan = parallel.pipeline(stages, (8,), device="H100", **options)
    assert [each.rank for each in plan.stages] == [0, 0]
    assert [each.transfer_time for each in plan.stages] == [0.0, 0.0]


def test_a_stage_may_have_no_parameters() -> None:
    with torch.device("meta"):
        stages = [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    options: dict[str, Any] = {"batch_size": ROWS, "microbatches": 2, "device": "H100"}
    plan = parallel.pipeline(stages, (WIDTH,), **options)
    assert plan.params == WIDTH * WIDTH
    assert [each.sent_bytes for each in plan.stages] == [ROWS * WIDTH * F32, 0]


def test_a_pipeline_of_one_is_a_step_with_gradients_added() -> None:
    plan = planned("GPipe", stages=1, microbatches=1)
    alone = estimate_memory(
        stage(),
        (WIDTH,),
        batch_size=ROWS,
        training=True,
        optimizer="AdamW",
        accumulate=True,
        device="H100",
    )
    assert plan.ranks[0].peak_bytes == alone.peak_bytes
    assert plan.bubble == pytest.approx(0.0)


@pytest.mark.slow
def test_bubbles_of_equal_stages_are_nearly_the_ideal_ones() -> None:
    for schedule, chunks in (("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2)):
        plan = planned(schedule, stages=4 * chunks, num_ranks=4, microbatches=16)
        assert plan.ideal_bubble == pytest.approx(3 / (16 * chunks + 3))
        assert (
            plan.ideal_bubble < plan.bubble < plan.ideal_bubble + 0.08
        )  # 1F1B waits for each way there and back


@pytest.mark.slow
def test_stages_across_machines_take_longer_on_their_way() -> None:
    near, far = planned(stages=2), planned(stages=2, per_machine=1)
    assert far.stages[0].transfer_time > near.stages[0].transfer_time
    assert far.time_estimate > near.time_estimate
    assert far.stages[0].transfer_time == pytest.approx(
        ROWS * WIDTH * F32 / (0.9 * 50e9), abs=30e-6
    )


class Two(nn.Module):
    """Returns two tensors, packed."""

    def __init__(self, *, packed: type) -> None:
        super().__init__()
        self.inner, self.packed = nn.Linear(WIDTH, WIDTH, bias=False), packed

    def forward(self, x: torch.Tensor) -> Any:
        both = self.inner(x), x * 2
        return {"y": both[0], "more": both[1]} if self.packed is dict else self.packed(both)


class First(nn.Module):
    """Uses one of two."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> Any:
        return self.inner(x)


def test_a_dict_is_handed_to_nobody() -> None:
    with pytest.raises(
        InputError,
        match="stage 0 returns a dict of 'y', 'more': return a tensor or a tuple",
    ):
        parallel.pipeline([Two(packed=dict), First()], (WIDTH,), microbatches=2, device="H100")


@pytest.mark.parametrize("packed", [tuple, list])
def test_what_a_stage_does_not_use_has_no_gradient(packed: type) -> None:
    """It is held once with its parameters, gradients and state, whether or not anything is sent back."""
    with torch.device("meta"):
        stages = (each for each in (Two(packed=packed), First()))
    plan = parallel.pipeline(
        stages, (WIDTH,), batch_size=ROWS, microbatches=2, device="H100", optimizer="AdamW"
    )
    weight = WIDTH * WIDTH * F32
    assert [each.resident_bytes for each in plan.stages] == [pytest.approx(4 * weight, abs=100)] * 2
    assert plan.stages[0].sent_bytes == 2 * ROWS * WIDTH * F32


@pytest.mark.slow
def test_a_stage_may_be_spread_itself() -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    def apply(model: Any, mesh: Any) -> None:
        ways = {
            "0": ColwiseParallel(),
            "1": RowwiseParallel(),
            "2": ColwiseParallel(),
            "3": RowwiseParallel(),
        }
        parallelize_module(model, mesh["tp"], ways)

    plan = planned(stages=2, mesh={"tp": 4}, apply=apply)
    assert [each.plan.local_params for each in plan.stages] == [LAYERS * WIDTH * WIDTH // 4] * 2
    assert {each.kind for each in plan.stages[1].plan.collectives} == {"all-reduce"}
    assert "each on tp 4" in str(plan)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": "ZeroBubble"}, "schedule is 'ZeroBubble': choose from"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"num_ranks": 3}, "4 stages cannot be divided among 3 ranks"),
        (
            {"num_ranks": 2},
            "1F1B has one stage on each rank: give num_ranks=4, or schedule='Interleaved1F1B'",
        ),
        (
            {"num_ranks": 2, "schedule": "Interleaved1F1B", "microbatches": 5},
            "5 microbatches cannot be divided into 2 equal rounds",
        ),
        ({"mesh": {"tp": 2}}, "mesh and apply go together"),
        ({"stages": 0}, "there are no stages"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(**options)


def test_a_picture_has_a_bar_for_each_pass() -> None:
    """Rank 1 has one microbatch in flight, so each number stands in two neighboring bars."""
    plan = planned(stages=2, microbatches=4)
    ax = plan.plot()
    assert len(ax.patches) == len(plan.actions) == 2 * 2 * 4
    assert "bubbles" in ax.get_title(loc="left")
    last = [(text.get_position()[0], text) for text in ax.texts if text.get_position()[1] == 1]
    numbers = [text.get_text() for _, text in sorted(last, key=itemgetter(0))]
    assert numbers == ["0", "0", "1", "1", "2", "2", "3", "3"]
    edges = {to_rgb(patch.get_edgecolor()) for patch in ax.patches}
    assert edges == {to_rgb(ax.get_facecolor())}, "bars are set apart"
