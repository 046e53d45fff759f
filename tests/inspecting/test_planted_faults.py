"""Faults planted in training programs are named by the default command: the step, the module, the operator, the line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.inspecting.planted import PLANTED, Planted
from tests.opening import inspected_run
from tests.versions import before
from torchscan import inspect
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
    run = inspected_run("run.json")
    assert run.skipped_steps == planted.skipped
    if planted.step is None:
        assert run.nonfinite == ()
        return
    found = run.nonfinite[0]
    assert found.step == planted.step, found
    assert all(part in str(found) for part in planted.says), found
    if planted.line is not None:
        assert f"program.py:{planted.line} " in str(found), found


TIMED_GAN = """\
class Exp(nn.Module):
    def forward(self, x):
        powers = torch.exp(x * 1000 if step == 3 else x)  # here
        return powers / powers.sum(-1, keepdim=True)
generator = nn.Sequential(nn.Linear(4, 8), Exp())
critic = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (generator, critic)]
for step in range(10):
    made = generator(torch.randn(16, 4))
    for each in optimizers:
        each.zero_grad()
    critic(made).square().mean().backward()
    for each in optimizers:
        each.step()
"""
LABEL = """\
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10):
    target = torch.randn(16, 4)
    if step == AT:
        target[3, 2] = math.nan
    optimizer.zero_grad()
    (model(torch.randn(16, 8)) - target).square().mean().backward()  # here
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (TIMED_GAN, ("Exp", "of generator", "aten.exp")),
        (PLANTED["a loss module"].code.replace("step == 14", "step == 3"), ("Wing", "aten.sqrt")),
        (
            PLANTED["a hook on a tensor"].code.replace("i == 12", "i == 3"),
            ("a hook on the gradient of weight",),
        ),
        (
            PLANTED["the gradient of a root at 0, in the loss"].code.replace("i == 13", "i == 3"),
            ("between the model's output and the loss", "SqrtBackward0"),
        ),
        (
            LABEL.replace("AT", "3").replace("(16, 8)) -", "(16, 8)).double() -"),
            ("aten.sub", "an operand without a gradient, such as a target, was not finite"),
        ),
        (
            LABEL.replace("AT", "3"),
            ("aten.sub", "an operand without a gradient, such as a target, was not finite"),
        ),
        (
            LABEL.replace("AT", "8"),
            ("aten.sub", "an operand without a gradient, such as a target, was not finite"),
        ),
    ],
)
def test_a_timed_step_names_what_later_steps_would(
    code: str,
    says: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    planted = Planted(code=code, step=3)
    Path("program.py").write_text(planted.program)
    assert main(["inspect", "--save", "run.json", "--", "python", "program.py"]) == 0
    capsys.readouterr()
    run = inspected_run("run.json")
    assert len({found.step for found in run.nonfinite}) == len(run.nonfinite)
    assert all(part in str(run.nonfinite[0]) for part in says), run.nonfinite


NOTICED = """\
class Log(nn.Module):
    def forward(self, x):
        return torch.log(x - (9 if step == 3 else 0))  # here
model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), Log(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    if not math.isfinite(loss.item()):
        REACT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("on_nonfinite", ["record", "raise"])
@pytest.mark.parametrize("reaction", ["raise SystemExit(0)", "continue", "raise ValueError"])
def test_what_a_script_notices_by_itself_is_named(
    reaction: str,
    on_nonfinite: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Then no backward pass follows, so that the check of the loss never sees it."""
    monkeypatch.chdir(tmp_path)
    code = NOTICED.replace("REACT", reaction)
    Path("program.py").write_text(Planted(code=code, step=3).program)
    command = ["inspect", "--on-nonfinite", on_nonfinite, "--save", "run.json", "--", "program.py"]
    status = main(command)
    assert status == (on_nonfinite == "raise" or reaction == "raise ValueError")
    run = inspected_run("run.json")
    (found,) = run.nonfinite
    assert (found.step, found.path, found.operator) == (3, "2", "aten.log")
    if reaction != "continue":
        assert run.checked_steps == 3
    assert on_nonfinite == "record" or "source: aten.log" in capsys.readouterr().err


ACCUMULATED = """\
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(20):
    target = torch.randn(16, 4)
    if step == AT:
        target[3, 2] = math.nan
    (F.mse_loss(model(torch.randn(16, 8)), target) / 2).backward()  # here
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
CLOSURES = """\
model = nn.Linear(8, 4)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
x = torch.randn(16, 8)
for step in range(12):
    target = torch.randn(16, 4)
    if step == AT:
        target[3, 2] = math.nan
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)  # here
        loss.backward()
        return loss
    optimizer.step(closure)
