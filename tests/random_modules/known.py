"""Differences that are torch's own, each with its reason, so that new ones stand out.

On shapes alone an operator is what torch's shape function says of it, which is as a rule what a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.random_modules.comparing import Difference

#: operators whose kernel on the CPU chooses another layout than the shape function
_OTHER_LAYOUT = frozenset(
    f"aten.{name}"
    for name in (
        "log_sigmoid", "log_sigmoid_forward", "log_sigmoid_backward", "rrelu", "rrelu_with_noise", "rrelu_with_noise_backward",
        "native_batch_norm", "native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward", "group_norm",
        "native_group_norm", "native_group_norm_backward", "instance_norm", "batch_norm", "mse_loss_backward",
        "huber_loss_backward", "smooth_l1_loss_backward", "_linalg_svd", "linalg_svdvals", "linalg_svd", "_fft_c2c", "_fft_r2c",
        "_fft_c2r", "channel_shuffle", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "convolution",
        "convolution_backward", "max_unpool2d", "max_unpool3d", "max_pool1d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d",
        "copysign", "logaddexp", "floor_divide", "angle", "hardsigmoid_backward", "hardtanh_backward", "stack", "elu_backward",
        "_log_softmax_backward_data", "pad", "replication_pad2d", "reflection_pad2d", "pixel_shuffle", "logit_backward",
        "softplus_backward", "index",
    )
)  # fmt: skip


def _is_layout(difference: Difference) -> bool:
    return difference.what == "stride" and difference.where in _OTHER_LAYOUT


def _is_shuffle(difference: Difference) -> bool:
    return difference.where == "aten.channel_shuffle" and difference.what == "elements_read"


def _is_packed(difference: Difference) -> bool:
    starts = (
        "aten.slice.Tensor instead of aten.t",
        "aten.unbind.int instead of aten.t",
        "aten.unbind.int instead of aten.view",
    )
    return difference.what == "operators" and difference.where.startswith(starts)


def _is_detached(difference: Difference) -> bool:
    return difference.what == "operators" and " instead of aten.detach.default" in difference.where


def _is(what: str, where: str) -> Callable[[Difference], bool]:
    return lambda difference: difference.what == what and difference.where.startswith(where)


def _refused(words: str) -> Callable[[Difference], bool]:
    return lambda difference: difference.what == "refused" and words in difference.detail


#: why, for the differences for which it holds
KNOWN: dict[str, Callable[[Difference], bool]] = {
    "the kernel of the CPU chooses another layout": _is_layout,
    "with one group, shuffling channels is a view, which the kernel of the CPU copies": _is_shuffle,
    "on the CPU a packed recurrent layer multiplies the inputs of all steps at once": _is_packed,
    "the gradient of a bag reads integers that each device makes as it likes": _is(
        "elements_read", "aten._embedding_bag_backward"
    ),
    "group_norm works channels-last on the CPU": _is(
        "operators", "aten.clone.default instead of aten.native_group_norm"
    ),
    "of a matrix of one row, strides that say nothing decide which factor is transposed": _is(
        "shape", "aten.t"
    ),
    "a number that gradients start from is brought to the device": _is(
        "operators", "aten._to_copy.default instead of aten.expand"
    ),
    "memory is not estimated where torch.func differentiates": _refused(
        "don't yet support saved tensor hooks"
    ),
    "x[True] makes its index with another operator": _is(
        "operators", "aten.zeros.default instead of aten.empty"
    ),
    "a mask of booleans is made one of numbers by another operator": _is(
        "operators", "aten.zeros_like.default instead of aten.where"
    ),
    "a number is assigned to one element by another operator": _is(
        "operators", "aten.view.default instead of aten.fill_.Tensor"
    ),
    "attention under vmap runs once per sample where it is fused": _is(
        "operators", "aten.mul.Scalar instead of aten."
    ),
    "the gradient of mish has a kernel of its own on the CPU": _is(
        "operators", "aten.softplus.default instead of aten.mish"
    ),
    "quantile makes a number of its own where it compares devices": _refused(
        "quantile() q tensor must be on the same device"
    ),
    "in pieces, take_along_dim compares devices": _refused("arguments for torch.take_along_dim"),
    "some operators write to elements that are one and the same, and torch lets them": _refused(
        "an expanded tensor"
    ),
    "autograd detaches where there are data, as after a view of another type, which costs nothing": _is_detached,
    "gradients inside of a module need a graph on shapes alone, which this one can't have": _refused(
        "cannot register a hook on a tensor that doesn't require gradient"
    ),
    "the gradient of a constant, a zero without elements, gets some where there are data": _is(
        "elements_read", "aten.to"
    ),
    "the statistics of 16-bit normalisations have 16 bits on the CPU": _is(
        "dtype", "aten.native_layer_norm"
    ),
}


def reason_for(difference: Difference) -> str | None:
    """Why this difference is to be expected, if it is."""
    return next((reason for reason, holds in KNOWN.items() if holds(difference)), None)
