"""Optimizers of bitsandbytes by name: the bytes of their state, and what their kernels move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchscan import InputError, estimate_memory
from torchscan.recording.training.optimizers import require_known

#: a weight that is large enough for pages, and a bias that is too small for 8 bits
WIDTH, FEATURES = 512, 256
WEIGHT, BIAS = WIDTH * FEATURES, WIDTH
GPU = "NVIDIA H100 80GB HBM3"


def estimate(optimizer: str) -> Any:
    with torch.device("meta"):
        model = nn.Linear(FEATURES, WIDTH).bfloat16()
    return estimate_memory(model, (FEATURES,), training=True, optimizer=optimizer, device=GPU)


def state_bytes(optimizer: str) -> int:
    return max(each.by_kind["optimizer"] for each in estimate(optimizer).timeline)


@pytest.mark.parametrize(
    ("optimizer", "num_states"),
    [("AdamW8bit", 2), ("Adam8bit", 2), ("adamw_8bit", 2), ("Lion8bit", 1)],
)
def test_8_bits_are_a_byte_and_a_scale_for_256_elements(optimizer: str, num_states: int) -> None:
    assert state_bytes(optimizer) == num_states * (WEIGHT + 4 * WEIGHT // 256 + 4 * BIAS)


def test_32_bits_are_4_bytes_whatever_the_parameter_has() -> None:
    assert state_bytes("AdamW32bit") == 2 * 4 * (WEIGHT + BIAS)
    assert state_bytes("Lion") == 4 * (WEIGHT + BIAS)


@pytest.mark.parametrize(("optimizer", "size"), [("PagedAdamW", 4), ("PagedAdamW8bit", 1)])
def test_pages_are_not_memory_of_torch(optimizer: str, size: int) -> None:
    """Small tensors and scales are not in pages."""
    scales = 2 * 4 * WEIGHT // 256 if size == 1 else 0
    found = estimate(optimizer)
    assert state_bytes(optimizer) == scales + 2 * 4 * BIAS
    (note,) = [each for each in found.assumptions if each.code == "state-in-pages"]
    assert note.values["size"] == 2 * size * WEIGHT


def test_updates_have_a_formula_and_read_the_state() -> None:
    from torchscan import Scan

    with torch.device("meta"):
        model = nn.Linear(FEATURES, WIDTH, bias=False)
    scan = Scan(model, (FEATURES,), training=True, optimizer="AdamW8bit", device=GPU)
    assert scan.steps_without_formula == ()
    load = scan.roofline.by_kind["torchscan.optimizer_update_8bit_blockwise"]
    states = 2 * (WEIGHT + 4 * WEIGHT // 256)
    assert load.bytes_read == 2 * 4 * WEIGHT + states
    assert load.bytes_written == 4 * WEIGHT + states


def test_unknown_names_are_refused() -> None:
    for name in ("AdamW4bit", "paged", "Muon8bit"):
        with pytest.raises(InputError, match=r"Give the name of a class in torch\.optim"):
            require_known(name)
