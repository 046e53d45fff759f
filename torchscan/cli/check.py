"""``torchscan check``: check models against the budget file."""

from __future__ import annotations

import argparse
import contextlib
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.answers import terminal_width
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_command
from torchscan.cli.output import (
    INVALID_USE,
    PROBLEM_FOUND,
    SUCCESS,
    print_answer,
    report_internal_error,
)
from torchscan.escapes import printable
from torchscan.terminal import progress

if TYPE_CHECKING:
    from torchscan.budgets import Budget, BudgetReport

_FILE = """\
The budget file is torchscan.toml, or pyproject.toml with [tool.torchscan], in this folder or
above:

  [budgets.backbone]                     # in pyproject.toml: [tool.torchscan.budgets.backbone]
  target = "package.models:Backbone(width=64)"
  input = "3,224,224"                    # several: ["3,224,224", "10:long"]
  max_params = "25M"
  max_macs = "4.2G"
  baseline = "baselines/backbone.json"   # recorded by --update
  tolerance = "1%"                       # or { macs = "1%", params = 0 }

Limits: max_params max_trainable_params max_model_size max_macs max_flops max_dmas
max_activation_memory max_peak_memory max_latency. More keys: dtype batch_size mode training
optimizer precision device loop_iterations per_sample strict.

With per_sample = true, max_macs, max_flops, max_dmas, max_latency and max_step_time are for one
sample of the batch.

Limits of text generation are in a separate table, for the device, precision and batch_size of the
budget:

  [budgets.backbone.generation]
  prompt = 2048                          # more keys: new weights cache compute engine
  max_time_per_token = "60 ms"           # estimated for the device
  min_context = "8k"                     # memory suffices for this many tokens

Its limits: max_time_per_token max_time_per_token_under_load max_first_token
min_tokens_per_second max_weights max_cache_per_token min_context min_batch_size.

The time of real steps is checked on the device that it was measured on, and only with --timings:

  max_step_time = "120 ms"               # forward and backward, in the median of 5 steps
  measured_on = "H100"                   # words of the device's name
  step_time_tolerance = "10%"

Exit status: 0 all models are within budget; 1 some are not; 2 some cannot be checked."""
_EXAMPLES = """\
examples
  torchscan check
  torchscan check backbone --update
  torchscan check --format github >> $GITHUB_STEP_SUMMARY"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "check", "Check models against their budgets.", _FILE, _EXAMPLES, run=_run
    )
    help_ = "Check only these budgets (default: all with a target)."
    parser.add_argument("names", metavar="BUDGET", nargs="*", help=help_)
    add_options(parser, "config", "update", "timings")
    add_option(
        parser,
        "format",
        choices=("text", "github"),
        help="Choose the format: text, or Markdown for a summary on GitHub (default: text)",
    )


def _run(options: argparse.Namespace) -> int:
    from torchscan.budgets import (
        BudgetReport,
        find_budget_file,
        format_comment,
        read_budgets,
        require_budget,
    )

    budgets = read_budgets(options.config or find_budget_file(Path.cwd()))
    chosen = [require_budget(budgets, name) for name in options.names] or list(budgets.values())
    statuses, reports = [SUCCESS], []
    for budget in chosen:
        if budget.target is None and not options.names:
            lines = [f"{budget.name}: has no target, so only a test can check it"]
            report = BudgetReport(name=budget.name, sign="-", lines=lines)
        else:
            status, report = _checked(budget, options)
            statuses.append(status)
        reports.append(report)
        if options.format == "text":
            head, *rest = map(printable, report.lines)
            print_answer("\n".join(map(_fit, [f"{report.sign} {head}", *rest])))
    if options.format == "github":
        print_answer(format_comment(reports), is_document=True)
    return max(statuses)


def _fit(line: str) -> str:
    """Return a line in the width of the terminal, with its further lines indented."""
    width = terminal_width()
    if width is None:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _checked(budget: Budget, options: argparse.Namespace) -> tuple[int, BudgetReport]:
    """Check one budget. Its errors must not keep the others from being checked."""
    from torchscan.budgets import COMMENT_METRICS, BudgetReport, check_budget
    from torchscan.budgets.budget_definition import BUDGET_FILE
    from torchscan.errors import TorchscanError

    shown = COMMENT_METRICS if options.format == "github" else ()
    failed = [f"{budget.name}: cannot be checked"]
    try:
        with progress(f"torchscan: {budget.name}"), contextlib.redirect_stdout(sys.stderr):
            outcome = check_budget(
                budget, update=options.update, timings=options.timings, shown=shown
            )
    except TorchscanError as error:
        lines = [*failed, *f"  {error.write(BUDGET_FILE)}".split("\n")]
        return INVALID_USE, BudgetReport(name=budget.name, sign="?", lines=lines)
    except Exception as error:
        report = BudgetReport(name=budget.name, sign="?", lines=failed)
        return report_internal_error(error), report
    lines = str(outcome).split("\n")
    if not outcome.is_fine:
        report = BudgetReport(name=budget.name, sign="✗", lines=lines, outcome=outcome)
        return PROBLEM_FOUND, report
    sign: Any = "-" if outcome.is_empty else "✓"
    return SUCCESS, BudgetReport(name=budget.name, sign=sign, lines=lines, outcome=outcome)
