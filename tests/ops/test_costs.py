"""Each formula against a count derived by hand; the arithmetic stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import crawl_module, record
from torchscan.analyses.totals import by_operator, total_cost
from torchscan.types import OpCost

SHAPE = tuple[int, ...]


def cost(forward: Callable[..., Any], *shapes: SHAPE, dtype: torch.dtype = torch.float32) -> OpCost:
    """The cost of a function on inputs of these shapes (complete, with all dimensions)."""
    args = tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)
    trace = record(Calls(lambda _, *inputs: forward(*inputs)), args=args)
    return total_cost(trace, strict=True)


@pytest.mark.parametrize(
    ("forward", "shapes", "macs"),
    [
        (torch.mm, [(2, 3), (3, 5)], 2 * 5 * 3),
        (torch.bmm, [(4, 2, 3), (4, 3, 5)], 4 * 2 * 5 * 3),
        (torch.matmul, [(2, 3), (3,)], 2 * 3),
        (torch.matmul, [(3,), (3, 5)], 5 * 3),
        (torch.matmul, [(3,), (3,)], 3),
        (torch.matmul, [(7, 1, 2, 3), (4, 3, 5)], 7 * 4 * 2 * 5 * 3),  # broadcast to (7, 4, 2, 5)
        (torch.mv, [(2, 3), (3,)], 2 * 3),
        (torch.dot, [(3,), (3,)], 3),
        (torch.outer, [(2,), (3,)], 2 * 3),
        (torch.addmm, [(2, 5), (2, 3), (3, 5)], 2 * 5 * 3),
        (torch.baddbmm, [(4, 2, 5), (4, 2, 3), (4, 3, 5)], 4 * 2 * 5 * 3),
        (torch.addbmm, [(2, 5), (4, 2, 3), (4, 3, 5)], 4 * 2 * 5 * 3),
        (F.linear, [(7, 2, 3), (5, 3), (5,)], 7 * 2 * 5 * 3),
        (F.bilinear, [(2, 3), (2, 4), (5, 3, 4)], 2 * 5 * 3 * 4 + 2 * 5 * 4),
        (lambda a, b: torch.einsum("bik,bkj->bij", a, b), [(4, 2, 3), (4, 3, 5)], 4 * 2 * 5 * 3),
        # (10×100 · 100×5) · 5×50 = 10·100·5 + 10·5·50; the other order takes 75,000
        (lambda *each: torch.linalg.multi_dot(each), [(10, 100), (100, 5), (5, 50)], 5000 + 2500),
        (lambda a, b: F.conv1d(a, b, padding=1), [(2, 3, 8), (4, 3, 3)], 2 * 4 * 8 * 3 * 3),
        (
            lambda a, b: F.conv2d(a, b, stride=2),
            [(2, 3, 9, 9), (4, 3, 3, 3)],
            2 * 4 * 4 * 4 * 9 * 3,
        ),
        (lambda a, b: F.conv2d(a, b, groups=2), [(1, 4, 5, 5), (6, 2, 3, 3)], 6 * 3 * 3 * 9 * 2),
        (lambda a, b: F.conv2d(a, b, dilation=2), [(1, 3, 5, 5), (4, 3, 3, 3)], 4 * 9 * 3),
        (lambda a, b: F.conv2d(a, b, padding="same"), [(1, 3, 5, 5), (4, 3, 3, 3)], 4 * 25 * 9 * 3),
        (F.conv3d, [(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)], 3 * 27 * 8 * 2),
        # each of the 4·5·5 input elements meets 3 output channels times 9 positions
        (
            lambda a, b: F.conv_transpose2d(a, b, stride=2),
            [(1, 4, 5, 5), (4, 3, 3, 3)],
            4 * 25 * 3 * 9,
        ),
        (lambda a, b: F.conv_transpose1d(a, b, groups=2), [(1, 4, 5), (4, 3, 2)], 4 * 5 * 3 * 2),
        # 2 samples · 3 heads · 5 × 7 scores, of 4 products each, and 6 to weigh the values
        (
            F.scaled_dot_product_attention,
            [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)],
            2 * 3 * 5 * 7 * (4 + 6),
        ),
        (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            [(1, 8, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)],
            8 * 5 * 5 * (4 + 4),  # the query heads count
        ),
        (
            lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
            [(1, 2, 6, 4)],
            2 * 6 * 6 * 8,  # dense: a mask does not reduce it
        ),
    ],
)
def test_contractions(forward: Callable[..., Any], shapes: list[SHAPE], macs: int) -> None:
    assert cost(forward, *shapes).macs == macs


@pytest.mark.parametrize(
    ("module", "shape", "macs"),
    [
        # 5 steps · 2 samples · 4 gates of 3 units, each from 7 inputs and 3 states
        (nn.LSTM(7, 3), (5, 2, 7), 5 * 2 * 4 * 3 * (7 + 3)),
        # second layer reads both directions of the first: 2 · 3 inputs
        (
            nn.LSTM(7, 3, 2, bidirectional=True),
            (5, 2, 7),
            5 * 2 * 2 * (4 * 3 * (7 + 3) + 4 * 3 * (6 + 3)),
        ),
        # the state is projected from 3 to 2 units
        (nn.LSTM(7, 3, proj_size=2), (5, 2, 7), 5 * 2 * (4 * 3 * (7 + 2) + 2 * 3)),
        (nn.GRU(7, 3, bias=False), (5, 2, 7), 5 * 2 * 3 * 3 * (7 + 3)),
        (nn.RNN(7, 3, nonlinearity="relu"), (5, 2, 7), 5 * 2 * 3 * (7 + 3)),
        (nn.LSTM(7, 3), (5, 7), 5 * 4 * 3 * (7 + 3)),  # without a batch
        (nn.LSTMCell(7, 3), (2, 7), 2 * 4 * 3 * (7 + 3)),
        # queries, keys, values and output: 4 · 16², for 5 tokens; 2 heads · 5² scores · (8 + 8)
        (
            Calls(lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(16, 2)),
            (5, 16),
            5 * 4 * 256 + 2 * 25 * 16,
        ),
        # and a feed-forward part of 16 · 32 · 2 per token
        (
            nn.TransformerEncoderLayer(16, 2, 32),
            (5, 1, 16),
            5 * 4 * 256 + 2 * 25 * 16 + 5 * 16 * 32 * 2,
        ),
    ],
)
def test_layers_made_of_contractions(module: nn.Module, shape: SHAPE, macs: int) -> None:
    assert crawl_module(module, args=(torch.zeros(shape),))["overall"]["macs"] == macs


def test_a_packed_sequence_counts_its_rows_only() -> None:
    """Lengths 3 and 1: 4 rows, not 2 · 3."""
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.zeros(2, 3, 7), torch.tensor([3, 1]), batch_first=True
    )
    info = crawl_module(nn.LSTM(7, 3), args=(packed,))
    assert info["overall"]["macs"] == 4 * 4 * 3 * (7 + 3)


@pytest.mark.parametrize(
    ("function", "per_element"),
    [
        (torch.relu, 1),
        (F.relu6, 2),
        (F.hardtanh, 2),
        (lambda x: x.clamp(0, 1), 2),
        (F.leaky_relu, 4),
        (F.elu, 6),
        (torch.sigmoid, 4),
        (torch.tanh, 6),
        (F.silu, 5),
        (F.gelu, 5),
        (lambda x: F.gelu(x, approximate="tanh"), 14),
        (F.hardsigmoid, 4),
        (F.hardswish, 5),
        (F.softplus, 4),
        (F.mish, 11),
        (lambda x: x.softmax(-1), 5),
        (lambda x: x.log_softmax(-1), 5),
        (lambda x: x + 1, 1),
        (lambda x: x - x, 1),
        (lambda x: torch.add(x, x, alpha=2), 2),
        (lambda x: x * 2, 1),
        (lambda x: x / x, 1),
        (lambda x: -x, 1),
        (lambda x: x.exp(), 1),
        (lambda x: x.sqrt(), 1),
        (lambda x: x.rsqrt(), 1),
        (lambda x: x**3, 1),
        (lambda x: x.sin(), 1),
        (lambda x: x > 0, 1),
        (lambda x: torch.maximum(x, x), 1),
        (lambda x: torch.where(x.bool(), x, x), 1),
        (lambda x: x.clone().relu_(), 1),
        (lambda x: torch.addcmul(x, x, x), 2),
        (lambda x: F.dropout(x, training=True), 2),
        (lambda x: F.dropout(x, training=False), 0),
        (lambda x: x.transpose(0, 1).contiguous(), 0),
        (lambda x: torch.cat([x, x]), 0),
        (lambda x: F.pad(x, (1, 1)), 0),
        (lambda x: x.to(torch.float64), 0),
        (lambda x: x.repeat(2, 2), 0),
        (lambda x: x[torch.tensor([0, 1])], 0),
    ],
)
def test_arithmetic_per_element(function: Callable[[Tensor], Any], per_element: int) -> None:
    counted = cost(function, (4, 6))
    assert counted.flops == 24 * per_element
    assert counted.macs == 0


@pytest.mark.parametrize(
    ("module", "shape", "flops"),
    [
        # evaluation: 2 per element, 2 per channel; 2 more per element if affine
        (nn.BatchNorm2d(4).eval(), (2, 4, 3, 3), 2 * 72 + 2 * 4 + 2 * 72),
        (nn.BatchNorm2d(4, affine=False).eval(), (2, 4, 3, 3), 2 * 72 + 2 * 4),
        # training: 4 more per element, 6 per channel for the running statistics
        (nn.BatchNorm2d(4), (2, 4, 3, 3), 2 * 72 + 2 * 4 + 2 * 72 + 4 * 72 + 6 * 4),
        (
            nn.BatchNorm2d(4, track_running_stats=False),
            (2, 4, 3, 3),
            2 * 72 + 2 * 4 + 2 * 72 + 4 * 72,
        ),
        (nn.LayerNorm(6), (5, 6), 6 * 30 + 2 * 5 + 2 * 30),
        (nn.LayerNorm(6, bias=False), (5, 6), 6 * 30 + 2 * 5 + 30),
        (nn.LayerNorm(6, elementwise_affine=False), (5, 6), 6 * 30 + 2 * 5),
        (nn.GroupNorm(2, 4), (3, 4, 5), 6 * 60 + 2 * 3 * 2 + 2 * 60),
        (nn.InstanceNorm1d(4), (3, 4, 5), 6 * 60 + 2 * 3 * 4),
        (nn.RMSNorm(6), (5, 6), 3 * 30 + 2 * 5 + 30),
        (nn.RMSNorm(6, elementwise_affine=False), (5, 6), 3 * 30 + 2 * 5),
    ],
)
def test_normalisations(module: nn.Module, shape: SHAPE, flops: int) -> None:
    info = crawl_module(module, args=(torch.zeros(shape),), mode="same", strict=True)
    assert info["overall"]["flops"] == flops


@pytest.mark.parametrize(
    ("module", "shape", "flops"),
    [
        (nn.MaxPool2d(3, 2), (2, 7, 7), (9 - 1) * 2 * 9),
        (nn.AvgPool2d(2), (2, 6, 6), 4 * 2 * 9),
        (nn.AvgPool1d(3), (2, 9), 3 * 2 * 3),
        (nn.MaxPool3d(2), (1, 4, 4, 4), (8 - 1) * 8),
        (nn.AdaptiveAvgPool2d(1), (2, 7, 7), 49 * 2),
        (nn.AdaptiveMaxPool2d(1), (2, 7, 7), (49 - 1) * 2),
        # 7 into 3 bins: [0, 3), [2, 5), [4, 7)
        (nn.AdaptiveAvgPool1d(3), (2, 7), (3 + 3 + 3) * 2),
        # 5 into 3: [0, 2), [1, 4), [3, 5)
        (nn.AdaptiveAvgPool1d(3), (2, 5), (2 + 3 + 2) * 2),
        (nn.Upsample(scale_factor=2), (1, 2, 4, 4), 0),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4), 7 * 2 * 64),
        (nn.Upsample(scale_factor=2, mode="bicubic"), (1, 2, 4, 4), 31 * 2 * 64),
        (nn.Upsample(scale_factor=2, mode="trilinear"), (1, 2, 2, 2, 2), 15 * 2 * 64),
    ],
)
def test_pools_and_resizes(module: nn.Module, shape: SHAPE, flops: int) -> None:
    assert cost(lambda x: module(x), shape).flops == flops


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda x: x.sum(), 24 - 1),
        (lambda x: x.sum(1), 24 - 4),
        (lambda x: x.mean(1), 24),
        (lambda x: x.amax(1), 24 - 4),
        (lambda x: x.max(1), 24 - 4),
        (lambda x: x.max(), 24 - 1),
        (lambda x: x.var(1), 4 * 24),
        (lambda x: torch.linalg.vector_norm(x, dim=1), 2 * 24),
        (lambda x: x.cumsum(0), 24 - 6),  # six running sums of four
        (lambda x: x.sort(1), 24 * 3),  # ⌈log2 6⌉ comparisons each
        (lambda x: x.topk(2), 24 * 2),  # ⌈log2 3⌉
    ],
)
def test_reductions(function: Callable[[Tensor], Any], flops: int) -> None:
    assert cost(function, (4, 6)).flops == flops


def test_flops_of_a_contraction_are_twice_its_macs_whatever_the_bias() -> None:
    with_bias, without = (
        cost(F.linear, *shapes) for shapes in ([(2, 3), (5, 3), (5,)], [(2, 3), (5, 3)])
    )
    assert with_bias.flops == without.flops == 2 * 30


def test_scaled_products_cost_a_multiplication_per_element() -> None:
    assert (
        cost(lambda c, a, b: torch.addmm(c, a, b, alpha=2), (2, 5), (2, 3), (3, 5)).flops
        == 2 * 30 + 10
    )
    assert (
        cost(lambda c, a, b: torch.addmm(c, a, b, beta=2), (2, 5), (2, 3), (3, 5)).flops
        == 2 * 30 + 10
    )
    assert (
        cost(lambda c, a, b: torch.addmm(c, a, b, beta=0), (2, 5), (2, 3), (3, 5)).flops == 2 * 30
    )


def test_memory_accesses_of_a_convolution_read_the_window_of_each_output() -> None:
    """Outputs 4·3·3 = 36, window 9·3 = 27: 36·27 reads, 108 weights, 4 biases, 36 writes."""
    counted = cost(F.conv2d, (1, 3, 5, 5), (4, 3, 3, 3), (4,))
    assert counted.dmas == 36 * 27 + 108 + 4 + 36
    assert counted.bytes_read == 4 * (75 + 108 + 4)  # at least: every element once
    assert counted.bytes_written == 4 * 36


def test_memory_accesses_of_a_product_read_each_operand_once() -> None:
    counted = cost(torch.mm, (2, 3), (3, 5))
    assert (counted.dmas, counted.bytes_read, counted.bytes_written) == (
        6 + 15 + 10,
        4 * 21,
        4 * 10,
    )


def test_a_tensor_that_is_used_twice_is_read_once() -> None:
    assert cost(lambda x: x * x, (6,)).bytes_read == 4 * 6
    assert cost(lambda x: x * x, (6,)).dmas == 6 + 6 + 6
    assert cost(lambda x, y: x * y, (6,), (6,)).bytes_read == 4 * 12


def test_an_expanded_operand_counts_its_stored_elements() -> None:
    assert cost(lambda x, y: x * y.expand(4, 6), (4, 6), (6,)).bytes_read == 4 * (24 + 6)


def test_in_place_operators_read_and_write() -> None:
    counted = cost(lambda x: x.add_(1), (6,))
    assert (counted.bytes_read, counted.bytes_written) == (24, 24)


def test_views_cost_nothing_and_copies_what_they_move() -> None:
    nothing = OpCost()
    assert cost(lambda x: x.view(6, 4).t()[1:3].unsqueeze(0).expand(2, 2, 6), (4, 6)) == nothing
    assert cost(lambda x: x.reshape(24), (4, 6)) == nothing
    assert cost(lambda x: x.contiguous(), (4, 6)) == nothing
    assert cost(lambda x: x.float(), (4, 6)) == nothing
    assert cost(lambda x: x.t().reshape(24), (4, 6)) == OpCost(
        elements_read=24, elements_written=24, bytes_read=96, bytes_written=96
    )
    assert cost(lambda x: x.half(), (4, 6)) == OpCost(
        elements_read=24, elements_written=24, bytes_read=96, bytes_written=48
    )


def test_an_embedding_reads_rows_not_the_table() -> None:
    """6 ids of 8 bytes, 6 rows of 4 floats."""
    model = nn.Embedding(1000, 4)
    overall = crawl_module(model, (6,), torch.long)["overall"]
    assert (overall["bytes_read"], overall["bytes_written"]) == (6 * 8 + 6 * 16, 6 * 16)
    assert (overall["dmas"], overall["flops"]) == (6 + 24 + 24, 0)


def test_integer_arithmetic_moves_bytes_only() -> None:
    counted = cost(lambda x: (x + 1) * 2, (6,), dtype=torch.long)
    assert (counted.macs, counted.flops) == (0, 0)
    assert counted.bytes_read == 2 * 6 * 8


def test_types_set_the_bytes() -> None:
    assert cost(torch.mm, (2, 3), (3, 5), dtype=torch.bfloat16).bytes_read == 2 * 21
    assert cost(torch.mm, (2, 3), (3, 5), dtype=torch.float64).bytes_read == 8 * 21


def test_adding_to_elements_reads_them_too() -> None:
    """Two rows of 5 floats, and 2 indices."""
    values, index = torch.zeros(2, 5), torch.tensor([0, 1])
    read = []
    for adds in (False, True):
        model = Calls(
            lambda _, x, adds=adds: x.clone().index_put_((index,), values, accumulate=adds)
        )
        trace = record(model, args=(torch.zeros(3, 5),))
        read.append(by_operator(trace)["aten.index_put_"].bytes_read)
    assert read == [2 * 5 * 4 + 2 * 8, 2 * 5 * 4 + 2 * 8 + 2 * 5 * 4]
