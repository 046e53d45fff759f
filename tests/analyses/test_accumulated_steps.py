"""Steps of several passes: times and work of each pass, and of one update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from torchscan import InputError, Scan

WIDTH, BATCH = 128, 16
GPU = "NVIDIA H100 80GB HBM3"


def scan(**options: Any) -> Scan:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    step: dict[str, Any] = {"training": True, "optimizer": "SGD", "device": GPU}
    return Scan(model, (WIDTH,), batch_size=BATCH, **step | options)


def test_a_step_takes_all_passes_and_one_update() -> None:
    single, several = scan(accumulate=True).roofline, scan(accumulation_steps=4).roofline
    assert several.time_by_phase["forward"] == pytest.approx(4 * single.time_by_phase["forward"])
    assert several.time_by_phase["backward"] == pytest.approx(4 * single.time_by_phase["backward"])
    assert several.time_by_phase["optimizer"] == single.time_by_phase["optimizer"]
    assert several.time_estimate == pytest.approx(sum(several.time_by_phase.values()))
    # Of two layers, forward and twice backward, but for the gradient of the input.
    assert several.total.macs == 4 * 5 * BATCH * WIDTH * WIDTH
    kinds = several.by_kind.values()
    assert sum(each.macs for each in kinds) == several.total.macs
    assert sum(each.calls for each in kinds) == several.total.calls == len(several.operators)
    assert {each.name: each.macs for each in several.layers}["0"] == 4 * 2 * BATCH * WIDTH * WIDTH


def test_utilization_is_that_of_longer_steps() -> None:
    """Passes compute, updates do not: the more passes, the larger the share of products."""
    single, several = scan(accumulate=True).roofline, scan(accumulation_steps=64).roofline
    passes = single.time_estimate - single.time_by_phase["optimizer"]
    expected = single.compute_utilization * single.time_estimate / passes
    assert several.compute_utilization == pytest.approx(expected, rel=0.02)


def test_memory_is_that_of_the_last_pass() -> None:
    one, many = (scan(accumulation_steps=count).memory for count in (2, 32))
    assert one.peak_bytes == many.peak_bytes == scan(accumulate=True).memory.peak_bytes


def plan(sharding: Any, **options: Any) -> Any:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    return torchscan.parallel.plan(
        model,
        (WIDTH,),
        mesh={"dp": 2},
        sharding=sharding,
        batch_size=BATCH,
        training=True,
        device=GPU,
        progress=False,
        **options,
    )


def test_a_plan_counts_all_passes() -> None:
    single = plan("fsdp2", accumulate=True).ranks[0]
    several = plan("fsdp2", accumulation_steps=3).ranks[0]
    assert several.macs == 3 * single.macs
    assert [each.sent_bytes for each in several.collectives] == [
        3 * each.sent_bytes for each in single.collectives
    ]


def test_a_plan_counts_one_update() -> None:
    """Parameters that ZeRO-1 updated are sent once, whatever the number of passes."""
    for number in (1, 3):
        rank = plan("zero1", accumulation_steps=number, optimizer="SGD").ranks[0]
        sent = {each.phase: each.sent_bytes for each in rank.collectives}
        size = 4 * (WIDTH + 1) * WIDTH
        assert (sent["backward"], sent["optimizer"]) == (number * size, size)


def test_passes_are_a_positive_number() -> None:
    with pytest.raises(InputError, match="accumulation_steps is 0: give a positive integer"):
        scan(accumulation_steps=0)
