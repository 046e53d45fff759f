"""Activations and optimizer state on the host: bytes on the device, and bytes that are copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchscan import InputError, Scan

WIDTH, BATCH, NUM_LAYERS = 256, 4096, 8
WEIGHTS = 4 * NUM_LAYERS * WIDTH * WIDTH
KEPT = 4 * BATCH * WIDTH
GPU = "NVIDIA H100 80GB HBM3"
#: bytes per second of PCIe 5.0 with 16 lanes, in one direction
PCIE = 63e9


def scan(**options: Any) -> Scan:
    with torch.device("meta"):
        layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS))
        model = nn.Sequential(*layers)
    step: dict[str, Any] = {"training": True, "device": GPU, "batch_size": BATCH}
    return Scan(model, (WIDTH,), **step | options)


def copied(scan: Scan, name: str) -> int:
    return sum(
        scan.steps.tensors[op.inputs[0]].spec.numel * 4
        for op in scan.steps.ops
        if op.signature.operator == f"torchscan.{name}"
    )


def test_saved_tensors_are_copied_there_and_back_but_for_weights() -> None:
    """Each layer keeps its input for the gradient of its weight."""
    found = scan(offload="activations")
    assert copied(found, "copy_to_host") == copied(found, "copy_to_device") == NUM_LAYERS * KEPT
    between = [each.by_kind["activations"] for each in found.memory.timeline]
    assert max(between) < scan().memory.peak_bytes - WEIGHTS
    assert scan().memory.peak_bytes - found.memory.peak_bytes >= (NUM_LAYERS - 4) * KEPT


def test_state_of_the_optimizer_and_its_update_are_on_the_host() -> None:
    found = scan(optimizer="AdamW", offload="optimizer")
    assert max(each.by_kind["optimizer"] for each in found.memory.timeline) == 0
    (note,) = [each for each in found.memory.assumptions if each.code == "optimizer-on-host"]
    assert note.values["size"] == 2 * WEIGHTS + 4 * NUM_LAYERS
    assert copied(found, "copy_to_host") == copied(found, "update_from_host") == WEIGHTS


def test_nothing_hides_the_copies_of_an_update() -> None:
    times = scan(optimizer="AdamW", offload="optimizer").roofline.time_by_phase
    launches = 2 * NUM_LAYERS * 10e-6
    assert WEIGHTS / PCIE * 0.9 < times["optimizer"] < WEIGHTS / PCIE * 1.1 + launches


def test_a_pass_lasts_at_least_as_long_as_its_copies() -> None:
    """Small layers compute less than PCIe takes; the sums of all tables agree."""
    roofline = scan(offload="activations").roofline
    assert roofline.time_by_phase["forward"] >= NUM_LAYERS * KEPT / PCIE * 0.9
    assert sum(roofline.time_by_phase.values()) == pytest.approx(roofline.time_estimate)
    for loads in (roofline.operators, roofline.by_kind.values()):
        total = sum(each.time_estimate for each in loads)
        assert total == pytest.approx(roofline.time_estimate)
    assert roofline.total.time_estimate == pytest.approx(roofline.time_estimate)
    assert roofline.time_share("links") > 0


def test_the_update_needs_an_optimizer_and_parts_are_known() -> None:
    with pytest.raises(InputError, match="offload is about the optimizer's step: give optimizer="):
        scan(offload="optimizer")
    with pytest.raises(InputError, match="offload is 'disk': choose from"):
        scan(offload=["activations", "disk"])
    with pytest.raises(InputError, match="which FSDP2 copies layer by layer"):
        scan(offload=["activations", "parameters"])
