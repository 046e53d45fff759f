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
from torchscan.recording.call_tree import Call
from torchscan.recording.example_inputs import Shapes
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.recorder import Failure
from torchscan.recording.request import PassRequest
from torchscan.recording.sayings import Saying, says
from torchscan.trace.events import InputRecord, TensorSpec

#: characters
_LONGEST_PATH = 200


def explain(failure: Failure, module: nn.Module, inputs: Sequence[InputRecord], request: PassRequest) -> TorchscanError:
    """The error to raise for an exception that left the model; the caller chains the cause."""
    error = failure.error
    where = _where(failure, module)
    if isinstance(error, NeedsValuesError):
        return NeedsValuesError(f"{where}: {error}\n  try: {_how_to_get_values(request)}")
    what = _first_line(error)
    got = ", ".join(_input_text(each) for each in inputs) or "no tensor"
    hint = _hint(failure, module, request.input_shape)
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


def _how_to_get_values(request: PassRequest) -> str:
    if request.execute == "abstract":
        return "execute='auto', which falls back to data; a model on the meta device has none"
    return "the model with data: on the meta device there are no values (torch.device('cpu') around its constructor)"


def _hint(failure: Failure, module: nn.Module, input_shape: Shapes | None) -> str:
    error, request = failure.error, failure.request
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
    if request is not None and failure.call is not None and failure.call.path and any(each.is_made for each in request.tracked):
        return _misfit(failure.call, request, input_shape)
    if input_shape is not None and request is not None:
        return _shape_hint(input_shape)
    return f"check the inputs against forward{_signature(module)}; in Python, the original exception is chained"


def _has_floating_index(request: OpRequest) -> bool:
    return len(request.tracked) > 1 and request.tracked[1].spec.is_arithmetic


def _misfit(call: Call, request: OpRequest, input_shape: Shapes | None) -> str:
    """The input was fine as far as here: a layer does not fit the one before."""
    name = f"{_short(call.path)} ({type_name_of(call.module)})"
    rest = "" if input_shape is None else f"; or another input_shape than {_plain(input_shape)}, if sizes grow with it"
    taken, given = _features(request)
    said = f": it takes {taken} {'features' if 'linear' in str(request.op) else 'channels'} and is given {given}"
    return f"make {name} fit what it is given{said if taken != given else ''}{rest}"


def _features(request: OpRequest) -> tuple[int, int]:
    """How many a linear layer or a convolution takes, and is given; the same number twice for everything else."""
    specs = [tracked.spec for tracked in request.tracked]
    name = str(request.op)
    if "linear" in name and len(specs) > 1 and specs[0].shape and len(specs[1].shape) == 2:
        return specs[1].shape[1], specs[0].shape[-1]
    if "aten.conv" in name and "transpose" not in name and len(specs) > 1 and len(specs[0].shape) == len(specs[1].shape):
        groups = request.args[-1] if isinstance(request.args[-1], int) else 1
        return specs[1].shape[1] * groups, specs[0].shape[1]
    return 0, 0


def _plain(input_shape: Shapes) -> str:
    return str(dict(input_shape) if isinstance(input_shape, Mapping) else input_shape)


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
