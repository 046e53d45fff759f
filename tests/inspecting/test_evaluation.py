"""Passes of an evaluation among training steps: they are told apart, and what was asked for are the steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from torchscan import BudgetError, inspect
from torchscan.inspecting.run import RunFacts
from torchscan.report.run_table import run_table


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, times: int = 1) -> None:
    for _ in range(times):
        model(torch.rand(2, 4)).sum().backward()


def evaluate(model: nn.Module, times: int = 1, *, has_gradients: bool = False) -> None:
    """As loops do, which hold each result until the next one is there."""
    model.eval()
    with torch.set_grad_enabled(has_gradients):
        for _ in range(times):
            result = model(torch.rand(6, 4))
            assert result.shape == (6, 1)
    model.train()


def measured(facts: RunFacts) -> tuple[int, int | None, int | None]:
    assert facts.trains
    assert facts.calls[0].input_shapes == ((2, 4),)
    assert facts.backward.min > 0
    return facts.steps, facts.timed, None if facts.evaluation is None else facts.evaluation.passes


@pytest.mark.parametrize("has_gradients", [False, True], ids=["no_grad", "gradients on"])
def test_as_many_evaluation_passes_as_steps_are_apart_from_them(has_gradients: bool) -> None:
    model = mlp()
    with inspect(model) as run:
        evaluate(model, 2, has_gradients=has_gradients)  # a sanity check
        for _ in range(3):
            train(model, 2)
            evaluate(model, 4, has_gradients=has_gradients)
    assert measured(run.facts) == (5, 5, 14)
    evaluation = run.facts.evaluation
    assert evaluation is not None
    assert evaluation.forward.median > 0
    assert evaluation.calls[0].input_shapes == ((6, 4),)


def test_steps_are_training_steps() -> None:
    model = mlp()
    with inspect(model, steps=2) as run:
        evaluate(model, 5)
        train(model)
        evaluate(model, 5)
        finished = [run.is_finished]
        train(model, 3)
        finished.append(run.is_finished)
    assert finished == [False, True]
    assert measured(run.facts) == (2, 2, 10)


def test_an_evaluation_between_accumulated_gradients_is_none_of_them() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with inspect(model, warm_up=0) as run:
        for _ in range(2):
            train(model)
            evaluate(model, 3)
            train(model)
            optimizer.step()
    assert measured(run.facts) == (4, 4, 6)


def test_a_copy_that_evaluates_is_another_model() -> None:
    model, averaged = mlp(), mlp()
    with inspect(model, warm_up=0) as run:
        for _ in range(3):
            train(model)
            evaluate(averaged, 4)
    assert measured(run.facts) == (3, 3, None)


def test_a_run_that_only_evaluates_has_its_passes_as_steps() -> None:
    model = mlp()
    with inspect(model) as run:
        evaluate(model, 5)
    assert (run.facts.steps, run.facts.timed, run.facts.evaluation, run.facts.trains) == (
        4,
        4,
        None,
        False,
    )
    assert "Evaluation only: no step has a backward pass." in str(run)


def test_the_table_and_files_show_both() -> None:
    model = mlp()
    with inspect(model) as run:
        for _ in range(4):
            train(model)
            evaluate(model, 2)
        train(model, 1)
        model(torch.rand(3, 4)).sum().backward()
    text = " ".join(str(run).split())
    assert "Medians of 4 steps after 1 warm-up step" in text
    assert "1 step left out: different calls or input shapes." in text
    assert (
        "8 forward passes had no backward pass, as in an evaluation; other times in this table exclude them"
        in text
    )
    assert "Evaluation, forward only" in text
    rows = run_table(run).write("csv").splitlines()
    place = rows[0].split(",").index("evaluation")
    assert run.facts.evaluation is not None
    assert float(rows[1].split(",")[place]) == run.facts.evaluation.calls[0].forward.median
    assert run.facts.to_dict()["evaluation"]["passes"] == 8
    assert [verdict[0] for verdict in run.measured().verdicts] == ["Measured", "Evaluation"]


def test_a_budget_is_of_training_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    with inspect(model) as run:
        for _ in range(3):
            train(model)
            evaluate(model, 2)
    assert run.facts.step_time == run.facts.forward.median + run.facts.backward.median
    with pytest.raises(BudgetError, match="a step took"):
        run.assert_step_time(run.facts.forward.median)


def test_findings_are_numbered_by_kind() -> None:
    """A loop's own counter: NaN in training step 2, after four passes of evaluation, and in the last pass of those."""
    model = mlp()
    with inspect(model) as run, torch.no_grad():
        evaluate(model, 4)
        with torch.enable_grad():
            train(model, 2)
            model(torch.full((2, 4), math.nan)).sum().backward()
        model(torch.full((2, 4), math.nan))
    first, second = run.facts.nonfinite
    assert (first.step, first.is_evaluation, second.step, second.is_evaluation) == (
        2,
        False,
        4,
        True,
    )
    assert str(second).startswith("evaluation pass 4: first NaN in the input of the model")
    assert "Evaluation pass 4: first NaN" in str(run)
