"""Counts of ptflops with its default backend: by hooks on modules, and by wrapped functions.

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
    rule_for,
)
from torchscan.trace.events import OpSignature, TensorSpec
from torchscan.trace.trace import Trace

_RELUS = ("aten.relu", "aten.gelu")
_PRODUCTS = ("aten.mm", "aten.addmm")
#: class -> operators that come from no wrapped function in it: these layers keep the activation
#: that they were made with, and a linear layer shows its matrix product in a trace without
#: composite operators
_UNSEEN: Mapping[str, Container[str]] = {
    "TransformerEncoderLayer": _RELUS,
    "TransformerDecoderLayer": _RELUS,
    "Linear": _PRODUCTS,
    "MultiheadAttention": _PRODUCTS,
}


def ptflops(trace: Trace) -> list[int]:
    """Return the numbers of get_model_complexity_info.

    Modules count per sample, functions for the whole batch.
    """
    samples = 1
    # The batch size is read off the first positional argument.
    for first in trace.provenance.inputs[:1]:
        if first.name == "args[0]" and first.shape:
            samples = max(first.shape[0], 1)

    rule = of_class(_MODULES)
    modules = by_module(trace, lambda layer: rule(layer) // samples)
    functions = by_operator(trace, _FUNCTIONS)
    macs: list[int] = []
    for of_module, of_function, op in zip(modules, functions, trace.ops, strict=True):
        unseen = _UNSEEN.get(trace.modules[op.module_call].type_name, ())
        is_seen = op.signature.operator not in unseen
        macs.append(of_module + of_function if is_seen else of_module)
    return macs


# -- modules -------------------------------------------------------------------------------------


_ACTIVATIONS = ("ReLU", "PReLU", "ELU", "LeakyReLU", "ReLU6", "GELU")
_POOLS = ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
_MODULES: dict[str, ModuleRule] = {
    **dict.fromkeys(_ACTIVATIONS, elements_out),
    **{f"{pool}{axes}d": elements_in for pool in _POOLS for axes in (1, 2, 3)},
    "LayerNorm": elements_in,
}


@rule_for(_MODULES, "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm")
@rule_for(_MODULES, "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
def _norm(layer: CountedModule) -> int:
    """Count 1 per element, 2 if affine."""
    is_affine = "weight" in layer.parameters
    return layer.input.numel * (2 if is_affine else 1)


@rule_for(_MODULES, "Upsample")
def _resize(layer: CountedModule) -> int:
    """Count 1 per output of one sample, whatever the mode."""
    output = layer.output
    return output.numel // max(output.shape[0], 1)


@rule_for(_MODULES, "Linear")
def _linear(layer: CountedModule) -> int:
    """Return ``rows · (features in · features out + features out)``, the latter for the bias."""
    per_output = layer.input.shape[-1]
    if "bias" in layer.parameters:
        per_output += 1
    return layer.output.numel * per_output


@rule_for(_MODULES, "Conv1d", "Conv2d", "Conv3d")
@rule_for(_MODULES, "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
def _convolution(layer: CountedModule) -> int:
    """Return ``positions · numel(weight)``, and 1 per output for the bias.

    The positions are those of the output, and those of the input of a transposed convolution.
    """
    weight: TensorSpec = argument(layer.operator_with("weight"), "weight")
    is_transposed = layer.type_name.startswith("ConvTranspose")
    samples, _, *axes = (layer.input if is_transposed else layer.output).shape
    macs = samples * math.prod(axes) * weight.numel
    if "bias" in layer.parameters:
        macs += layer.output.numel
    return macs


#: besides the products and biases, per unit and step
_PER_UNIT = {"RNN": 1, "GRU": 7, "LSTM": 10}


@rule_for(_MODULES, *_PER_UNIT)
@rule_for(_MODULES, "RNNCell", "GRUCell", "LSTMCell")
def _recurrent(layer: CountedModule) -> int:
    """Return ``steps · directions · Σ over layers (numel of weights and biases + work of units)``.

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
    steps = math.prod(layer.input.shape[:dims_of_steps])
    return steps * sizes.directions * per_step


#: operators that compute the scores, and which of their arguments are the queries
_SCORES = {**dict.fromkeys((*ATTENTION, "aten.bmm"), 0), "aten.baddbmm": 1}


@rule_for(_MODULES, "MultiheadAttention")
def _attention(layer: CountedModule) -> int:
    """Count scaling, three projections, scores, softmax, weighing, and the output projection.

    All of them are for one sample. The output projection has a bias.
    """
    query, key, value = layer.inputs[:3]
    scores = layer.operator_among(_SCORES)
    queries: TensorSpec = scores.args[_SCORES[scores.operator]]
    length, per_head = queries.shape[-2:]
    width, key_width, value_width = (each.shape[-1] for each in (query, key, value))
    samples = query.numel // (length * width)
    keys = key.numel // (samples * key_width)
    values = value.numel // (samples * value_width)

    heads = width // per_head
    scaling = length * width
    projections = length * width**2
    projections += keys * key_width**2
    projections += values * value_width**2
    projections += length * value_width * (value_width + 1)
    if "in_proj_bias" in layer.parameters:
        projections += (length + keys + values) * width
    per_score = width // heads + 1 + value_width // heads
    attending = heads * length * keys * per_score
    return samples * (scaling + projections + attending)


# -- functions -----------------------------------------------------------------------------------


_COUNT_INPUTS = (
    *("relu", "prelu", "elu", "relu6", "gelu", "silu", "softmax", "_softmax"),
    *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
)
_FUNCTIONS: dict[str, OperatorRule] = {f"aten.{name}": per_input(1) for name in _COUNT_INPUTS}


@rule_for(_FUNCTIONS, "aten.matmul", "aten.mm", "aten.bmm")
def _product(signature: OpSignature) -> int:
    """Return ``numel(left) · last size of the right``."""
    left, right = signature.inputs
    return left.numel * right.shape[-1]


@rule_for(_FUNCTIONS, "aten.addmm", "aten.baddbmm")
def _added_product(signature: OpSignature) -> int:
    """Return the MACs of a product, and 1 per added element unless that tensor is scaled by 0."""
    added, left, right = signature.inputs
    macs = left.numel * right.shape[-1]
    if argument(signature, "beta"):
        macs += added.numel
    return macs


@rule_for(_FUNCTIONS, "aten.upsample_nearest1d", "aten._upsample_nearest_exact1d")
@rule_for(_FUNCTIONS, "aten.upsample_nearest2d", "aten._upsample_nearest_exact2d")
@rule_for(_FUNCTIONS, "aten.upsample_nearest3d", "aten._upsample_nearest_exact3d")
@rule_for(_FUNCTIONS, "aten.upsample_linear1d", "aten.upsample_trilinear3d")
@rule_for(_FUNCTIONS, "aten.upsample_bilinear2d", "aten._upsample_bilinear2d_aa")
@rule_for(_FUNCTIONS, "aten.upsample_bicubic2d", "aten._upsample_bicubic2d_aa")
def _interpolation(signature: OpSignature) -> int:
    """Return 1 per output; if a scale was given, ``numel(input) · Π scales``.

    The latter differs where the sizes of the output are rounded down.
    """
    scales = None
    if signature.op._overloadname == "vec":
        scales = argument(signature, "scale_factors")
    if scales is None:
        return signature.outputs[0].numel
    return int(signature.inputs[0].numel * math.prod(scales))
