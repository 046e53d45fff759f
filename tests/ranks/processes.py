"""Real processes on this machine that talk to each other, as those of a training do."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch.multiprocessing.spawn import start_processes

from tests.forked import take_environment

#: after which a process that waits for another one is given up
_SECONDS = 240


def in_processes(
    number: int, work: Callable[[int, Any], Any], given: Any, folder: Path
) -> list[Any]:
    """What ``work(rank, given)`` returns in each of so many processes of one group."""
    context: Any = start_processes(
        _begin,
        args=(number, work, given, str(folder), dict(os.environ)),
        nprocs=number,
        join=False,
        start_method="forkserver",
    )
    end = time.monotonic() + _SECONDS
    try:
        while not context.join(timeout=max(0.0, end - time.monotonic())):
            if time.monotonic() >= end:
                raise TimeoutError(f"{number} processes took more than {_SECONDS} s")
    finally:
        for each in context.processes:
            each.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(number)]


def _begin(
    rank: int,
    number: int,
    work: Callable[[int, Any], Any],
    given: Any,
    folder: str,
    environment: dict[str, str],
) -> None:
    take_environment(environment)
    torch.set_num_threads(1)
    wait = dt.timedelta(seconds=_SECONDS // 4)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=number, timeout=wait
    )
    try:
        torch.save(work(rank, given), f"{folder}/{rank}.pt")
    finally:
        distributed.destroy_process_group()
