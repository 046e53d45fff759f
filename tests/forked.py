"""Processes of tests that are forked from one that has imported torch, which takes a second or two."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

multiprocessing.set_forkserver_preload(
    [
        "torch",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torchscan.watching.worker",
        "torchscan.watching.digest",
    ]
)


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in a new process, or raise what it raises there."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=take_environment, initargs=(dict(os.environ),)
    ) as processes:
        return processes.submit(function, *args).result()


def take_environment(variables: Mapping[str, str]) -> None:
    """Set the environment: the process that is forked has that of the test which came first."""
    os.environ.clear()
    os.environ.update(variables)
