"""The time of a step as a limit of the budget file: when it is checked, and where. No test asserts what a step takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.report.runs import Times, run
from torchscan import Budget, InputError
from torchscan.budgets import Outcome, check_budget, read_budgets
from torchscan.budgets.real_step import check_step_time
from torchscan.cli.main import main
from torchscan.hardware.this_machine import cpu_name

NETS = """
import torch
from torch import nn

class Net(nn.Sequential):
    seen = []

    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.Linear(8, 2))

    def forward(self, x):
        if not x.is_meta:
            Net.seen.append((tuple(x.shape), self.training, torch.is_grad_enabled()))
        return super().forward(x)

net = Net()
"""
#: any step is within the one, and none within the other
GENEROUS, IMPOSSIBLE = "1000 s", 0
#: a step takes as long forward as backward: 10 ms
TEN: Times = (4.0, 5.0, 6.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing of it is imported twice, so that what its models have seen can be asked for."""
    (tmp_path / "steps_of_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield tmp_path
    sys.modules.pop("steps_of_nets", None)


def budget(
    most: Any = GENEROUS, *lines: str, on: str = "CPU", target: str = "steps_of_nets:Net"
) -> Budget:
    limit = [f"max_step_time = {most!r}", f"measured_on = {on!r}"]
    text = "\n".join(["[budgets.net]", f"target = {target!r}", "input = '4'", *limit, *lines])
    Path("torchscan.toml").write_text(text)
    return read_budgets(Path("torchscan.toml"))["net"]


def seen() -> list[Any]:
    return list(sys.modules["steps_of_nets"].Net.seen)


def test_a_step_within_its_limit() -> None:
    outcome = check_budget(budget(GENEROUS, "max_params = 58"), timings=True)
    assert (outcome.is_fine, outcome.is_empty, outcome.remarks) == (True, False, ())
    assert str(outcome).startswith("net: Parameters 58, Step ")
    assert str(outcome).endswith(f" on {cpu_name()}")
    assert seen() == [((1, 4), False, False)] * 6  # one to warm up


def test_a_step_that_takes_too_long_names_the_slowest_modules() -> None:
    outcome = check_budget(budget(IMPOSSIBLE), timings=True)
    assert not outcome.is_fine
    head, said, *layers = str(outcome).splitlines()
    assert head == "net exceeds its budget"
    assert said.startswith("  a step took ")
    assert said.endswith(f" on {cpu_name()}, at most 0.00 µs")
    assert sorted(layer.partition(":")[0] for layer in layers) == [
        "    0 (Linear)",
        "    1 (Linear)",
    ]


def test_other_limits_are_checked_as_well() -> None:
    outcome = check_budget(budget(IMPOSSIBLE, "max_params = 57"), timings=True)
    assert "Parameters: 58, at most 57" in str(outcome)
    assert "a step took" in str(outcome)


@pytest.mark.parametrize(("tolerance", "is_fine"), [("'24%'", False), (0.26, True)])
def test_a_tolerance_is_a_share_of_the_limit(
    monkeypatch: pytest.MonkeyPatch, tolerance: Any, is_fine: bool
) -> None:
    facts = run({"a": (TEN, TEN)})
    monkeypatch.setattr("torchscan.budgets.real_step.with_model", lambda *_, **__: facts)
    limits = budget("8 ms", f"step_time_tolerance = {tolerance}")
    assert limits.target is not None
    outcome = check_step_time(limits, limits.target, timings=True)
    assert outcome.taken == "Step 10.0 ms on CPU One"
    assert (outcome.excess == "") == is_fine


@pytest.mark.parametrize(("most", "is_fine"), [("2.4 ms", False), ("2.6 ms", True)])
def test_a_step_per_sample_is_that_of_the_batch_divided(
    monkeypatch: pytest.MonkeyPatch, most: str, is_fine: bool
) -> None:
    """10 ms for 4 samples are 2.5 ms each."""
    facts = run({"a": (TEN, TEN)})
    monkeypatch.setattr("torchscan.budgets.real_step.with_model", lambda *_, **__: facts)
    limits = budget(most, "batch_size = 4", "per_sample = true")
    assert limits.target is not None
    outcome = check_step_time(limits, limits.target, timings=True)
    assert outcome.taken == "Step 2.50 ms per sample on CPU One"
    assert (outcome.excess == "") == is_fine
    if not is_fine:
        assert outcome.excess.splitlines()[0] == (
            "a step took 10.0 ms on CPU One, at most 9.60 ms (+4.2 %) for a batch of 4: "
            "2.50 ms per sample, at most 2.40 ms"
        )
    unasked = check_step_time(limits, limits.target, timings=False)
    assert f"at most {most.replace(' ms', '0 ms')} per sample on CPU" in str(unasked.remark)


def test_without_being_asked_nothing_is_taken() -> None:
    outcome = check_budget(budget(0.12, on="H100"))
    assert (outcome.is_fine, outcome.is_empty, seen()) == (True, True, [])
    assert str(outcome).splitlines() == [
        "net: nothing is checked",
        "  the time of a step (at most 120 ms on H100) is only checked with --timings (in pytest, --torchscan-timings)",
    ]


def test_on_another_device_nothing_is_taken() -> None:
    outcome = check_budget(budget(IMPOSSIBLE, "max_params = 58", on="NVIDIA H100"), timings=True)
    assert (outcome.is_fine, seen()) == (True, [])
    assert [str(each) for each in outcome.remarks] == [
        f"the time of a step is not checked: its limit is for NVIDIA H100, and this is {cpu_name()}"
    ]


def test_what_a_budget_has_no_limit_for_is_not_taken() -> None:
    Path("torchscan.toml").write_text(
        "[budgets.net]\ntarget = 'steps_of_nets:Net'\ninput = '4'\nmax_params = 58\n"
    )
    outcome = check_budget(read_budgets(Path("torchscan.toml"))["net"], timings=True)
    assert (outcome.remarks, outcome.step, seen()) == ((), "", [])


def test_steps_are_those_that_the_budget_asks_for() -> None:
    check_budget(
        budget(GENEROUS, "training = true", "optimizer = 'SGD'", "batch_size = 3"), timings=True
    )
    assert seen() == [((3, 4), True, True)] * 6
    check_budget(budget(GENEROUS, "mode = 'train'"), timings=True)
    assert seen()[6:] == [((1, 4), True, False)] * 6


def test_a_model_that_exists_is_not_changed() -> None:
    check_budget(
        budget(GENEROUS, "training = true", "optimizer = 'SGD'", target="steps_of_nets:net"),
        timings=True,
    )
    net = sys.modules["steps_of_nets"].net
    assert all(parameter.grad is None for parameter in net.parameters())
    assert net.training
    assert len(seen()) == 6


def test_a_budget_that_cannot_be_checked_says_why() -> None:
    with pytest.raises(InputError, match="fp8"):
        check_budget(budget(GENEROUS, "precision = 'fp8'"), timings=True)


def test_an_outcome_is_empty_only_if_nothing_was_checked() -> None:
    assert Outcome(name="net", values={}).is_empty
    assert not Outcome(name="net", values={"params": 58}).is_empty
    assert not Outcome(name="net", values={}, step="Step 1 ms").is_empty


@pytest.mark.parametrize(
    ("most", "options", "status", "begins"),
    [
        (GENEROUS, ["--timings"], 0, "✓ net: Step "),
        (IMPOSSIBLE, ["--timings"], 1, "✗ net exceeds its budget\n  a step took "),
        (
            IMPOSSIBLE,
            [],
            0,
            "- net: nothing is checked\n  the time of a step (at most 0.00 µs on CPU) is only checked with --timings",
        ),
    ],
)
def test_in_the_shell(
    capsys: pytest.CaptureFixture[str], most: Any, options: list[str], status: int, begins: str
) -> None:
    budget(most)
    assert main(["check", *options]) == status
    assert capsys.readouterr().out.startswith(begins)
