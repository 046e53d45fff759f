"""Starts the worker: as a program of its own, or in one of the ways that Python has for processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Literal, NamedTuple, get_args

from torchscan.errors import InputError
from torchscan.watching.channel import shared_memory
from torchscan.watching.parent import Parent
from torchscan.watching.signals import IGNORED
from torchscan.watching.task import Guest, WorkerTask
from torchscan.watching.worker import serve

StartMethod = Literal["spawn", "fork", "forkserver"]
START_METHODS: tuple[str, ...] = get_args(StartMethod)


class Started(NamedTuple):
    """A worker that was started."""

    number: int
    #: waits at most the given seconds, and returns the exit status, or None: it has not ended
    wait: Callable[[float], int | None]
    #: leaves it alone, as it outlives this process
    leave: Callable[[], None]


_PROGRAM = "import sys; sys.path[:] = {path!r}; from torchscan.watching.program import main; main()"


def start_worker(
    method: StartMethod, ours: socket.socket, theirs: socket.socket, task: WorkerTask, guest: Guest
) -> Started:
    """Start a worker. ``theirs`` is its end of the line."""
    with _signals_held():
        if method == "spawn":
            return _program(theirs, task, guest)
        return _process(method, ours, theirs, task, guest)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold back signals for the whole group until the worker ignores them: it inherits what is held."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _program(theirs: socket.socket, task: WorkerTask, guest: Guest) -> Started:
    """Start a new interpreter. It does not need ``if __name__ == "__main__"`` in the user's program."""
    packed = _pickled(guest)
    told = pickle.dumps((theirs.fileno(), _path_of_main(packed), sys.argv, task, packed))
    path = [each for each in sys.path if type(each) is str]
    call = [sys.executable, "-c", _PROGRAM.format(path=path)]
    with open(shared_memory(), "w+b") as given:  # a pipe could be full, and training would wait
        given.write(told)
        given.seek(0)
        worker = subprocess.Popen(call, pass_fds=[theirs.fileno()], stdin=given)  # noqa: S603

    def wait(seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return worker.wait(seconds)
        return None

    def leave() -> None:
        worker.returncode = 0  # otherwise Python warns that it is still running

    return Started(worker.pid, wait, leave)


def _process(
    method: StartMethod, ours: socket.socket, theirs: socket.socket, task: WorkerTask, guest: Guest
) -> Started:
    context: BaseContext = multiprocessing.get_context(method)
    others = (ours,) if method == "fork" else ()
    worker = context.Process(  # type: ignore[attr-defined]
        target=_serve, args=(theirs, task, guest, *others), daemon=True
    )
    try:
        worker.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_handed_over(error) from error
    # at its end Python would wait for it forever, which may be stopped
    getattr(multiprocessing.process, "_children", set()).discard(worker)

    def wait(seconds: float) -> int | None:
        worker.join(seconds)
        return None if worker.exitcode is None else int(worker.exitcode)

    return Started(int(worker.pid), wait, lambda: None)


def _serve(end: socket.socket, task: WorkerTask, guest: Guest, *others: socket.socket) -> None:
    """``others`` are ends that it has from its parent and that are none of its business."""
    for other in others:
        other.close()
    serve(end, task, Parent(task.parent), lambda: guest)


def _pickled(guest: Guest) -> bytes:
    try:
        return pickle.dumps(guest)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_handed_over(error) from error


def _not_handed_over(error: Exception) -> InputError:
    return InputError(
        f"a sink or a statistic cannot be pickled ({error}): define it at the top of a module, or "
        "give start='fork'"
    )


def _path_of_main(packed: bytes) -> str | None:
    """Return the path of the user's program if it defines a sink or a statistic; it is run again under another name."""
    if b"__main__" not in packed:
        return None
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not os.path.exists(path):
        raise InputError(
            "a sink or a statistic is defined in a notebook: define it in a module, or give start='fork'"
        )
    return str(path)
