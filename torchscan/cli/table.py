"""``torchscan table``: several models, one in a row, for a paper or a page."""

from __future__ import annotations

import argparse
from typing import Any

from torchscan.cli.arguments import (
    FORMATS,
    INPUTS,
    TARGETS,
    add_command,
    add_model,
    add_output,
    add_step,
    names,
    on_model,
    put,
    step_of,
)

_FIGURES = """\
Figures: params trainable_params model_size macs flops dmas activation_memory peak_memory
receptive_field latency. A latency is an estimate for a --device."""
_EXAMPLES = """\
examples
  torchscan table torchvision:resnet18 torchvision:resnet50 --format latex
  torchscan table timm:vit_tiny_patch16_224 timm:vit_base_patch16_224 --device "RTX 4090"
  torchscan table torchvision:resnet50 torchvision:vit_b_16 --figures params,macs --format markdown"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "table", "several models, one in a row, for a paper", TARGETS, INPUTS, _FIGURES, _EXAMPLES, run=_run
    )
    add_model(parser, several=True)
    add_step(parser)
    parser.add_argument("--figures", metavar="A,B", type=names, help="what to list of each model; see below")
    parser.add_argument("--device", metavar="NAME", help="estimate the latency on it")
    add_output(parser, FORMATS)


def _run(options: argparse.Namespace) -> None:
    from torchscan.figures import Question
    from torchscan.tables import measured_row, table_of

    step = {**step_of(options), "device": options.device}
    models = {
        _name(target, options.target): on_model(
            options, target, lambda module, inputs: measured_row(Question(module, **inputs, **step), options.figures)
        )
        for target in options.target
    }
    put(table_of(models, options.figures).write(options.format, width=options.width), options)


def _name(target: str, others: list[str]) -> str:
    """Without the collection or the module that it comes from, unless another is called the same."""
    name = target.rpartition(":")[2]
    return name if sum(other.endswith(f":{name}") for other in others) == 1 else target
