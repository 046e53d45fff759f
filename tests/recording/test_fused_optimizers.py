"""Optimizers with torch's fused kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchscan.recording.training.optimizers import OptimizerError, fused


def fused_optimizer(name: str) -> Any:
    make: Any = fused(name)
    return make([torch.nn.Parameter(torch.zeros(2))])


def test_every_group_of_a_fused_optimizer_is_fused() -> None:
    made = fused_optimizer("SGD")
    assert isinstance(made, torch.optim.SGD)
    assert [(group["fused"], group["foreach"]) for group in made.param_groups] == [(True, False)]


def test_optimizers_without_a_fused_kernel_are_refused() -> None:
    with pytest.raises(OptimizerError, match="Rprop has no fused kernel"):
        fused_optimizer("Rprop")
    with pytest.raises(OptimizerError, match="create it with fused=True"):
        fused(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))]))
