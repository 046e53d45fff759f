"""Counts of thop: by a hook on each module of a class that it knows; other calls count nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from torchscan.analyses.conventions.rules import (
    CountedModule,
    ModuleRule,
    Recurrence,
    argument,
    by_module,
    elements_in,
    elements_out,
    of_class,
    recurrence,
)
from torchscan.trace.events import TensorSpec
from torchscan.trace.trace import Trace

#: per output of a resize; other modes count nothing
_PER_RESIZED = {"nearest": 1, "linear": 5, "bilinear": 11, "bicubic": 259}


def thop(trace: Trace) -> list[int]:
    """Return the numbers of thop.profile."""
    return by_module(trace, of_class(_RULES))


def _convolution(layer: CountedModule) -> int:
    """``numel(output) · channels of the input / groups · kernel``, also of a transposed convolution."""
    operator = layer.operator_with("groups")
    weight: TensorSpec = argument(operator, "weight")
    groups: int = argument(operator, "groups")
    channels = layer.inputs[0].shape[1] // groups
    return layer.outputs[0].numel * channels * math.prod(weight.shape[2:])


def _linear(layer: CountedModule) -> int:
    """``numel(output) · features of the input``."""
    return layer.outputs[0].numel * layer.inputs[0].shape[-1]


def _normalisation(layer: CountedModule) -> int:
    """2 per element, 4 if affine."""
    return layer.inputs[0].numel * (4 if "weight" in layer.parameters else 2)


def _softmax(layer: CountedModule) -> int:
    """Over n elements n exponentials, n − 1 additions, n divisions."""
    dim: int = argument(layer.operator_with("dim"), "dim")
    summed = layer.inputs[0].shape[dim]
    return layer.inputs[0].numel // summed * (3 * summed - 1)


def _adaptive_average(layer: CountedModule) -> int:
    """``(window + 1)`` per output, where the window is the ratio of the sizes, a fraction."""
    before, after = layer.inputs[0].shape[2:], layer.outputs[0].shape[2:]
    window = math.prod(old / new for old, new in zip(before, after, strict=True))
    return int((window + 1) * layer.outputs[0].numel)


def _resize(layer: CountedModule) -> int:
    """The operator's name ends in the mode, the number of axes and ``d``: ``upsample_bilinear2d``."""
    mode = layer.operators[0].operator.rpartition("upsample_")[2][:-2]
    return _PER_RESIZED.get(mode, 0) * layer.outputs[0].numel


def _rnn_cell(features: int, sizes: Recurrence) -> int:
    """``hidden · (features + hidden + 1)``, 2 · hidden more with biases."""
    return sizes.hidden * (features + sizes.hidden + 1 + 2 * sizes.has_bias)


def _gru_cell(features: int, sizes: Recurrence) -> int:
    """Three gates, and 4 · hidden to reset and to mix."""
    return 3 * _rnn_cell(features, sizes) + 4 * sizes.hidden


def _lstm_cell(features: int, sizes: Recurrence) -> int:
    """Four gates, and 4 · hidden for the new states."""
    return 4 * _rnn_cell(features, sizes) + 4 * sizes.hidden


_CELLS = {"RNN": _rnn_cell, "GRU": _gru_cell, "LSTM": _lstm_cell}


def _cell(layer: CountedModule) -> int:
    """One step of each sample."""
    shape = layer.inputs[0].shape
    cell = _CELLS[layer.type_name.removesuffix("Cell")]
    return shape[0] * cell(shape[-1], recurrence(layer))


def _recurrent(layer: CountedModule) -> int:
    """One step of each sample, of each layer in each direction.

    Later layers read both directions of the one before.
    """
    sizes = recurrence(layer)
    cell = _CELLS[layer.type_name]
    first = cell(layer.inputs[0].shape[-1], sizes)
    later = cell(sizes.hidden * sizes.directions, sizes)
    return _steps(layer) * sizes.directions * (first + (sizes.layers - 1) * later)


def _steps(layer: CountedModule) -> int:
    """Samples times steps.

    A packed sequence comes with the number of samples of each step, of which the first one counts.
    """
    data, *others = layer.inputs
    if others and others[0].dtype is torch.int64:
        return others[0].numel * layer.outputs[-1].shape[-2]
    return math.prod(data.shape[:2])


_AXES = (1, 2, 3)
_RULES: Mapping[str, ModuleRule] = {
    **{f"Conv{kind}{axes}d": _convolution for kind in ("", "Transpose") for axes in _AXES},
    **{f"{kind}Norm{axes}d": _normalisation for kind in ("Batch", "Instance") for axes in _AXES},
    **dict.fromkeys(("SyncBatchNorm", "LayerNorm"), _normalisation),
    **{f"AvgPool{axes}d": elements_out for axes in _AXES},
    **{f"AdaptiveAvgPool{axes}d": _adaptive_average for axes in _AXES},
    **dict.fromkeys(("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"), _resize),
    "Linear": _linear,
    "PReLU": elements_in,
    "Softmax": _softmax,
    **{f"{kind}Cell": _cell for kind in _CELLS},
    **dict.fromkeys(_CELLS, _recurrent),
}
