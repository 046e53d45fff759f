"""Liger's kernels count as the operators that they replace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import crawl_module, record

pytest.importorskip("triton")
liger: Any = pytest.importorskip("liger_kernel.transformers")

#: 2 samples of 16 rows of 64
X = torch.rand(2, 16, 64)
ELEMENTS, ROWS = X.numel(), 32


def _flops(model: nn.Module, x: Tensor = X) -> int:
    overall = crawl_module(model, args=(x,))["overall"]
    assert overall["complete"]
    flops: int = overall["flops"]
    return flops


@pytest.mark.parametrize(
    ("kernel", "operator"),
    [
        (lambda: liger.LigerRMSNorm(64), lambda: nn.RMSNorm(64)),
        (lambda: liger.LigerLayerNorm(64), lambda: nn.LayerNorm(64)),
    ],
    ids=["rms norm", "layer norm"],
)
def test_a_norm_counts_as_that_of_torch(kernel: Any, operator: Any) -> None:
    assert _flops(kernel()) == _flops(operator())


@pytest.mark.parametrize(
    ("activation", "model", "per_element"),
    [("silu", "LigerSwiGLUMLP", 5 + 1), ("gelu_pytorch_tanh", "LigerGEGLUMLP", 14 + 1)],
)
def test_a_gated_layer_counts_its_activation_and_its_product(
    activation: str, model: str, per_element: int
) -> None:
    """Three layers of 64 x 128 without biases."""
    config = SimpleNamespace(hidden_size=64, intermediate_size=128, hidden_act=activation)
    products = 3 * ROWS * 64 * 128
    expected = 2 * products + per_element * ROWS * 128
    assert _flops(getattr(liger, model)(config)) == expected


class Loss(nn.Module):
    """A head of 100 classes, and its loss."""

    def __init__(self, *, is_fused: bool) -> None:
        super().__init__()
        self.head = nn.Linear(64, 100, bias=False)
        self.loss = (
            liger.LigerFusedLinearCrossEntropyLoss() if is_fused else liger.LigerCrossEntropyLoss()
        )
        self._is_fused = is_fused

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of 32 tokens of the first class."""
        target = torch.zeros(ROWS, dtype=torch.long)
        rows = x.view(ROWS, 64)
        loss: Tensor
        if self._is_fused:
            loss = self.loss(self.head.weight, rows, target)
        else:
            loss = self.loss(self.head(rows), target)
        return loss


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_step_with_a_fused_loss_is_recorded_without_data(is_fused: bool) -> None:
    """The gradient of the logits is made with the loss, if nothing scales the loss afterwards."""
    trace = record(Loss(is_fused=is_fused), args=(X,), training=True, loss=lambda loss: loss)
    kernels = [
        op for op in trace.ops if op.signature.operator == "triton.liger_cross_entropy_kernel"
    ]
    logits = [op.signature.arguments["X_ptr"].shape for op in kernels]
    assert sum(rows for rows, _ in logits) == ROWS
    assert {op.phase for op in kernels} == {"forward"}
    assert "triton.element_mul_kernel" not in {op.signature.operator for op in trace.ops}
    note = next(each for each in trace.provenance.assumptions if each.code == "gradient-compared")
    assert note.values == {"equal": True}


def test_a_loss_that_is_scaled_multiplies_the_gradient() -> None:
    trace = record(Loss(is_fused=False), args=(X,), training=True, loss=lambda loss: loss * 2)
    assert "triton.element_mul_kernel" in {op.signature.operator for op in trace.ops}


def test_the_loss_counts_seven_operations_per_logit_with_its_gradient() -> None:
    """Without a gradient, four."""
    of_head = 2 * ROWS * 64 * 100
    assert 4 * ROWS * 100 <= _flops(Loss(is_fused=False)) - of_head <= 7 * ROWS * 100 + ROWS
