"""Start of the worker, as a separate program or by one of Python's start methods."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any, Literal, NamedTuple, get_args

from torchscan.errors import InputError
from torchscan.watching.channel import shared_memory
from torchscan.watching.guests import Guest
from torchscan.watching.processes import IGNORED, Parent, ignore_signals
from torchscan.watching.worker import serve
from torchscan.watching.worker_session import WorkerTask

StartMethod = Literal["spawn", "fork", "forkserver"]
START_METHODS: tuple[str, ...] = get_args(StartMethod)


class Started(NamedTuple):
    """A worker that was started."""

    number: int
    #: waits at most the given seconds, and returns the exit status, or None: it has not ended
    wait: Callable[[float], int | None]
    #: leaves it alone, as it outlives this process
    leave: Callable[[], None]


_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from torchscan.watching.starting import main; main()"
)


def start_worker(
    method: StartMethod, ours: socket.socket, theirs: socket.socket, task: WorkerTask, guest: Guest
) -> Started:
    """Start a worker. ``theirs`` is its end of the line."""
    # Signals for the whole group are held until the worker ignores them: it inherits the mask.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        if method == "spawn":
            return _program(theirs, task, guest)
        return _process(method, ours, theirs, task, guest)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _program(theirs: socket.socket, task: WorkerTask, guest: Guest) -> Started:
    """Start a new interpreter; the user's program needs no ``if __name__ == "__main__"``."""
    try:
        packed = pickle.dumps(guest)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_handed_over(error) from error
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


def _not_handed_over(error: Exception) -> InputError:
    return InputError(
        f"a sink or a statistic cannot be pickled ({error}): define it at the top of a module, or "
        "give start='fork'"
    )


def _path_of_main(packed: bytes) -> str | None:
    """Return the path of the user's program if it defines a sink or a statistic.

    The worker runs it again, under another name.
    """
    if b"__main__" not in packed:
        return None
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not os.path.exists(path):
        raise InputError(
            "a sink or a statistic is defined in a notebook: define it in a module, "
            "or give start='fork'"
        )
    return str(path)


def main() -> None:
    """Run the worker as ``python -c …``, with what the trainer gives it as standard input.

    That is the file of the line, the user's program and its arguments, and the task.
    """
    ignore_signals()
    told = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the trainer
    number, path, sys.argv, task, packed = told

    def load_guest() -> Any:
        if path is not None:
            try:
                # without what is below ``if __name__ == "__main__"``, as Python does
                program = types.ModuleType("__mp_main__")
                program.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
                sys.modules["__main__"] = sys.modules["__mp_main__"] = program
            except BaseException as error:
                reason = (
                    f"the worker process runs {path} again for a sink or a statistic that it "
                    f"defines, which raised {type(error).__name__}"
                )
                guard = "put the training code below if __name__ == '__main__':"
                raise ImportError(f"{reason}: {guard}, or give start='fork'") from error
        return pickle.loads(packed)  # noqa: S301

    serve(socket.socket(fileno=number), task, Parent(task.parent), load_guest)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
        sys.stdout.flush()
    os._exit(0)  # sinks may have left threads that do not end
