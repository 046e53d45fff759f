"""Advice for failed passes: what to try for each cause."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from torchscan.errors import Argument, Give, PythonOnly, Text, TorchName, Value
from torchscan.recording.example_inputs import Shapes
from torchscan.recording.exception_origin import Failure
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.request import PassRequest
from torchscan.recording.sayings import Saying, says
from torchscan.recording.shape_advice import advise_arguments, advise_fitting, advise_sizes

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
    Saying.NO_DRIVER: (
        "run it on a machine with a GPU: without one, Triton cannot run kernels, and the values "
        "that they compute are unknown"
    ),
    Saying.NESTED_ATTENTION: (
        "give it a padded tensor and a mask: its fast path, which takes nested tensors, hides its "
        "operators"
    ),
}


def advise(failure: Failure, module: nn.Module, request: PassRequest) -> Text:
    """Return what to try after a failure."""
    error, input_shape = failure.error, request.input_shape
    for saying, hint in _HINTS.items():
        if says(error, saying):
            return hint
    if says(error, Saying.ONE_SAMPLE):
        problem = "normalization in training needs more than one sample: "
        samples = ("give ", Give("args"), " or ", Give("kwargs"), " of two samples or more")
        return _advise_inputs(problem, input_shape, ("give ", Give("batch_size", 2)), samples)
    if input_shape is not None and 0 in _sizes(input_shape):
        return advise_sizes(input_shape)
    if isinstance(error, RecursionError):
        return _advise_recursion(error)
    if failure.request is not None and _has_floating_index(failure.request):
        integers = ("give ", Give("dtype", TorchName("torch.long")))
        return _advise_inputs(
            "token ids are integers: ", input_shape, integers, "convert them, ids.long()"
        )
    if says(error, Saying.WRONG_TYPE):
        return _advise_type(request)
    if isinstance(error, TypeError) and failure.request is None:
        return advise_arguments(module)
    return advise_fitting(failure, module, input_shape)


def advise_values(request: PassRequest, read: OpRequest | None) -> Text:
    """Return what to give so that values can be read.

    ``read`` is the operator call that needs them, or None if it is not known.
    """
    buffer = None
    if read is not None:
        names = map(read.table.name_of_buffer, read.tracked)
        buffer = next(filter(None, names), None)
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


def _advise_inputs(problem: str, input_shape: Shapes | None, made: Text, given: Text) -> Text:
    """Return what to try with inputs made from shapes, or else with tensors that were given."""
    return (problem, given if input_shape is None else made)


def _sizes(input_shape: Shapes) -> Iterator[int]:
    """Yield the sizes of all shapes."""
    shapes: Any = input_shape
    if isinstance(input_shape, Mapping):
        shapes = input_shape.values()
    for each in shapes:
        if isinstance(each, list | tuple):
            yield from each
        else:
            yield each


def _advise_recursion(error: RecursionError) -> str:
    """Return how to call more deeply."""
    limit = sys.getrecursionlimit()
    is_of_python = str(error).startswith("maximum recursion depth exceeded")
    if is_of_python and sys.version_info[:2] == (3, 12) and _num_frames(error) < limit / 2:
        return "another Python: the limit of 3.12 on nested calls of C code cannot be raised"
    return (
        f"sys.setrecursionlimit({2 * limit}) before the call, "
        "in a thread with memory for as many calls (threading.stack_size)"
    )


def _num_frames(error: BaseException) -> int:
    """Return the number of calls that an exception went through."""
    trace = error.__traceback__
    number = 0
    while trace is not None:
        trace = trace.tb_next
        number += 1
    return number


def _has_floating_index(request: OpRequest) -> bool:
    """Return whether an embedding is given indices that are not integers."""
    if "embedding" not in str(request.op):
        return False
    if len(request.tracked) < 2:
        return False
    _, index, *_ = request.tracked
    return index.spec.is_arithmetic


def _advise_type(request: PassRequest) -> Text:
    """Return the advice to change types.

    ``dtype`` is for inputs made from shapes; tensors of the user are taken as they are.
    """
    if isinstance(request.dtype, torch.dtype):
        return (
            "the model and its inputs have different types: convert the model, or give another ",
            *(Argument("dtype"), " than ", Value(request.dtype)),
        )
    if request.input_shape is None:
        return "convert the tensors that are given, x.to(dtype), to the type that the model expects"
    per_input = PythonOnly(", one for all or one per input")
    return (
        "give the inputs the type that the model expects with ",
        *(Argument("dtype"), per_input),
    )
