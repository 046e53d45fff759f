"""The worker as a program: it reads from its standard input what it is to do."""

from __future__ import annotations

import pickle
import runpy
import socket
import sys
import types

from torchscan.live.worker import serve


def main() -> None:
    """``python -c …``, with the number of the line's file, the path of the user's program or None, and the task."""
    number, path = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that has started it
    if path is not None:
        _load(path)
    task = pickle.load(sys.stdin.buffer)  # noqa: S301
    serve(socket.socket(fileno=number), task)


def _load(path: str) -> None:
    """As Python's own processes do: what stands below ``if __name__ == "__main__"`` is not run."""
    program = types.ModuleType("__mp_main__")
    program.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = program
