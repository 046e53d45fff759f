"""Explanations of failed passes: the place, the operands, the cause, and advice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from torchscan.errors import (
    NeedsValuesError,
    RecordError,
    TorchscanError,
)
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.exception_origin import Failure
from torchscan.recording.failure_advice import advise, advise_values
from torchscan.recording.loops import EndlessLoopError, OpenLoopError
from torchscan.recording.request import PassRequest
from torchscan.recording.shape_advice import name_call
from torchscan.trace.provenance import InputRecord

#: our own files, and torch's whose lines are in every traceback
_OURS = f"{Path(__file__).parent.parent}{os.sep}"
_CALLERS = (nn.modules.module.__file__, str(Path(torch.__file__).parent / "_ops.py"))


def explain(
    failure: Failure, module: nn.Module, inputs: Sequence[InputRecord], request: PassRequest
) -> TorchscanError:
    """Return the error to raise for an exception that left the model; the caller chains it."""
    error = failure.error
    where = _where(failure, module)
    if isinstance(error, EndlessLoopError | OpenLoopError):
        return type(error)(where, ": ", *error.parts, advice=error.advice)
    if isinstance(error, NeedsValuesError):
        advice = advise_values(request, failure.request)
        return NeedsValuesError(where, ": ", error, advice=advice)
    texts = [f"{each.name} {_format_type(each.dtype)} {list(each.shape)}" for each in inputs]
    given = ", ".join(texts) or "no tensor"
    lines = str(error).strip().splitlines()
    first_line = lines[0] if lines else "(no message)"
    explained = RecordError(
        f"{where}: {type(error).__name__}: {first_line}",
        details=f"the model was given: {given}",
        advice=advise(failure, module, request),
    )
    explained.failed = None if failure.call is None else failure.call.index
    return explained


def in_the_model(error: Exception) -> Exception:
    """Return the exception; its traceback, and those of its causes, get the model's lines alone.

    The lines of torchscan, and those in which torch calls modules and operators, are removed.
    """
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
    """Return the traceback without those lines.

    It is complete if the error is torchscan's own, or if no line would be left.
    """
    steps = []
    step = traceback
    while step is not None:
        steps.append(step)
        step = step.tb_next

    kept = None
    for step in reversed(steps):
        file = step.tb_frame.f_code.co_filename
        if not file.startswith(_OURS) and file not in _CALLERS:
            kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    if kept is None or steps[-1].tb_frame.f_code.co_filename.startswith(_OURS):
        return traceback
    return kept


def _where(failure: Failure, module: nn.Module) -> str:
    call, request = failure.call, failure.request
    if call is None or not call.path:
        place = f"{type_name_of(module)} (the model itself)"
    else:
        place = name_call(call)
    if request is None:
        return f"{place} failed"

    specs = [tracked.spec for tracked in request.tracked]
    operands = [f"{_format_type(spec.dtype)} {list(spec.shape)}" for spec in specs]
    return f"{place} failed in {request.op}({', '.join(operands)})"


def _format_type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
