"""Commands and the groups of options that several of them have."""

from __future__ import annotations

import argparse
import sys
from typing import Any, TypeVar

from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.option_values import to_checkpoint_or_comparison
from torchscan.terminal import width_of

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
    add_option(group, "loop_iterations")


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


def first_given(options: argparse.Namespace, *names: str) -> str | None:
    """Return the first option or argument that was given of those with these names, or None."""
    for action in options.parser._actions:
        value = getattr(options, action.dest, action.default)
        if action.dest in names and value != action.default:
            return (
                action.option_strings[0] if action.option_strings else f"{action.metavar} {value}"
            )
    return None
