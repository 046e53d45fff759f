"""``torchscan inspect``: the cost of each module in real steps of a model or a training script."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import (
    add_output,
    first_given,
    model_command,
    put_table,
    require_step_for_optimizer,
    to_complete_json,
)
from torchscan.cli.output import (
    INVALID_USE,
    PROBLEM_FOUND,
    SUCCESS,
    print_remark,
    report_internal_error,
)
from torchscan.cli.spelling import ShellSpelling
from torchscan.errors import InputError, NonFiniteError, TorchscanError
from torchscan.progress import progress

if TYPE_CHECKING:
    from torch import nn

    from torchscan.inspecting.largest_module import LargestModule
    from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
    from torchscan.inspecting.run import RunFacts
    from torchscan.inspection_run import Run
    from torchscan.targets import Built

_USAGE = """\
torchscan inspect [options] TARGET
       torchscan inspect [options] -- python train.py [arguments]"""
_REAL = """\
Here a TARGET is built with data, and real steps run on this machine."""
_SCRIPT = """\
After --, give the script as you start it: python train.py, or python -m package.module. It runs
in this process, with its own output, warnings and exit status; the table goes to standard error,
or to --output. The first --steps steps of the largest module that trains are timed. Every training
step of every module is checked for NaN and Inf until the script ends. torch is imported before the
script starts. If the script ends by os._exit or by a signal other than Ctrl-C, no table is
written."""
_VERDICT = """\
The table ends with a verdict: the one thing that limits the run most, such as the data loader, and
the next step. It takes five timed steps."""
_EXAMPLES = """\
examples
  torchscan inspect torchvision:resnet50 --training -b 8
  torchscan inspect timm:vit_base_patch16_224 --run-on cuda --precision bf16-mixed --steps 20
  torchscan inspect -- python train.py --epochs 3
  torchscan inspect --steps 20 --save run.json --trace trace.json -- python -m package.train
  torchscan inspect --on-nonfinite raise -- python train.py"""
_FOUND = """\
NaN and Inf are reported below the table, with the step, the module, the operator and the line.
In the steps of a TARGET, every result and gradient is checked. In the training steps of a script,
the loss, the gradients before the optimizer's step and the parameters after it are checked, and the
call at fault is repeated; a NaN that reaches none of these is not reported. With --on-nonfinite
warn they are also reported at once; with raise the step ends there, in a script by an exception,
and the exit status is 1."""

#: seconds that the first process waits for what the others save
_PATIENCE = 10.0
#: how deep modules are shown, unless it is said; data and pages have all
_USUAL_DEPTH = 3


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Measure time and memory of each module in real steps of a model or a script."
    texts = (help_, _REAL, _SCRIPT, _VERDICT, _FOUND, _EXAMPLES)
    parser = model_command(commands, "inspect", *texts, run=_run, models="?", step=True)
    parser.usage = _USAGE
    add_options(parser, "run_on", "steps", "on_nonfinite")
    help_ = f"Leave out deeper modules (default: {_USUAL_DEPTH}; csv, json and html: all)"
    add_option(parser, "max_depth", help=help_)
    add_output(parser)
    add_options(parser.add_argument_group("files"), "save", "trace")


def parted(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Return the words of the command, and those of the program after ``--``, or None.

    Both may have options of the same names.
    """
    if words and words[0] == "inspect" and "--" in words:
        index = words.index("--")
        return words[:index], words[index + 1 :]
    return words, None


def _run(options: argparse.Namespace) -> int | None:
    if options.program is not None:
        return _of_program(options)
    if options.target is None:
        raise InputError(
            "there is nothing to inspect: give a TARGET, or a script after --, as in torchscan "
            "inspect -- python train.py"
        )
    if options.target.endswith(".py"):
        raise InputError(
            f"{options.target} is a script: give a model in it, {options.target}:NAME, or run it, "
            f"torchscan inspect -- python {options.target}"
        )
    facts, error = _of_target(options)
    return _put(facts, error, options)


