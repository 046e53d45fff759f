"""The pytest plugin: the fixture ``model_budget``, and options for new baselines and real steps.

pytest loads this wherever torchscan is installed, so torch is imported only when the fixture is
called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchscan.errors import InputError, TorchscanError
from torchscan.notes import Note

if TYPE_CHECKING:
    from torch import nn

    from torchscan.budgets import Budget, Outcome
    from torchscan.budgets.result_limits import LimitedResult

_REMARK = "torchscan"
_NOTHING_TO_CHECK = (
    "there is nothing to check: give a model and limits, "
    'model_budget(model, (3, 224, 224), max_params="25M"), or the name of a budget, name="…"'
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that record baselines and take steps."""
    group = parser.getgroup("torchscan")
    group.addoption(
        "--torchscan-update", action="store_true", help="record new baselines for model budgets"
    )
    group.addoption(
        "--torchscan-timings",
        action="store_true",
        help="take real steps, and check max_step_time of model budgets",
    )


@pytest.fixture
def model_budget(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Check a model against limits, or against a named budget of the budget file.

    ``model_budget(model, (3, 224, 224), max_params="25M")`` takes the arguments of
    ``torchscan.assert_budget``, with a result in place of the model, too:
    ``model_budget(estimate, max_peak_memory="20 GiB")``.
    ``model_budget(model, (3, 224, 224), name="backbone")`` uses the limits and the baseline of
    ``[budgets.backbone]``, and ``model_budget(name="backbone")`` its target, too.
    """
    return _ModelBudget(request)


class _ModelBudget:
    """The fixture's value."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __call__(
        self,
        module: nn.Module | LimitedResult | None = None,
        input_shape: Any = None,
        dtype: Any = None,
        *,
        name: str | None = None,
        **given: Any,
    ) -> None:
        """Fail the test if the model exceeds its budget, or cannot be checked."""
        __tracebackhide__ = True
        inputs = {
            key: value
            for key, value in (("input_shape", input_shape), ("dtype", dtype))
            if value is not None
        }
        failure = None
        try:
            outcome = self._outcome(module, name, inputs | given)
            self._request.node.user_properties += [
                (_REMARK, f"{outcome.name}: {each}") for each in outcome.remarks
            ]
            failure = None if outcome.is_fine else str(outcome)
        except TorchscanError as error:
            failure = f"torchscan: {error}"
        if failure is not None:  # outside the handler, or pytest would show both errors
            pytest.fail(failure, pytrace=False)

    def _outcome(self, module: Any, name: str | None, given: dict[str, Any]) -> Outcome:
        from torchscan.budgets import (
            Budget,
            check_built,
            check_result,
            kind_of,
            numbers_of,
        )
        from torchscan.metrics import METRICS
        from torchscan.targets import Built

        update = bool(self._request.config.getoption("--torchscan-update"))
        limits = {key: given.pop(key) for key in list(given) if key.startswith(("max_", "min_"))}
        if module is None:
            return self._outcome_of_target(name, [*given, *limits])
        if name is None and not limits:
            raise InputError(_NOTHING_TO_CHECK)
        kind = kind_of(module)
        if kind is not None:
            strict, per_sample = given.pop("strict", True), given.pop("per_sample", False)
            others = given if name is None else ["name"]
            return check_result(
                module, kind, limits, strict=strict, per_sample=per_sample, others=others
            )
        budget = Budget(name=type(module).__name__) if name is None else self._named(name)
        if limits:
            numbers = numbers_of(limits, METRICS, "a model", 'max_params="25M"')
            budget = replace(budget, limits={**budget.limits, **numbers})
        merged = replace(
            budget,
            strict=given.pop("strict", budget.strict),
            per_sample=given.pop("per_sample", budget.per_sample),
        )
        outcome = check_built(merged, Built(module).converted(budget.dtype), update=update, **given)
        if budget.step_time is None:
            return outcome
        remark = Note.of("step-needs-target", name=name)
        return replace(outcome, remarks=(*outcome.remarks, remark))

    def _outcome_of_target(self, name: str | None, given: Collection[str]) -> Outcome:
        """Check the target of a budget, which has inputs and limits already."""
        from torchscan.budgets import check_budget

        if name is None:
            raise InputError(_NOTHING_TO_CHECK)
        budget = self._named(name)
        if given:
            raise InputError(
                f"budget {name!r} has its own target: give a model, or leave out inputs and limits"
            )
        update = bool(self._request.config.getoption("--torchscan-update"))
        timings = bool(self._request.config.getoption("--torchscan-timings"))
        return check_budget(budget, update=update, timings=timings, is_own_process=False)

    def _named(self, name: str) -> Budget:
        from torchscan.budgets import find_budget_file, read_budgets, require_budget

        return require_budget(read_budgets(find_budget_file(Path(self._request.path).parent)), name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report which baselines were recorded, and which could be recorded again."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    remarks = [
        text
        for each in reports
        for key, text in getattr(each, "user_properties", ())
        if key == _REMARK
    ]
    if remarks:
        terminalreporter.section("torchscan")
        for text in dict.fromkeys(remarks):
            terminalreporter.line(text)
