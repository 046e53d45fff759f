"""Real jobs of several processes, started by torchrun: recorded, inspected and watched, and read as one afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.opening import group_run, watched_run
from torchscan.cli.main import main
from torchscan.notes import Note

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        TorchVersion(torch.__version__) < "2.7", reason="torch 2.6 shards on devices alone"
    ),
]

HERE = Path(__file__).parents[2]
TRAINS = """
import datetime, os, signal, sys, time, torch, torchscan
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
folder, how = sys.argv[1:]
rank = dist.get_rank()


class Slow(nn.Linear):
    def forward(self, x):
        if rank == 1:
            time.sleep(0.2)
        return super().forward(x)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), Slow(64, 64), nn.Linear(64, 2))
for part in (model[0], model[2], model[3], model):
    fully_shard(part)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(16, 8)).square().mean().backward()
        optimizer.step()


def await_step(step):
    # until the workers of all processes have written this step
    while True:
        try:
            steps = torchscan.open_run(f"{folder}/watched/rank{rank}.sqlite").steps()
        except torchscan.TorchscanError:  # there is no run yet
            steps = []
        if step in steps:
            return dist.barrier()
        time.sleep(0.1)


if how in ("kills", "raises"):
    watcher = torchscan.watch(model, folder + "/watched", every=1)
    train(7)
    await_step(5)  # the last one ends with the next
    if rank == 1 and how == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        raise RuntimeError("out of luck")
    train(5)
    raise SystemExit("torch goes on without process 1")
plan = torchscan.parallel.gather(model, (8,), batch_size=16, training=True, optimizer="SGD")
if rank == 0:
    print(plan)
with torchscan.watch(model, folder + "/watched", every=1):
    if how == "inspects":
        with torchscan.inspect(model) as run:
            train(6)
        run.save(folder + "/inspected")
    else:
        train(6)
dist.destroy_process_group()
"""


def started(
    tmp_path: Path, number: int, *args: str, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINS))
    call = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={number}",
    ]
    known = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(  # noqa: S603
        [*call, *before, str(script), str(tmp_path), *args],
        cwd=tmp_path,
        env=known,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


#: in front of the script, which need not know of it
INSPECT = ["-m", "torchscan", "inspect", "--steps", "5", "--save", "inspected", "--", "python"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("number", "before"), [(2, INSPECT), (4, [])], ids=["two, from outside", "four, from inside"]
)
def test_a_job_is_recorded_inspected_and_watched(
    number: int, before: Sequence[str], tmp_path: Path
) -> None:
    done = started(tmp_path, number, "is inspected" if before else "inspects", before=before)
    assert done.returncode == 0, done.stderr
    if before:
        assert "rank 1 lags by " in done.stderr.lower(), "the table of all is printed, once"
        assert done.stderr.count("Medians of 5 steps after 1 warm-up step") == 1
        assert done.stderr.count("Verdict: ") == 1, "that on all ranks"
    assert f"{number} ranks (" in done.stdout
    assert re.search(rf"Range over {number} ranks\s+Min\s+Max", done.stdout)

    watched = watched_run(tmp_path / "watched")
    assert (watched.ranks, watched.steps(), watched.missing) == (number, list(range(6)), ())

    group = group_run(tmp_path / "inspected")
    assert (group.num_ranks, [group.rank_of(run) for run in group.runs], group.missing) == (
        number,
        list(range(number)),
        (),
    )
    table = group.__str__()
    assert all(re.search(rf"^{rank} ", table, re.MULTILINE) for rank in range(number))
    if TorchVersion(torch.__version__) < "2.10":
        pytest.skip("this torch does not say when processes come to a collective of gloo")
    slow = next(
        each for each in group.stragglers if each.rank == 1
    )  # others may be too, on a machine that has other work
    assert (slow.layer, slow.type_name, slow.phase, slow.kind) == (
        "2",
        "FSDPSlow",
        "forward",
        "all-gather",
    )
    assert slow.lost > 0.1
    assert (group.lags[1] or 0.0) >= slow.lost


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("kills", "did not close the run"),
        ("raises", "ended at .* by an exception, RuntimeError: out of luck"),
    ],
)
def test_of_a_process_that_is_gone_the_reader_says_so(how: str, why: str, tmp_path: Path) -> None:
    """Also where the other one is ended for it, or by an error of its own."""
    done = started(tmp_path, 2, how)
    assert done.returncode != 0
    run = watched_run(tmp_path / "watched")
    assert run.ranks == 2
    assert run.steps()[:6] == list(range(6))
    ended, *lost = run.missing
    assert {each.code for each in lost} <= {"steps-lost"}
    assert all("1 sampled step is not in the run" in str(each) for each in lost)
    assert all("in progress when" in str(each) for each in lost)
    assert str(ended).startswith("rank 1 of 2 ")
    step = r"its last recorded step is [56]"  # what is closed has one step more
    assert re.search(rf"{why}; {step}; then rank 0 \(", str(ended))
    united = tmp_path / "united.sqlite"
    assert main(["runs", "merge", str(tmp_path / "watched"), str(united)]) == 0
    assert watched_run(united).missing == (ended, *lost)
    (tmp_path / "watched" / "rank0.sqlite").unlink()
    absent = Note.of("rank-absent", rank=0, num_ranks=2)
    assert absent in watched_run(tmp_path / "watched").missing
