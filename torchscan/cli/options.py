"""Parts that commands share: the model and its inputs, the scan, and the output."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.option_values import COMPARE, to_checkpoint_or_comparison
from torchscan.cli.output import print_answer
from torchscan.errors import Argument, Give, InputError, naming
from torchscan.files import write_text
from torchscan.progress import is_terminal, progress
from torchscan.report.colours import has_colours, width_of
from torchscan.report.csv import csv_of
from torchscan.report.html import page
from torchscan.report.table import Table

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
_FORMATS_BY_SUFFIX = {
    ".csv": "csv",
    ".html": "html",
    ".json": "json",
    ".md": "markdown",
    ".tex": "latex",
}


def add_command(
    commands: Any, name: str, help_: str, *explained: str, run: Any
) -> argparse.ArgumentParser:
    """Add a command whose help text has an explanation and examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=help_, epilog="\n\n".join(explained)
    )
    parser.set_defaults(function=run, parser=parser)
    return parser


def add_command_group(commands: Any, name: str, help_: str) -> Any:
    """Add a command that consists of commands, and return what these are added to."""
    parser = commands.add_parser(name, help=help_, description=help_)
    inner = parser.add_subparsers(
        required=True, dest="subcommand", metavar="COMMAND", title="commands"
    )
    parser.set_defaults(inner=inner)
    return inner


def command_groups(commands: Any) -> dict[str, Any]:
    """Return the commands in each command that consists of some."""
    inner = {name: parser.get_default("inner") for name, parser in commands.choices.items()}
    return {name: group for name, group in inner.items() if group is not None}


