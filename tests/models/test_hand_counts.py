"""Small models whose MACs are worked out by hand, of the kinds that are easily counted wrong.

Parts that are no layers, layers that compute more than their weights, weights that are used twice or never.

The numbers of an expression are the sizes of the case, in the order of the comment above it. ``L`` and ``S`` are the lengths of
target and source, ``E`` the width, ``F`` that of the MLP, ``B`` the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from tests.recording.test_record import Calls
from torchscan import crawl_module

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same'", "ignore:LSTM with projections"
)  # torch, of its speed


@dataclass(frozen=True)
class Case:
    """A model, its complete arguments and the MACs that they take."""

    name: str
    build: Callable[[], nn.Module]
    args: tuple[Any, ...]
    macs: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def calls(
    forward: Callable[..., Any], **children: nn.Module | nn.Parameter
) -> Callable[[], nn.Module]:
    """A model of a function and of what it owns; the function's first argument is the model."""
    return lambda: Calls(forward, **children)


def function(
    forward: Callable[..., Any], *shapes: tuple[int, ...]
) -> tuple[Callable[[], nn.Module], tuple[Tensor, ...]]:
    """A model that is nothing but a function of tensors of these shapes."""
    return (lambda: Calls(lambda _, *args: forward(*args))), tensors(*shapes)


def tensors(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(shape) for shape in shapes)


def attention(batch: int, queries: int, keys: int, width: int) -> int:
    """Scores and weighted values over all heads together: the heads share the width, so that their number does not matter."""
    return batch * queries * keys * 2 * width


def encoder_layer(batch: int, length: int, width: int, mlp: int) -> int:
    """Four projections, attention, two matrices of the MLP."""
    return batch * length * (4 * width**2 + 2 * width * mlp) + attention(
        batch, length, length, width
    )


def decoder_layer(batch: int, target: int, source: int, width: int, mlp: int) -> int:
    """An encoder layer, and cross attention: projections for queries and output meet the target, keys and values the source."""
    cross = batch * (2 * target + 2 * source) * width**2 + attention(batch, target, source, width)
    return encoder_layer(batch, target, width, mlp) + cross


def _layer(heads: int, **options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(32, heads, 48, batch_first=True, **options)


def _encodes(
    name: str, heads: int = 4, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> Case:
    """Whatever the options are, the products are the same."""
    name = f"encoder layer, {name}"
    return Case(
        name,
        lambda: _layer(heads, **options),
        tensors((2, 7, 32)),
        encoder_layer(2, 7, 32, 48),
        kwargs or {},
    )


_ENDS_IN_PADDING = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])

# B = 2, L = 7, E = 32, F = 48
ENCODERS = [
    _encodes("1 head", heads=1),
    _encodes("4 heads", heads=4),
    _encodes("32 heads", heads=32),
    _encodes("norm first", norm_first=True),
    _encodes("gelu", activation="gelu"),
    _encodes("silu", activation=F.silu),
    _encodes("no biases", bias=False),
    # a mask saves nothing
    _encodes("padding mask", kwargs={"src_key_padding_mask": _ENDS_IN_PADDING}),
    # time first: (L, B, E)
    Case(
        "encoder layer, time first",
        lambda: nn.TransformerEncoderLayer(32, 4, 48),
        tensors((7, 2, 32)),
        encoder_layer(2, 7, 32, 48),
    ),
    Case(
        "encoder layer, one sequence",
        lambda: _layer(4),
        tensors((7, 32)),
        encoder_layer(1, 7, 32, 48),
    ),
    Case(
        "encoder of 3 layers, padding mask",
        lambda: nn.TransformerEncoder(_layer(4), 3),
        tensors((2, 7, 32)),
        3 * encoder_layer(2, 7, 32, 48),
        {"src_key_padding_mask": _ENDS_IN_PADDING},
    ),
]

