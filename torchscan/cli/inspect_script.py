"""``torchscan inspect -- python train.py``: a script that runs in this process."""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING

from torchscan.cli.inspect_results import put_run
from torchscan.cli.options import first_given
from torchscan.cli.output import INVALID_USE, SUCCESS, print_remark, report_internal_error
from torchscan.cli.spelling import ShellSpelling
from torchscan.errors import InputError, NonFiniteError, TorchscanError

if TYPE_CHECKING:
    from torch import nn

    from torchscan.inspecting.largest_module import LargestModule
    from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
    from torchscan.inspecting.run import RunFacts
    from torchscan.inspection_run import Run


def inspect_script(options: argparse.Namespace) -> int | None:
    """Run a script and print the results. Its exit status is kept, unless it is 0."""
    from torchscan.inspecting.largest_module import LargestModule
    from torchscan.inspecting.script import program_of, run_program
    from torchscan.inspection import guard_of

    _refuse_what_is_for_targets(options)
    program = program_of(options.program)
    errors = sys.stderr  # a script may put another in its place, and close it
    guard = guard_of(options.on_nonfinite)
    with LargestModule(partial(_watch, options, guard), guard) as largest:
        status = run_program(program, is_last=options.is_last, explain=largest.explain)
    if not largest.is_of_this_process:
        return status
    sys.stdout.flush()
    with contextlib.redirect_stdout(errors), contextlib.redirect_stderr(errors):
        shown = _show(largest, options)
    return status or shown


def _watch(
    options: argparse.Namespace, guard: NonFiniteGuard, module: nn.Module, trains: bool
) -> Run:
    from torchscan.inspection import inspect_within

    run = inspect_within(guard, module, steps=options.steps, on_nonfinite=options.on_nonfinite)
    if not trains:
        run.expect_evaluation()
    return run


def _show(largest: LargestModule, options: argparse.Namespace) -> int:
    """Print the results of a script, and return the exit status."""
    try:
        if largest.internal_error is not None:
            report_internal_error(largest.internal_error)
            return SUCCESS
        facts, error = _facts_of(largest)
        if facts is None:
            print_remark(
                "the script called no torch module in this process, so there is nothing to show"
            )
            return SUCCESS
        if not largest.trains:
            print_remark(
                "note: no module of the script trains, so this is the largest that it calls"
            )
        return put_run(facts, error, options)
    except TorchscanError as error:
        print_remark(error.write(ShellSpelling(options)))
        return INVALID_USE


def _facts_of(largest: LargestModule) -> tuple[RunFacts | None, NonFiniteError | None]:
    """Return the results, and the error of the last step, which may only be raised now."""
    try:
        return largest.facts(), largest.found_last
    except NonFiniteError as error:
        return largest.facts(), error


def _refuse_what_is_for_targets(options: argparse.Namespace) -> None:
    inputs = ("input", "dtype", "mode", "batch_size", "loop_iterations")
    steps = ("training", "optimizer", "precision", "run_on")
    useless = first_given(options, *inputs, *steps, "target")
    if useless:
        raise InputError(
            f"{useless} is for a TARGET, not for a script: leave it out, or put it after the "
            "script's name"
        )