"""


@pytest.mark.parametrize("at", [2, 10])
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(ACCUMULATED, id="accumulated"),
        pytest.param(CLOSURES, id="closure", marks=before("2.9", "LBFGS warns of its own code")),
    ],
)
def test_what_follows_in_the_same_update_is_no_second_finding(
    code: str,
    at: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(Planted(code=code.replace("AT", str(at)), step=at).program)
    assert main(["inspect", "--save", "run.json", "--", "program.py"]) == 0
    capsys.readouterr()
    (found,) = inspected_run("run.json").nonfinite
    assert found.operator == "aten.mse_loss"


@pytest.mark.parametrize("kind", ["repeated", "Inf"])
def test_a_target_is_not_blamed_for_what_a_model_made(kind: str) -> None:
    class Fourth(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * (math.nan if self.calls == 4 else 1)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), Fourth() if kind == "repeated" else nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with inspect(model, steps=1) as run:
        for step in range(5):
            target = torch.randn(16, 4)
            if kind == "Inf" and step == 3:
                target[0, 0] = math.inf
            optimizer.zero_grad()
            (model(torch.randn(16, 8)) - target).square().mean().backward()
            optimizer.step()
    said = str(run.facts.nonfinite[0])
    if kind == "repeated":
        assert "not certain" in said
    else:
        assert "contained" not in said


def test_nan_that_never_reaches_the_loss_does_not_end_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = """\
class Filled(nn.Module):
    def forward(self, x):
        return self.log(x).nan_to_num()
    def log(self, x):
        return logarithm(x)
class Log(nn.Module):
    def forward(self, x):
        return x.log()
logarithm = Log()
model = nn.Sequential(Filled(), nn.Linear(8, 4))
model[0].logarithm = logarithm
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
"""
    Path("program.py").write_text(Planted(code=code, step=None).program)
    assert (
        main(
            [
                "inspect",
                "--on-nonfinite",
                "raise",
                "--save",
                "run.json",
                "--",
                "python",
                "program.py",
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert inspected_run("run.json").nonfinite == ()


@pytest.mark.parametrize("kind", ["frozen", "without gradients", "detached", "trained before"])
def test_nan_in_a_module_that_does_not_train_has_the_step_of_the_one_that_trains(kind: str) -> None:
    torch.manual_seed(0)
    backbone, head = nn.Linear(8, 8), nn.Linear(8, 3)
    backbone.requires_grad_(kind != "frozen")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    with inspect(head, steps=1) as run:
        if kind == "trained before":
            for _ in range(3):
                backbone(torch.randn(16, 8)).sum().backward()
        for step in range(9):
            with torch.set_grad_enabled(kind in ("frozen", "detached")):
                features = backbone(torch.randn(16, 8) * (math.nan if step == 7 else 1))
            optimizer.zero_grad()
            head(features.detach()).pow(2).mean().backward()
            optimizer.step()
    found = run.facts.nonfinite[0]
    assert (found.step, found.phase, found.root) == (7, "input", "backbone (Linear)")


@pytest.mark.parametrize(
    ("value", "phase", "path"), [(math.inf, "input", ""), (-math.inf, "forward", "1")]
)
@pytest.mark.parametrize("at", [2, 7])
def test_statistics_that_the_forward_spoils_are_explained_by_what_it_was_given(
    value: float, phase: str, path: str, at: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inspect(model, steps=4) as run:
        for step in range(9):
            x = torch.randn(16, 8)
            if step == at:
                x[0, 0] = value
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    found = run.facts.nonfinite[0]
    assert (found.step, found.phase, found.path) == (at, phase, path), found


def test_the_report_of_a_buffer_spoiled_between_steps_names_the_write() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inspect(model, steps=1) as run:
        for step in range(6):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).pow(2).mean().backward()
            optimizer.step()
            if step == 3:
                model.get_buffer("1.running_var")[3] = math.nan
    found = run.facts.nonfinite[0]
    assert (found.step, found.phase, found.path) == (4, "update", "1")
    assert "it was finite after the last optimizer step, so code after that wrote to it" in str(
        found
    )
