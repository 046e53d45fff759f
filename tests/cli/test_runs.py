"""``torchscan runs list`` and ``torchscan runs merge``."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from tests.opening import watched_run
from tests.watching.test_store import ONE, watched
from torchscan import InputError
from torchscan.cli.main import main
from torchscan.notes import Note
from torchscan.watching.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, ranks, steps in (("a/first", 1, 3), ("second", 2, 5)):
        for rank in range(ranks):
            store = Store(tmp_path / name / f"rank{rank}.sqlite", {"model": "Net"})
            store.number_of(ONE)
            for step in range(steps):
                store.write(watched(step))
            store.close()
    return tmp_path


def test_all_in_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", str(folder), "--format", "csv"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading == "run,model,num_steps,step,kept,series,ranks,written"
    assert rows[0].startswith("a/first,Net,3,2,3,1,1,")
    assert rows[1].startswith("second,Net,5,4,5,1,2,")


@pytest.mark.slow
def test_runs_alone_lists_the_folder_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a").rename(folder / "runs")
    monkeypatch.chdir(folder)
    assert main(["runs"]) == main(["runs", "--format", "text"]) == main(["runs", "list"]) == 0
    assert capsys.readouterr().out.count("first") == 3


def test_a_run_of_evaluations_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "first" / "rank0.sqlite", {"model": "Net"})
    store.number_of(ONE)
    store.write(watched(0, phase="eval"))
    store.close()
    assert main(["runs", "list", str(tmp_path)]) == 0
    assert "first: only evaluations were recorded, no training steps." in capsys.readouterr().out
    assert "evaluations only" in repr(watched_run(tmp_path / "first"))


@pytest.mark.parametrize("width", [80, 50, 40])
def test_it_fits_the_terminal(folder: Path, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", str(folder), "--width", str(width)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert any("second" in line for line in lines)


def test_where_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", str(tmp_path)]) == 2
    assert "has no runs: give another folder" in capsys.readouterr().err
    assert main(["runs", "list", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_several_ranks_are_one_run(folder: Path) -> None:
    run = watched_run(folder / "second")
    history = run.history("a output")
    assert (run.ranks, history.steps) == (2, tuple(range(5)))
    assert [each.sampled for each in history.distributions] == [2] * 5
    assert history.statistic("mean") == [float(step) for step in range(5)]
    assert history.statistic("std") == [0.0] * 5
    assert torch.tensor(history.quantiles(0.5)[0]).isfinite().all()


def test_all_statistics_have_a_history_and_a_column(folder: Path) -> None:
    """Those of the table in ``docs/watch.md``, beside custom ones and counts."""
    run = watched_run(folder / "a" / "first")
    names = ["numel", "sampled", "nan", "inf", "zero", "mean", "std", "min", "max", "is_exact"]
    names += ["update", "dead", "saturated", "sample_norm", "norm"]
    history = run.history("a output")
    found = {name: history.statistic(name)[-1] for name in names}
    # the last step has a single value, 2, and is of no ReLU, sigmoid, parameter or gradient
    assert {name for name, value in found.items() if value == 0} == {
        "nan",
        "inf",
        "zero",
        "std",
    } | {"is_exact"}
    assert {name for name, value in found.items() if value == 2} == {"mean", "min", "max", "norm"}
    unknown = {name for name, value in found.items() if math.isnan(value)}
    assert unknown == {"update", "dead", "saturated", "sample_norm"}
    of_series = {"step", "path", "kind", "name", "invocation"}
    assert set(run.to_pandas().columns) == of_series | set(names)
    with pytest.raises(InputError, match="'median' is not a statistic: choose from numel, sampled"):
        history.statistic("median")


@pytest.mark.slow
def test_several_files_are_merged_into_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More steps than are kept without thinning, one more in one process, and the eval phase."""
    for rank in range(2):
        store = Store(folder / "second" / f"rank{rank}.sqlite", {"model": "Net"})
        store.number_of(ONE)
        store.note(Note.of("run-continued", step=5), 1.0 + rank)
        end = 700 + rank
        for start in range(5, end, 32):
            store.write_steps([watched(step) for step in range(start, min(start + 32, end))])
        store.close()
    run = watched_run(folder / "second")
    assert main(["runs", "merge", str(folder / "second"), str(tmp_path / "one.sqlite")]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"Wrote {tmp_path / 'one.sqlite'}.\n")
    one = watched_run(tmp_path / "one.sqlite")
    assert (one.ranks, one.steps(), one.series) == (2, run.steps(), run.series)
    assert repr(one.history("a output")) == repr(run.history("a output")), (
        "as text: nothing equals NaN"
    )
    assert [(each.time, each.rank, each.step) for each in one.events] == [(1.0, 0, 5), (2.0, 1, 5)]
    assert str(one.events[0]) == "the run continues at step 5"
    assert one.about["model"] == "Net"
    assert [file.name for file in tmp_path.iterdir() if "one" in file.name] == ["one.sqlite"]


@pytest.mark.slow
def test_nothing_is_written_over(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["runs", "merge", str(folder / "second"), str(tmp_path / "mine")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"
    assert main(["runs", "merge", str(tmp_path / "nowhere"), str(tmp_path / "one")]) == 2
    assert "has no watched run" in capsys.readouterr().err
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/rank0.sqlite").write_text("no database" * 100)
    assert main(["runs", "merge", str(tmp_path / "broken"), str(tmp_path / "one")]) == 2
    assert "the run cannot be merged" in capsys.readouterr().err
    assert not (tmp_path / "one").exists()


def test_steps_that_ran_are_counted_recorded_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "first" / "rank0.sqlite", {"model": "Net", "reached": 384})
    store.number_of(ONE)
    for step in (0, 352):
        store.write(watched(step))
    store.close()
    assert main(["runs", "list", str(tmp_path), "--format", "csv"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    values = dict(zip(heading.split(","), row.split(","), strict=True))
    assert (values["num_steps"], values["step"], values["kept"]) == ("384", "352", "2")
    run = watched_run(tmp_path / "first")
    assert run.num_steps == 384
    assert "384 training steps (2 recorded, the last is 352) of Net" in " ".join(str(run).split())


def test_a_report_of_a_run_names_the_command_that_opens_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["report", "a/first"]) == 2
    assert "it is a watched run, which torchscan runs open a/first shows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sides", "command"),
    [
        (("a/first", "second"), "a/first second"),
        (("second/rank0.sqlite", "a/first"), "second/rank0.sqlite a/first"),
        (("report.json", "a/first"), "a/first OTHER"),
    ],
)
def test_comparing_watched_runs_names_the_command_that_does(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sides: tuple[str, str],
    command: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["compare", *sides]) == 2
    run, *_ = command.split()
    assert capsys.readouterr().err == (
        f"torchscan: {run} is a watched run, and compare takes inspected runs: give torchscan "
        f"runs open {command} instead\n"
    )


def test_long_targets_and_other_databases_are_no_watched_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of a file has 255 bytes at most, which an argument of a model may exceed."""
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text("from torch import nn\ndef net(name):\n    return nn.Linear(2, 2)\n")
    target = f"m.py:net({'a' * 300!r})"
    assert main(["compare", target, target, "--input", "2"]) == 0
    Path("empty.sqlite").write_bytes(b"")
    assert main(["compare", "empty.sqlite", target]) == 2
    assert "watched run" not in capsys.readouterr().err


def test_a_missing_run_is_reported_before_missing_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert main(["runs", "open", str(tmp_path / "nothere")]) == 2
    assert "has no watched run" in capsys.readouterr().err
