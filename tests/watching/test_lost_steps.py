"""Runs whose processes are killed, stopped or cannot write: each step is in the run, or is reported as lost."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.opening import watched_run
from tests.watching.test_watcher import HERE, net, told, train, without_waiting
from torchscan import InputError, watch
from torchscan.cli.main import main
from torchscan.sinks import Sink, TensorBoard, WandB
from torchscan.watching import channel, starting, worker_link
from torchscan.watching.run_files import has_worker
from torchscan.watching.sinks import weights_and_biases

slow = pytest.mark.slow  # has a process that imports torch
BEGIN = """
    import os, signal, sys, time, torch, torchscan
    from torch import nn
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    watcher = torchscan.watch(model, sys.argv[1], every=1)
    for step in range(20):
        model(torch.rand(8, 4)).square().mean().backward()
"""


def run_script(tmp_path: Path, end: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(BEGIN) + end)
    call = [sys.executable, str(script), str(tmp_path / "run")]
    return subprocess.run(call, cwd=HERE, capture_output=True, text=True, check=False)  # noqa: S603


def await_worker(run: Path) -> None:
    """Wait until no process has anything to write."""
    until = time.monotonic() + 120
    while has_worker(run / "rank0.sqlite") and time.monotonic() < until:
        time.sleep(0.02)
    assert not has_worker(run / "rank0.sqlite")


# -- processes that end or stop ------------------------------------------------------------------------------------------


@slow
@pytest.mark.few(1)
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"])
def test_steps_before_a_sudden_end_are_in_the_run(end: str, tmp_path: Path) -> None:
    """The worker has not even imported torch by then. The last step was not over: no other had begun."""
    run_script(tmp_path, end)
    await_worker(tmp_path / "run")
    run = watched_run(tmp_path / "run")
    assert run.steps() == list(range(19))
    assert [str(each) for each in run.lost] == [
        "step 19 (in progress when the training process ended)"
    ]
    assert "step 19" in " ".join(map(str, run.missing))


@slow
@pytest.mark.sweep
def test_steps_that_no_process_is_left_to_write_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(tmp_path, "os.kill(watcher._process.number, 9); os.kill(os.getpid(), 9)")
    run = watched_run(tmp_path / "run")
    assert len(run.steps()) + sum(each.count for each in run.lost) == 20
    main(["runs", "list", str(tmp_path)])
    assert "20 sampled steps are not in the run" in " ".join(capsys.readouterr().out.split())
    with told(), watch(net(), tmp_path / "other"):
        pass
    assert watched_run(tmp_path / "other").lost == ()


@slow
def test_a_worker_that_is_stopped_writes_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "PATIENCE", 0.3)
    with told() as texts:
        watcher = watch(model := net(), tmp_path / "run", every=1)
        os.kill(watcher._process.number, signal.SIGSTOP)
        train(model, 30)
        watcher.close()
    assert f"30 sampled steps are not written to '{tmp_path}/run' yet" in texts[-1]
    assert f"leave process {watcher._process.number} running, it writes the rest" in texts[-1]
    assert watcher.dropped == 30
    missing = {note.code: note.values for note in watched_run(tmp_path / "run").missing}
    assert missing["steps-pending"]["count"] == 30
    os.kill(watcher._process.number, signal.SIGCONT)
    await_worker(tmp_path / "run")
    run = watched_run(tmp_path / "run")
    assert (run.steps(), run.missing, run.lost) == (list(range(30)), (), ())


@slow
def test_a_worker_that_is_killed_is_followed_by_another(tmp_path: Path) -> None:
    model = net()
    with told() as texts, watch(model, tmp_path / "run", every=1) as watcher:
        train(model, 2)
        os.kill(watcher._process.number, signal.SIGKILL)
        watcher._process.worker.wait(20)
        train(model, 5)
    assert texts == [
        "the worker process has ended (SIGKILL), and a new one continues where it stopped; "
        "training is not affected"
    ]
    run = watched_run(tmp_path / "run")
    assert (run.steps(), watcher.dropped, run.missing) == (list(range(7)), 0, ())


@slow
def test_a_reader_that_looks_for_a_worker_does_not_prevent_another_one(tmp_path: Path) -> None:
    """It holds the worker's lock for a moment; here, for some steps."""
    model, run = net(), tmp_path / "run"
    with told() as texts, watch(model, run, every=1, start="fork") as watcher:
        train(model, 2)
        with open(run / "rank0.ledger", "rb") as ledger:
            os.kill(watcher._process.number, signal.SIGKILL)
            fcntl.flock(ledger, fcntl.LOCK_SH)
            train(model, 3)
        train(model, 5)
    assert texts == [
        "the worker process has ended (SIGKILL), and a new one continues where it stopped; "
        "training is not affected"
    ]
    assert (watched_run(run).steps(), watcher.dropped) == (list(range(10)), 0)


