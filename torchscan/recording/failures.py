"""What to say when a pass fails: where, on what, why, and what to try."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from torchscan.errors import NeedsValuesError, RecordError, TorchscanError
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.example_inputs import Shapes
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.recorder import Failure
from torchscan.recording.sayings import Saying, says
from torchscan.trace.events import InputRecord, TensorSpec

#: characters
_LONGEST_PATH = 200


def explain(failure: Failure, module: nn.Module, inputs: Sequence[InputRecord], input_shape: Shapes | None) -> TorchscanError:
    """The error to raise for an exception that left the model; the caller chains the cause."""
    error = failure.error
    where = _where(failure, module)
    if isinstance(error, NeedsValuesError):
        return NeedsValuesError(
            f"{where}: {error}\n  try: execute='auto', which falls back to data; a model on the meta device has none"
        )
    what = _first_line(error)
    got = ", ".join(_input_text(each) for each in inputs) or "no tensor"
    hint = _hint(error, failure.request, module, input_shape)
    return RecordError(f"{where}: {type(error).__name__}: {what}\n  the model was given: {got}\n  try: {hint}")


def _where(failure: Failure, module: nn.Module) -> str:
    call = failure.call
    if call is None or not call.path:
        place = f"{type_name_of(module)} (the model itself)"
    else:
        place = f"{_short(call.path)} ({type_name_of(call.module)})"
    return f"{place} failed in {_op_text(failure.request)}" if failure.request else f"{place} failed"


def _short(path: str) -> str:
    """The end of a path, which says more than its beginning, where it is longer than anybody reads."""
    return path if len(path) <= _LONGEST_PATH else f"{path.count('.') + 1} levels deep, …{path[-_LONGEST_PATH // 4 :]}"


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
    Saying.NO_SHAPE_FUNCTION: "register what shape the operator returns: @my_op.register_fake; or pass execute='real'",
    Saying.TAKES_FUNCTIONS: "replace it with one of its branches (torch.cond) or with a Python loop (while_loop, scan)",
    Saying.NO_GRADIENT: "register the operator's gradient: my_op.register_autograd; or leave out backward=True",
    Saying.ONE_SAMPLE: "normalisation in training needs more than one sample: pass batch_size=2",
}


def _hint(error: BaseException, request: OpRequest | None, module: nn.Module, input_shape: Shapes | None) -> str:
    for saying, hint in _HINTS.items():
        if says(error, saying):
            return hint
    if isinstance(error, RecursionError):
        limit = f"sys.setrecursionlimit({2 * sys.getrecursionlimit()})"
        return f"{limit} before the call, in a thread with memory for as many calls (threading.stack_size)"
    if request is not None and "embedding" in str(request.op) and _has_floating_index(request):
        return "token ids are integers: pass dtype=torch.long"
    if says(error, Saying.WRONG_TYPE):
        return "pass dtype=, one for all inputs or one per input, so that they have the type that the model expects"
    if isinstance(error, TypeError) and request is None:
        return f"give one shape per argument of forward{_signature(module)}, or complete args= and kwargs="
    if input_shape is not None and request is not None:
        return _shape_hint(input_shape)
    return f"check the inputs against forward{_signature(module)}; in Python, the original exception is chained"


def _has_floating_index(request: OpRequest) -> bool:
    return len(request.tracked) > 1 and request.tracked[1].spec.is_arithmetic


def _shape_hint(input_shape: Shapes) -> str:
    shapes: Any = list(input_shape.values()) if isinstance(input_shape, Mapping) else input_shape
    shape = list(shapes[0]) if shapes and isinstance(shapes[0], list | tuple) else list(shapes)
    if (len(shape) > 1 and shape[0] == 1) or len(shape) > 3:
        return f"input_shape has no batch dimension (batch_size= sets it): {tuple(shape[1:])} instead of {tuple(shape)}?"
    return f"another input_shape than {tuple(shape)}: it is one sample, without the batch dimension, in the layout of the model"


def _signature(module: nn.Module) -> str:
    try:
        names = [str(each).split(":")[0].split("=")[0] for each in inspect.signature(module.forward).parameters.values()]
        return f"({textwrap.shorten(', '.join(names), 100, placeholder=' …')})"
    except (TypeError, ValueError):
        return "(…)"
