"""Processes of tests that are forked from one that has imported torch, which takes a second or two."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

multiprocessing.set_forkserver_preload(
    [
        "torch",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torchscan.watching.worker",
        "torchscan.watching.digest",
    ]
)


class Finished(NamedTuple):
    """How a process has ended, and what it has written."""

    status: int | None
    out: str
    err: str


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in a new process, or raise what it raises there."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as processes:
        return processes.submit(function, *args).result()


def run_command(*arguments: str, folder: Path) -> Finished:
    """Run a command of torchscan in a new process, whose memory and threads are its own."""
    files = (folder / "written-out.txt", folder / "written-err.txt")
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_run, args=(arguments, folder, files))
    process.start()
    process.join(timeout=240)
    process.kill()
    return Finished(process.exitcode, *(each.read_text(encoding="utf-8") for each in files))


def _run(arguments: Sequence[str], folder: Path, files: Sequence[Path]) -> None:
    from torchscan.cli.main import main

    os.chdir(folder)
    for number, file in zip((1, 2), files, strict=True):
        written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, number)
    sys.exit(main(arguments))
