"""What the kernel of a call does besides the arithmetic and the traffic that it has to: tiles, layouts, loops.

A rule is a function of the signature of a call, registered for the operators that it is of. Whatever has none streams
through memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from torchscan.analyses.roofline.constants import (
    ATTENTION,
    ATTENTION_BLOCK,
    CHANNEL_STEP,
    CONTRACTIONS,
    CYCLES_OF_ROW,
    DEPTHWISE_CHANNELS_LAST_LARGER,
    DEPTHWISE_CONVOLUTIONS,
    DEPTHWISE_LARGER,
    DEPTHWISE_UP_TO_25,
    GROUPED_CONVOLUTIONS,
    GROUPED_ON_MATRIX_UNITS,
    GROUPED_ON_VECTOR_UNITS,
    HOST_LOOP,
    INTERPOLATION,
    JOINING,
    LIST_LENGTH,
    MATRICES,
    POINTWISE_CONVOLUTIONS,
    RECURRENCE,
    REORDERING,
    SCATTERING,
    SERIAL_THREADS,
    SERIAL_TURN,
    SKINNY,
    SPLIT_STEP,
    STREAMING,
    SUM_STEP,
    TILES,
    TURNING_AROUND,
    VECTORS,
    WINDOWS,
)
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature, TensorSpec


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a call runs."""

    #: of the device's bandwidth, what it gets
    traffic: float = STREAMING
    #: of the peak of matrix units, what it gets of its products
    matrices: float = MATRICES
    #: of the peak of vector units, what it gets of all other arithmetic
    vectors: float = VECTORS
    #: where its products run
    units: Literal["matrix", "vector", "faster"] = "matrix"
    #: bytes that pass through memory besides those that have to
    more_bytes: float = 0.0
    #: of those the layout of operands is the reason, which compiled code avoids
    turned_bytes: float = 0.0
    #: seconds that nothing else hides
    alone: float = 0.0
    #: how many kernels are launched
    launches: int = 1
    #: cycles of all multiprocessors together
    cycles: float = 0.0
    #: of the products that it counts, the share that it has to compute, and that it does
    least: float = 1.0
    executed: float = 1.0


Rule = Callable[[OpSignature, OpCost, int], Kernel]
_rules: dict[str, Rule] = {}


def kernel_of(signature: OpSignature, cost: OpCost, multiprocessors: int | None) -> Kernel:
    """The kernel of one call on a device with so many multiprocessors."""
    rule = _rules.get(signature.operator, _products if cost.macs else _streaming)
    return rule(signature, cost, multiprocessors or 1)


#: memory without content, and values that the host asks for
_NOT_LAUNCHED = ("empty", "new_empty", "lift_fresh", "_local_scalar_dense")


def is_launched(signature: OpSignature) -> bool:
    """Whether a call makes the device do anything."""
    return not signature.is_view and not signature.operator.removeprefix("aten.").startswith(_NOT_LAUNCHED)


def argument(signature: OpSignature, name: str, default: Any) -> Any:
    """What an operator was given under a name of its schema."""
    if name in signature.kwargs:
        return signature.kwargs[name]
    for place, each in enumerate(signature.op._schema.arguments[: len(signature.args)]):
        if each.name == name:
            return signature.args[place]
    return default


def _rule(*operators: str) -> Callable[[Rule], Rule]:
    """For operators of torch's; a name that it does not have raises, and so does a second rule."""

    def register(rule: Rule) -> Rule:
        for operator in operators:
            name = str(getattr(torch.ops.aten, operator))
            if name in _rules:
                raise ValueError(f"{name} has a rule already")
            _rules[name] = rule
        return rule

    return register


# -- products ------------------------------------------------------------------------------------------------------------


