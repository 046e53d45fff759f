"""``torchscan check``: check models against the budget file."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_command
from torchscan.cli.saying import EXCEEDED, FINE, WRONG_USE, answer, report_internal_error
from torchscan.progress import progress

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
optimizer precision device strict.

Limits of text generation are in a separate table, for the device, precision and batch_size of the
budget:

  [budgets.backbone.generation]
  prompt = 2048                          # more keys: new weights cache eager
  max_time_per_token = "60 ms"           # on the device, as it is estimated
  min_context = "8k"                     # there is memory for so many tokens

Its limits: max_time_per_token max_first_token min_tokens_per_second max_weights
max_cache_per_token min_context min_batch_size.

The time of real steps is checked on the device that it was measured on, and only with --timings:

  max_step_time = "120 ms"               # forward and backward, in the median of 5 steps
  measured_on = "H100"                   # words of the device's name
  step_time_tolerance = "10%"

Exit status: 0 all models are within budget, 1 some are not, 2 some could not be checked."""
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
    help_ = "Name budgets (default: all with a target)."
    parser.add_argument("names", metavar="BUDGET", nargs="*", help=help_)
    add_options(parser, "config", "update", "timings")
    add_option(parser, "format", choices=("text", "github"))


def _run(options: argparse.Namespace) -> int:
    from torchscan.budgets import find_budget_file, read_budgets, require_budget

    budgets = read_budgets(options.config or find_budget_file(Path.cwd()))
    chosen = [require_budget(budgets, name) for name in options.names] or list(budgets.values())
    statuses = [FINE]
    for budget in chosen:
        if budget.target is None and not options.names:
            _put(f"- {budget.name}: has no target, and is checked by a test only", options)
        else:
            statuses.append(_checked(budget, options))
    return max(statuses)


def _checked(budget: Any, options: argparse.Namespace) -> int:
    """Check one budget. Its errors must not keep the others from being checked."""
    from torchscan.budgets import check_budget
    from torchscan.errors import TorchscanError

    try:
        with progress(f"torchscan: {budget.name}"), contextlib.redirect_stdout(sys.stderr):
            outcome = check_budget(budget, update=options.update, timings=options.timings)
    except TorchscanError as error:
        _put(f"? {budget.name}: could not be checked\n  {error}", options)
        return WRONG_USE
    except Exception as error:
        _put(f"? {budget.name}: could not be checked", options)
        return report_internal_error(error)
    _put(f"{'✗' if not outcome.is_fine else '-' if outcome.is_empty else '✓'} {outcome}", options)
    return FINE if outcome.is_fine else EXCEEDED


def _put(text: str, options: argparse.Namespace) -> None:
    from torchscan.escapes import printable
    from torchscan.report.markdown import escape

    head, *rest = map(printable, text.split("\n"))
    if options.format == "text":
        answer("\n".join([head, *rest]))
    else:
        body = ["", "```text", *rest, "```"] if rest else []
        answer("\n".join([f"**{escape(head)}**", *body, ""]), is_document=True)
