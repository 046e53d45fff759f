"""Steps: the layers of torch.nn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from tests.random_modules.drawing import Does, Draw, Layer, step

# -- products ------------------------------------------------------------------------------------------------------------


@step(2, 3, 4)
def linear(draw: Draw, x: Tensor) -> Layer:
    return nn.Linear(x.shape[-1], draw.size(1, 6), bias=draw.flag())


@step()
def lazy_linear_on_last(draw: Draw, x: Tensor) -> Layer:
    return nn.Sequential(nn.Linear(x.shape[-1], 4), nn.Linear(4, 3))


class _Bilinear(nn.Module):
    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(size, size, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.bilinear(x, x.flip(0))


@step(2, 3)
def bilinear(draw: Draw, x: Tensor) -> Layer:
    return _Bilinear(x.shape[-1], draw.size(1, 4))


CONVOLUTIONS: dict[int, Any] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
TRANSPOSED: dict[int, Any] = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}


@step(3, 4, 5)
def convolution(draw: Draw, x: Tensor) -> Layer:
    groups = draw.one_of(1, 1, draw.divisor(x.shape[1]))
    return CONVOLUTIONS[x.dim()](
        x.shape[1],
        groups * draw.size(1, 3),
        draw.size(1, 3),
        stride=draw.size(1, 2),
        padding=draw.size(0, 2),
        dilation=draw.size(1, 2),
        groups=groups,
        bias=draw.flag(),
        padding_mode=draw.one_of("zeros", "zeros", "reflect", "replicate", "circular"),
    )


@step(3, 4, 5)
def same_convolution(draw: Draw, x: Tensor) -> Layer:
    mode = draw.one_of("zeros", "circular", "replicate")
    return CONVOLUTIONS[x.dim()](
        x.shape[1], draw.size(1, 4), draw.size(1, 4), padding="same", padding_mode=mode
    )


@step(3, 4, 5)
def depthwise(draw: Draw, x: Tensor) -> Layer:
    c = x.shape[1]
    return nn.Sequential(
        CONVOLUTIONS[x.dim()](c, c, 3, padding=1, groups=c),
        CONVOLUTIONS[x.dim()](c, draw.size(1, 4), 1),
    )


@step(3, 4, 5)
def transposed_convolution(draw: Draw, x: Tensor) -> Layer:
    groups = draw.one_of(1, 1, draw.divisor(x.shape[1]))
    stride = draw.size(1, 2)
    return TRANSPOSED[x.dim()](
        x.shape[1],
        groups * draw.size(1, 3),
        draw.size(1, 3),
        stride=stride,
        padding=draw.size(0, 1),
        output_padding=draw.size(0, stride - 1),
        groups=groups,
        bias=draw.flag(),
        dilation=draw.size(1, 2),
    )


@step(4)
def channels_last_convolution(draw: Draw, x: Tensor) -> Layer:
    layer: nn.Module = nn.Conv2d(x.shape[1], draw.size(1, 4), draw.size(1, 3), padding=1)
    return layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@step(2, 3)
def unbatched_convolution(draw: Draw, x: Tensor) -> Layer:
    return CONVOLUTIONS[x.dim() + 1](x.shape[0], draw.size(1, 4), draw.size(1, 3), padding=1)


# -- norms and activations -----------------------------------------------------------------------------------------------


@step(2, 3, 4, 5)
def batch_norm(draw: Draw, x: Tensor) -> Layer:
    kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[
        x.dim()
    ]
    momentum = draw.one_of(0.1, None)
    return kind(
        x.shape[1], affine=draw.flag(), track_running_stats=draw.flag(0.7), momentum=momentum
    )


@step(3, 4, 5)
def instance_norm(draw: Draw, x: Tensor) -> Layer:
    kind: Any = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}[x.dim()]
    return kind(x.shape[1], affine=draw.flag(), track_running_stats=draw.flag(0.4))


@step()
def layer_norm(draw: Draw, x: Tensor) -> Layer:
    last = x.shape[-draw.size(1, x.dim()) :]
    return nn.LayerNorm(tuple(last), elementwise_affine=draw.flag(), bias=draw.flag())


@step()
def rms_norm(draw: Draw, x: Tensor) -> Layer:
    return nn.RMSNorm(tuple(x.shape[-draw.size(1, 2) :]), elementwise_affine=draw.flag())


@step(2, 3, 4, 5)
def group_norm(draw: Draw, x: Tensor) -> Layer:
    return nn.GroupNorm(draw.divisor(x.shape[1]), x.shape[1], affine=draw.flag())


@step(4, 3)
def local_response_norm(draw: Draw, x: Tensor) -> Layer:
    return nn.LocalResponseNorm(draw.size(1, 3))


ACTIVATIONS: tuple[type[nn.Module], ...] = (
    nn.GELU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink,
    nn.PReLU, nn.Identity, nn.GLU,
)  # fmt: skip
IN_PLACE: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU, nn.RReLU,
    nn.Hardtanh,
)  # fmt: skip
DROPOUTS: tuple[type[nn.Module], ...] = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip


@step()
def activation(draw: Draw, x: Tensor) -> Layer:
    return draw.choice(ACTIVATIONS)()


@step()
def activation_in_place(draw: Draw, x: Tensor) -> Layer:
    layer: Any = draw.choice(IN_PLACE)
    return layer(inplace=draw.flag())


@step()
def dropout(draw: Draw, x: Tensor) -> Layer:
    layer: Any = draw.choice(DROPOUTS)
    return layer(0.3, inplace=draw.flag(0.3))


@step()
def softmax(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(nn.Softmax, nn.LogSoftmax, nn.Softmin)(draw.dim(x))


@step(4)
def softmax2d(draw: Draw, x: Tensor) -> Layer:
    return nn.Softmax2d()


@step()
def threshold(draw: Draw, x: Tensor) -> Layer:
    return nn.Threshold(0.1, 0.5, inplace=draw.flag())


# -- pools, padding, resizing --------------------------------------------------------------------------------------------

MAX_POOLS: dict[int, Any] = {3: nn.MaxPool1d, 4: nn.MaxPool2d, 5: nn.MaxPool3d}
AVERAGE_POOLS: dict[int, Any] = {3: nn.AvgPool1d, 4: nn.AvgPool2d, 5: nn.AvgPool3d}


@step(3, 4, 5)
def max_pool(draw: Draw, x: Tensor) -> Layer:
    return MAX_POOLS[x.dim()](
        2, stride=draw.one_of(None, 1), padding=draw.size(0, 1), ceil_mode=draw.flag()
    )


@step(3, 4, 5)
def dilated_max_pool(draw: Draw, x: Tensor) -> Layer:
    return MAX_POOLS[x.dim()](2, stride=draw.size(1, 2), dilation=2)


@step(3, 4, 5)
def average_pool(draw: Draw, x: Tensor) -> Layer:
    counts = draw.flag()
    return AVERAGE_POOLS[x.dim()](
        2, draw.one_of(None, 1), draw.size(0, 1), ceil_mode=draw.flag(), count_include_pad=counts
    )


@step(3, 4, 5)
def power_average_pool(draw: Draw, x: Tensor) -> Layer:
    kind: Any = {3: nn.LPPool1d, 4: nn.LPPool2d, 5: nn.LPPool3d}[x.dim()]
    return kind(2, 2, ceil_mode=draw.flag())


@step(3, 4, 5)
def adaptive_pool(draw: Draw, x: Tensor) -> Layer:
    kinds: Any = {
        3: (nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
        4: (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
        5: (nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
    }[x.dim()]
    return draw.one_of(*kinds)(draw.size(1, 3))


@step(4, 5)
def fractional_pool(draw: Draw, x: Tensor) -> Layer:
    kind: Any = nn.FractionalMaxPool2d if x.dim() == 4 else nn.FractionalMaxPool3d
    return kind(draw.one_of(1, 2), output_ratio=0.7)


class _Unpooled(nn.Module):
    def __init__(self, pool: nn.Module, unpool: nn.Module) -> None:
        super().__init__()
        self.pool, self.unpool = pool, unpool

    def forward(self, x: Tensor) -> Tensor:
        y, indices = self.pool(x)
        return self.unpool(y, indices, output_size=x.shape)


@step(3, 4, 5)
def max_pool_and_unpool(draw: Draw, x: Tensor) -> Layer:
    unpool: Any = {3: nn.MaxUnpool1d, 4: nn.MaxUnpool2d, 5: nn.MaxUnpool3d}[x.dim()]
    return _Unpooled(MAX_POOLS[x.dim()](2, return_indices=True), unpool(2))


@step(3, 4, 5)
def padding(draw: Draw, x: Tensor) -> Layer:
    rank = x.dim() - 2
    name = draw.one_of("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad")
    sizes = tuple(draw.size(0, 2) for _ in range(2 * rank))
    layer = getattr(nn, f"{name}{rank}d")
    return layer(sizes, 0.5) if name == "ConstantPad" else layer(sizes)


@step(3, 4, 5)
def upsample(draw: Draw, x: Tensor) -> Layer:
    smooth: str = {3: "linear", 4: draw.one_of("bilinear", "bicubic"), 5: "trilinear"}[x.dim()]
    mode = draw.one_of("nearest", "nearest-exact", smooth)
    aligned = draw.flag() if mode == smooth else None
    return nn.Upsample(scale_factor=draw.one_of(2, 1.5, 0.5), mode=mode, align_corners=aligned)


@step(4)
def pixel_shuffle(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(nn.PixelShuffle, nn.PixelUnshuffle)(draw.one_of(1, 2))


@step(4)
def channel_shuffle(draw: Draw, x: Tensor) -> Layer:
    return nn.ChannelShuffle(draw.divisor(x.shape[1]))


@step(4)
def unfold_and_fold(draw: Draw, x: Tensor) -> Layer:
    return nn.Sequential(nn.Unfold(2, padding=1), nn.Fold((x.shape[2], x.shape[3]), 2, padding=1))


@step()
def flatten(draw: Draw, x: Tensor) -> Layer:
    start = draw.randrange(x.dim())
    return nn.Flatten(start, draw.size(start, x.dim() - 1))


@step()
def unflatten(draw: Draw, x: Tensor) -> Layer:
    dim = draw.randrange(x.dim())
    factor = draw.divisor(x.shape[dim])
    return nn.Unflatten(dim, (factor, -1))


# -- embeddings ----------------------------------------------------------------------------------------------------------


class _Tokens(nn.Module):
    """Token ids from positions, which are known, looked up in a table."""

    def __init__(self, table: nn.Module, sums: bool) -> None:
        super().__init__()
        self.table = table
        self.sums = sums

    def forward(self, x: Tensor) -> Tensor:
        ids = torch.arange(x.shape[1], device=x.device) % 7
        if self.sums:
            return self.table(ids.expand(x.shape[0], -1))
        return x.reshape(x.shape[0], x.shape[1], -1).sum(-1, keepdim=True) + self.table(ids)


@step(2, 3)
def embedding(draw: Draw, x: Tensor) -> Layer:
    padded = draw.one_of(None, 0)
    return _Tokens(
        nn.Embedding(7, draw.size(1, 5), padding_idx=padded, max_norm=draw.one_of(None, None, 1.0)),
        sums=False,
    )


@step(2, 3)
def embedding_bag(draw: Draw, x: Tensor) -> Layer:
    return _Tokens(
        nn.EmbeddingBag(7, draw.size(1, 5), mode=draw.one_of("sum", "mean", "max")), sums=True
    )


class _Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 3, mode=mode, include_last_offset=False)

    def forward(self, x: Tensor) -> Tensor:
        ids = torch.arange(3 * x.shape[0], device=x.device) % 7
        offsets = torch.arange(0, 3 * x.shape[0], 3, device=x.device)
        return self.bag(ids, offsets) * x.reshape(x.shape[0], -1)[:, :1]


@step(2, 3)
def bags_with_offsets(draw: Draw, x: Tensor) -> Layer:
    return _Bags(draw.one_of("sum", "mean"))


# -- recurrence and attention --------------------------------------------------------------------------------------------


class _First(nn.Module):
    """The first of several results, and another added to it where it fits."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        results = self.layer(*args, **kwargs)
        return results[0]


