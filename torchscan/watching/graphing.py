"""The graph of the model that is watched, made once, by a process that is forked for it.

A fork has a copy of everything: whatever the model, its hooks and the user's modes do there, the
training process sees nothing of it and waits for nothing, and it needs no data, only shapes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from torchscan.errors import TorchscanError
from torchscan.notes import Note
from torchscan.recording.module_calls import Given
from torchscan.torch_versions import strip_hooks
from torchscan.watching.about import fingerprint_of
from torchscan.watching.lost_steps import format_error
from torchscan.watching.processes import Parent, is_ready
from torchscan.watching.run_database import PATIENCE_OF_WRITERS, StoreError
from torchscan.watching.run_reader import Reader
from torchscan.watching.store import Store

#: seconds after which it gives up
_PATIENCE = 300
#: seconds after which the first fork should have ended, and between two looks at something
_SHORTLY, _GLANCE = 10.0, 0.002
#: how much less important than training it is to the machine
_NICE = 10


class GraphDrawing:
    """The drawing of the graph of one model, beside its training."""

    def __init__(
        self, path: Path, send: Callable[[dict[str, Any]], None], *, is_wanted: bool
    ) -> None:
        """``send`` gets a note for the worker if the graph cannot be drawn."""
        self._path, self._send = path, send
        #: True if the graph is wanted and the drawing has not begun
        self.is_due = is_wanted
        #: a file that ends when the graph is drawn, or None if none is being drawn here
        self._file: int | None = None

    def begin(self, model: nn.Module, given: Given) -> None:
        """Draw the graph of a model, from what it was called with."""
        self.is_due = False
        try:
            self._file = _draw_apart(model, given, self._path)
        except Exception as error:  # the graph is not worth the watching
            note = Note.of("graph-not-drawn", error=format_error(error))
            self._send({"is": "note", "note": note.to_data()})

    def await_end(self, seconds: float) -> None:
        """Wait for the end of the drawing process, up to a time limit."""
        file, self._file = self._file, None
        if file is not None:
            is_ready(file, seconds)
            os.close(file)


def _draw_apart(model: nn.Module, given: Given, path: Path) -> int | None:
    """Write the data of the model's page into the run's file; training does not wait.

    They are made from what the model was called with.

    Returns:
        A file that ends when it is done. None: it is not drawn here.
    """
    if (
        not hasattr(os, "fork") or sys.platform == "darwin"
    ):  # whose own libraries do not survive a fork
        return None
    trainer = os.getpid()
    done, drawing = os.pipe()
    try:
        child = _forked()
    except OSError:  # no memory for a second process, or no number for it
        os.close(done)
        os.close(drawing)
        return None
    if child:
        os.close(drawing)  # the others hold it until they end
        _await_first(child)
        return done
    try:
        thread = threading.Thread(
            target=_fork_once_more, args=(model, given, path, trainer, drawing)
        )
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def _forked() -> int:
    """A fork in which none of the user's signal handlers will ever run."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = os.fork()
        if child == 0:
            _forget_handlers()
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def _await_first(child: int) -> None:
    """Await a child, which ends at once unless a function that the user registered hangs there."""
    until = time.monotonic() + _SHORTLY
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return
            time.sleep(_GLANCE)


def _fork_once_more(model: nn.Module, given: Given, path: Path, trainer: int, drawing: int) -> None:
    """Fork from a new thread, which has entered no modes and is the only one in the fork.

    The parent ends at once, so that the trainer need not wait for the child.
    """
    if os.fork() == 0:
        try:
            # Readers of the trainer's pipes and sockets are to see their end.
            nothing = os.open(os.devnull, os.O_RDWR)
            for file in (0, 1, 2):
                os.dup2(nothing, file)
            os.closerange(3, drawing)
            os.closerange(drawing + 1, os.sysconf("SC_OPEN_MAX"))
            signal.alarm(_PATIENCE)
            gc.disable()  # what it would free may be on a device that a fork must not touch
            os.nice(_NICE)
            Parent(trainer).end_with_it()
            _write(model, given, path)
        finally:
            os._exit(0)


def _write(model: nn.Module, given: Given, path: Path) -> None:
    graph, failure = None, ""
    try:
        graph = _graph_of(model, given)
    except Exception as error:
        failure = format_error(error)
    if not _is_run_of(model, path):
        return
    with contextlib.closing(
        Store(path, {}, can_create=False, patience=PATIENCE_OF_WRITERS)
    ) as store:
        if graph is None:
            store.note(Note.of("graph-not-drawn", error=failure))
        else:
            store.keep_graph(graph)


def _is_run_of(model: nn.Module, path: Path) -> bool:
    """Return whether the run at a path is that of a model: another one may have replaced it."""
    about: dict[str, Any] = {}
    while not about:
        with contextlib.suppress(StoreError), contextlib.closing(Reader(path)) as reader:
            about = reader.about()
        if not about:  # the process that writes the run has not begun
            time.sleep(_GLANCE)
    return about.get("fingerprint") in (None, fingerprint_of(model))


def _graph_of(model: nn.Module, given: Given) -> dict[str, Any]:
    """The data of its page, of a training step if that can be worked out."""
    from torchscan.pages import data_of_page

    strip_hooks(model)
    args, kwargs = given
    try:
        return data_of_page(model, args, kwargs, training=True)
    except TorchscanError:
        return data_of_page(model, args, kwargs, training=False)
