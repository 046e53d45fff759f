"""Faults planted in training programs are named by the default command: the step, the module, the operator, the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.planted import PLANTED
from torchscan import open_run
from torchscan.cli.main import main


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_in_its_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = PLANTED[name]
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(planted.program)
    assert main(["inspect", "--save", "run.json", "--", "python", "program.py"]) == 0
    capsys.readouterr()
    run = open_run("run.json")
    assert run.skipped_steps == planted.skipped
    if planted.step is None:
        assert run.nonfinite == ()
        return
    found = run.nonfinite[0]
    assert found.step == planted.step, found
    assert all(part in str(found) for part in planted.says), found
    if planted.line is not None:
        assert f"program.py:{planted.line} " in str(found), found