def _put(facts: RunFacts, error: NonFiniteError | None, options: argparse.Namespace) -> int:
    """Print the results and the error, write files, and return the exit status."""
    from torchscan.report.run_table import run_table

    # The table of all ranks has a verdict on all.
    is_alone = facts.process is None or options.save is None
    has_verdict = is_alone or not _is_text(options)
    table = run_table(facts, max_depth=_depth(options), has_verdict=has_verdict)
    # Other ranks would write into the output of rank 0 and over its files.
    is_first = facts.process is None or facts.process.rank == 0
    try:
        if options.save is not None:
            facts.save(options.save)
        if options.trace is not None and is_first:
            facts.save_trace(options.trace)
    finally:  # steps are not taken again for a file that cannot be written
        if is_first:
            put_table(table, options, json=partial(to_complete_json, facts))
    if is_first and facts.process is not None:
        _put_group(facts, options)
    if error is not None:
        print_remark(error.write(ShellSpelling(options)))
        return PROBLEM_FOUND
    return SUCCESS


def _put_group(facts: RunFacts, options: argparse.Namespace) -> None:
    """Print the table of all ranks if they save their results, else a note about ``--save``."""
    from torchscan.report.group_table import group_table
    from torchscan.watching.opening import await_group

    assert facts.process is not None  # noqa: S101 - it is one of several
    if options.save is None:
        print_remark(
            f"note: this is rank 0 of {facts.process.num_ranks}; --save FOLDER also reports which "
            "rank the others wait for"
        )
    elif _is_text(options):
        table = group_table(await_group(options.save, facts, _PATIENCE))
        print(table)  # noqa: T201 - the answer


def _is_text(options: argparse.Namespace) -> bool:
    """Return whether the answer is printed as text."""
    return options.output is None and options.format == "text"


def _depth(options: argparse.Namespace) -> int | None:
    """Return the depth of the table. Formats for programs, and foldable ones, have all modules."""
    if options.max_depth is None and options.format not in ("csv", "json", "html"):
        return _USUAL_DEPTH
    depth: int | None = options.max_depth
    return depth


def _of_target(options: argparse.Namespace) -> tuple[RunFacts, NonFiniteError | None]:
    from torchscan.targets import parse_target, with_model

    require_step_for_optimizer(options)
    # what a model prints is not part of the answer
    with progress(f"torchscan: {options.target}"), contextlib.redirect_stdout(sys.stderr):
        return with_model(parse_target(options.target), partial(_measured, options), with_data=True)


def _measured(options: argparse.Namespace, built: Built) -> tuple[RunFacts, NonFiniteError | None]:
    """Run the inspection, and return its results and the error that ended it."""
    from torchscan.inspecting.step_execution import RealSteps, local_device
    from torchscan.inspection import inspect
    from torchscan.recording.request import PassRequest
    from torchscan.targets import inputs_of, parse_input

    specs = [parse_input(text) for text in options.input]
    inputs = inputs_of(options.target, built, specs, options.dtype)
    request = PassRequest(
        module=built.converted(options.dtype).module,
        mode=options.mode or ("train" if options.training else "eval"),
        backward=options.training,
        optimizer=options.optimizer,
        batch_size=options.batch_size,
        **inputs,
    )
    steps = RealSteps(request, local_device(options.run_on), options.precision)
    error: NonFiniteError | None = None
    try:
        run = inspect(steps.module, warm_up=1, on_nonfinite=options.on_nonfinite)
        if not options.training:
            run.expect_evaluation()
        with run:
            for _ in range(1 + options.steps):
                steps.take()
    except NonFiniteError as found:
        error = found
    return run.facts, error


# -- a script ------------------------------------------------------------------------------------


def _of_program(options: argparse.Namespace) -> int | None:
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
        return _put(facts, error, options)
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
    inputs = ("input", "dtype", "mode", "batch_size")
    steps = ("training", "optimizer", "precision", "run_on")
    useless = first_given(options, *inputs, *steps, "target")
    if useless:
        raise InputError(
            f"{useless} is for a TARGET, not for a script: leave it out, or put it after the "
            "script's name"
        )
