"""Limits that a model must stay within: asserted in a test, or kept in a file that CI checks."""

from torchscan.budgets.budget_assertion import LIMITS, assert_budget
from torchscan.budgets.budget_check import check_budget, check_built, check_model, scan_for
from torchscan.budgets.budget_comment import COMMENT_METRICS, BudgetReport, format_comment
from torchscan.budgets.budget_file import Budget, find_budget_file, read_budgets, require_budget
from torchscan.budgets.outcome import Excess, Outcome
from torchscan.budgets.result_limits import check_result, kind_of, numbers_of

__all__ = [
    "COMMENT_METRICS",
    "LIMITS",
    "Budget",
    "BudgetReport",
    "Excess",
    "Outcome",
    "assert_budget",
    "check_budget",
    "check_built",
    "check_model",
    "check_result",
    "find_budget_file",
    "format_comment",
    "kind_of",
    "numbers_of",
    "read_budgets",
    "require_budget",
    "scan_for",
]
