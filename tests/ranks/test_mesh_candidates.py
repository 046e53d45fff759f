"""The training steps that a search compares, by hand: no step is recorded here."""

from __future__ import annotations

from typing import Any

import pytest

from torchscan import InputError
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.ranks.mesh_candidates import CandidateQuestion, MeshStep


def question(**asked: Any) -> CandidateQuestion:
    """Return the question of two GPUs in one machine and eight layers, unless overridden."""
    usual: dict[str, Any] = {"num_gpus": 2, "per_machine": 8, "length": 64, "sequences": 4}
    usual |= {"num_layers": 8, "num_experts": 0, "checkpoints": (False,), "shardings": ("fsdp2",)}
    return CandidateQuestion(**{**usual, **asked})


def steps(mesh: dict[str, int], **asked: Any) -> list[MeshStep]:
    return list(question(**asked).steps(MeshLayout.of(mesh)))


@pytest.mark.parametrize(
    ("asked", "meshes"),
    [
        # parts of a sequence would have 512 tokens, and two layers are two stages at most
        (
            {"num_layers": 2, "length": 1024},
            [{"dp": 4}, {"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}, {"pp": 2, "tp": 2}, {"tp": 4}],
        ),
        (
            {"num_layers": 1, "length": 2048},
            [{"dp": 4}, {"dp": 2, "cp": 2}, {"dp": 2, "tp": 2}, {"cp": 2, "tp": 2}, {"tp": 4}],
        ),
        # a copy fills a machine of two, and tensor parallelism stays in it
        (
            {"num_layers": 1, "per_machine": 2},
            [
                {"dp": 4},
                {"replicate": 2, "dp": 2},
                {"dp": 2, "tp": 2},
                {"replicate": 2, "dp": 1, "tp": 2},
            ],
        ),
        (
            {"num_layers": 1, "per_machine": 1, "num_experts": 2},
            [{"dp": 4}, {"replicate": 2, "dp": 2}, {"replicate": 4, "dp": 1}],
        ),
        (
            {"num_layers": 1, "num_experts": 6},
            [{"dp": 4}, {"dp": 2, "ep": 2}, {"dp": 2, "tp": 2}, {"tp": 4}],
        ),
        (
            {"length": 8192, "num_experts": 6, "is_sharded_by_user": True},
            [{"dp": 4}, {"dp": 2, "tp": 2}, {"tp": 4}],
        ),
    ],
)
def test_four_gpus_have_these_meshes(asked: dict[str, Any], meshes: list[dict[str, int]]) -> None:
    found = [layout.mesh for layout in question(num_gpus=4, **asked).layouts()]
    assert found == meshes


@pytest.mark.parametrize(
    ("mesh", "sequences", "numbers"),
    [
        ({"dp": 2}, 12, [1, 2, 3, 6]),
        # one to eight for each of two ranks
        ({"pp": 2}, 64, [2, 4, 8, 16]),
        # no divisor is among them: as many as there are
        ({"pp": 2}, 17, [17]),
        ({"pp": 4}, 3, [3]),
    ],
)
def test_micro_batches_divide_the_sequences_of_a_copy(
    mesh: dict[str, int], sequences: int, numbers: list[int]
) -> None:
    found = steps(mesh, sequences=sequences, schedules=("1F1B",))
    assert [each.num_microbatches for each in found] == numbers
    of_copy = sequences // mesh.get("dp", 1)
    assert [each.sequences for each in found] == [of_copy // number for number in numbers]


@pytest.mark.parametrize(
    ("asked", "schedules"),
    [
        ({}, [("1F1B", 1), ("Interleaved1F1B", 2), ("Interleaved1F1B", 4)]),
        ({"num_layers": 7}, [("1F1B", 1), ("Interleaved1F1B", 2)]),
        # five micro batches are no two equal rounds
        ({"accumulation_steps": 5, "sequences": 5}, [("1F1B", 1)]),
    ],
)
def test_stages_of_each_rank_are_layers(
    asked: dict[str, Any], schedules: list[tuple[str, int]]
) -> None:
    usual = {"accumulation_steps": 4, "schedules": ("1F1B", "Interleaved1F1B")}
    found = steps({"pp": 2}, **{**usual, **asked})
    assert [(each.schedule, each.chunks) for each in found] == schedules


def test_zero_bubble_schedules_exclude_checkpoints() -> None:
    asked = {"schedules": ("InterleavedZeroBubble",), "accumulation_steps": 4}
    both = steps({"pp": 2}, checkpoints=(False, True), **asked)
    assert [(each.checkpoint, each.chunks) for each in both] == [(False, 2), (False, 4)]
    with pytest.raises(InputError, match="computes a checkpointed layer again"):
        steps({"pp": 2}, checkpoints=(True,), **asked)


@pytest.mark.parametrize(
    ("mesh", "shardings"),
    [
        ({"dp": 2}, ["fsdp1", "fsdp2", "zero2"]),
        ({"tp": 2}, ["fsdp1"]),
        # flat parameters have no part along "ep", and a pipeline keeps parameters gathered anyway
        ({"dp": 2, "ep": 2}, ["fsdp2", "zero2"]),
        ({"pp": 2, "dp": 2}, ["fsdp1", "fsdp2"]),
    ],
)
def test_only_shardings_that_differ_on_the_mesh_are_compared(
    mesh: dict[str, int], shardings: list[str]
) -> None:
    asked = {"shardings": ("fsdp1", "fsdp2", "zero2"), "num_experts": 4, "schedules": ("1F1B",)}
    found = steps(mesh, accumulation_steps=1, **asked)
    assert [each.sharding for each in found] == shardings


@pytest.mark.parametrize(
    ("mesh", "asked", "message"),
    [
        ({"dp": 2}, {"sequences": 3}, "3 sequences cannot be divided among 2 copies"),
        ({"dp": 2}, {"accumulation_steps": 3}, "2 sequences of a copy cannot be .* into 3 micro"),
        ({"pp": 2}, {"num_layers": 1}, "1 layers cannot be divided among pp 2"),
        ({"cp": 2}, {"length": 2050}, "2,050 tokens cannot be divided into 4 parts"),
        (
            {"cp": 2, "tp": 2},
            {"length": 4, "sequence_parallel": True},
            "4 tokens cannot be divided into 8 parts",
        ),
        ({"ep": 2}, {"num_experts": 3}, "3 experts cannot be divided among ep 2"),
        ({"dp": 2, "ep": 2}, {"num_experts": 4, "shardings": ("fsdp1",)}, "flat parameters"),
        (
            {"pp": 2},
            {"schedules": ("Interleaved1F1B",), "accumulation_steps": 5, "sequences": 5},
            "pp 2 has too few layers or an unsuitable number of micro batches",
        ),
    ],
)
def test_impossible_training_steps_raise_an_error(
    mesh: dict[str, int], asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        steps(mesh, **asked)