# B = 2, L = 5, S = 7, E = 32, F = 48
DECODERS = [
    Case(
        "decoder layer",
        lambda: nn.TransformerDecoderLayer(32, 4, 48, batch_first=True),
        tensors((2, 5, 32), (2, 7, 32)),
        decoder_layer(2, 5, 7, 32, 48),
    ),
    # a causal mask saves nothing either
    Case(
        "decoder layer, norm first, causal",
        lambda: nn.TransformerDecoderLayer(32, 8, 48, batch_first=True, norm_first=True),
        tensors((2, 5, 32), (2, 7, 32)),
        decoder_layer(2, 5, 7, 32, 48),
        {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(5), "tgt_is_causal": True},
    ),
    Case(
        "transformer",
        lambda: nn.Transformer(
            32, 4, num_encoder_layers=3, num_decoder_layers=2, dim_feedforward=48, batch_first=True
        ),
        tensors((2, 7, 32), (2, 5, 32)),
        3 * encoder_layer(2, 7, 32, 48) + 2 * decoder_layer(2, 5, 7, 32, 48),
    ),
]


def _attend(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(32, 4, **options)


_SELF = tensors((2, 7, 32)) * 3
_CROSS = tensors((2, 5, 32), (2, 7, 32), (2, 7, 32))

# B = 2, L = 5, S = 7, E = 32; every position is projected four times in self attention
MULTIHEAD = [
    Case(
        "multihead, self",
        _attend(batch_first=True),
        _SELF,
        2 * 7 * 4 * 32**2 + attention(2, 7, 7, 32),
    ),
    Case(
        "multihead, without weights",
        _attend(batch_first=True),
        _SELF,
        2 * 7 * 4 * 32**2 + attention(2, 7, 7, 32),
        {"need_weights": False},
    ),
    Case(
        "multihead, weights of each head",
        _attend(batch_first=True),
        _SELF,
        2 * 7 * 4 * 32**2 + attention(2, 7, 7, 32),
        {"average_attn_weights": False},
    ),
    # time first: the 7 is the batch, 2 the length
    Case("multihead, time first", _attend(), _SELF, 7 * 2 * 4 * 32**2 + attention(7, 2, 2, 32)),
    Case(
        "multihead, one sequence",
        _attend(),
        tensors((7, 32)) * 3,
        7 * 4 * 32**2 + attention(1, 7, 7, 32),
    ),
    # queries and output for 5 positions, keys and values for 7
    Case(
        "multihead, cross",
        _attend(batch_first=True),
        _CROSS,
        2 * (5 * 2 + 7 * 2) * 32**2 + attention(2, 5, 7, 32),
        {"need_weights": False},
    ),
    Case(
        "multihead, cross, padding mask and weights",
        _attend(batch_first=True),
        _CROSS,
        2 * (5 * 2 + 7 * 2) * 32**2 + attention(2, 5, 7, 32),
        {"key_padding_mask": _ENDS_IN_PADDING},
    ),
    # keys of width 12 and values of width 20 are projected to 32
    *(
        Case(
            f"multihead, other widths of keys and values, weights: {need_weights}",
            _attend(batch_first=True, kdim=12, vdim=20),
            tensors((2, 5, 32), (2, 7, 12), (2, 7, 20)),
            2 * (5 * 2 * 32**2 + 7 * 12 * 32 + 7 * 20 * 32) + attention(2, 5, 7, 32),
            {"need_weights": need_weights},
        )
        for need_weights in (True, False)
    ),
    # one more key, after the projections
    Case(
        "multihead, bias of keys and values",
        _attend(batch_first=True, add_bias_kv=True),
        _CROSS,
        2 * (5 * 2 + 7 * 2) * 32**2 + attention(2, 5, 8, 32),
    ),
    Case(
        "multihead, a key of zeros",
        _attend(batch_first=True, add_zero_attn=True),
        _CROSS,
        2 * (5 * 2 + 7 * 2) * 32**2 + attention(2, 5, 8, 32),
        {"need_weights": False},
    ),
    Case(
        "multihead, both",
        _attend(batch_first=True, add_bias_kv=True, add_zero_attn=True),
        _CROSS,
        2 * (5 * 2 + 7 * 2) * 32**2 + attention(2, 5, 9, 32),
    ),
]

# B = 2, 6 query heads, L = 5, S = 7, width 8
_QKV = ((2, 6, 5, 8), (2, 6, 7, 8), (2, 6, 7, 8))
DOT_PRODUCT = [
    Case("dot product", *function(F.scaled_dot_product_attention, *_QKV), 2 * 6 * 5 * 7 * (8 + 8)),
    Case(
        "dot product, values of width 3",
        *function(F.scaled_dot_product_attention, *_QKV[:2], (2, 6, 7, 3)),
        2 * 6 * 5 * 7 * (8 + 3),
    ),
    Case(
        "dot product, mask",
        *function(F.scaled_dot_product_attention, *_QKV, (5, 7)),
        2 * 6 * 5 * 7 * (8 + 8),
    ),
    Case(
        "dot product, causal",
        *function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *_QKV),
        2 * 6 * 5 * 7 * (8 + 8),
    ),
    # 2 heads of keys and values, each for 3 of queries
    Case(
        "dot product, grouped queries",
        *function(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            _QKV[0],
            (2, 2, 7, 8),
            (2, 2, 7, 8),
        ),
        2 * 6 * 5 * 7 * (8 + 8),
    ),
    Case(
        "dot product, 3-D",
        *function(F.scaled_dot_product_attention, (6, 5, 8), (6, 7, 8), (6, 7, 4)),
        6 * 5 * 7 * (8 + 4),
    ),
    Case(
        "dot product, by hand",
        *function(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, *_QKV),
        2 * 6 * 5 * 7 * (8 + 8),
    ),
]


