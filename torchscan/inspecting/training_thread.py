"""The thread that trains, and threads that go unchecked."""

from __future__ import annotations

import threading
import weakref

import torch
from torch import nn

from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.recording.call_threads import is_in_backward_pass


class TrainingThread:
    """The thread whose training is checked, and the names of others that train."""

    def __init__(self, model: nn.Module | None) -> None:
        """``model`` is the only one whose training is checked; None: every one."""
        self._only = None if model is None else weakref.ref(model)
        self._thread: threading.Thread | None = None
        #: what ``threading.get_ident()`` returns in it
        self.number: int | None = None
        #: True once a model that is checked was called with gradients
        self._trains = False
        #: numbers of other threads in which such a model was called
        self._others: set[int] = set()
        #: names of other threads that ran backward passes of such a model
        self.unchecked: set[str] = set()
        #: by module: whether it trains with what is checked
        self._is_checked_by_module: weakref.WeakKeyDictionary[nn.Module, bool] = (
            weakref.WeakKeyDictionary()
        )

    def begin_call(self, module: nn.Module) -> bool:
        """Return whether a call of a module that begins in this thread is checked."""
        number = threading.get_ident()
        if number == self.number and self._trains:
            return True
        if number != self.number and is_in_backward_pass():  # a checkpoint runs it again
            return False
        trains = torch.is_grad_enabled() and self._is_checked(module)
        if number == self.number or self._is_free() or (trains and not self._trains):
            self._take(trains=trains)
            return True
        if trains:
            self._others.add(number)
        return False

    def is_here(self) -> bool:
        """Return whether this is the thread that is checked, or works on its backward pass."""
        number = threading.get_ident()
        if number == self.number:
            return True
        if is_in_backward_pass():  # autograd has a thread for each device
            return self.number is not None and not self.unchecked
        if self._is_free():
            self._take(trains=self._only is None)
            return True
        return False

    def is_current(self) -> bool:
        """Return whether this thread is the one that is checked, without choosing it."""
        if threading.get_ident() == self.number:
            return True
        return is_in_backward_pass() and self.number is not None and not self.unchecked

    def note_unchecked(self) -> None:
        """Remember that this thread runs a backward pass that is not checked."""
        if threading.get_ident() in self._others:
            self.unchecked.add(threading.current_thread().name)

    def _is_free(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def _take(self, *, trains: bool) -> None:
        self._thread = threading.current_thread()
        self.number = threading.get_ident()
        self._others.discard(self.number)
        self._trains = trains

    def _is_checked(self, module: nn.Module) -> bool:
        known = self._is_checked_by_module.get(module)
        if known is None:
            only = None if self._only is None else self._only()
            has_parameters = any(True for _ in nn.Module.parameters(module))
            known = has_parameters and (only is None or is_same_or_part(module, only))
            self._is_checked_by_module[module] = known
        return known


def is_same_or_part(module: nn.Module, other: nn.Module) -> bool:
    """Return whether one of two modules is the other or a part of it."""
    if module is other:
        return True
    if any(each is other for _, each in modules_of(module)):
        return True
    return any(each is module for _, each in modules_of(other))
