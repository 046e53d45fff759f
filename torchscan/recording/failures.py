"""Explanations of failed passes: the place, the operands, the cause, and advice."""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchscan.errors import (
    Argument,
    Give,
    NeedsValuesError,
    PythonOnly,
    RecordError,
    Text,
    TorchName,
    TorchscanError,
    Value,
)
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call
from torchscan.recording.example_inputs import Shapes
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.recorder import Failure
from torchscan.recording.request import PassRequest
from torchscan.recording.sayings import Features, Saying, features_in, says
from torchscan.trace.events import InputRecord, TensorSpec

#: characters
_LONGEST_PATH = 200
#: our own files, and torch's whose lines are in every traceback
_OURS = f"{Path(__file__).parent.parent}{os.sep}"
_CALLERS = (nn.modules.module.__file__, str(Path(torch.__file__).parent / "_ops.py"))


def explain(
    failure: Failure, module: nn.Module, inputs: Sequence[InputRecord], request: PassRequest
) -> TorchscanError:
    """The error to raise for an exception that left the model; the caller chains the cause."""
    error = failure.error
    where = _where(failure, module)
    if isinstance(error, NeedsValuesError):
        advice = _how_to_get_values(request, failure.request)
        return NeedsValuesError(where, ": ", error, advice=advice)
    given = ", ".join([_input_text(each) for each in inputs]) or "no tensor"
    explained = RecordError(
        f"{where}: {type(error).__name__}: {_first_line(error)}",
        details=f"the model was given: {given}",
        advice=_hint(failure, module, request),
    )
    explained.failed = None if failure.call is None else failure.call.index
    return explained


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


def in_the_model(error: Exception) -> Exception:
    """The exception, and those it came from, with the lines of the model alone: not of torchscan, nor of how torch calls."""
    waiting: list[BaseException | None] = [error]
    seen = set[int]()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _of_the_model(each.__traceback__)
            waiting += [each.__cause__, each.__context__]
    return error


def _of_the_model(traceback: TracebackType | None) -> TracebackType | None:
    """All of it where the error is of torchscan's own making, or of nothing else."""
    steps = list(_steps(traceback))
    files = [each.tb_frame.f_code.co_filename for each in steps]
    kept = None
    for each, file in zip(reversed(steps), reversed(files), strict=True):
        if not file.startswith(_OURS) and file not in _CALLERS:
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return traceback if kept is None or files[-1].startswith(_OURS) else kept


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _where(failure: Failure, module: nn.Module) -> str:
    call = failure.call
    if call is None or not call.path:
        place = f"{type_name_of(module)} (the model itself)"
    else:
        place = f"{_short(call.path)} ({type_name_of(call.module)})"
    return (
        f"{place} failed in {_op_text(failure.request)}" if failure.request else f"{place} failed"
    )


def _short(path: str) -> str:
    """The end of a path, which says more than its beginning, where it is longer than anybody reads."""
    return (
        path
        if len(path) <= _LONGEST_PATH
        else f"{path.count('.') + 1} levels deep, …{path[-_LONGEST_PATH // 4 :]}"
    )


def _op_text(request: OpRequest) -> str:
    operands = ", ".join(_spec_text(tracked.spec) for tracked in request.tracked)
    return f"{request.op}({operands})"


def _spec_text(spec: TensorSpec) -> str:
    return f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"


def _input_text(record: InputRecord) -> str:
    return f"{record.name} {str(record.dtype).removeprefix('torch.')} {list(record.shape)}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "(no message)"


#: what to try where the exception says what is wrong
_HINTS: Mapping[Saying, Text] = {
    Saying.NOBODY_ANSWERS: (
        "call torchscan in all ranks of the group at once: each waits for the others"
    ),
    Saying.NO_SHAPE_FUNCTION: (
        "register a function that returns the operator's shape: @my_op.register_fake; or give ",
        Give("execute", "real"),
    ),
    Saying.TAKES_FUNCTIONS: (
        "replace it with one of its branches (torch.cond) or with a Python loop (while_loop, scan)"
    ),
    Saying.NO_GRADIENT: (
        "register the operator's gradient: my_op.register_autograd; or leave out ",
        Give("training", True),
    ),
    Saying.NO_FORWARD: (
        "define forward in its class; a ModuleList or ModuleDict is not called, only the modules "
        "in it"
    ),
    Saying.NESTED_ATTENTION: (
        "give it a padded tensor and a mask: its fast path, which takes nested tensors, hides its "
        "operators"
    ),
}


