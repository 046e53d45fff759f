"""Starts the worker: as a program of its own, or in one of the ways that Python has for processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any, Literal, cast, get_args

from torchscan.errors import InputError
from torchscan.live.parent import Parent
from torchscan.live.worker import Task, serve

StartMethod = Literal["spawn", "fork", "forkserver"]
START_METHODS: tuple[str, ...] = get_args(StartMethod)
#: waits so many seconds for the worker to end
Wait = Callable[[float], object]
_PROGRAM = "import sys; sys.path[:] = {path!r}; from torchscan.live.program import main; main()"


def start_worker(method: StartMethod, ours: socket.socket, theirs: socket.socket, task: Task) -> tuple[int, Wait]:
    """Its number, and how to wait for it. ``theirs`` is its end of the line."""
    return _program(theirs, task) if method == "spawn" else _process(method, ours, theirs, task)


def _program(theirs: socket.socket, task: Task) -> tuple[int, Wait]:
    """A new interpreter. Unlike Python's own way to spawn, the user's program needs no ``if __name__ == "__main__"`` for it."""
    packed = _pickled(task)
    told = pickle.dumps((theirs.fileno(), task.parent, _path_of_main(packed), sys.argv)) + packed
    call = [sys.executable, "-c", _PROGRAM.format(path=[each for each in sys.path if type(each) is str])]
    worker = subprocess.Popen(call, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE)  # noqa: S603
    with contextlib.suppress(BrokenPipeError), cast("Any", worker.stdin) as stdin:
        stdin.write(told)

    def wait(seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(seconds)

    return worker.pid, wait


def _process(method: StartMethod, ours: socket.socket, theirs: socket.socket, task: Task) -> tuple[int, Wait]:
    context: BaseContext = multiprocessing.get_context(method)
    others = (ours,) if method == "fork" else ()
    worker = context.Process(target=_serve, args=(theirs, task, *others), daemon=True)  # type: ignore[attr-defined]
    try:
        worker.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_handed_over(error) from error
    return int(worker.pid), worker.join


def _serve(end: socket.socket, task: Task, *others: socket.socket) -> None:
    """``others`` are ends that it has from its parent and that are none of its business."""
    for other in others:
        other.close()
    parent = Parent(task.parent)
    parent.end_with_it()
    serve(end, task, parent)


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_handed_over(error) from error


def _not_handed_over(error: Exception) -> InputError:
    said = "a sink or a statistic cannot be handed to the worker"
    return InputError(f"{said}: {error}. Define it at the top of a module, or take start='fork'")


def _path_of_main(packed: bytes) -> str | None:
    """The user's program, if what is handed over is defined there. It is run again then, under another name."""
    if b"__main__" not in packed:
        return None
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not os.path.exists(path):
        raise InputError("a sink or a statistic is defined in a notebook: put it into a module, or take start='fork'")
    return str(path)