@slow
def test_a_worker_that_ends_too_early_is_told_of_and_all_steps_are_counted(tmp_path: Path) -> None:
    """It takes training for over: its line ends, as a process that was forked from the trainer can make it do."""
    with told() as texts, watch(model := net(), tmp_path / "run", every=1, start="fork") as watcher:
        train(model, 5)
        watcher._process.worker.line.socket.shutdown(socket.SHUT_WR)
        watcher._process.worker.wait(60)
        train(model, 5)
    run = watched_run(tmp_path / "run")
    assert "ended too early, so no more steps are recorded; training is not affected" in texts[0]
    assert watcher.dropped == 10 - len(run.steps()) == sum(each.count for each in run.lost) >= 5
    assert f"{watcher.dropped} sampled steps are not in the run" in " ".join(map(str, run.missing))
    assert (run.about["closed"], run.about["reached"], run.about["ended"]) == (True, 10, None)


SERVED = """
    import sys, torch, torchscan
    from torch import nn

    if __name__ == "__main__":
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        with torchscan.watch(model, sys.argv[1], every=1, start=sys.argv[2]) as watcher:
            for step in range(40):
                model(torch.rand(8, 4)).square().mean().backward()
                if step == 20:
                    process = watcher._process
                    while process._outlet.num_steps_left and process.worker.wait(0.2) is None:
                        continue
                    process.worker.wait(1)
        print(watcher.dropped)
"""


@slow
@pytest.mark.few(1)
@pytest.mark.parametrize("start", ["forkserver", "fork"])
@pytest.mark.sweep
def test_steps_where_the_system_does_not_tell_of_a_process_s_end(
    start: str, tmp_path: Path
) -> None:
    """Only Linux has ``pidfd_open``; the parent of a worker that a fork server has forked is that server."""
    (tmp_path / "sitecustomize.py").write_text("import os\nvars(os).pop('pidfd_open', None)\n")
    (tmp_path / "train.py").write_text(textwrap.dedent(SERVED))
    call = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "run"), start]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE)])}
    done = subprocess.run(  # noqa: S603
        call, cwd=HERE, capture_output=True, text=True, check=False, env=os.environ | path
    )
    assert (done.stdout, without_waiting(done.stderr)) == ("0\n", [])
    run = watched_run(tmp_path / "run")
    assert (run.steps(), run.missing) == (list(range(40)), ())


@slow
def test_workers_that_end_at_once_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_PROGRAM", "raise SystemExit(3)")
    with told() as texts, watch(model := net(), tmp_path / "run", every=1) as watcher:
        train(model, 5)
    assert "no more steps are recorded; training is not affected" in " ".join(texts)
    assert "5 sampled steps are not in the run" in texts[-1]
    assert watcher.dropped == 5
    assert sum(each.count for each in watched_run(tmp_path / "run").lost) == 5


@slow
def test_steps_without_room_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_MIN_SIZE", 1)
    with told() as texts, watch(model := net(), tmp_path / "run", every=1, start="fork") as watcher:
        os.kill(watcher._process.number, signal.SIGSTOP)
        train(model, 40)
        os.kill(watcher._process.number, signal.SIGCONT)
    run = watched_run(tmp_path / "run")
    lost = sum(each.count for each in run.lost)
    assert 0 < watcher.dropped == lost == 40 - len(run.steps())
    assert f"{lost} sampled steps are not in the run" in texts[-1]
    assert "(the worker process did not keep up: sample less often)" in texts[-1]


# -- disks and folders ---------------------------------------------------------------------------------------------------


