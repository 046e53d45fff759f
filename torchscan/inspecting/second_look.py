"""A second look at a call of a root module: the same call once more, on a copy, inspected closely."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.replay import copy_of, obstacle
from torchscan.inspecting.root_calls import RootCall
from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.call_tree import Given
from torchscan.recording.state import keep_random_state
from torchscan.recording.undo import Undo, put_back_after
from torchscan.torch_versions import as_written, without_hooks_for_gradients, without_modes

#: more than 0 while a call is repeated, in whichever threads it runs
_at_work = 0


def is_looking_again() -> bool:
    """Return whether a call is being repeated, which is not part of the user's program."""
    return _at_work > 0


def look_again(
    call: RootCall, gradients: Mapping[int, Tensor] | None = None
) -> NonFinite | Note | None:
    """Repeat the call, and its backward pass if there are ``gradients`` of its outputs.

    Return the first producer of what is not finite, the reason why the call cannot be repeated, or None if all is finite.
    """
    global _at_work
    module, given = call.module(), call.given()
    if module is None:
        return Note.of("module-gone")
    if isinstance(given, Note):
        return given
    reason = obstacle(module, given)
    if reason is not None:
        return reason
    _at_work += 1
    try:
        return put_back_after(partial(_repeat, module, given, call, gradients or {}))
    except Exception as error:
        return Note.of("repeat-failed", error=type(error).__name__)
    finally:
        _at_work -= 1


def _repeat(
    module: nn.Module, given: Given, call: RootCall, gradients: Mapping[int, Tensor], undo: Undo
) -> NonFinite | None:
    for context in (without_modes, without_hooks_for_gradients, as_written):
        undo.enter(context, is_of_process=False)
    keep_random_state(undo)
    own = copy_of(module)
    for parameter in own.parameters():
        parameter.grad = None
    args, kwargs = copy_arguments(given, _own)
    inspector = Inspector(own, lambda _: None, is_second_look=True)
    torch.set_rng_state(call.random_state)
    if call.cuda_random_state is not None:
        torch.cuda.set_rng_state(call.cuda_random_state)
    inspector.start()
    try:
        with torch.set_grad_enabled(call.has_grad), _autocast_of(call):
            outputs = tensors_in(own(*args, **kwargs))
        pairs = [
            (outputs[index], gradient)
            for index, gradient in gradients.items()
            if outputs[index].requires_grad
        ]
        if pairs:
            torch.autograd.backward(
                [output for output, _ in pairs], [gradient for _, gradient in pairs]
            )
    finally:
        inspector.finish()
    found = inspector.watched().nonfinite
    return found[0] if found else None


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _autocast_of(call: RootCall) -> Iterator[Any]:
    if call.autocast is None:
        yield
        return
    kind, dtype = call.autocast
    with torch.autocast(kind, dtype=dtype):
        yield
