"""Advice for passes that fail because sizes or arguments do not fit the model."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from torchscan.errors import Argument, Give, PythonOnly, Text, Value
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.example_inputs import Shapes
from torchscan.recording.exception_origin import Failure
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.module_calls import Call
from torchscan.recording.sayings import Features, features_in

#: characters
_LONGEST_PATH = 200

_CONVOLUTIONS = frozenset(
    {
        "aten.convolution.default",
        *(f"aten.conv{axes}d.{way}" for axes in (1, 2, 3) for way in ("default", "padding")),
    }
)


def advise_shape(input_shape: Shapes, batch_size: int | None) -> Text:
    """Return the advice to give a shape without batch dimension, with which the pass succeeds.

    ``batch_size`` is None if the pass succeeds with that of the request.
    """
    if batch_size is None:
        how: Text = ("(", Argument("batch_size"), " sets it)")
    else:
        needed = Give("batch_size", batch_size)
        how = ("and ", needed, ", which normalization in training needs")
    return (_give_shape(input_shape), ", without the batch dimension ", how)


def name_call(call: Call) -> str:
    """Return the path and the class of a module; a very long path is shortened.

    Then its depth and its end are given, which say most.
    """
    path = call.path
    if len(path) > _LONGEST_PATH:
        path = f"{path.count('.') + 1} levels deep, …{path[-_LONGEST_PATH // 4 :]}"
    return f"{path} ({type_name_of(call.module)})"


def advise_arguments(module: nn.Module) -> Text:
    """Return the advice for a call with other arguments than forward takes."""
    signature = _signature(module)
    by_name: Text = ""
    if "*," in signature:
        by_name = (", those after the star by name (", Give("input_shape", {"x": (8,)}), ")")
    return (
        *(f"give one shape per argument of forward{signature} with ", Argument("input_shape")),
        *(by_name, PythonOnly((", or complete ", Give("args"), " and ", Give("kwargs")))),
    )


def advise_sizes(input_shape: Shapes) -> Text:
    """Return the advice for a shape that has a size of zero."""
    return ("sizes of 1 or more: ", Argument("input_shape"), " is ", _shape(input_shape))


def advise_fitting(failure: Failure, module: nn.Module, input_shape: Shapes | None) -> Text:
    """Return the advice for sizes that do not fit."""
    request = failure.request
    inner = failure.call
    if inner is not None and not inner.path:
        inner = None
    features = _find_features(failure)

    if input_shape is not None and request is not None:
        is_produced = _is_made(request)
        if features is not None and not is_produced:
            return (_another_shape(input_shape), f": {_takes(features)}")
        if inner is None or not is_produced:
            rest = ": give the shape of one sample in the layout of the model"
            return (_another_shape(input_shape), rest)
    if inner is not None:
        return _misfit(inner, features, input_shape, module)
    check = f"check the inputs against forward{_signature(module)}"
    if features:
        return f"{check}: {_takes(features)}"
    return (check, PythonOnly("; the original exception is chained"))


def _find_features(failure: Failure) -> Features | None:
    """Return the sizes that do not match, from the exception's text, or else from the operands."""
    features = features_in(failure.error)
    if features is None and failure.request is not None:
        features = _features(failure.request)
    return features


def _is_made(request: OpRequest) -> bool:
    """Return whether the data of a call come from other operators, not from the model's input."""
    data = request.tracked[:1]
    if str(request.op) == "aten.addmm.default":
        data = request.tracked[1:2]
    return any(each.is_produced for each in data)


def _misfit(
    call: Call, features: Features | None, input_shape: Shapes | None, module: nn.Module
) -> Text:
    """Return the advice for a layer that does not fit the one before it."""
    name = name_call(call)
    if features is None:
        rest: Text = f"the inputs against forward{_signature(module)}"
        if input_shape is not None:
            rest = _give_shape(input_shape)
        return (f"check {name}, which cannot use its input, and ", rest)
    advice = f"make {name} fit its input: {_takes(features)}"
    if input_shape is None or features[2] == "channels":
        return advice
    return (f"{advice}; or give ", _another_shape(input_shape))


def _takes(features: Features) -> str:
    taken, given, what = features
    return f"the layer takes {taken} {what} and is given {given}"


def _features(request: OpRequest) -> Features | None:
    """Return the features or channels that a layer takes and gets, or None if they match."""
    name = str(request.op)
    shapes = [tracked.spec.shape for tracked in request.tracked]
    if name == "aten.addmm.default":
        shapes = [shapes[1], shapes[2][::-1]]
    found: Features
    if name in ("aten.linear.default", "aten.addmm.default") and shapes[0] and len(shapes[1]) == 2:
        found = shapes[1][1], shapes[0][-1], "features"
    elif name in _CONVOLUTIONS and len(shapes[0]) == len(shapes[1]) >= 3:
        found = _input_channels(request, shapes[1]), shapes[0][1], "channels"
    else:
        return None
    taken, given, _ = found
    return found if taken != given else None


def _input_channels(request: OpRequest, weight: tuple[int, ...]) -> int:
    """Return the channels that a convolution takes, from the shape of its weight."""
    place_of_groups = 6
    if str(request.op) == "aten.convolution.default":
        is_transposed = bool(request.args[6])
        if is_transposed:
            return weight[0]
        place_of_groups = 8
    groups: int = request.kwargs.get("groups", 1)
    if len(request.args) > place_of_groups:
        groups = request.args[place_of_groups]
    return weight[1] * groups


def _plain_shape(input_shape: Shapes) -> Any:
    """Return the shapes with plain numbers; one alone without the list around it."""
    if isinstance(input_shape, Mapping):
        return input_shape
    is_nested = any(isinstance(each, tuple | list) for each in input_shape)
    if is_nested and len(input_shape) > 1:
        return input_shape
    shape: Any = input_shape
    if is_nested:
        (shape,) = input_shape
    return tuple(map(int, shape))


def _shape(input_shape: Shapes) -> Value:
    return Value(_plain_shape(input_shape))


def _give_shape(input_shape: Shapes) -> Give:
    return Give("input_shape", _plain_shape(input_shape))


def _another_shape(input_shape: Shapes) -> Text:
    return ("another ", Argument("input_shape"), " than ", _shape(input_shape))


def without_batch(input_shape: Shapes) -> Shapes | None:
    """Return the shapes without the first dimension if that may be of a batch.

    It may be if it is 1 everywhere, or if there are many dimensions.
    """
    shapes: Any = input_shape
    if isinstance(shapes, Mapping):
        parts = {name: _without_first(shape) for name, shape in shapes.items()}
        if None in parts.values():
            return None
        return {name: part or () for name, part in parts.items()}
    if not any(isinstance(each, list | tuple) for each in shapes):
        return _without_first(shapes)
    several = [_without_first(shape) for shape in shapes]
    if None in several:
        return None
    return [part or () for part in several]


def _without_first(shape: Sequence[int]) -> tuple[int, ...] | None:
    may_be_batch = len(shape) > 3 or (len(shape) > 1 and shape[0] == 1)
    return tuple(shape[1:]) if may_be_batch else None


def _signature(module: nn.Module) -> str:
    try:
        return f"({textwrap.shorten(', '.join(_names_of(module)), 100, placeholder=' …')})"
    except (TypeError, ValueError):
        return "(…)"


def _names_of(module: nn.Module) -> list[str]:
    """Return the parameters of its forward; a star before those that are given by name only."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = []
    for parameter in parameters:
        name, _, _ = str(parameter).partition(":")
        name, _, _ = name.partition("=")
        names.append(name)
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        names.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return names
