"""Counts of ptflops with its default backend: by hooks on modules, and by wrapped functions of torch.

Modules that call such a function count twice. A trace does not tell how an operator was called:
activations, softmax, pools, resizing and matrix products count as if by their function
(``F.relu(x)``, ``torch.matmul(x, y)``), additions and products as if by sign (``x + y``), which
ptflops does not see.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from torchscan.analyses.conventions.rules import (
    ATTENTION,
    GATES,
    CountedModule,
    ModuleRule,
    OperatorRule,
    argument,
    by_module,
    by_operator,
    elements_in,
    elements_out,
    of_class,
    per_input,
    recurrence,
)
from torchscan.trace.events import OpSignature, TensorSpec
from torchscan.trace.trace import Trace


def ptflops(trace: Trace) -> list[int]:
    """Return the numbers of get_model_complexity_info.

    Modules count per sample, functions for the whole batch.
    """
    samples = _samples(trace)
    rule = of_class(_MODULES)
    modules = by_module(trace, lambda layer: rule(layer) // samples)
    functions = by_operator(trace, _FUNCTIONS)
    macs: list[int] = []
    for of_module, of_function, op in zip(modules, functions, trace.ops, strict=True):
        unseen = _UNSEEN.get(trace.modules[op.module_call].type_name, ())
        is_seen = op.signature.operator not in unseen
        macs.append(of_module + of_function if is_seen else of_module)
    return macs


def _samples(trace: Trace) -> int:
    """Return the length of the first positional argument, at least 1."""
    for first in trace.provenance.inputs[:1]:
        if first.name == "args[0]" and first.shape:
            return max(first.shape[0], 1)
    return 1


# -- modules -------------------------------------------------------------------------------------


def _norm(layer: CountedModule) -> int:
    """1 per element, 2 if affine."""
    return layer.inputs[0].numel * (2 if "weight" in layer.parameters else 1)


def _resize(layer: CountedModule) -> int:
    """1 per output of one sample, whatever the mode."""
    output = layer.outputs[0]
    return output.numel // max(output.shape[0], 1)


def _linear(layer: CountedModule) -> int:
    """``rows · (features in · features out + features out)``, the latter for the bias."""
    features = layer.inputs[0].shape[-1]
    return layer.outputs[0].numel * (features + ("bias" in layer.parameters))


def _convolution(layer: CountedModule) -> int:
    """``positions of the output · numel(weight)``, and 1 per output for the bias."""
    return _meeting_weights(layer, layer.outputs[0].shape)


def _transposed_convolution(layer: CountedModule) -> int:
    """Return the MACs of a transposed convolution, counted at the positions of the input."""
    return _meeting_weights(layer, layer.inputs[0].shape)


def _meeting_weights(layer: CountedModule, shape: tuple[int, ...]) -> int:
    weight: TensorSpec = argument(layer.operator_with("weight"), "weight")
    bias = layer.outputs[0].numel if "bias" in layer.parameters else 0
    return shape[0] * math.prod(shape[2:]) * weight.numel + bias


#: besides the products and biases, per unit and step
_PER_UNIT = {"RNN": 1, "GRU": 7, "LSTM": 10}


def _recurrent(layer: CountedModule) -> int:
    """``steps · directions · Σ over layers (numel of weights and biases + what a unit does)``.

    Weights and biases are those of the forward direction.
    """
    kind = layer.type_name.removesuffix("Cell")
    sizes = recurrence(layer)
    per_step = sizes.layers * _PER_UNIT[kind] * sizes.hidden
    for name, elements in layer.parameters.items():
        is_counted = name.startswith(("weight_ih", "weight_hh", "bias"))
        if is_counted and not name.endswith("_reverse"):
            per_step += elements

    dims_of_steps = 2 if layer.type_name == kind else 1
    steps = math.prod(layer.inputs[0].shape[:dims_of_steps])
    return steps * sizes.directions * per_step


def _attention(layer: CountedModule) -> int:
    """Scaling, three projections, scores, softmax, weighing, the output projection with its bias.

    All of them are for one sample.
    """
    query, key, value = layer.inputs[:3]
    scores = layer.operator_among(_SCORES)
    heads_of: TensorSpec = scores.args[_SCORES[scores.operator]]
    length, per_head = heads_of.shape[-2:]
    width, key_width, value_width = (each.shape[-1] for each in (query, key, value))
    samples = query.numel // (length * width)
    keys = key.numel // (samples * key_width)
    values = value.numel // (samples * value_width)
    heads = width // per_head
    projections = length * width**2 + keys * key_width**2 + values * value_width**2
    projections += length * value_width * (value_width + 1)
    biases = 0
    if "in_proj_bias" in layer.parameters:
        biases = (length + keys + values) * width
    attending = heads * length * keys * (width // heads + 1 + value_width // heads)
    return samples * (length * width + projections + biases + attending)


#: what makes the scores, and which of its arguments are the queries
_SCORES = {**dict.fromkeys((*ATTENTION, "aten.bmm"), 0), "aten.baddbmm": 1}
_AXES = (1, 2, 3)
_ACTIVATIONS = ("ReLU", "PReLU", "ELU", "LeakyReLU", "ReLU6", "GELU")
_MODULES: Mapping[str, ModuleRule] = {
    **{f"Conv{axes}d": _convolution for axes in _AXES},
    **{f"ConvTranspose{axes}d": _transposed_convolution for axes in _AXES},
    **dict.fromkeys(_ACTIVATIONS, elements_out),
    **{
        f"{kind}Pool{axes}d": elements_in
        for kind in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg")
        for axes in _AXES
    },
    **{f"{kind}Norm{axes}d": _norm for kind in ("Batch", "Instance") for axes in _AXES},
    "GroupNorm": _norm,
    "LayerNorm": elements_in,
    "Linear": _linear,
    "Upsample": _resize,
    **{kind + suffix: _recurrent for kind in GATES for suffix in ("", "Cell")},
    "MultiheadAttention": _attention,
}


# -- functions -----------------------------------------------------------------------------------


def _product(signature: OpSignature) -> int:
    """``numel(left) · last size of the right``."""
    left, right = signature.inputs
    return left.numel * right.shape[-1]


def _added_product(signature: OpSignature) -> int:
    """Return the MACs of a product, and 1 per added element unless that tensor is scaled by 0."""
    added, left, right = signature.inputs
    return left.numel * right.shape[-1] + (added.numel if argument(signature, "beta") else 0)


def _interpolation(signature: OpSignature) -> int:
    """1 per output; if a scale was given, ``numel(input) · Π scales``.

    The latter differs where the sizes of the output are rounded down.
    """
    scales = None
    if signature.op._overloadname == "vec":
        scales = argument(signature, "scale_factors")
    if scales is None:
        return signature.outputs[0].numel
    return int(signature.inputs[0].numel * math.prod(scales))


_RESIZING = (
    *(
        f"{kind}{axes}d"
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for axes in _AXES
    ),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
#: class -> operators that come from no wrapped function in it: these layers keep the activation that
#: they were made with, and a linear layer shows its matrix product in a trace without composite
#: operators
_UNSEEN: Mapping[str, Container[str]] = {
    **dict.fromkeys(
        ("TransformerEncoderLayer", "TransformerDecoderLayer"), ("aten.relu", "aten.gelu")
    ),
    **dict.fromkeys(("Linear", "MultiheadAttention"), ("aten.mm", "aten.addmm")),
}
_POINTWISE = ("relu", "prelu", "elu", "relu6", "gelu", "silu", "softmax", "_softmax")
_POOLS = (
    *(
        f"{kind}_pool{axes}d"
        for kind in ("max", "avg", "adaptive_max", "adaptive_avg")
        for axes in _AXES
    ),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    *("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
)
_FUNCTIONS: Mapping[str, OperatorRule] = {
    **{f"aten.{name}": per_input(1) for name in (*_POINTWISE, *_POOLS)},
    **{f"aten.{mode}": _interpolation for mode in _RESIZING},
    **dict.fromkeys(("aten.matmul", "aten.mm", "aten.bmm"), _product),
    **dict.fromkeys(("aten.addmm", "aten.baddbmm"), _added_product),
}
