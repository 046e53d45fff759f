"""The time of a step, asserted: on the device that the limit is for, with a tolerance."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.report.runs import STEADY, Times, on_device, run
from torchscan import BudgetError, InputError

#: 7 ms forward and 3 ms backward
SLOW: Times = (4.0, 5.0, 6.0)
LONG: Times = (9.0, 10.0, 11.0)
RUN = run({"a": (SLOW, (0.5, 1.0, 1.5)), "b": (STEADY, STEADY)})


def test_a_step_is_its_forward_and_backward_pass() -> None:
    assert RUN.step_time == pytest.approx(0.010)


def test_a_step_takes_as_long_as_its_device_where_that_takes_longer() -> None:
    """20 ms on the device, 10 on the host; or 4 ms, of which the host is the slower one."""
    slow, fast = (
        on_device(RUN, {"": (times, times), "a": (times, times), "b": (STEADY, STEADY)})
        for times in (LONG, STEADY)
    )
    assert slow.step_time == pytest.approx(0.020)
    assert fast.step_time == pytest.approx(0.010)
    with pytest.raises(BudgetError) as error:
        slow.assert_step_time("8 ms")
    assert str(error.value).splitlines() == [
        "a step took 20.0 ms on CPU One, at most 8.00 ms (+150.0 %)",
        *("  a (Linear): 20.0 ms", "  b (Linear): 4.00 ms"),
    ]


@pytest.mark.parametrize("most", ["10.001 ms", 0.010001, 1])
def test_a_step_within_its_limit(most: Any) -> None:
    RUN.assert_step_time(most)


def test_a_step_that_takes_too_long_names_the_slowest_modules() -> None:
    with pytest.raises(BudgetError) as error:
        RUN.assert_step_time("8 ms")
    head, *layers = str(error.value).splitlines()
    assert head == "a step took 10.0 ms on CPU One, at most 8.00 ms (+25.0 %)"
    assert layers == ["  a (Linear): 6.00 ms", "  b (Linear): 4.00 ms"]


def test_a_tolerance_is_a_share_of_the_limit() -> None:
    for tolerance in (0.26, "26%"):
        RUN.assert_step_time("8 ms", tolerance=tolerance)
    with pytest.raises(BudgetError, match=r"at most 9\.60 ms"):
        RUN.assert_step_time("8 ms", tolerance=0.2)


@pytest.mark.parametrize("device", ["CPU One", "cpu one", "One", "cpu"])
def test_a_limit_for_this_device_is_checked(device: str) -> None:
    with pytest.raises(BudgetError):
        RUN.assert_step_time("8 ms", device=device)


@pytest.mark.parametrize("device", ["NVIDIA H100", "CPU Two"])
def test_a_limit_for_another_device_is_not_and_a_warning_says_so(device: str) -> None:
    with pytest.warns(
        UserWarning, match=f"not checked: it is for {device}, and the steps ran on CPU One"
    ):
        RUN.assert_step_time("8 ms", device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RUN.assert_step_time("8 s", device="CPU One")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"max_step_time": "8 apples"},
            "max_step_time is '8 apples', which is not a valid duration",
        ),
        (
            {"max_step_time": 1, "tolerance": "1 h"},
            "tolerance is '1 h', which is not a valid share",
        ),
        ({"max_step_time": -1}, "max_step_time is -1: give a number, or a text such as '120 ms'"),
        ({"max_step_time": True}, "max_step_time is True"),
        ({"max_step_time": None}, "max_step_time is None"),
        (
            {"max_step_time": 1, "tolerance": float("nan")},
            "tolerance is nan: give a number, or a text such as '10%'",
        ),
    ],
)
def test_what_is_no_limit_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        RUN.assert_step_time(**options)


def test_without_steps_there_is_nothing_to_check() -> None:
    with pytest.raises(InputError, match="the run has no measured step"):
        run({"a": (SLOW, SLOW)}, steps=0).assert_step_time("1 s")