def _packed(*lengths: int) -> PackedSequence:
    return pack_padded_sequence(
        torch.zeros(len(lengths), max(lengths), 5), torch.tensor(lengths), batch_first=True
    )


def _steps(model: Any, sequence: Tensor) -> Tensor:
    state = None
    for step in sequence:
        state = model.cell(step, state)
    assert state is not None
    return state[0]


# B = 2, 6 steps, 5 inputs, 8 units: of each gate, 8 units meet 5 inputs and 8 states, at each step of each sample
RECURRENT = [
    Case("RNN", lambda: nn.RNN(5, 8), tensors((6, 2, 5)), 2 * 6 * 1 * 8 * (5 + 8)),
    Case(
        "RNN, relu",
        lambda: nn.RNN(5, 8, nonlinearity="relu"),
        tensors((6, 2, 5)),
        2 * 6 * 1 * 8 * (5 + 8),
    ),
    Case(
        "GRU", lambda: nn.GRU(5, 8, batch_first=True), tensors((2, 6, 5)), 2 * 6 * 3 * 8 * (5 + 8)
    ),
    Case(
        "LSTM", lambda: nn.LSTM(5, 8, batch_first=True), tensors((2, 6, 5)), 2 * 6 * 4 * 8 * (5 + 8)
    ),
    # with a first state given: no more steps
    Case(
        "LSTM with a state",
        lambda: nn.LSTM(5, 8),
        (torch.zeros(6, 2, 5), (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8))),
        2 * 6 * 4 * 8 * (5 + 8),
    ),
    Case("LSTM, unbatched", lambda: nn.LSTM(5, 8), tensors((6, 5)), 6 * 4 * 8 * (5 + 8)),
    Case(
        "GRU, no biases",
        lambda: nn.GRU(5, 8, bias=False),
        tensors((6, 2, 5)),
        2 * 6 * 3 * 8 * (5 + 8),
    ),
    # two directions; the second layer's input is both of them, 16 wide
    Case(
        "GRU, 2 layers, both directions",
        lambda: nn.GRU(5, 8, num_layers=2, bidirectional=True, batch_first=True),
        tensors((2, 6, 5)),
        2 * 6 * 2 * 3 * 8 * ((5 + 8) + (16 + 8)),
    ),
    Case(
        "LSTM, 3 layers",
        lambda: nn.LSTM(5, 8, num_layers=3),
        tensors((6, 2, 5)),
        2 * 6 * 4 * 8 * ((5 + 8) + 2 * (8 + 8)),
    ),
    # the state is projected from 8 to 3, which is what the gates and the next layer see
    Case(
        "LSTM, projected",
        lambda: nn.LSTM(5, 8, num_layers=2, proj_size=3),
        tensors((6, 2, 5)),
        2 * 6 * ((4 * 8 * (5 + 3) + 8 * 3) + (4 * 8 * (3 + 3) + 8 * 3)),
    ),
    # the second layer's input is 2 · 3 wide
    Case(
        "LSTM, projected, both directions",
        lambda: nn.LSTM(5, 8, num_layers=2, proj_size=3, bidirectional=True),
        tensors((6, 2, 5)),
        2 * 6 * 2 * ((4 * 8 * (5 + 3) + 8 * 3) + (4 * 8 * (6 + 3) + 8 * 3)),
    ),
    # 6 + 4 + 1 steps, nothing for padding
    Case("LSTM, packed", lambda: nn.LSTM(5, 8), (_packed(6, 4, 1),), (6 + 4 + 1) * 4 * 8 * (5 + 8)),
    Case(
        "GRU, packed, both directions",
        lambda: nn.GRU(5, 8, bidirectional=True),
        (_packed(6, 4, 1),),
        (6 + 4 + 1) * 2 * 3 * 8 * (5 + 8),
    ),
    # a cell takes one step
    Case("RNN cell", lambda: nn.RNNCell(5, 8), tensors((2, 5)), 2 * 1 * 8 * (5 + 8)),
    Case("GRU cell", lambda: nn.GRUCell(5, 8), tensors((2, 5)), 2 * 3 * 8 * (5 + 8)),
    Case("LSTM cell", lambda: nn.LSTMCell(5, 8), tensors((2, 5)), 2 * 4 * 8 * (5 + 8)),
    Case("LSTM cell, unbatched", lambda: nn.LSTMCell(5, 8), tensors((5,)), 4 * 8 * (5 + 8)),
    Case(
        "LSTM cell, 3 steps",
        calls(_steps, cell=nn.LSTMCell(5, 8)),
        tensors((3, 2, 5)),
        3 * 2 * 4 * 8 * (5 + 8),
    ),
]