def _recurrent(draw: Draw, x: Tensor, *, dropout: float = 0.0) -> nn.Module:
    kind: Any = draw.one_of(nn.RNN, nn.LSTM, nn.GRU)
    projected = {"proj_size": 2} if kind is nn.LSTM and draw.flag(0.2) else {}
    return kind(
        x.shape[-1],
        draw.size(3, 5),
        num_layers=2 if dropout else draw.size(1, 2),
        bias=draw.flag(),
        batch_first=draw.flag(),
        bidirectional=draw.flag(),
        dropout=dropout,
        **projected,
    )


@step(2, 3)
def recurrent(draw: Draw, x: Tensor) -> Layer:
    return _First(_recurrent(draw, x, dropout=draw.one_of(0.0, 0.0, 0.2)))


class _Packed(nn.Module):
    """Sequences of known lengths, packed."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer.batch_first
        batch, length = (x.shape[0], x.shape[1]) if first else (x.shape[1], x.shape[0])
        lengths = [max(1, length - i % 3) for i in range(batch)]
        packed = rnn.pack_padded_sequence(
            x, torch.tensor(lengths), batch_first=bool(first), enforce_sorted=False
        )
        y, _ = self.layer(packed)
        return rnn.pad_packed_sequence(y, batch_first=bool(first))[0]


@step(3)
def packed_recurrent(draw: Draw, x: Tensor) -> Layer:
    return _Packed(_recurrent(draw, x))


class _Cells(nn.Module):
    """A loop over time."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        hidden = []
        for now in x.unbind(1):
            state = self.cell(now) if state is None else self.cell(now, state)
            hidden.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(hidden, 1)


