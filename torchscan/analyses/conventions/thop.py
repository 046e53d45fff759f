"""Counts of thop: by a hook on each module of a class that it knows; other calls count nothing."""

from __future__ import annotations

import math

import torch

from torchscan.analyses.conventions.rules import (
    GATES,
    CountedModule,
    ModuleRule,
    Recurrence,
    argument,
    by_module,
    elements_in,
    elements_out,
    of_class,
    recurrence,
    rule_for,
)
from torchscan.trace.events import TensorSpec
from torchscan.trace.trace import Trace

#: per output of a resize; other modes count nothing
_PER_RESIZED = {"nearest": 1, "linear": 5, "bilinear": 11, "bicubic": 259}
_AVERAGE_POOLS = ("AvgPool1d", "AvgPool2d", "AvgPool3d")
_RULES: dict[str, ModuleRule] = {
    **dict.fromkeys(_AVERAGE_POOLS, elements_out),
    "PReLU": elements_in,
}


def thop(trace: Trace) -> list[int]:
    """Return the numbers of thop.profile."""
    return by_module(trace, of_class(_RULES))


@rule_for(_RULES, "Conv1d", "Conv2d", "Conv3d")
@rule_for(_RULES, "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
def _convolution(layer: CountedModule) -> int:
    """Return ``numel(output) · channels of the input / groups · kernel``, also if transposed."""
    operator = layer.operator_with("groups")
    weight: TensorSpec = argument(operator, "weight")
    groups: int = argument(operator, "groups")
    channels = layer.input.shape[1] // groups
    kernel = math.prod(weight.shape[2:])
    return layer.output.numel * channels * kernel


@rule_for(_RULES, "Linear")
def _linear(layer: CountedModule) -> int:
    """Return ``numel(output) · features of the input``."""
    return layer.output.numel * layer.input.shape[-1]


@rule_for(_RULES, "BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
@rule_for(_RULES, "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
@rule_for(_RULES, "SyncBatchNorm", "LayerNorm")
def _normalization(layer: CountedModule) -> int:
    """Count 2 per element, 4 if affine."""
    is_affine = "weight" in layer.parameters
    return layer.input.numel * (4 if is_affine else 2)


@rule_for(_RULES, "Softmax")
def _softmax(layer: CountedModule) -> int:
    """Count n exponentials, n − 1 additions and n divisions over n elements."""
    dim: int = argument(layer.operator_with("dim"), "dim")
    length = layer.input.shape[dim]
    num_rows = layer.input.numel // length
    return num_rows * (3 * length - 1)


@rule_for(_RULES, "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d")
def _adaptive_average(layer: CountedModule) -> int:
    """Count ``(window + 1)`` per output, where the window is the ratio of the sizes, a fraction."""
    output = layer.output
    sizes = zip(layer.input.shape[2:], output.shape[2:], strict=True)
    window = math.prod(before / after for before, after in sizes)
    return int((window + 1) * output.numel)


@rule_for(_RULES, "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")
def _resize(layer: CountedModule) -> int:
    """Count by the mode, which the operator's name ends in: ``upsample_bilinear2d``."""
    operator = layer.operators[0].operator
    _, _, mode_and_axes = operator.rpartition("upsample_")
    mode = mode_and_axes[:-2]
    return _PER_RESIZED.get(mode, 0) * layer.output.numel


# -- recurrent layers ------------------------------------------------------------------------------


@rule_for(_RULES, "RNNCell", "GRUCell", "LSTMCell")
def _recurrent_cell(layer: CountedModule) -> int:
    """Count one step of each sample."""
    shape = layer.input.shape
    kind = layer.type_name.removesuffix("Cell")
    return shape[0] * _one_step(kind, shape[-1], recurrence(layer))


@rule_for(_RULES, "RNN", "GRU", "LSTM")
def _recurrent_layers(layer: CountedModule) -> int:
    """Count each step of each sample, of each layer in each direction.

    Later layers read both directions of the layer before. A packed sequence comes with the number
    of samples of each step; the most samples count.
    """
    sizes = recurrence(layer)
    data, *others = layer.inputs
    if others and others[0].dtype is torch.int64:
        num_steps = others[0].numel * layer.outputs[-1].shape[-2]
    else:
        num_steps = math.prod(data.shape[:2])

    first = _one_step(layer.type_name, data.shape[-1], sizes)
    later = _one_step(layer.type_name, sizes.hidden * sizes.directions, sizes)
    per_step = first + (sizes.layers - 1) * later
    return num_steps * sizes.directions * per_step


def _one_step(kind: str, features: int, sizes: Recurrence) -> int:
    """Return ``gates · hidden · (features + hidden + 1)``, with biases 2 · gates · hidden more.

    A GRU takes 4 · hidden more to reset and to mix, an LSTM for the new states.
    """
    per_unit = features + sizes.hidden + 1
    if sizes.has_bias:
        per_unit += 2
    per_unit *= GATES[kind]
    if kind != "RNN":
        per_unit += 4
    return sizes.hidden * per_unit