# a window of C_in / groups · kernel elements for each output
CONVOLUTIONS = [
    # (20 + 2 − 5) / 3 + 1 = 6 positions
    Case(
        "conv 1-D, stride",
        lambda: nn.Conv1d(4, 6, 5, stride=3, padding=1),
        tensors((2, 4, 20)),
        2 * 6 * 6 * 4 * 5,
    ),
    Case("conv 1-D, unbatched", lambda: nn.Conv1d(4, 6, 5), tensors((4, 20)), 6 * 16 * 4 * 5),
    Case("conv 2-D, unbatched", lambda: nn.Conv2d(4, 6, 3), tensors((4, 9, 9)), 6 * 7 * 7 * 4 * 9),
    Case(
        "conv 2-D, grouped",
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        tensors((2, 4, 9, 9)),
        2 * 6 * 7 * 7 * 2 * 9,
    ),
    Case(
        "conv 2-D, depthwise",
        lambda: nn.Conv2d(4, 8, 3, groups=4),
        tensors((2, 4, 9, 9)),
        2 * 8 * 7 * 7 * 1 * 9,
    ),
    # a kernel of 3 spans 5 where it is dilated by 2, 7 by 3: 9 − 4 = 5 rows, 9 − 6 = 3 columns
    Case(
        "conv 2-D, dilated",
        lambda: nn.Conv2d(4, 6, 3, dilation=(2, 3)),
        tensors((2, 4, 9, 9)),
        2 * 6 * 5 * 3 * 4 * 9,
    ),
    Case(
        "conv 2-D, same",
        lambda: nn.Conv2d(4, 6, (3, 5), padding="same"),
        tensors((2, 4, 9, 9)),
        2 * 6 * 81 * 4 * 15,
    ),
    # of an even kernel, one side gets more
    Case(
        "conv 2-D, same, even",
        lambda: nn.Conv2d(4, 6, 4, padding="same"),
        tensors((2, 4, 9, 9)),
        2 * 6 * 81 * 4 * 16,
    ),
    Case(
        "conv 2-D, circular",
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
        tensors((2, 4, 9, 9)),
        2 * 6 * 81 * 4 * 9,
    ),
    # (8 − 2) / 2 + 1 = 4, (9 − 3) / 2 + 1 = 4, (10 − 4) / 2 + 1 = 4
    Case(
        "conv 3-D",
        lambda: nn.Conv3d(2, 3, (2, 3, 4), stride=2),
        tensors((2, 2, 8, 9, 10)),
        2 * 3 * 64 * 2 * 24,
    ),
    # each input element meets C_out / groups · kernel weights, whatever the stride, the padding and the output's
    Case(
        "transposed 1-D",
        lambda: nn.ConvTranspose1d(4, 6, 5, stride=3),
        tensors((2, 4, 10)),
        2 * 4 * 10 * 6 * 5,
    ),
    Case(
        "transposed 2-D, output padding",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
        tensors((2, 4, 9, 9)),
        2 * 4 * 81 * 6 * 9,
    ),
    Case(
        "transposed 2-D, grouped",
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        tensors((2, 4, 9, 9)),
        2 * 4 * 81 * 3 * 9,
    ),
    Case(
        "transposed 2-D, unbatched",
        lambda: nn.ConvTranspose2d(4, 6, 3, dilation=2),
        tensors((4, 9, 9)),
        4 * 81 * 6 * 9,
    ),
    Case(
        "transposed 3-D",
        lambda: nn.ConvTranspose3d(2, 3, 2, stride=2),
        tensors((2, 2, 4, 5, 6)),
        2 * 2 * 120 * 3 * 8,
    ),
    Case(
        "transposed as a function, output padding",
        *function(
            lambda x, weight: F.conv_transpose2d(x, weight, stride=3, output_padding=2),
            (2, 4, 9, 9),
            (4, 6, 3, 3),
        ),
        2 * 4 * 81 * 6 * 9,
    ),
    # the same as a matrix product: 49 windows of 4 · 9 elements
    Case(
        "conv as a product of windows",
        *function(lambda x, weight: weight @ F.unfold(x, 3), (2, 4, 9, 9), (6, 36)),
        2 * 6 * 49 * 36,
    ),
]