def _how_to_get_values(request: PassRequest, read: OpRequest | None) -> Text:
    buffer = None
    if read is not None:
        buffer = next(filter(None, map(read.table.name_of_buffer, read.tracked)), None)
    if buffer is not None:
        return (
            f"a model whose buffer {buffer} has values: register it on the CPU, or build the model "
            "there"
        )
    if request.execute == "abstract":
        auto = Give("execute", "auto")
        return (auto, ", which falls back to data; a model on the meta device has none")
    return (
        "the model with data: on the meta device there are no values (torch.device('cpu') around "
        "its constructor)"
    )


def _num_frames(error: BaseException) -> int:
    """Return the number of calls that an exception went through."""
    trace = error.__traceback__
    number = 0
    while trace is not None:
        trace = trace.tb_next
        number += 1
    return number


def _hint_at_recursion(error: RecursionError) -> str:
    """Return how to call more deeply."""
    limit = sys.getrecursionlimit()
    is_of_python = str(error).startswith("maximum recursion depth exceeded")
    if is_of_python and sys.version_info[:2] == (3, 12) and _num_frames(error) < limit / 2:
        return "another Python: the limit of 3.12 on nested calls of C code cannot be raised"
    return (
        f"sys.setrecursionlimit({2 * limit}) before the call, "
        "in a thread with memory for as many calls (threading.stack_size)"
    )


def _hint(failure: Failure, module: nn.Module, asked: PassRequest) -> Text:
    """Return what to try."""
    error, request, input_shape = failure.error, failure.request, asked.input_shape
    hint = _hint_at_cause(error)
    if hint is not None:
        return hint
    if says(error, Saying.ONE_SAMPLE):
        return ("normalization in training needs more than one sample: ", _two_samples(input_shape))
    if input_shape is not None and 0 in _sizes(input_shape):
        return ("sizes of 1 or more: ", Argument("input_shape"), " is ", _shape(input_shape))
    if isinstance(error, RecursionError):
        return _hint_at_recursion(error)
    if request is not None and "embedding" in str(request.op) and _has_floating_index(request):
        return ("token ids are integers: ", _integers(input_shape))
    if says(error, Saying.WRONG_TYPE):
        return _another_type(asked)
    if isinstance(error, TypeError) and request is None:
        return _one_shape_per_argument(_signature(module))
    return _hint_at_shapes(failure, module, input_shape)


def _hint_at_cause(error: BaseException) -> Text | None:
    """Return what to try if the exception tells the cause."""
    for saying, hint in _HINTS.items():
        if says(error, saying):
            return hint
    return None


def _hint_at_shapes(failure: Failure, module: nn.Module, input_shape: Shapes | None) -> Text:
    """Return what to try if sizes do not fit."""
    request = failure.request
    inner = failure.call if failure.call is not None and failure.call.path else None
    features = _features_of(failure)
    if input_shape is not None and request is not None:
        is_produced = _is_made(request)
        if features is not None and features[2] == "channels" and not is_produced:
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


def _two_samples(input_shape: Shapes | None) -> Text:
    if input_shape is None:
        return ("give ", Give("args"), " or ", Give("kwargs"), " of two samples or more")
    return ("give ", Give("batch_size", 2))


def _integers(input_shape: Shapes | None) -> Text:
    if input_shape is None:
        return "convert them, ids.long()"
    return ("give ", Give("dtype", TorchName("torch.long")))


def _one_shape_per_argument(signature: str) -> Text:
    """Return the advice for a call with other arguments than forward takes."""
    by_name: Text = ""
    if "*," in signature:
        by_name = (", those after the star by name (", Give("input_shape", {"x": (8,)}), ")")
    return (
        *(f"give one shape per argument of forward{signature} with ", Argument("input_shape")),
        *(by_name, PythonOnly((", or complete ", Give("args"), " and ", Give("kwargs")))),
    )


def _another_type(asked: PassRequest) -> Text:
    """Return the advice to change types.

    ``dtype`` is for inputs made from shapes; tensors of the user are taken as they are.
    """
    if isinstance(asked.dtype, torch.dtype):
        return (
            "the model and its inputs have different types: convert the model, or give another ",
            *(Argument("dtype"), " than ", Value(asked.dtype)),
        )
    if asked.input_shape is None:
        return "convert the tensors that are given, x.to(dtype), to the type that the model expects"
    per_input = PythonOnly(", one for all or one per input")
    return (
        "give the inputs the type that the model expects with ",
        *(Argument("dtype"), per_input),
    )


def _shape(input_shape: Shapes) -> Value:
    return Value(_plain_shape(input_shape))


