"""The optimizer's step in the backward pass, and clipped gradients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from torchscan import InputError, Scan

WIDTH, NUM_LAYERS = 512, 6
WEIGHT = 4 * WIDTH * WIDTH
GPU = "NVIDIA H100 80GB HBM3"


def scan(**options: Any) -> Scan:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)))
    step: dict[str, Any] = {"training": True, "optimizer": "AdamW", "device": GPU}
    return Scan(model, (WIDTH,), **step | options)


def test_a_gradient_is_freed_when_its_parameter_is_updated() -> None:
    """Weights and two states of all layers; of one, a gradient and at most two temporaries, not six of each."""
    held = 3 * NUM_LAYERS * WEIGHT
    small = 64 * WIDTH * NUM_LAYERS
    assert scan().memory.peak_bytes >= held + NUM_LAYERS * WEIGHT
    assert (
        held + WEIGHT
        < scan(optimizer_in_backward=True).memory.peak_bytes
        < held + 3 * WEIGHT + small
    )


def test_each_parameter_is_updated_once_by_the_same_work() -> None:
    usual, early = scan().steps, scan(optimizer_in_backward=True).steps
    all_at_once, one_by_one = (
        Counter(op.signature.operator for op in each.ops if "foreach" in op.signature.operator)
        for each in (usual, early)
    )
    assert one_by_one == Counter({name: 6 * count for name, count in all_at_once.items()})
    phases = [op.phase for op in early.ops]
    assert phases.index("optimizer") < len(phases) - 1 - phases[::-1].index("backward")


@pytest.mark.parametrize("device", [None, "24 GiB", GPU])
def test_kernels_that_update_in_place_leave_what_the_forward_pass_saved(device: str | None) -> None:
    steps = scan(optimizer_in_backward=True, device=device).steps
    states = [each for each in steps.tensors if each.kind == "optimizer state" and each.name]
    assert len(states) >= 2 * NUM_LAYERS


def test_an_optimizer_that_exists_updates_its_own_parameters() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model[0].parameters(), momentum=0.9)
    steps = Scan(model, (8,), training=True, optimizer=optimizer, optimizer_in_backward=True).steps
    states = [each for each in steps.tensors if each.kind == "optimizer state" and each.name]
    assert {each.name for each in states} == {"0.weight.momentum_buffer", "0.bias.momentum_buffer"}
    assert not optimizer.state
    assert all(each.grad is None for each in model.parameters())


def test_clipping_reads_all_gradients_and_scales_them() -> None:
    plain, clipped = scan(), scan(clip_gradients=True)
    names = [
        Counter(op.signature.operator for op in each.steps.ops if op.phase == "optimizer")
        for each in (plain, clipped)
    ]
    more = names[1] - names[0]
    assert more["aten._foreach_norm"] == 1
    assert more["aten._foreach_mul_"] == 1
    assert clipped.steps_without_formula == ()
    assert clipped.memory.peak_bytes - plain.memory.peak_bytes < WEIGHT


@pytest.mark.parametrize("name", ["optimizer_in_backward", "clip_gradients"])
def test_steps_of_an_optimizer_need_one(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is about the optimizer's step: give optimizer="):
        scan(optimizer=None, **{name: True})


@pytest.mark.slow
def test_a_sharded_gradient_is_freed_too() -> None:
    from torch.distributed.fsdp import fully_shard

    def shard(model: Any, mesh: Any) -> None:
        for each in (*model, model):
            fully_shard(each, mesh=mesh["dp"])

    def peak(**options: Any) -> int:
        with torch.device("meta"):
            layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS))
            model = nn.Sequential(*layers)
        return torchscan.parallel.plan(
            model,
            (WIDTH,),
            mesh={"dp": 2},
            apply=shard,
            training=True,
            optimizer="AdamW",
            device=GPU,
            progress=False,
            **options,
        ).memory.peak_bytes

    # half of each layer's gradient; the temporaries of one update, in place of those of all
    assert peak() - peak(optimizer_in_backward=True) > NUM_LAYERS * WEIGHT // 4