@step(3)
def cells(draw: Draw, x: Tensor) -> Layer:
    return _Cells(
        draw.one_of(nn.RNNCell, nn.LSTMCell, nn.GRUCell)(
            x.shape[-1], draw.size(2, 4), bias=draw.flag()
        )
    )


class _SelfAttention(nn.Module):
    def __init__(self, layer: nn.Module, causal: bool, weights: bool) -> None:
        super().__init__()
        self.layer, self.causal, self.weights = layer, causal, weights

    def forward(self, x: Tensor) -> Tensor:
        length = (
            x.shape[-2] if getattr(self.layer, "batch_first", True) or x.dim() == 2 else x.shape[0]
        )
        mask = (
            torch.triu(torch.ones(length, length, dtype=torch.bool, device=x.device), 1)
            if self.causal
            else None
        )
        y, weights = self.layer(x, x, x, attn_mask=mask, need_weights=self.weights)
        return y if weights is None else y + weights.mean()


@step(2, 3)
def attention(draw: Draw, x: Tensor) -> Layer:
    bias_kv, zero = draw.flag(0.2), draw.flag(0.2)
    layer = nn.MultiheadAttention(
        x.shape[-1],
        draw.divisor(x.shape[-1]),
        batch_first=draw.flag(),
        add_bias_kv=bias_kv,
        add_zero_attn=zero,
    )
    return _SelfAttention(layer, draw.flag(0.3), draw.flag(0.3))


