"""``torchscan inspect``: the cost of each module in real steps of a model or a training script."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torchscan.cli.inspect_results import USUAL_DEPTH, put_run
from torchscan.cli.on_targets import require_step_for_optimizer
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_output, model_command
from torchscan.errors import InputError, NonFiniteError
from torchscan.terminal import progress

if TYPE_CHECKING:
    from torchscan.inspecting.run import RunFacts
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


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Measure time and memory of each module in real steps of a model or a script."
    texts = (help_, _REAL, _SCRIPT, _VERDICT, _FOUND, _EXAMPLES)
    parser = model_command(commands, "inspect", *texts, run=_run, models="?", step=True)
    parser.usage = _USAGE
    add_options(parser, "run_on", "steps", "on_nonfinite")
    help_ = f"Leave out deeper modules (default: {USUAL_DEPTH}; csv, json and html: all)"
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
        from torchscan.cli.inspect_script import inspect_script

        return inspect_script(options)
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
    return put_run(facts, error, options)


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
        run = inspect(
            steps.module,
            warm_up=1,
            on_nonfinite=options.on_nonfinite,
            loop_iterations=options.loop_iterations,
        )
        if not options.training:
            run.expect_evaluation()
        with run:
            for _ in range(1 + options.steps):
                steps.take()
    except NonFiniteError as found:
        error = found
    return run.facts, error
