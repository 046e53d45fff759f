"""Limits that a model must stay within: asserted in a test, or kept in a file that CI checks."""

from torchscan.budgets.budget_assertion import LIMITS as LIMITS
from torchscan.budgets.budget_assertion import assert_budget as assert_budget
from torchscan.budgets.budget_check import check_budget as check_budget
from torchscan.budgets.budget_check import check_built as check_built
from torchscan.budgets.budget_check import check_model as check_model
from torchscan.budgets.budget_check import scan_for as scan_for
from torchscan.budgets.budget_comment import COMMENT_METRICS as COMMENT_METRICS
from torchscan.budgets.budget_comment import BudgetReport as BudgetReport
from torchscan.budgets.budget_comment import format_comment as format_comment
from torchscan.budgets.budget_definition import Budget as Budget
from torchscan.budgets.budget_file import find_budget_file as find_budget_file
from torchscan.budgets.budget_file import read_budgets as read_budgets
from torchscan.budgets.budget_file import require_budget as require_budget
from torchscan.budgets.outcome import Excess as Excess
from torchscan.budgets.outcome import Outcome as Outcome
from torchscan.budgets.result_kinds import kind_of as kind_of
from torchscan.budgets.result_limits import check_result as check_result
from torchscan.budgets.result_limits import numbers_of as numbers_of