LINEAR = [
    Case("linear, 1-D", lambda: nn.Linear(5, 8), tensors((5,)), 5 * 8),
    Case("linear, 2-D", lambda: nn.Linear(5, 8), tensors((2, 5)), 2 * 5 * 8),
    Case("linear, 3-D", lambda: nn.Linear(5, 8, bias=False), tensors((2, 3, 5)), 2 * 3 * 5 * 8),
    Case("linear, 4-D", lambda: nn.Linear(5, 8), tensors((2, 3, 4, 5)), 2 * 3 * 4 * 5 * 8),
    Case("linear, lazy", lambda: nn.LazyLinear(8), tensors((2, 5)), 2 * 5 * 8),
    # 8 outputs of 5 × 4 weights: x1 · W for each of the 4, then these 4 with x2, which is torch's order
    Case(
        "bilinear", lambda: nn.Bilinear(5, 4, 8), tensors((2, 5), (2, 4)), 2 * 8 * 5 * 4 + 2 * 8 * 4
    ),
    # tables are looked up
    Case("embedding", lambda: nn.Embedding(10, 5), (torch.zeros(2, 3, dtype=torch.long),), 0),
    Case(
        "bag of embeddings",
        lambda: nn.EmbeddingBag(10, 5),
        (torch.zeros(2, 3, dtype=torch.long),),
        0,
    ),
]

PRODUCTS = [
    Case(
        "einsum, batch",
        *function(lambda a, b: torch.einsum("bik,bkj->bij", a, b), (2, 3, 4), (2, 4, 5)),
        2 * 3 * 5 * 4,
    ),
    Case(
        "einsum, heads",
        *function(lambda q, k: torch.einsum("blhd,bshd->bhls", q, k), (2, 5, 6, 8), (2, 7, 6, 8)),
        2 * 6 * 5 * 7 * 8,
    ),
    Case(
        "einsum, ellipsis",
        *function(lambda a, b: torch.einsum("...i,oi->...o", a, b), (2, 3, 4), (5, 4)),
        2 * 3 * 5 * 4,
    ),
    Case(
        "einsum, row by row",
        *function(lambda a, b: torch.einsum("bi,bi->b", a, b), (2, 4), (2, 4)),
        2 * 4,
    ),
    # relative positions of a vision transformer: a table for each row
    Case(
        "einsum, shared row",
        *function(lambda q, r: torch.einsum("bhwc,hkc->bhwk", q, r), (2, 3, 4, 8), (3, 5, 8)),
        2 * 3 * 4 * 5 * 8,
    ),
    # from the left: (3 × 4)(4 × 5), then (3 × 5)(5 × 6), which is also the cheaper order: 60 + 90 against 120 + 72
    Case(
        "einsum of three",
        *function(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), (3, 4), (4, 5), (5, 6)),
        3 * 4 * 5 + 3 * 5 * 6,
    ),
    Case("einsum, a trace", *function(lambda a: torch.einsum("ii->", a), (4, 4)), 0),
    Case(
        "tensordot",
        *function(lambda a, b: torch.tensordot(a, b, dims=2), (2, 3, 4), (3, 4, 5)),
        2 * 5 * 3 * 4,
    ),
    Case("inner", *function(torch.inner, (2, 3, 4), (5, 4)), 2 * 3 * 5 * 4),
    Case(
        "chain of matrices",
        *function(lambda *each: torch.linalg.multi_dot(each), (3, 4), (4, 5), (5, 6)),
        3 * 4 * 5 + 3 * 5 * 6,
    ),
    Case("vector by matrix", *function(torch.matmul, (4,), (2, 4, 5)), 2 * 5 * 4),
    Case("broadcast batch", *function(torch.matmul, (6, 1, 3, 4), (2, 4, 5)), 6 * 2 * 3 * 5 * 4),
    Case(
        "vectorised",
        *function(
            lambda x, w: torch.func.vmap(F.linear, in_dims=(0, None))(x, w), (2, 3, 4), (5, 4)
        ),
        2 * 3 * 5 * 4,
    ),
]


