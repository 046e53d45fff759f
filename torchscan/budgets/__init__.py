"""Limits that a model must stay within: asserted in a test, or kept in a file that CI checks."""

from torchscan.budgets.budget_check import (
    assert_budget,
    check_budget,
    check_built,
    check_model,
    scan_for,
)
from torchscan.budgets.budget_file import Budget, find_budget_file, read_budgets, require_budget
from torchscan.budgets.generation_limits import assert_generation
from torchscan.budgets.outcome import Excess, Outcome
from torchscan.budgets.plan_limits import assert_plan

__all__ = [
    "Budget",
    "Excess",
    "Outcome",
    "assert_budget",
    "assert_generation",
    "assert_plan",
    "check_budget",
    "check_built",
    "check_model",
    "find_budget_file",
    "read_budgets",
    "require_budget",
    "scan_for",
]
