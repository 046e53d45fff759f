"""The worker as a program: it reads from its standard input what it is to do."""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import socket
import sys
import types

from torchscan.live.parent import Parent


def main() -> None:
    """``python -c …``, with the number of the line's file, who trains, the user's program and its arguments, and the task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    number, trainer, path, sys.argv = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that has started it
    parent = Parent(trainer)
    parent.end_with_it()  # the rest takes a second or two, and nobody may be there any more
    from torchscan.live.worker import serve

    if path is not None:
        try:
            _load(path)
        except BaseException as error:
            _refuse(path, error)
    task = pickle.load(sys.stdin.buffer)  # noqa: S301
    serve(socket.socket(fileno=number), task, parent)
    sys.stdout.flush()
    os._exit(0)  # sinks may have left threads that do not end


def _refuse(path: str, error: BaseException) -> None:
    said = f"{path} is run again by the process that writes the run, for a sink or a statistic that is defined in it"
    guard = "put what trains below if __name__ == '__main__':, or take start='fork'"
    print(f"torchscan: {said}, and that raised {type(error).__name__}: {guard}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(1)


def _load(path: str) -> None:
    """As Python's own processes do: what stands below ``if __name__ == "__main__"`` is not run."""
    program = types.ModuleType("__mp_main__")
    program.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = program
