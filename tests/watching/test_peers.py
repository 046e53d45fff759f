"""Which rank is named as the cause when one is gone and the others lose their connection to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import torchscan
from tests.opening import watched_run
from torchscan import TorchscanError
from torchscan.watching.history import WatchedRun

pytestmark = pytest.mark.slow

GLOO = RuntimeError(
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711"
)
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
        wait_for(lambda: watched_run(file).steps())
        end()


def fail(error: Exception, cause: Exception | None = None) -> Callable[[], object]:
    def end() -> None:
        raise error from cause

    return end


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


#: by the name of a case the ranks, in the order in which they end, and how
CASES: Mapping[str, Sequence[tuple[int, Callable[[], object]]]] = {
    "gloo": [(0, fail(GLOO)), (1, kill)],
    "NCCL": [(0, fail(NCCL)), (1, kill)],
    "watchdog": [(0, fail(WATCHDOG)), (1, kill)],
    "raised from it": [(0, fail(ValueError("training failed"), GLOO)), (1, kill)],
    "data": [(0, fail(GLOO)), (1, fail(ConnectionResetError("by the data server")))],
    "CUDA": [(0, fail(GLOO)), (1, fail(OUT_OF_MEMORY))],
    "closed": [(1, lambda: None), (0, fail(GLOO))],
}


def end_ranks(folder: Path, ranks: Sequence[tuple[int, Callable[[], object]]]) -> str:
    """End ranks one after the other, each in a process of its own, and return what the reader says."""
    os.environ["WORLD_SIZE"] = str(len(ranks))
    for rank, end in ranks:
        os.environ["RANK"] = str(rank)
        child = os.fork()
        if not child:
            try:
                train(folder, end)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        run = watched_run(folder / f"rank{rank}.sqlite")
        wait_for(partial(has_ended, run))
    (note,) = [each for each in watched_run(folder).missing if each.code == "ranks-ended"]
    return str(note)


def has_ended(run: WatchedRun) -> bool:
    return run.about["ended"] is not None or run.about["closed"]


def wait_for(happens: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(TorchscanError):  # the file may not be complete yet
            if happens():
                return
        time.sleep(0.01)
    raise TimeoutError


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the reader says of each case. A process that has not run autograd yet forks the ranks."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "tests.watching.test_peers", str(folder)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", ["gloo", "NCCL", "watchdog", "raised from it"])
def test_a_lost_connection_is_a_consequence(case: str, said: dict[str, str]) -> None:
    """Rank 0 records its error before the death of rank 1 is noticed."""
    assert said[case].startswith("rank 1 of 2 was last active at ")
    assert " did not close the run; its last recorded step is " in said[case]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("case", "kind"), [("data", "ConnectionResetError"), ("CUDA", "DistBackendError")]
)
def test_an_error_of_its_own_is_the_cause(case: str, kind: str, said: dict[str, str]) -> None:
    assert said[case].startswith("rank 1 of 2 ended at ")
    assert f" by an exception, {kind}: " in said[case]


def test_a_connection_to_a_rank_that_closed_its_run_is_said_to_be_lost(
    said: dict[str, str],
) -> None:
    assert "rank 0 of 2 ended" in said["closed"]
    assert "because it lost its connection to another rank (RuntimeError: [" in said["closed"]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(  # noqa: T201
        json.dumps(
            {
                name: end_ranks(place / str(number), ranks)
                for number, (name, ranks) in enumerate(CASES.items())
            }
        )
    )
