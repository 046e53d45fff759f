"""``torchscan runs``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchscan
from tests.live.test_store import ONE, watched
from torchscan.cli.main import main
from torchscan.live.store import Store


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
    assert main(["runs", str(folder), "--format", "csv"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading == "run,model,step,kept,series,ranks,written"
    assert rows[0].startswith("a/first,Net,2,3,1,1,")
    assert rows[1].startswith("second,Net,4,5,1,2,")


@pytest.mark.parametrize("width", [80, 50, 40])
def test_it_fits_the_terminal(folder: Path, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(folder), "--width", str(width)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert any("second" in line for line in lines)


def test_where_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 2
    assert "has no runs: watch(model, 'runs/first') makes one" in capsys.readouterr().err
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_several_ranks_are_one_run(folder: Path) -> None:
    run = torchscan.open_run(folder / "second")
    history = run.history("a output")
    assert (run.ranks, history.steps) == (2, tuple(range(5)))
    assert [each.sampled for each in history.distributions] == [2] * 5
    assert history.figure("mean") == [float(step) for step in range(5)]
    assert history.figure("std") == [0.0] * 5
    assert torch.tensor(history.quantiles(0.5)[0]).isfinite().all()
