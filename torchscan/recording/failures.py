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

from torchscan.errors import NeedsValuesError, RecordError, TorchscanError
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call
from torchscan.recording.example_inputs import Shapes
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.recorder import Failure
from torchscan.recording.request import PassRequest
from torchscan.recording.sayings import Features, Saying, features_in, says
from torchscan.trace.events import InputRecord, TensorSpec

_ADVICE = "\n  try: "
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
        return NeedsValuesError(
            f"{where}: {error}{_ADVICE}{_how_to_get_values(request, failure.request)}"
        )
    what = _first_line(error)
    got = ", ".join(_input_text(each) for each in inputs) or "no tensor"
    hint = _hint(failure, module, request.input_shape)
    if isinstance(request.dtype, torch.dtype) and hint == _another_type(request.input_shape):
        hint = f"the model and its inputs have different types: convert the model, or give another dtype than {request.dtype}"
    explained = RecordError(
        f"{where}: {type(error).__name__}: {what}\n  the model was given: {got}{_ADVICE}{hint}"
    )
    explained.failed = None if failure.call is None else failure.call.index
    explained.without_batch = (
        None if request.input_shape is None else _without_batch(request.input_shape)
    )
    return explained


def suggest_shape(error: RecordError, batch_size: int | None) -> None:
    """Make the advice of an error the shape without its batch dimension, with which the pass succeeds.

    ``batch_size`` is None if the pass succeeds with that of the request.
    """
    what, label, _ = str(error).rpartition(_ADVICE)
    better = _format_shape(error.without_batch)
    how = (
        "(batch_size= sets it)"
        if batch_size is None
        else f"and batch_size={batch_size}, which normalization in training needs"
    )
    error.args = (f"{what}{label}input_shape={better}, without the batch dimension {how}",)


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
_HINTS: Mapping[Saying, str] = {
    Saying.NOBODY_ANSWERS: "record in all processes of the group at once: each waits for the others",
    Saying.NO_SHAPE_FUNCTION: "register what shape the operator returns: @my_op.register_fake; or pass execute='real'",
    Saying.TAKES_FUNCTIONS: "replace it with one of its branches (torch.cond) or with a Python loop (while_loop, scan)",
    Saying.NO_GRADIENT: "register the operator's gradient: my_op.register_autograd; or leave out training=True",
    Saying.NO_FORWARD: "define forward in its class; a ModuleList or ModuleDict is not called, but the modules in it",
    Saying.NESTED_ATTENTION: "give it a padded tensor and a mask: its fast path, which takes nested ones, hides what it does",
}


def _how_to_get_values(request: PassRequest, read: OpRequest | None) -> str:
    buffer = (
        None
        if read is None
        else next(filter(None, map(read.table.name_of_buffer, read.tracked)), None)
    )
    if buffer is not None:
        return f"a model whose buffer {buffer} has values: register it on the CPU, or build the model there"
    if request.execute == "abstract":
        return "execute='auto', which falls back to data; a model on the meta device has none"
    return "the model with data: on the meta device there are no values (torch.device('cpu') around its constructor)"


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


def _hint(failure: Failure, module: nn.Module, input_shape: Shapes | None) -> str:
    error, request = failure.error, failure.request
    for saying, hint in _HINTS.items():
        if says(error, saying):
            return hint
    if says(error, Saying.ONE_SAMPLE):
        more = (
            "pass batch_size=2"
            if input_shape is not None
            else "give args= or kwargs= of two samples or more"
        )
        return f"normalization in training needs more than one sample: {more}"
    if input_shape is not None and 0 in _sizes(input_shape):
        return f"sizes of 1 or more: input_shape is {_format_shape(input_shape)}"
    if isinstance(error, RecursionError):
        return _hint_at_recursion(error)
    if request is not None and "embedding" in str(request.op) and _has_floating_index(request):
        return f"token ids are integers: {'convert them, ids.long()' if input_shape is None else 'pass dtype=torch.long'}"
    if says(error, Saying.WRONG_TYPE):
        return _another_type(input_shape)
    if isinstance(error, TypeError) and request is None:
        signature = _signature(module)
        by_name = ", those after the star by name ({'x': (8,)})" if "*," in signature else ""
        return f"give one shape per argument of forward{signature}{by_name}, or complete args= and kwargs="
    inner = failure.call if failure.call is not None and failure.call.path else None
    features = _features_of(failure)
    if (
        input_shape is not None
        and request is not None
        and features
        and features[2] == "channels"
        and not _is_made(request)
    ):
        return f"another input_shape than {_format_shape(input_shape)}: {_takes(features)}"
    if input_shape is not None and request is not None and not (inner and _is_made(request)):
        return f"another input_shape than {_format_shape(input_shape)}: give the shape of one sample in the layout of the model"
    if inner is not None:
        return _misfit(inner, features, input_shape, module)
    takes = (
        f": {_takes(features)}" if features else "; in Python, the original exception is chained"
    )
    return f"check the inputs against forward{_signature(module)}{takes}"


def _another_type(input_shape: Shapes | None) -> str:
    """``dtype`` is that of inputs made from shapes; tensors of the user's are taken as they are."""
    if input_shape is None:
        return "convert the tensors that are given, x.to(dtype), to the type that the model expects"
    return "pass dtype=, one for all inputs or one per input, so that they have the type that the model expects"


def _has_floating_index(request: OpRequest) -> bool:
    return len(request.tracked) > 1 and request.tracked[1].spec.is_arithmetic


def _is_made(request: OpRequest) -> bool:
    """Return whether the data of a call come from other operators, not from the model's input."""
    data = request.tracked[1:2] if str(request.op) == "aten.addmm.default" else request.tracked[:1]
    return any(each.is_produced for each in data)


def _misfit(
    call: Call, features: Features | None, input_shape: Shapes | None, module: nn.Module
) -> str:
    """The input was fine as far as here: a layer does not fit the one before."""
    name = f"{_short(call.path)} ({type_name_of(call.module)})"
    if features is None:
        rest = (
            f"the inputs against forward{_signature(module)}"
            if input_shape is None
            else f"input_shape={_format_shape(input_shape)}"
        )
        return f"check {name}, which cannot work on what it is given, and {rest}"
    rest = (
        ""
        if input_shape is None or features[2] == "channels"
        else f"; or another input_shape than {_format_shape(input_shape)}"
    )
    return f"make {name} fit what it is given: {_takes(features)}{rest}"


def _takes(features: Features) -> str:
    taken, given, what = features
    return f"it takes {taken} {what} and is given {given}"


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


def _format_shape(input_shape: Shapes) -> str:
    is_one = not isinstance(input_shape, Mapping) and (
        len(input_shape) == 1 or not any(isinstance(each, tuple | list) for each in input_shape)
    )
    shapes = tuple(map(int, _first_shape(input_shape))) if is_one else input_shape
    return textwrap.shorten(str(shapes), 100, placeholder=" …")


def _first_shape(input_shape: Shapes) -> list[int]:
    shapes: Any = list(input_shape.values()) if isinstance(input_shape, Mapping) else input_shape
    return list(shapes[0]) if shapes and isinstance(shapes[0], list | tuple) else list(shapes)


def _sizes(input_shape: Shapes) -> Iterator[int]:
    shapes: Any = input_shape.values() if isinstance(input_shape, Mapping) else input_shape
    for each in shapes:
        yield from each if isinstance(each, list | tuple) else (each,)


def _without_batch(input_shape: Shapes) -> Shapes | None:
    """Return the shapes without the first dimension if that may be of a batch: it is 1 everywhere, or there are many."""
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
