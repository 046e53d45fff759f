"""The worker as a program: it reads from its standard input what it is to do."""

from __future__ import annotations

import contextlib
import os
import pickle
import runpy
import socket
import sys
import types
from typing import Any

from torchscan.watching.signals import ignore_signals


def main() -> None:
    """Run ``python -c …`` with the file of the line, the user's program and its arguments, and the task."""
    ignore_signals()
    from torchscan.watching.parent import Parent
    from torchscan.watching.worker import serve

    number, path, sys.argv, task, packed = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the trainer

    def load_guest() -> Any:
        if path is not None:
            try:
                _load(path)
            except BaseException as error:
                raise ImportError(_refusal(path, error)) from error
        return pickle.loads(packed)  # noqa: S301

    serve(socket.socket(fileno=number), task, Parent(task.parent), load_guest)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
        sys.stdout.flush()
    os._exit(0)  # sinks may have left threads that do not end


def _refusal(path: str, error: BaseException) -> str:
    reason = f"the writer process runs {path} again for a sink or a statistic that it defines"
    guard = "put the training code below if __name__ == '__main__':, or give start='fork'"
    return f"{reason}, which raised {type(error).__name__}: {guard}"


def _load(path: str) -> None:
    """Run the program as Python's own processes do: without what stands below ``if __name__ == "__main__"``."""
    program = types.ModuleType("__mp_main__")
    program.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = program
