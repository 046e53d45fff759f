"""Search for the operator that makes a module's first non-finite value, by repeating the call.

The module and its arguments are copied, and what cannot be copied is not repeated. Hooks that users
put on modules are left off. The state of random numbers is restored; the replay draws other
numbers.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from torchscan.inspecting.finiteness import NonFiniteCount, check_values
from torchscan.inspecting.module_copies import copy_of, obstacle
from torchscan.inspecting.replay_mode import OperatorFound, ReplayMode, check_all_values
from torchscan.inspecting.replayed_operator import Operator
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.module_calls import Given
from torchscan.recording.state import keep_random_state
from torchscan.recording.undo import Undo, put_back_after
from torchscan.torch_versions import as_written, without_hooks_for_gradients, without_modes


def find_operator(module: nn.Module, given: Given, *, nan: bool) -> Operator:
    """Return the first operator of a call that makes NaN of other values, or infinities."""
    unknown = obstacle(module, given)
    if unknown is not None:
        return Operator(unknown=unknown)

    def replay(undo: Undo) -> Operator | None:
        for context in (without_modes, without_hooks_for_gradients, as_written):
            undo.enter(context, is_of_process=False)
        keep_random_state(undo)
        return _find_in(copy_of(module), copy_arguments(given, _copy_tensor), nan)

    try:
        found = put_back_after(replay)
    except Exception as error:
        return Operator(unknown=Note.of("repeat-failed", error=type(error).__name__))
    return found or Operator(unknown=Note.of("repeat-finite"))


def _find_in(module: nn.Module, given: Given, nan: bool) -> Operator | None:
    """Run a call of a copy, and return the operator, or None if there is no such value."""
    args, kwargs = given
    weights: list[Tensor] = list(module.parameters())
    if nan:  # infinities of buffers are masks
        weights += module.buffers()
    mode = ReplayMode(weights, nan=nan)
    threads = _OtherThreads(module, nan)
    result: object = None
    with contextlib.suppress(OperatorFound), mode:
        result = module.forward(*args, **kwargs)
    if mode.found is not None:
        return mode.found

    readable = filter(is_readable, tensors_in(result))
    bad = [each for each in readable if _has(check_values(each), nan)]
    if bad and threads.first is not None:
        return threads.first.find_operator(nan)
    origin = None if nan else mode.find_origin(bad)
    if origin is None and bad:
        return Operator(unknown=Note.of("not-in-thread"))
    return origin


def _has(counts: NonFiniteCount, nan: bool) -> bool:
    return bool(counts.nan if nan else counts.inf)


@dataclass(frozen=True, slots=True)
class _ThreadCall:
    """A call of a submodule in another thread, with finite arguments and a result that is not."""

    path: str
    module: nn.Module
    given: Given

    def find_operator(self, nan: bool) -> Operator:
        """Return the operator, found by repeating the call in this thread."""
        found = _find_in(self.module, copy_arguments(self.given, _copy_tensor), nan)
        return replace(found or Operator(unknown=Note.of("other-thread")), inside=self.path)


class _OtherThreads:
    """The calls of a copy's submodules in other threads, where no operator is seen."""

    def __init__(self, module: nn.Module, nan: bool) -> None:
        self._home, self._nan = threading.get_ident(), nan
        #: first call that has returned: it is inside all others that pass its result on
        self.first: _ThreadCall | None = None
        for path, each in module.named_modules():
            if path:
                each.register_forward_hook(partial(self._note, path), with_kwargs=True)

    def _note(self, path: str, module: nn.Module, args: Any, kwargs: Any, result: object) -> None:
        if self.first is not None or threading.get_ident() == self._home:
            return
        before = check_all_values(tensors_in((args, kwargs)))
        after = check_all_values(tensors_in(result))
        if _has(after, self._nan) and not _has(before, self._nan):
            self.first = _ThreadCall(path, module, (args, kwargs))


def _copy_tensor(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
