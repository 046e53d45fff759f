"""Convolutions: their layout, groups, and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchscan.analyses.roofline.constants import (
    CHANNEL_STEP,
    CYCLES_OF_DEPTHWISE,
    CYCLES_OF_GROUPED,
    DEPTHWISE_CHANNELS_LAST_LARGER,
    DEPTHWISE_COMPILED,
    DEPTHWISE_LARGER,
    DEPTHWISE_UP_TO_25,
    GROUPED_ON_MATRIX_UNITS,
    GROUPED_ON_VECTOR_UNITS,
    MATRICES,
    POINTWISE_CONVOLUTIONS,
    STREAMING,
    TURNING_AROUND,
)
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, rule
from torchscan.analyses.roofline.kernels.products import filled, padded_to
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    source: TensorSpec
    weight: TensorSpec
    out: TensorSpec
    has_bias: bool
    is_transposed: bool
    groups: int
    stride: tuple[int, ...]

    @property
    def transformed(self) -> float:
        """Share of products that Winograd's algorithms leave: ``Π min(stride, window) / window``.

        To correlate along a dimension takes as many products as there are inputs: ``stride`` for
        each result, not ``window``.
        """
        sizes = self.weight.shape[2:]
        strides = self.stride
        if len(strides) != len(sizes):
            strides = strides * len(sizes)
        pairs = zip(strides, sizes, strict=True)
        return math.prod(min(step, size) / size for step, size in pairs)

    @property
    def window(self) -> int:
        return math.prod(self.weight.shape[2:])

    @property
    def channels(self) -> int:
        """Input channels of one group."""
        return self.source.shape[1] // self.groups

    @property
    def columns(self) -> int:
        return self.out.shape[1] // self.groups

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels == 1

    @property
    def places(self) -> int:
        """Places of one sample: of the result, or of the input of a transposed convolution."""
        places = self.source if self.is_transposed else self.out
        return math.prod(places.shape[2:])

    @property
    def is_channels_last(self) -> bool:
        if 1 not in self.source.stride[1:2]:
            return False
        _, channels, *axes = self.source.shape
        return channels > 1 and math.prod(axes) > 1

    def filled(self, multiprocessors: int) -> float:
        """Return the useful share of the products that are computed for the result."""
        rows = self.source.shape[0] * self.places
        channels = padded_to(self.channels, CHANNEL_STEP)
        share = filled(rows, self.columns, channels * self.window, self.groups, multiprocessors)
        return share * self.channels / channels

    def filled_for_weight(self, multiprocessors: int) -> float:
        """Return the filled share for the weight's gradient, which sums over samples and places."""
        sums = self.source.shape[0] * self.places
        return filled(self.columns, self.channels * self.window, sums, self.groups, multiprocessors)

    @property
    def bytes_turned(self) -> float:
        """Bytes for converting operands and results to the layout of half precision and back.

        There are none if they are in that layout, or if it does not matter: a window of one by one
        is a product with the places as columns, if these are whole lines.
        """
        is_half = self.source.dtype.itemsize == 2
        is_product = self.window == 1 and self.places % CHANNEL_STEP == 0 and self.groups == 1
        if not is_half or self.is_channels_last or is_product:
            return 0.0
        num_bytes = self.source.stored_bytes + self.weight.stored_bytes + self.out.stored_bytes
        return TURNING_AROUND * 2 * num_bytes

    @property
    def bytes_of_bias(self) -> int:
        """Bytes of adding the bias in a separate kernel, except in torch's depthwise kernels."""
        is_fused = self.is_depthwise and not self.is_channels_last
        if is_fused or not self.has_bias:
            return 0
        return 2 * self.out.stored_bytes


@rule("convolution", "_convolution")
def _convolution(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    source, weight, bias, stride, *_ = signature.args
    is_transposed, _output_padding, groups = signature.args[6:9]
    form = _Convolution(
        source=source,
        weight=weight,
        out=signature.outputs[0],
        has_bias=bias is not None,
        is_transposed=is_transposed,
        groups=groups,
        stride=tuple(stride),
    )
    kernel = _kernel_of_form(form, machine.multiprocessors)
    return replace(kernel, transformed=form.transformed)


@rule("convolution_backward")
def _convolution_backward(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel for the gradients that are asked for.

    The gradients of input and weight are convolutions of the same three tensors, that of the bias
    is a sum.
    """
    out, source, weight, _bias_sizes, stride, *_ = signature.args
    is_transposed, _output_padding, groups, wanted = signature.args[7:11]
    form = _Convolution(
        source=source,
        weight=weight,
        out=out,
        has_bias=False,
        is_transposed=is_transposed,
        groups=groups,
        stride=tuple(stride),
    )
    one = _kernel_of_form(form, machine.multiprocessors)
    for_input, for_weight, for_bias = wanted
    shares = []
    if for_input:
        shares.append(1.0)
    if for_weight:
        filled_for_weight = form.filled_for_weight(machine.multiprocessors)
        shares.append(filled_for_weight / form.filled(machine.multiprocessors))

    matrices = one.matrices
    if shares:
        matrices = matrices * len(shares) / sum(1 / share for share in shares)
    return replace(
        one,
        matrices=matrices,
        more_bytes=out.stored_bytes if for_bias else 0,
        turned_bytes=one.turned_bytes * len(shares),
        cycles=one.cycles * len(shares),
        launches=max(1, sum(wanted)),
        transformed=form.transformed,
    )


def _kernel_of_form(form: _Convolution, multiprocessors: int) -> Kernel:
    if form.is_depthwise:
        return _depthwise_kernel(form)
    share = form.filled(multiprocessors)
    turned = form.bytes_turned
    if form.groups > 1:
        # Either groups padded to tiles, or one product after the other.
        return Kernel(
            matrices=share * GROUPED_ON_MATRIX_UNITS,
            vectors=GROUPED_ON_VECTOR_UNITS,
            units="faster",
            bias_bytes=form.bytes_of_bias,
            turned_bytes=turned,
            cycles=form.out.numel * CYCLES_OF_GROUPED,
        )
    peak = POINTWISE_CONVOLUTIONS if form.window == 1 else MATRICES
    return Kernel(
        traffic=STREAMING, matrices=peak * share, bias_bytes=form.bytes_of_bias, turned_bytes=turned
    )


def _depthwise_kernel(form: _Convolution) -> Kernel:
    """Return a kernel of vector units, which is faster channels-last."""
    rate = 1.0
    if form.is_channels_last:
        if form.window > 49:
            rate = DEPTHWISE_CHANNELS_LAST_LARGER
        among_compiled = 1.0 if form.window <= 9 else DEPTHWISE_COMPILED
        return Kernel(
            vectors=rate,
            units="vector",
            bias_bytes=form.bytes_of_bias,
            among_compiled=among_compiled,
        )
    if form.window > 25:
        rate = DEPTHWISE_LARGER
    elif form.window > 9:
        rate = DEPTHWISE_UP_TO_25
    return Kernel(vectors=rate, units="vector", cycles=form.out.numel * CYCLES_OF_DEPTHWISE)