@slow
@pytest.mark.sweep
def test_a_full_disk_is_named_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may write no file that is larger; training goes on, and what was written stays."""
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); "
    monkeypatch.setattr(starting, "_PROGRAM", limit + starting._PROGRAM)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20)))
    with told() as texts, watch(model, tmp_path / "run", every=1, graph=False) as watcher:
        train(model, 60, torch.rand(8, 16))
    assert any(
        "writing the run has stopped: the file has reached the maximum permitted size" in text
        for text in texts
    )
    run = watched_run(tmp_path / "run")
    assert 0 < len(run.steps()) < 60, "steps that fit are whole, the others are not there"
    assert len(run.to_pandas()) == len(run.steps()) * len(run.series)
    assert watcher.dropped == sum(each.count for each in run.lost) == 60 - len(run.steps())
    (missing,) = run.missing
    assert "the file has reached the maximum permitted size" in str(missing), (
        "and not that the process was gone"
    )
    assert run.about["closed"]


@slow
def test_a_folder_that_is_removed_is_noticed(tmp_path: Path) -> None:
    with told() as texts, watch(model := net(), tmp_path / "run", every=1, start="fork") as watcher:
        train(model, 3)
        while not watched_run(tmp_path / "run").steps():
            time.sleep(0.02)
        shutil.rmtree(tmp_path / "run")
        train(model, 4)
    assert (
        "writing the run has stopped: the folder of the run was removed; training is not affected"
        in texts
    )
    assert "(the folder of the run was removed)" in texts[-1]
    assert watcher.dropped >= 4
    assert not (tmp_path / "run").exists()


# -- standard files and sinks --------------------------------------------------------------------------------------------


@slow
@pytest.mark.sweep
def test_closed_standard_files_are_no_errors(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        "os.close(0); os.close(1); watcher.close(); watcher = torchscan.watch(model, sys.argv[1])",
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert watched_run(tmp_path / "run").steps() == list(range(20))


@slow
@pytest.mark.sweep
def test_a_panel_that_is_missing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_and_biases, "PATIENCE", 0.001)
    sinks = [WandB(mode="offline", dir=str(tmp_path))]
    with (
        told() as texts,
        watch(model := net(), tmp_path / "run", every=1, sinks=sinks, start="fork"),
    ):
        train(model, 2)
    assert "the panel 'page' does not show the end of the run" in " ".join(texts)


# -- arguments -----------------------------------------------------------------------------------------------------------

NAN = float("nan")
WRONG: list[tuple[str, Any, str]] = [
    ("model", None, "module is None"),
    ("run", None, "run is None: give a folder"),
    ("run", "a\0b", "run is 'a.*: give a folder"),
    ("every", True, "every is True: give a number of steps .1 or more. or 'auto'"),
    ("every", 0, "every is 0: give a number of steps"),
    ("every", 1.5, "every is 1.5: give a number of steps"),
    ("log", 5, "log is 5: give a list of names from inputs"),
    ("log", [5], "log has 5: give a list of names"),
    ("modules", 5, "modules is 5: give a list of patterns"),
    ("modules", [], "modules is an empty list: name at least one"),
    ("modules", nn.Sequential(nn.Linear(1, 1)), "modules is a single Sequential: give a list"),
    ("sample_n", None, "sample_n is None: give a number of values"),
    ("sample_n", 1.5, "sample_n is 1.5: give a number"),
    (
        "sample_n",
        10**12,
        "sample_n is 1000000000000: give a number of values of each tensor .1 to 16777216",
    ),
    ("sample_norms", "no", "sample_norms is 'no': give True or False"),
    ("whole", [5], "whole has 5: give a list of patterns"),
    ("custom", {"x": 5}, "custom.'x'. is 5: give a function"),
    ("custom", {5: abs}, "custom has the name 5: give a string"),
    ("sinks", [Sink], "sinks has <class"),
    ("overhead_budget", NAN, "overhead_budget is nan: give a share"),
    ("overhead_budget", True, "overhead_budget is True: give a share"),
    ("step", 1.5, "step is 1.5: give a whole number .0 or more"),
    ("step", 2**62, f"step is {2**62}: give a whole number .0 to {2**52}"),
    ("step", NAN, "step is nan: give a whole number"),
    ("step", 10**30, "step is 1000000000000000000000000000000: give a whole number"),
    ("graph", None, "graph is None: give True or False"),
    ("start", "thread", "start is 'thread': choose from spawn, fork, forkserver"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_an_argument_without_a_meaning_is_refused(
    name: str, value: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        watch(**{"model": net(), "run": tmp_path / "run", name: value})
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_an_odd_time_between_pages_is_refused_in_a_line() -> None:
    pytest.importorskip("wandb")
    with pytest.raises(InputError, match="page_every is nan: give a number of seconds"):
        WandB(page_every=NAN)


def test_arguments_of_sinks_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder is None: give a folder"):
        TensorBoard(None)  # type: ignore[arg-type]

    class Impatient(Sink):
        timeout = 0.0

    with pytest.raises(InputError, match=r"Impatient\.timeout is 0\.0: give a number of seconds"):
        watch(net(), tmp_path / "run", sinks=[Impatient()])


@pytest.mark.parametrize(
    "asked",
    [
        {"sample_n": 10**7},
        {
            "sample_n": np.int64(600),
            "step": torch.tensor(0),
            "overhead_budget": np.float32(0.5),
            "graph": np.bool_(False),
        },
    ],
)
@slow
def test_values_are_sampled_as_far_as_there_are_any(asked: dict[str, Any], tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 200), nn.ReLU(), nn.Linear(200, 2))
    with watch(model, tmp_path / "run", every=1, start="fork", **asked):
        train(model, 3)
    run = watched_run(tmp_path / "run")
    assert run.steps() == [0, 1, 2]
    found = run.history("0 output").distributions[0]
    assert (found.numel, found.sampled) == (1600, min(1600, asked["sample_n"]))
    assert found.min == 0.0 or found.sampled >= 600


# -- interrupts ------------------------------------------------------------------------------------

_INTERRUPTED = """
import os, signal, sys, time
sys.modules["tabulate"] = None  # torch would import it at exit, which changes the status
import torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what shells run in the background
model = torch.nn.Linear(8, 8)
if sys.argv[1:]:
    import torchscan
    torchscan.watch(model, sys.argv[1], every=1)
for _ in range(20):
    model(torch.randn(4, 8)).square().sum().backward()
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@slow
def test_an_interrupt_has_the_exit_status_of_a_script_that_is_not_watched(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for arguments in ([], [str(run)]):
        command = [sys.executable, "-c", _INTERRUPTED, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        assert (done.returncode, "KeyboardInterrupt" in done.stderr) == (-signal.SIGINT, True)
    assert watched_run(run).steps() == list(range(20))
