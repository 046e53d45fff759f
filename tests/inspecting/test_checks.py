"""Checks of the user's: what they are called with, and what becomes of what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan.errors import AlarmError, InputError
from torchscan.inspecting.checks import Alarm
from torchscan.inspection import inspect


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        made.get_parameter("0.weight").fill_(2.0)
        made.get_parameter("1.weight").fill_(3.0)
    return made


def total(_path: str, _kind: str, tensor: Tensor) -> float:
    assert not tensor.requires_grad
    return float(tensor.sum())


def too_large(path: str, kind: str, tensor: Tensor) -> Any:
    return (
        Alarm("more than 4")
        if kind == "output" and path == "1" and float(tensor.max()) > 4
        else None
    )


def test_a_check_sees_results_parameters_and_their_gradients() -> None:
    """Y = 3 · 2 · x, for x = 1; the gradient of y is 1."""
    made = model()
    with inspect(made, checks=[total]) as run:
        made(torch.ones(1, 1)).sum().backward()
    said = {(each.path, each.kind): each.value for each in run.facts.checked}
    assert said == {
        ("0", "output"): 2.0,
        ("1", "output"): 6.0,
        ("", "output"): 6.0,
        ("1", "output_gradient"): 1.0,
        ("", "output_gradient"): 1.0,
        ("0", "output_gradient"): 3.0,
        ("1.weight", "parameter_gradient"): 2.0,
        ("0.weight", "parameter_gradient"): 3.0,
        ("0.weight", "parameter"): 2.0,
        ("1.weight", "parameter"): 3.0,
    }
    assert {each.check for each in run.facts.checked} == {"total"}


def test_an_alarm_is_recorded_warned_of_or_raised() -> None:
    made = model()
    with inspect(made, checks=[too_large]) as run:
        made(torch.ones(1, 1))
    (said,) = run.facts.checked
    assert str(said) == "step 0: too_large of 1, output: more than 4"
    with (
        pytest.warns(UserWarning, match="more than 4"),
        inspect(made, checks=[too_large], on_nonfinite="warn"),
    ):
        made(torch.ones(1, 1))
    with (
        pytest.raises(AlarmError, match="too_large of 1"),
        inspect(made, checks=[too_large], on_nonfinite="raise"),
    ):
        made(torch.ones(1, 1))


@pytest.mark.parametrize(
    ("returned", "said"), [("text", "returned str"), (torch.ones(2), "returned Tensor")]
)
def test_what_a_check_may_not_return_is_said(returned: Any, said: str) -> None:
    made = model()
    with pytest.raises(InputError, match=said), inspect(made, checks=[lambda *_: returned]):
        made(torch.ones(1, 1))


def test_a_check_that_fails_says_which_and_where() -> None:
    def fail(*_: Any) -> float:
        raise KeyError("mine")

    with (
        pytest.raises(InputError, match="check fail raised KeyError on 0, output"),
        inspect(made := model(), checks=[fail]),
    ):
        made(torch.ones(1, 1))


def test_no_check_is_called_after_the_inspection() -> None:
    made, kinds = model(), list[str]()
    with inspect(made, checks=[lambda _path, kind, _tensor: kinds.append(kind)]):
        result = made(torch.ones(1, 1)).sum()
    assert "output" in kinds
    kinds.clear()
    result.backward()
    assert not kinds
