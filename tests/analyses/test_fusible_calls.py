"""Which calls a compiler generates kernels for, and which of them begin one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.recording.test_record import Calls
from torchscan import record
from torchscan.analyses.roofline.fusible_calls import begins_kernel, is_fusible
from torchscan.ops import OpCost

IMAGE = (2, 4, 6, 6)


def call_of(compute: Callable[[Tensor], Any], operator: str, shape: tuple[int, ...] = IMAGE) -> Any:
    """Return the call of the operator with this name."""
    trace = record(Calls(lambda _, x: compute(x)), args=(torch.rand(shape),))
    found = [op for op in trace.ops if operator in op.signature.operator]
    assert found, [op.signature.operator for op in trace.ops]
    return found[0]


def named(operator: str) -> Any:
    return SimpleNamespace(signature=SimpleNamespace(operator=operator))


@pytest.mark.parametrize(
    "operator",
    [
        *("aten.sort", "aten.topk", "aten._unique2", "aten.nonzero", "aten.cumsum"),
        *("aten.multinomial", "aten.bernoulli", "aten.index_put_", "aten._index_put_impl_"),
        *("aten.scatter_add", "aten.embedding_dense_backward", "aten.im2col", "aten.col2im"),
        *("aten.max_pool2d_with_indices", "aten.grid_sampler_2d", "torchscan.rotate_"),
        *("aten._foreach_add_", "aten._fused_adamw_", "aten._fft_r2c", "aten.linalg_qr"),
        *("aten._cudnn_rnn", "fsdp.all_gather_copy_in"),
    ],
)
def test_searches_scatters_optimizers_and_fsdp_have_kernels_of_their_own(operator: str) -> None:
    assert not is_fusible(named(operator), OpCost())


@pytest.mark.parametrize(
    "operator", ["aten.add", "aten.gather", "aten.softmax", "aten.max", "mine.op"]
)
def test_other_calls_without_products_are_fused(operator: str) -> None:
    assert is_fusible(named(operator), OpCost(flops=10))
    assert not is_fusible(named(operator), OpCost(macs=1))


def test_collectives_are_not_fused() -> None:
    assert not is_fusible(named("c10d.allreduce_"), OpCost())


@pytest.mark.parametrize(
    ("compute", "operator", "begins"),
    [
        (nn.BatchNorm2d(4), "batch_norm", True),
        (nn.BatchNorm2d(4).eval(), "batch_norm", False),
        (lambda x: x.mean((2, 3)), "mean", True),
        (lambda x: x.sum((-1, -2)), "sum", True),
        (lambda x: x.amax((1, 2, 3)), "amax", True),
        (lambda x: x.mean((1, 2)), "mean", False),
        (lambda x: x.mean(-1), "mean", False),
        (lambda x: x.sum(), "sum", False),
        (lambda x: x.flatten(0, 0).unsqueeze(0).mean((2, 3)), "mean", False),  # of five dimensions
        (F.relu, "relu", False),
        (lambda x: x.std((2, 3)), "std", False),
    ],
)
def test_statistics_of_channels_begin_a_kernel(
    compute: Callable[[Tensor], Any], operator: str, begins: bool
) -> None:
    assert begins_kernel(call_of(compute, operator)) is begins


@pytest.mark.parametrize("operator", ["aten.native_group_norm", "aten._adaptive_avg_pool2d"])
def test_group_norms_and_adaptive_pools_begin_a_kernel(operator: str) -> None:
    assert begins_kernel(named(operator))
    assert not begins_kernel(named(f"{operator[:5]}x{operator[5:]}"))
