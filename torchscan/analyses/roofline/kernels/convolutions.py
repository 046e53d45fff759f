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
        """The share of the products that Winograd's algorithms leave: ``Π min(stride, window) / window``.

        To correlate along a dimension takes as many products as there are inputs: ``stride`` for each result, not ``window``.
        """
        sizes = self.weight.shape[2:]
        strides = self.stride if len(self.stride) == len(sizes) else self.stride * len(sizes)
        return math.prod(min(step, size) / size for step, size in zip(strides, sizes, strict=True))

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
        return math.prod((self.source if self.is_transposed else self.out).shape[2:])

    @property
    def is_channels_last(self) -> bool:
        return (
            1 in self.source.stride[1:2]
            and self.source.shape[1] > 1
            and math.prod(self.source.shape[2:]) > 1
        )

    def filled(self, multiprocessors: int) -> float:
        """The useful share of what is computed for the result."""
        rows, channels = self.source.shape[0] * self.places, padded_to(self.channels, CHANNEL_STEP)
        share = filled(rows, self.columns, channels * self.window, self.groups, multiprocessors)
        return share * self.channels / channels

    def filled_for_weight(self, multiprocessors: int) -> float:
        """Return the filled share for the weight's gradient, which sums over samples and places."""
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
        return (
            TURNING_AROUND
            * 2
            * (self.source.stored_bytes + self.weight.stored_bytes + self.out.stored_bytes)
        )

    @property
    def bytes_of_bias(self) -> int:
        """Added by a kernel of its own, but for depthwise ones of torch's own."""
        is_within = self.is_depthwise and not self.is_channels_last
        return 2 * self.out.stored_bytes if self.has_bias and not is_within else 0


@rule("convolution", "_convolution")
def _convolution(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    source, weight, bias, stride, _padding, _dilation, is_transposed, _more, groups = (
        signature.args[:9]
    )
    form = _Convolution(
        source=source,
        weight=weight,
        out=signature.outputs[0],
        has_bias=bias is not None,
        is_transposed=is_transposed,
        groups=groups,
        stride=tuple(stride),
    )
    return replace(_of_form(form, machine.multiprocessors), transformed=form.transformed)


@rule("convolution_backward")
def _convolution_backward(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """The gradients of input and weight are convolutions of the same three tensors; the gradient of the bias is a sum."""
    (
        out,
        source,
        weight,
        _sizes,
        stride,
        _padding,
        _dilation,
        is_transposed,
        _more,
        groups,
        wanted,
    ) = signature.args[:11]
    form = _Convolution(
        source=source,
        weight=weight,
        out=out,
        has_bias=False,
        is_transposed=is_transposed,
        groups=groups,
        stride=tuple(stride),
    )
    one = _of_form(form, machine.multiprocessors)
    shares = [1.0] * wanted[0] + [
        form.filled_for_weight(machine.multiprocessors) / form.filled(machine.multiprocessors)
    ] * wanted[1]
    matrices = (
        one.matrices * len(shares) / sum(1 / share for share in shares) if shares else one.matrices
    )
    summed = out.stored_bytes * wanted[2]
    turned = one.turned_bytes * len(shares)
    cycles = one.cycles * len(shares)
    launches = max(1, sum(wanted))
    return replace(
        one,
        matrices=matrices,
        more_bytes=summed,
        turned_bytes=turned,
        cycles=cycles,
        launches=launches,
        transformed=form.transformed,
    )


def _of_form(form: _Convolution, multiprocessors: int) -> Kernel:
    if form.is_depthwise:
        return _depthwise(form)
    share, turned = form.filled(multiprocessors), form.bytes_turned
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


def _depthwise(form: _Convolution) -> Kernel:
    """On vector units, which do better channels-last."""
    if form.is_channels_last:
        rate = DEPTHWISE_CHANNELS_LAST_LARGER if form.window > 49 else 1.0
        among_compiled = 1.0 if form.window <= 9 else DEPTHWISE_COMPILED
        return Kernel(
            vectors=rate,
            units="vector",
            bias_bytes=form.bytes_of_bias,
            among_compiled=among_compiled,
        )
    rate = (
        1.0 if form.window <= 9 else DEPTHWISE_UP_TO_25 if form.window <= 25 else DEPTHWISE_LARGER
    )
    return Kernel(vectors=rate, units="vector", cycles=form.out.numel * CYCLES_OF_DEPTHWISE)
