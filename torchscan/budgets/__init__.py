"""Limits that a model must stay within: asserted in a test, or kept in a file that CI checks."""

from torchscan.budgets.check import Excess, Outcome, assert_budget, check_budget, check_model, scan_for
from torchscan.budgets.file import Budget, find_budget_file, read_budgets, require_budget

__all__ = [
    "Budget",
    "Excess",
    "Outcome",
    "assert_budget",
    "check_budget",
    "check_model",
    "find_budget_file",
    "read_budgets",
    "require_budget",
    "scan_for",
]