def filled(rows: int, columns: int, sums: int, batch: int, multiprocessors: int) -> float:
    """Of what the device computes for ``batch`` products, the share that was asked for.

    ``rows·columns·sums / min over tiles of (waves · multiprocessors · tile · padded sums / share of the peak)``: a tile is
    computed whole, and a wave takes as long whether all multiprocessors have a tile or one.
    """
    padded = _up(sums, SUM_STEP)
    least = math.inf
    for (tall, wide), share in TILES.items():
        tiles = math.ceil(rows / tall) * math.ceil(columns / wide) * batch
        pieces = max(1, min(multiprocessors // max(tiles, 1), sums // SPLIT_STEP))
        waves = math.ceil(tiles * pieces / multiprocessors) / pieces
        least = min(least, waves * multiprocessors * tall * wide * padded / share)
    return rows * columns * sums * batch / least if least else 1.0


def _up(count: int, step: int) -> int:
    return -(-max(count, 1) // step) * step


@_rule("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm", "_int_mm")
def _product(signature: OpSignature, cost: OpCost, multiprocessors: int) -> Kernel:
    """The last two operands but for ``linear``, whose weight is the other way round."""
    operands = [spec for spec in signature.inputs if len(spec.shape) >= 2]
    if len(operands) < 2 or not cost.macs:
        return _products(signature, cost, multiprocessors)
    out = signature.outputs[0].shape
    batch = math.prod(out[:-2]) if signature.operator == "aten.bmm" or signature.operator == "aten.baddbmm" else 1
    rows, columns = math.prod(out[:-1]) // batch, out[-1]
    sums = cost.macs // max(rows * columns * batch, 1)
    traffic = STREAMING if min(rows, columns) <= SKINNY else CONTRACTIONS
    return Kernel(traffic, MATRICES * filled(rows, columns, sums, batch, multiprocessors))


@_rule("mv", "addmv", "dot", "vdot")
def _with_vector(_signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    return Kernel(STREAMING, units="vector")


@_rule("sort", "topk", "argsort")
def _sorting(signature: OpSignature, cost: OpCost, _multiprocessors: int) -> Kernel:
    """Digit by digit: all is read and written again for each."""
    passes = signature.inputs[0].dtype.itemsize * 2
    return Kernel(more_bytes=(passes - 1) * (cost.bytes_read + cost.bytes_written), launches=passes)


def _products(_signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    return Kernel(CONTRACTIONS, MATRICES)


@_rule(
    *(f"_scaled_dot_product_{name}_attention{back}" for name in ("flash", "efficient", "cudnn") for back in ("", "_backward")),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "scaled_dot_product_attention",
)
def _attention(signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    """Where each query sees only what came before it, what lies beyond is left out, block by block."""
    query, key = signature.inputs[0].shape[-2], signature.inputs[1].shape[-2]
    if not argument(signature, "is_causal", False) or query != key:
        return Kernel(STREAMING, ATTENTION)
    return Kernel(STREAMING, ATTENTION, least=(key + 1) / (2 * key), executed=min(1.0, (key + ATTENTION_BLOCK) / (2 * key)))


@_rule("_cudnn_rnn", "_cudnn_rnn_backward", "lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer")
def _recurrent(signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    """A step waits for the one before, whatever the batch."""
    source = signature.inputs[0].shape
    packed = argument(signature, "batch_sizes", None)
    steps = source[1 if argument(signature, "batch_first", False) and len(source) > 2 else 0]
    if isinstance(packed, tuple) and packed and all(isinstance(each, int) for each in packed):
        steps = len(packed)
    weights = sum(1 for spec in signature.inputs if len(spec.shape) == 2)
    return Kernel(CONTRACTIONS, RECURRENCE, launches=max(1, steps * weights // 2))


# -- convolutions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Convolution:
    source: TensorSpec
    weight: TensorSpec
    out: TensorSpec
    has_bias: bool
    is_transposed: bool
    groups: int

    @property
    def window(self) -> int:
        return math.prod(self.weight.shape[2:])

    @property
    def channels(self) -> int:
        """Of the input, in a group."""
        return self.source.shape[1] // self.groups

    @property
    def columns(self) -> int:
        return self.out.shape[1] // self.groups

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels == 1

    @property
    def places(self) -> int:
        """Of a sample: of the result, or of what is spread over it."""
        return math.prod((self.source if self.is_transposed else self.out).shape[2:])

    @property
    def is_channels_last(self) -> bool:
        return 1 in self.source.stride[1:2] and self.source.shape[1] > 1 and math.prod(self.source.shape[2:]) > 1

    def filled(self, multiprocessors: int) -> float:
        """Of what is computed for the result, the share that was asked for."""
        rows, channels = self.source.shape[0] * self.places, _up(self.channels, CHANNEL_STEP)
        share = filled(rows, self.columns, channels * self.window, self.groups, multiprocessors)
        return share * self.channels / channels

    def filled_for_weight(self, multiprocessors: int) -> float:
        """The same for the gradient of the weight, which sums over samples and places."""
        sums = self.source.shape[0] * self.places
        return filled(self.columns, self.channels * self.window, sums, self.groups, multiprocessors)

    @property
    def bytes_turned(self) -> float:
        """The layout that half precision computes in is made and undone, unless it is there or does not matter.

        One by one it does not: that is a product with the places as columns, if these are whole lines.
        """
        is_half = self.source.dtype.itemsize == 2
        is_product = self.window == 1 and self.places % CHANNEL_STEP == 0 and self.groups == 1
        if not is_half or self.is_channels_last or is_product:
            return 0.0
        return TURNING_AROUND * 2 * (self.source.stored_bytes + self.weight.stored_bytes + self.out.stored_bytes)

    @property
    def bytes_of_bias(self) -> int:
        """Added by a kernel of its own, but for depthwise ones of torch's own."""
        is_within = self.is_depthwise and not self.is_channels_last
        return 2 * self.out.stored_bytes if self.has_bias and not is_within else 0


@_rule("convolution", "_convolution")
def _convolution(signature: OpSignature, _cost: OpCost, multiprocessors: int) -> Kernel:
    source, weight, bias, *_, is_transposed, _padding, groups = signature.args[:9]
    form = _Convolution(source, weight, signature.outputs[0], bias is not None, is_transposed, groups)
    return _of_form(form, multiprocessors)


@_rule("convolution_backward")
def _convolution_backward(signature: OpSignature, _cost: OpCost, multiprocessors: int) -> Kernel:
    """The gradients of input and weight are convolutions too, of the same three tensors; that of a bias sums up."""
    out, source, weight, _sizes, _stride, _padding, _dilation, is_transposed, _more, groups, wanted = signature.args[:11]
    form = _Convolution(source, weight, out, False, is_transposed, groups)
    one = _of_form(form, multiprocessors)
    shares = [1.0] * wanted[0] + [form.filled_for_weight(multiprocessors) / form.filled(multiprocessors)] * wanted[1]
    matrices = one.matrices * len(shares) / sum(1 / share for share in shares) if shares else one.matrices
    summed = out.stored_bytes * wanted[2]
    turned = one.turned_bytes * len(shares)
    return replace(one, matrices=matrices, more_bytes=summed, turned_bytes=turned, launches=max(1, sum(wanted)))


def _of_form(form: _Convolution, multiprocessors: int) -> Kernel:
    if form.is_depthwise:
        return _depthwise(form)
    share, turned = form.filled(multiprocessors), form.bytes_turned
    if form.groups > 1:
        # Either groups padded to tiles, or one product after the other.
        rates = share * GROUPED_ON_MATRIX_UNITS, GROUPED_ON_VECTOR_UNITS
        return Kernel(GROUPED_CONVOLUTIONS, *rates, "faster", form.bytes_of_bias, turned)
    peak = POINTWISE_CONVOLUTIONS if form.window == 1 else MATRICES
    return Kernel(STREAMING, peak * share, more_bytes=form.bytes_of_bias, turned_bytes=turned)


def _depthwise(form: _Convolution) -> Kernel:
    """On vector units; channels-last is better served than not."""
    if form.is_channels_last:
        rate = DEPTHWISE_CHANNELS_LAST_LARGER if form.window > 49 else 1.0
        return Kernel(STREAMING, vectors=rate, units="vector", more_bytes=form.bytes_of_bias)
    rate = 1.0 if form.window <= 9 else DEPTHWISE_UP_TO_25 if form.window <= 25 else DEPTHWISE_LARGER
    return Kernel(DEPTHWISE_CONVOLUTIONS, vectors=rate, units="vector")


# -- everything that streams ---------------------------------------------------------------------------------------------


def _streaming(signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    takes_lists = signature.operator.startswith(("aten._foreach", "aten._fused"))
    lists = sum(1 for _ in _specs(signature.args[:1])) if takes_lists else 1
    rate = REORDERING if is_reordering(signature) else STREAMING
    return Kernel(rate, launches=max(1, math.ceil(lists / LIST_LENGTH)))


def _specs(values: Any) -> Iterator[TensorSpec]:
    for value in values:
        if isinstance(value, TensorSpec):
            yield value
        elif isinstance(value, tuple):
            yield from _specs(value)


def is_reordering(signature: OpSignature) -> bool:
    """Whether tensors of the result's shape lie in different orders."""
    if not signature.outputs:
        return False
    shape = signature.outputs[0].shape
    return len({_order(spec) for spec in (*signature.inputs, *signature.outputs) if spec.shape == shape}) > 1


def _order(spec: TensorSpec) -> tuple[int, ...]:
    """The dimensions from the outermost to the innermost."""
    dims = [(-step, dim) for dim, (size, step) in enumerate(zip(spec.shape, spec.stride, strict=True)) if size > 1 and step]
    return tuple(dim for _, dim in sorted(dims))


@_rule("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward")
def _row_norm(signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    """What does not lie row by row is copied first."""
    source = signature.inputs[0]
    length = math.prod(next(each for each in signature.args if isinstance(each, tuple)))
    rows = source.numel / max(length, 1)
    passes = 2 if signature.operator.endswith("backward") else 1
    copied = 2 * source.stored_bytes * STREAMING / REORDERING if is_reordering(signature) else 0.0
    return Kernel(cycles=passes * rows * CYCLES_OF_ROW, more_bytes=copied, launches=passes)


@_rule("native_group_norm", "native_group_norm_backward", "native_batch_norm_backward", "cudnn_batch_norm_backward")
def _statistics(signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    """The input is read once for the statistics, and once more."""
    return Kernel(more_bytes=sum(spec.stored_bytes for spec in signature.distinct_inputs if len(spec.shape) > 1), launches=2)


@_rule("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
def _batch_norm(signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    """Statistics of the batch take a pass of their own."""
    of_batch = argument(signature, "training", True)
    return _statistics(signature, _cost, _multiprocessors) if of_batch else Kernel()


@_rule("cat", "stack")
def _joining(_signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    return Kernel(JOINING)


@_rule(
    *(f"{name}{back}" for name in ("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d") for back in ("", "_backward")),
)
def _average(_signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    return Kernel(WINDOWS)


_INTERPOLATED = [f"upsample_{way}" for way in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d", "nearest1d", "nearest2d")]
_INTERPOLATED += ["upsample_nearest3d", "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]


@_rule(*(f"{way}{back}" for way in _INTERPOLATED for back in ("", "_backward")), "grid_sampler_2d", "grid_sampler_3d")
def _interpolation(signature: OpSignature, _cost: OpCost, multiprocessors: int) -> Kernel:
    """One thread for each place of the result goes through samples and channels, unless these are innermost."""
    out = signature.outputs[0]
    loops = signature.operator.removeprefix("aten.") in {"upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"}
    if not loops or 1 in signature.inputs[0].stride[1:2]:
        return Kernel(INTERPOLATION)
    places, turns = math.prod(out.shape[2:]), math.prod(out.shape[:2])
    rounds = max(1, math.ceil(places / (multiprocessors * SERIAL_THREADS)))
    return Kernel(INTERPOLATION, alone=turns * rounds * SERIAL_TURN)


@_rule("im2col")
def _unfolded(signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    return Kernel(alone=signature.inputs[0].shape[0] * HOST_LOOP)


@_rule("index_put", "index_put_", "_index_put_impl_", "scatter_add", "scatter_add_", "index_add", "index_add_")
def _scattering(_signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    return Kernel(SCATTERING)


@_rule("embedding_dense_backward")
def _sorted_scattering(_signature: OpSignature, _cost: OpCost, _multiprocessors: int) -> Kernel:
    """Positions are sorted first."""
    return Kernel(SCATTERING, launches=4)