def _give_shape(input_shape: Shapes) -> Give:
    return Give("input_shape", _plain_shape(input_shape))


def _another_shape(input_shape: Shapes) -> Text:
    return ("another ", Argument("input_shape"), " than ", _shape(input_shape))


def _has_floating_index(request: OpRequest) -> bool:
    return len(request.tracked) > 1 and request.tracked[1].spec.is_arithmetic


def _is_made(request: OpRequest) -> bool:
    """Return whether the data of a call come from other operators, not from the model's input."""
    data = request.tracked[1:2] if str(request.op) == "aten.addmm.default" else request.tracked[:1]
    return any(each.is_produced for each in data)


def _misfit(
    call: Call, features: Features | None, input_shape: Shapes | None, module: nn.Module
) -> Text:
    """Return the advice for a layer that does not fit the one before it."""
    name = f"{_short(call.path)} ({type_name_of(call.module)})"
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


def _features_of(failure: Failure) -> Features | None:
    """Return the sizes that do not match, from the exception's text, or else from the operands."""
    found = features_in(failure.error)
    return _features(failure.request) if found is None and failure.request is not None else found


def _features(request: OpRequest) -> Features | None:
    """Return the features or channels that a layer takes and gets, or None if they match."""
    found: Features
    shapes, name = [tracked.spec.shape for tracked in request.tracked], str(request.op)
    if name == "aten.addmm.default":
        shapes = [shapes[1], shapes[2][::-1]]
    if name in ("aten.linear.default", "aten.addmm.default") and shapes[0] and len(shapes[1]) == 2:
        found = shapes[1][1], shapes[0][-1], "features"
    elif name in _CONVOLUTIONS and len(shapes[0]) == len(shapes[1]) >= 3:
        place, is_transposed = (
            (8, bool(request.args[6])) if name == "aten.convolution.default" else (6, False)
        )
        groups = (
            request.args[place] if len(request.args) > place else request.kwargs.get("groups", 1)
        )
        found = shapes[1][0] if is_transposed else shapes[1][1] * groups, shapes[0][1], "channels"
    else:
        return None
    return found if found[0] != found[1] else None


_CONVOLUTIONS = frozenset(
    {
        "aten.convolution.default",
        *(f"aten.conv{axes}d.{way}" for axes in (1, 2, 3) for way in ("default", "padding")),
    }
)


def _plain_shape(input_shape: Shapes) -> Any:
    """Return the shapes with plain numbers; one alone without the list around it."""
    if isinstance(input_shape, Mapping):
        return input_shape
    is_nested = any(isinstance(each, tuple | list) for each in input_shape)
    if is_nested and len(input_shape) > 1:
        return input_shape
    return tuple(map(int, _first_shape(input_shape)))


def _first_shape(input_shape: Shapes) -> list[int]:
    shapes: Any = list(input_shape.values()) if isinstance(input_shape, Mapping) else input_shape
    return list(shapes[0]) if shapes and isinstance(shapes[0], list | tuple) else list(shapes)


def _sizes(input_shape: Shapes) -> Iterator[int]:
    shapes: Any = input_shape.values() if isinstance(input_shape, Mapping) else input_shape
    for each in shapes:
        yield from each if isinstance(each, list | tuple) else (each,)


def without_batch(input_shape: Shapes) -> Shapes | None:
    """Return the shapes without the first dimension if that may be of a batch.

    It may be if it is 1 everywhere, or if there are many dimensions.
    """
    shapes: Any = input_shape
    if isinstance(shapes, Mapping):
        parts = {name: _without_first(shape) for name, shape in shapes.items()}
        return (
            None if None in parts.values() else {name: part or () for name, part in parts.items()}
        )
    if not any(isinstance(each, list | tuple) for each in shapes):
        return _without_first(shapes)
    several = [_without_first(shape) for shape in shapes]
    return None if None in several else [part or () for part in several]


def _without_first(shape: Sequence[int]) -> tuple[int, ...] | None:
    may_be_batch = len(shape) > 3 or (len(shape) > 1 and shape[0] == 1)
    return tuple(shape[1:]) if may_be_batch else None


def _signature(module: nn.Module) -> str:
    try:
        return f"({textwrap.shorten(', '.join(_names_of(module)), 100, placeholder=' …')})"
    except (TypeError, ValueError):
        return "(…)"


def _names_of(module: nn.Module) -> list[str]:
    """The parameters of its forward; a star before those that are given by name only."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = [str(each).split(":")[0].split("=")[0] for each in parameters]
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        names.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return names
