"""Which rank is named as the cause when one is gone and the others lose their connection to it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import torchscan
from torchscan.errors import TorchscanError
from torchscan.live.history import WatchedRun

GLOO = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711")
#: as ProcessGroupNCCL words it
NCCL = type("DistBackendError", (RuntimeError,), {})(
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there was a network "
    "error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error"
)
WATCHDOG = type("DistBackendError", (RuntimeError,), {})(
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms"
)
OUT_OF_MEMORY = type("DistBackendError", (RuntimeError,), {})(
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)


def train(folder: Path, end: Callable[[], object]) -> None:
    """Record two steps as the rank that RANK says, and let ``end`` end it."""
    model = nn.Linear(2, 1)
    with torchscan.watch(model, folder, every=1, start="fork", graph=False):
        for _ in range(2):
            model(torch.rand(4, 2)).sum().backward()
        file = folder / f"rank{os.environ['RANK']}.sqlite"
        wait_for(lambda: torchscan.open_run(file).steps())
        end()


def fail(error: Exception, cause: Exception | None = None) -> Callable[[], object]:
    def end() -> None:
        raise error from cause

    return end


def ended(folder: Path, ends: list[tuple[int, Callable[[], object]]], monkeypatch: pytest.MonkeyPatch) -> str:
    """End ranks one after the other, each in a process of its own. What the reader says."""
    monkeypatch.setenv("WORLD_SIZE", str(len(ends)))
    for rank, end in ends:
        monkeypatch.setenv("RANK", str(rank))
        child = os.fork()
        if not child:
            try:
                train(folder, end)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        run = torchscan.open_run(folder / f"rank{rank}.sqlite")
        wait_for(partial(has_ended, run))
    (said,) = torchscan.open_run(folder).missing
    return said


def has_ended(run: WatchedRun) -> bool:
    return run.about["ended"] is not None or run.about["closed"]


def wait_for(happens: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(TorchscanError):  # the file may not be complete yet
            if happens():
                return
        time.sleep(0.01)
    raise TimeoutError


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "lost",
    [fail(GLOO), fail(NCCL), fail(WATCHDOG), fail(ValueError("training failed"), GLOO)],
    ids=["gloo", "NCCL", "watchdog", "raised from it"],
)
def test_a_lost_connection_is_a_consequence(
    lost: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 records its error before the death of rank 1 is noticed."""
    said = ended(tmp_path / "run", [(0, lost), (1, kill)], monkeypatch)
    assert said.startswith("process 1 of 2 was gone at ")
    assert "and did not close the run; then process 0 (" in said


@pytest.mark.parametrize("own", [ConnectionResetError("by the data server"), OUT_OF_MEMORY], ids=["data", "CUDA"])
def test_an_error_of_its_own_is_the_cause(own: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ended(tmp_path / "run", [(0, fail(GLOO)), (1, fail(own))], monkeypatch)
    assert said.startswith("process 1 of 2 was gone at ")
    assert f"and had raised {type(own).__name__}: " in said


def test_a_connection_to_a_rank_that_closed_its_run_is_said_to_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ended(tmp_path / "run", [(1, lambda: None), (0, fail(GLOO))], monkeypatch)
    assert "process 0 of 2" in said
    assert "had lost its connection to another process (RuntimeError: [" in said