def parsers_by_command(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by its complete name, such as "llm serve"."""
    found = dict(commands.choices)
    for name, inner in command_groups(commands).items():
        del found[name]
        found |= {f"{name} {each}": parser for each, parser in inner.choices.items()}
    return found


def model_command(
    commands: Any,
    name: str,
    help_: str,
    *explained: str,
    run: Any,
    models: str | None = None,
    step: bool = False,
) -> argparse.ArgumentParser:
    """Add a command about a model, or as many as ``models`` says.

    It has options for the inputs and, with ``step``, for the pass.
    """
    parser = add_command(commands, name, help_, TARGETS, INPUTS, *explained, run=run)
    parser.add_argument(
        "target", metavar="TARGET", nargs=models, help="Analyze this model; see below."
    )
    add_inputs(parser, step=step)
    if step:
        add_options(parser.add_argument_group("pass"), "training", "optimizer", "precision")
    return parser


def add_inputs(parser: argparse.ArgumentParser, *, step: bool = False) -> None:
    """Add options for the inputs of models."""
    group = parser.add_argument_group("inputs")
    add_options(group, "input", "dtype", "batch_size")
    if step:
        add_option(group, "mode")
    else:
        add_option(group, "mode", help="Set the mode of the modules (default: eval)")


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add options for the way in which a training step is made."""
    group = parser.add_argument_group("training step")
    explained = ("recording/arguments.py",)
    formats = "recording/training/quantized_linear.py:FrozenFormat"
    add_option(group, "loss")
    choices = (
        "{}: none, selective, full, or a number for every n-th layer; or compare, for the memory "
        "and time of all ways (default: none)"
    )
    checkpoints = to_checkpoint_or_comparison
    add_option(group, "checkpoint", help=choices, files=explained, default=False, type=checkpoints)
    add_option(group, "max_memory")
    add_option(group, "lora")
    add_option(group, "weights", help="Set {}", files=explained, choices=formats, metavar=None)
    add_options(group, "cross_entropy", "fused_kernels")
    add_options(group, "optimizer_in_backward", "clip_gradients")
    add_option(group, "accumulation_steps", help="{}", files=explained, default=1)
    add_options(group, "float8", "float8_skip", "offload")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add options for the format of the answer, and the file."""
    group = parser.add_argument_group("output")
    add_options(group, "format", "output")
    add_option(group, "width", default=width_of(sys.stdout))


def choose_format(options: argparse.Namespace) -> None:
    """Choose the format by the name of the output file, unless one was given."""
    output = getattr(options, "output", None)
    if output is not None and getattr(options, "format", None) == "text":
        options.format = _FORMATS_BY_SUFFIX.get(output.suffix, "text")


def first_given(options: argparse.Namespace, *names: str) -> str | None:
    """Return the first option or argument that was given of those with these names, or None."""
    for action in options.parser._actions:
        value = getattr(options, action.dest, action.default)
        if action.dest in names and value != action.default:
            return (
                action.option_strings[0] if action.option_strings else f"{action.metavar} {value}"
            )
    return None


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if the answer goes elsewhere."""
    return width_of(sys.stdout) if is_terminal(sys.stdout) else None


def on_model(
    options: argparse.Namespace, target: str, function: Callable[[Built, Scan], Result]
) -> Result:
    """Return what ``function`` returns for the named model and the scan of the options."""
    from torchscan.question import DEFAULTS
    from torchscan.scan import Scan
    from torchscan.targets import inputs_of, parse_input, parse_target, with_model

    require_step_for_optimizer(options)
    specs = [parse_input(text) for text in options.input]
    asked = {name: value for name, value in vars(options).items() if name in DEFAULTS}

    def ask(found: Built) -> Result:
        built = found.converted(options.dtype)
        inputs = inputs_of(target, built, specs, options.dtype)
        return function(built, Scan(built.module, **{**asked, **inputs}))

    # what a model prints while being built is not part of the answer
    with progress(f"torchscan: {target}"), contextlib.redirect_stdout(sys.stderr):
        return with_model(parse_target(target), ask)


def on_generating(target: str, function: Callable[[Built], Result]) -> Result:
    """Return what ``function`` returns for the named language model, whose inputs are tokens."""
    from torchscan.targets import parse_target, with_model

    # what a model prints while being built is not part of the answer
    with progress(f"torchscan: {target}"), contextlib.redirect_stdout(sys.stderr):
        return with_model(replace(parse_target(target), is_language_model=True), function)


def require_step_for_optimizer(options: argparse.Namespace) -> None:
    """Refuse an optimizer for an inference, which has no optimizer's step."""
    if getattr(options, "optimizer", None) is not None and not options.training:
        raise InputError(
            Argument("optimizer"), " belongs to a training step: give ", Give("training", True)
        )


def on_one_of_several(
    options: argparse.Namespace, target: str, function: Callable[[Scan], Result]
) -> Result:
    """Return what ``function`` returns for the scan of this model; errors name the model."""
    with naming(target):
        return on_model(options, target, lambda _, scan: function(scan))


def on_scan(options: argparse.Namespace, function: Callable[[Scan], Result]) -> Result:
    """Return what ``function`` returns for the scan of the only model."""
    return on_model(options, options.target, lambda _, scan: function(scan))


def colours_of(options: argparse.Namespace) -> bool:
    """Return whether the answer goes to a terminal that has colors."""
    return options.output is None and has_colours(sys.stdout)


def put_table(
    table: Table,
    options: argparse.Namespace,
    part: Callable[[], str] | None = None,
    **special: Callable[[], str],
) -> None:
    """Print a table or write it to the named file.

    Args:
        table: the table.
        options: the options, with the format.
        part: returns the HTML of the result, where it has more than the table, such as a plot.
        special: other writers of formats.
    """
    writers: dict[str, Callable[[], str]] = {
        "csv": partial(csv_of, table, escape_formulas=True),
        "html": partial(_write_page, table, options, part or table.to_html),
        **special,
    }
    text = writers.get(
        options.format,
        partial(table.write, options.format, width=options.width, colours=colours_of(options)),
    )()
    if options.output is None:
        print_answer(text, is_document=options.format != "text")
    else:
        write_text(options.output, text if text.endswith("\n") else f"{text}\n")


def _write_page(table: Table, options: argparse.Namespace, part: Callable[[], str]) -> str:
    """Return an HTML page, whose heading names the model or the snapshot."""
    title, given = table.title, vars(options)
    subject = given.get("target")
    if subject is None:
        subject = given.get("snapshot")
    if subject is not None:
        title = f"{title}: {subject}"
    return page(title, part())


def put_suggestions(options: argparse.Namespace, function: Callable[[Scan], Any]) -> None:
    """Print suggestions for the estimate that ``function`` returns."""
    from torchscan.report.suggestions_table import suggestions_table

    suggestions = on_scan(options, lambda scan: function(scan).suggestions())
    put_table(suggestions_table(suggestions), options, json=partial(to_complete_json, suggestions))


def put_checkpoints(options: argparse.Namespace, *others: str) -> bool:
    """Print the memory and time of ways to checkpoint the step, if they are asked for.

    Returns whether they are.

    Args:
        options: the options.
        others: the names of options for a single step.
    """
    from torchscan.report.checkpoint_table import checkpoint_table

    if options.checkpoint != COMPARE:
        if options.max_memory is not None:
            compare = Give("checkpoint", COMPARE)
            raise InputError(Argument("max_memory"), " limits a comparison: give ", compare)
        return False
    given = first_given(options, *others)
    if given is not None:
        raise InputError(f"{given} is for one step, not for a comparison: leave it out")
    max_memory, options.checkpoint = options.max_memory, False
    curve = on_scan(options, lambda scan: scan.checkpointing(max_memory))
    table, json = checkpoint_table(curve), partial(to_complete_json, curve)
    put_table(table, options, curve.to_html, json=json)
    return True


def to_complete_json(result: Any) -> str:
    """Return the complete result as JSON, which holds more than the table shows."""
    return json.dumps(result.to_dict(), indent=2)
