"""Windows of normalization layers: each element, and the statistics of those beside it."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.per_element import Output
from torchscan.ops.registry import window_of
from torchscan.ops.taps import group_taps
from torchscan.ops.windows import (
    HERE,
    NOT_READ,
    WHOLE,
    Along,
    Dim,
    Look,
    Looks,
    Taps,
    Way,
    Ways,
    here,
    same_dims,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


def _with_statistics(input: TensorSpec, *statistics: Dim) -> Ways:
    """Return each element by itself, and the statistics of the elements normalized together."""
    of_statistics = Look(statistics, input.shape)
    return (_by_itself(input), Way((of_statistics,), note="norm-stats"))


def _by_itself(input: TensorSpec) -> Way:
    dims = same_dims(len(input.shape))
    return Way((Look(tuple(dims), input.shape),))


@window_of(
    aten.batch_norm, aten.native_batch_norm, aten._native_batch_norm_legit, aten.cudnn_batch_norm
)
@window_of(aten.miopen_batch_norm)
def batch_norm_window(
    input: TensorSpec,
    *_: object,
    training: bool,
    weight: TensorSpec | None = None,
    bias: TensorSpec | None = None,
    out: Output,
) -> Looks:
    """Return the window: the element itself, in training with the statistics of its channel.

    Running statistics are not read in training.
    """
    if not training:
        return ((_by_itself(input),),)
    num_affine = [weight is None, bias is None].count(False)
    affine: list[Ways] = [None] * num_affine
    return (_with_statistics(input, *_per_channel(input, HERE)), *affine, NOT_READ, NOT_READ)


@window_of("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")
def batch_norm_without_training_window(input: TensorSpec, *_: object, out: Output) -> Looks:
    """Return the window: the element itself."""
    return ((_by_itself(input),),)


@window_of(aten._native_batch_norm_legit.no_stats, "aten::_batch_norm_with_update")
def batch_norm_with_statistics_window(input: TensorSpec, *_: object, out: Output) -> Looks:
    """Return the window: the element itself with the statistics of its channel."""
    return (_with_statistics(input, *_per_channel(input, HERE)),)


@window_of(aten.instance_norm)
def instance_norm_window(
    input: TensorSpec, *_: object, use_input_stats: bool, out: TensorSpec
) -> Looks:
    """Read the statistics of the channel in the sample, too, unless running ones are used."""
    if not use_input_stats:
        return ((_by_itself(input),),)
    others = _per_channel(input, HERE)[1:]
    return (_with_statistics(input, here(0), *others),)


@window_of(aten.group_norm, aten.native_group_norm)
def group_norm_window(
    input: TensorSpec, *_: object, num_groups: int = 0, group: int = 0, out: Output
) -> Looks:
    """Read the element, and the statistics of its group of channels in its sample."""
    channels = input.shape[1]
    taps = group_taps(channels, channels, num_groups or group)
    others = _per_channel(input, taps)[1:]
    return (_with_statistics(input, here(0), *others),)


@window_of(aten.layer_norm, aten.native_layer_norm, aten.rms_norm, aten._fused_rms_norm)
def layer_norm_window(
    input: TensorSpec, normalized_shape: Sequence[int], *_: object, out: Output
) -> Looks:
    """Read the element, and the statistics of the last dimensions."""
    num_normalized = len(normalized_shape)
    kept = same_dims(len(input.shape) - num_normalized)
    return (_with_statistics(input, *kept, *[WHOLE] * num_normalized),)


def _per_channel(input: TensorSpec, channels: Taps) -> list[Dim]:
    """Return a sample as a whole along every dimension except the channels."""
    dims: list[Dim] = [WHOLE] * len(input.shape)
    if len(dims) > 1:
        dims[1] = Along(1, channels)
    return dims
