"""Calls that are repeated on a copy, to inspect them closely."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.module_copies import copy_of, obstacle
from torchscan.inspecting.root_call import RootCall
from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.module_calls import Given
from torchscan.recording.state import keep_random_state
from torchscan.recording.undo import Undo, put_back_after
from torchscan.torch_versions import as_written, without_hooks_for_gradients, without_modes

#: more than 0 while a call is repeated, in whichever threads it runs
_num_running = 0


def is_looking_again() -> bool:
    """Return whether a call is being repeated, which is not part of the user's program."""
    return _num_running > 0


def look_again(call: RootCall, gradients: Mapping[int, Tensor] | None) -> NonFinite | Note | None:
    """Repeat the call, and its backward pass if there are ``gradients`` of its outputs.

    Return the source of what is not finite, the reason why the call cannot be repeated, or None if
    all is finite.
    """
    global _num_running
    module, given = call.module(), call.given()
    if module is None:
        return Note.of("module-gone")
    if isinstance(given, Note):
        return given
    reason = obstacle(module, given)
    if reason is not None:
        return reason
    _num_running += 1
    try:
        return put_back_after(partial(_repeat, module, given, call, gradients or {}))
    except Exception as error:
        return Note.of("repeat-failed", error=type(error).__name__)
    finally:
        _num_running -= 1


def _repeat(
    module: nn.Module, given: Given, call: RootCall, gradients: Mapping[int, Tensor], undo: Undo
) -> NonFinite | None:
    for context in (without_modes, without_hooks_for_gradients, as_written):
        undo.enter(context, is_of_process=False)
    keep_random_state(undo)
    copy = copy_of(module)
    for parameter in copy.parameters():
        parameter.grad = None
    args, kwargs = copy_arguments(
        given, lambda each: each.detach().clone().requires_grad_(each.requires_grad)
    )
    inspector = Inspector(copy, lambda _: None, is_second_look=True)
    torch.set_rng_state(call.random_state)
    if call.cuda_random_state is not None:
        torch.cuda.set_rng_state(call.cuda_random_state)

    autocast: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if call.autocast is not None:
        kind, dtype = call.autocast
        autocast = torch.autocast(kind, dtype=dtype)
    inspector.start()
    try:
        with torch.set_grad_enabled(call.has_grad), autocast:
            outputs = tensors_in(copy(*args, **kwargs))
        starts, start_gradients = [], []
        for index, gradient in gradients.items():
            if outputs[index].requires_grad:
                starts.append(outputs[index])
                start_gradients.append(gradient)
        if starts:
            torch.autograd.backward(starts, start_gradients)
    finally:
        inspector.finish()
    found = inspector.watched().nonfinite
    return found[0] if found else None