def _twice(model: Any, x: Tensor) -> Any:
    return model.shared(model.shared(x))


WITHOUT_LAYERS = [
    Case(
        "raw parameter",
        calls(lambda model, x: x @ model.weight, weight=nn.Parameter(torch.zeros(5, 8))),
        tensors((2, 3, 5)),
        2 * 3 * 5 * 8,
    ),
    Case(
        "raw parameter of a convolution",
        calls(
            lambda model, x: F.conv2d(x, model.weight), weight=nn.Parameter(torch.zeros(6, 4, 3, 3))
        ),
        tensors((2, 4, 9, 9)),
        2 * 6 * 49 * 4 * 9,
    ),
    Case(
        "module used twice", calls(_twice, shared=nn.Linear(5, 5)), tensors((2, 5)), 2 * 2 * 5 * 5
    ),
    Case(
        "the same module in two places",
        lambda: (lambda layer: nn.Sequential(layer, nn.ReLU(), layer))(nn.Linear(5, 5)),
        tensors((2, 5)),
        2 * 2 * 5 * 5,
    ),
    Case(
        "forward called directly",
        calls(lambda model, x: model.layer.forward(x), layer=nn.Linear(5, 8)),
        tensors((2, 5)),
        2 * 5 * 8,
    ),
    Case(
        "a layer's weight in another's place",
        calls(
            lambda model, x: F.linear(model.layer(x), model.layer.weight.T), layer=nn.Linear(5, 8)
        ),
        tensors((2, 5)),
        2 * 5 * 8 + 2 * 8 * 5,
    ),
    Case(
        "a module that never runs",
        calls(lambda model, x: model.used(x), used=nn.Linear(5, 8), unused=nn.Linear(5, 99)),
        tensors((2, 5)),
        2 * 5 * 8,
    ),
    Case(
        "tied head",
        calls(
            lambda model, ids: F.linear(model.table(ids), model.table.weight),
            table=nn.Embedding(10, 5),
        ),
        (torch.zeros(2, 3, dtype=torch.long),),
        2 * 3 * 5 * 10,
    ),
    # norm of the direction by elements, then a product like any other
    Case(
        "weight norm",
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)),
        tensors((2, 5)),
        2 * 5 * 8,
    ),
]

CASES = [
    *ENCODERS,
    *DECODERS,
    *MULTIHEAD,
    *DOT_PRODUCT,
    *RECURRENT,
    *CONVOLUTIONS,
    *LINEAR,
    *PRODUCTS,
    *WITHOUT_LAYERS,
]


@pytest.mark.slow
@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_macs_are_those_counted_by_hand(
    case: Case, execute: Literal["abstract", "real"]
) -> None:
    info = crawl_module(case.build().eval(), args=case.args, kwargs=case.kwargs, execute=execute)
    assert info["overall"]["macs"] == case.macs
    assert info["without_formula"] == {}
    assert info["overall"]["complete"]
    assert info["provenance"]["execution"] == execute
