"""What commands share: options that name a model and its inputs, and options for output."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchscan.cli.saying import answer
from torchscan.errors import InputError, naming
from torchscan.files import write_text
from torchscan.precisions import PRECISIONS
from torchscan.progress import is_terminal, progress
from torchscan.report.colours import has_colours, width_of
from torchscan.report.csv import csv_of
from torchscan.report.table import FORMATS, Table
from torchscan.units import parse_memory

if TYPE_CHECKING:
    from torchscan.scan import Scan
    from torchscan.targets import Built

Result = TypeVar("Result")

TARGETS = """\
A TARGET is one of
  package.module:callable(arguments)   imported, and called unless it is a model
  path/to/file.py:name(arguments)      the same, from a file
  torchvision:resnet50                 any model of torchvision
  timm:vit_base_patch16_224            any model of timm
  hf:path/to/config.json               a model of transformers, from its local config
  hf:meta-llama/Llama-3.1-8B           the same, from its config in the hub's local cache
Arguments are Python literals; quote a TARGET with parentheses. Models are built without
data where they can be, with random weights, and nothing is downloaded."""
INPUTS = """\
An --input is the shape of one sample, without the batch: 3,224,224. A type may follow,
128:long, and the name of the argument may precede it, input_ids=128:long."""


def add_command(
    commands: Any, name: str, help_: str, *explained: str, run: Any
) -> argparse.ArgumentParser:
    """Add a command whose help text has an explanation and examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=f"{help_[0].upper()}{help_[1:]}.",
        epilog="\n\n".join(explained),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def model_command(
    commands: Any,
    name: str,
    help_: str,
    *explained: str,
    run: Any,
    models: str | None = None,
    step: bool = False,
) -> argparse.ArgumentParser:
    """Options of a command about a model, or as many as ``models`` says: which, its inputs, and for a ``step``, what runs."""
    parser = add_command(commands, name, help_, TARGETS, INPUTS, *explained, run=run)
    parser.add_argument("target", metavar="TARGET", nargs=models, help="which model; see below")
    add_inputs(parser, step=step)
    if step:
        group = parser.add_argument_group("what runs")
        group.add_argument(
            "--training", action="store_true", help="a training step instead of an inference"
        )
        group.add_argument(
            "--optimizer",
            metavar="NAME",
            help="the optimizer that steps: AdamW, SGD, … of torch.optim",
        )
        group.add_argument(
            "--precision", choices=PRECISIONS, help="convert the model to it, or autocast (…-mixed)"
        )
    return parser


def add_inputs(parser: argparse.ArgumentParser, *, step: bool = False) -> None:
    """Options for what models are given."""
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--input",
        metavar="SHAPE",
        action="append",
        default=[],
        help="one input; repeat for several; see below",
    )
    group.add_argument(
        "--dtype",
        metavar="TYPE",
        help="type of the inputs; a floating-point type also converts the model",
    )
    group.add_argument(
        "--batch-size",
        metavar="N",
        type=positive,
        default=1,
        help="samples in the batch (default 1)",
    )
    modes = (
        "mode of the modules (default: train with --training, else eval)"
        if step
        else "mode of the modules (default eval)"
    )
    group.add_argument("--mode", choices=("eval", "train", "same"), help=modes)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Options for where the answer goes, and in which format."""
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=FORMATS, default="text", help="default text")
    group.add_argument(
        "--output", metavar="FILE", type=Path, help="write to this file instead of standard output"
    )
    width = width_of(sys.stdout)
    group.add_argument(
        "--width",
        metavar="N",
        type=positive,
        default=width,
        help="width of text (default: the terminal's)",
    )


def terminal_width() -> int | None:
    """The terminal's; None where the answer goes elsewhere."""
    return width_of(sys.stdout) if is_terminal(sys.stdout) else None


def positive(text: str) -> int:
    """A whole number of at least one."""
    value = int(text) if text.isdecimal() and len(text) < 19 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def memory_size(text: str) -> int:
    """``1.5GiB``, in bytes."""
    try:
        return int(parse_memory(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def names(text: str) -> list[str]:
    """``a,b,c``."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def on_model(
    options: argparse.Namespace, target: str, function: Callable[[Built, Scan], Result]
) -> Result:
    """What ``function`` says about the named model, given that model and the scan that the options ask for."""
    from torchscan.question import DEFAULTS
    from torchscan.scan import Scan
    from torchscan.targets import inputs_of, parse_input, parse_target, with_model

    require_step_for_optimizer(options)
    specs = [parse_input(text) for text in options.input]
    asked = {name: value for name, value in vars(options).items() if name in DEFAULTS}
    if getattr(options, "backward", False) and not asked.get("training"):
        asked |= {"training": True, "mode": options.mode or "eval"}

    def ask(found: Built) -> Result:
        built = found.converted(options.dtype)
        return function(
            built, Scan(built.module, **{**asked, **inputs_of(target, built, specs, options.dtype)})
        )

    # what a model prints while being built is not part of the answer
    with progress(f"torchscan: {target}"), contextlib.redirect_stdout(sys.stderr):
        return with_model(parse_target(target), ask)


def on_generating(target: str, function: Callable[[Built], Result]) -> Result:
    """What ``function`` says about the named model, which is given tokens, so that nobody need say what its inputs are."""
    from torchscan.targets import parse_target, with_model

    # what a model prints while being built is not part of the answer
    with progress(f"torchscan: {target}"), contextlib.redirect_stdout(sys.stderr):
        return with_model(parse_target(target), function)


def require_step_for_optimizer(options: argparse.Namespace) -> None:
    """Nothing steps in an inference."""
    if getattr(options, "optimizer", None) is not None and not options.training:
        raise InputError("--optimizer belongs to a training step: add --training")


def on_one_of_several(
    options: argparse.Namespace, target: str, function: Callable[[Scan], Result]
) -> Result:
    """What ``function`` says about this model; errors say which one it is."""
    with naming(target):
        return on_model(options, target, lambda _, scan: function(scan))


def on_scan(options: argparse.Namespace, function: Callable[[Scan], Result]) -> Result:
    """What ``function`` says about the one named model."""
    return on_model(options, options.target, lambda _, scan: function(scan))


def colours_of(options: argparse.Namespace) -> bool:
    """Whether the answer is text for a terminal that has colours."""
    return options.output is None and has_colours(sys.stdout)


def put_table(table: Table, options: argparse.Namespace, **special: Callable[[], str]) -> None:
    """Print a table, or write it to the named file; ``special`` formats have writers of their own."""
    writers: dict[str, Callable[[], str]] = {
        "csv": partial(csv_of, table, escape_formulas=True),
        **special,
    }
    text = writers.get(
        options.format,
        partial(table.write, options.format, width=options.width, colours=colours_of(options)),
    )()
    if options.output is None:
        answer(text, is_document=options.format != "text")
    else:
        write_text(options.output, text if text.endswith("\n") else f"{text}\n")


def put_remedies(options: argparse.Namespace, function: Callable[[Scan], Any]) -> None:
    """Print what would help what ``function`` says about the one named model."""
    from torchscan.report.suggestions_table import suggestions_table

    remedies = on_scan(options, lambda scan: function(scan).suggestions())
    put_table(suggestions_table(remedies), options, json=partial(to_complete_json, remedies))


def to_complete_json(result: Any) -> str:
    """A writer of complete JSON, which holds more than the table shows."""
    return json.dumps(result.to_dict(), indent=2)