@step(3)
def encoder_layer(draw: Draw, x: Tensor) -> Layer:
    layer = nn.TransformerEncoderLayer(
        x.shape[-1],
        draw.divisor(x.shape[-1]),
        draw.size(2, 8),
        activation=draw.one_of("relu", "gelu"),
        batch_first=draw.flag(),
        norm_first=draw.flag(),
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False) if draw.flag(0.3) else layer


class _Decoder(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.layer(x, x.flip(1), tgt_mask=mask, tgt_is_causal=True)


@step(3)
def decoder_layer(draw: Draw, x: Tensor) -> Layer:
    return _Decoder(
        nn.TransformerDecoderLayer(x.shape[-1], draw.divisor(x.shape[-1]), 4, batch_first=True)
    )


# -- distances and losses ------------------------------------------------------------------------------------------------


class _Pair(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, x.roll(1, 0))
        return y.reshape(-1, 1) * x.flatten()[:3]


@step(2, 3)
def distance(draw: Draw, x: Tensor) -> Layer:
    return _Pair(draw.one_of(nn.CosineSimilarity(dim=-1), nn.PairwiseDistance()))


@step(2, 3)
def loss(draw: Draw, x: Tensor) -> Layer:
    kind: Any = draw.one_of(
        nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.KLDivLoss
    )
    return _Pair(kind(reduction=draw.one_of("mean", "sum", "none")))


@step(2)
def classification_loss(draw: Draw, x: Tensor) -> Layer:
    loss = nn.CrossEntropyLoss(
        reduction=draw.one_of("mean", "sum", "none"), label_smoothing=draw.one_of(0.0, 0.1)
    )
    return Does(
        lambda x: (
            loss(x, torch.arange(x.shape[0], device=x.device) % x.shape[1]).reshape(-1, 1)
            + x[:, :1]
        ),
        "loss",
    )
