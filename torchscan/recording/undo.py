"""Changes that a pass undoes at its end, whatever is raised on the way.

Each step is stored before its change is made, and can be taken at any time, and twice. So a step
that an exception interrupts is completed when it is caught, and only then is it raised again.
Signals, which raise exceptions anywhere, do so only while the model runs, and wait otherwise.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _UndoAction(NamedTuple):
    take: Callable[[], object]
    #: it puts back something of the process; else of the thread
    is_of_process: bool


class Undo:
    """The changes to undo at the end of a pass, the last one first."""

    def __init__(self) -> None:
        self._steps: list[_UndoAction] = []
        self.interrupts = Interrupts()

    def push(self, take: Callable[[], object], *, is_of_process: bool = True) -> None:
        """Write down a step, before the change that it takes back is made."""
        self._steps.append(_UndoAction(take, is_of_process))

    def enter(
        self,
        make: Callable[[], contextlib.AbstractContextManager[object]],
        *,
        is_of_process: bool = True,
    ) -> None:
        """Enter a context, to be left with all others."""
        entered = contextlib.ExitStack()
        self.push(entered.close, is_of_process=is_of_process)
        entered.enter_context(make())

    def now(self) -> None:
        """Take all steps, also if one of them fails: what was raised first is raised at the end."""
        raised: list[BaseException] = []
        while self._steps:
            for _ in range(2):  # once more if it was interrupted
                try:
                    self._steps[-1].take()
                    break
                except BaseException as error:
                    raised.append(error)
            self._steps.pop()
        if raised:
            raise raised[0]

    def in_child(self) -> None:
        """Undo the changes in a child process that was forked while another thread recorded."""
        self._steps = [step for step in self._steps if step.is_of_process]
        self.now()


# -- one pass at a time ----------------------------------------------------------------------------

_turns = threading.RLock()
_current: Undo | None = None


def run_at_end_of_pass(take: Callable[[], object], *, is_of_process: bool = True) -> None:
    """Take this step (once more) when the pass of this thread ends."""
    if _current is not None and is_recording():
        _current.push(take, is_of_process=is_of_process)


def interruptible(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of the user, which signals may interrupt at once."""
    if _current is None:
        return call(*args, **kwargs)
    interrupts = _current.interrupts
    before = interrupts.may_come_in
    try:
        interrupts.may_come_in = True
        if WAITING:
            interrupts.deliver()
        return call(*args, **kwargs)
    finally:
        interrupts.may_come_in = before


def deliver_interrupts() -> None:
    """Handle the signals that have come while torchscan's code ran."""
    if _current is not None and is_recording():
        _current.interrupts.deliver()


def is_recording() -> bool:
    """Return whether this thread is recording a pass."""
    return bool(_turns._is_owned())  # type: ignore[attr-defined] # it is missing in the stubs


def put_back_after(body: Callable[[Undo], T]) -> T:
    """Call ``body``, then take all steps that it has stored.

    Passes of several threads take turns.
    """
    global _current
    undo = Undo()

    def end_turn() -> None:
        global _current
        while is_recording():
            _current = None
            _turns.release()

    try:
        try:
            undo.push(end_turn)
            _turns.acquire()
            _current = undo
            undo.interrupts.wait(undo)
            return body(undo)
        finally:
            undo.now()
    finally:  # again, because a signal may have interrupted that
        undo.now()
        undo.interrupts.may_come_in = True
        if WAITING:
            undo.interrupts.deliver()


def _in_child() -> None:
    """Undo a pass of another thread, which a fork does not copy, while it copies its locks."""
    global _turns, _current
    if is_recording():
        return  # this thread has forked
    undo = _current
    _current = None
    _turns = threading.RLock()
    if undo is not None:
        undo.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# -- signals ---------------------------------------------------------------------------------------

#: signals that programs handle in Python, often with an exception: Ctrl-C, requests to end, timers
_NAMES = (
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGQUIT",
    "SIGALRM",
    "SIGVTALRM",
    "SIGPROF",
    "SIGUSR1",
    "SIGUSR2",
    "SIGBREAK",
)
_ANSWERED = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]

#: modules whose code enters and leaves modes of torch
_SWITCHING_MODES = ("contextlib", "torch.overrides", "torch.utils._python_dispatch")

#: signals that have arrived and wait; they are delivered when the model's code runs again
WAITING: list[int] = []


@dataclass(slots=True, eq=False)
class Interrupts:
    """Signals with a handler in Python, such as Ctrl-C, which wait while torchscan's code runs.

    They interrupt the model's own code, called by :func:`interruptible`, at once. Only the main
    thread gets signals.
    """

    _handlers: dict[int, Callable[[int, FrameType | None], Any]] = field(default_factory=dict)
    #: True while the model's own code runs, and once all is undone
    may_come_in: bool = False

    def wait(self, undo: Undo) -> None:
        """Let signals wait from now on, until all other changes are undone."""
        if threading.current_thread() is not threading.main_thread():
            return

        def reinstate() -> None:
            for number, handler in self._handlers.items():
                if signal.getsignal(number) == self._receive:  # other code has not replaced it
                    signal.signal(number, handler)

        undo.push(reinstate)
        for number in _ANSWERED:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._receive)

    def deliver(self) -> None:
        """Handle the signals that wait.

        If a handler raises an exception, no other signal is handled until all is undone.
        """
        while WAITING and self.may_come_in and WAITING[0] in self._handlers:
            self._answer(WAITING.pop(0), sys._getframe())

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.may_come_in and _is_of_model(frame):
            self._answer(number, frame)
        else:
            WAITING.append(number)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        self.may_come_in = False
        self._handlers[number](number, frame)
        self.may_come_in = True


def _is_of_model(frame: FrameType | None) -> bool:
    """Return whether the model's own code is running.

    If it has called torchscan, that call ends first. While torch enters or leaves one of its modes,
    an exception would leave its stack of modes too short or too long.
    """
    if frame is None or _is_ours(frame) or frame.f_globals.get("__name__") in _SWITCHING_MODES:
        return False
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None and frame.f_code is interruptible.__code__


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("torchscan.")
