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
    require_step,
)

_METRICS = """\
Metrics: params trainable_params model_size macs flops dmas activation_memory peak_memory
receptive_field latency. A latency is an estimate for a --device."""
_EXAMPLES = """\
examples
  torchscan table torchvision:resnet18 torchvision:resnet50 --format latex
  torchscan table timm:vit_tiny_patch16_224 timm:vit_base_patch16_224 --device "RTX 4090"
  torchscan table torchvision:resnet50 torchvision:vit_b_16 --metrics params,macs --format markdown"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "table", "several models, one in a row, for a paper", TARGETS, INPUTS, _METRICS, _EXAMPLES, run=_run
    )
    add_model(parser, several=True)
    add_step(parser)
    parser.add_argument("--metrics", metavar="A,B", type=names, help="what to list for each model; see below")
    parser.add_argument("--device", metavar="NAME", help="estimate the latency on it")
    add_output(parser, FORMATS)


def _run(options: argparse.Namespace) -> None:
    from torchscan.scan import Scan
    from torchscan.tables import chosen_metrics, read, table_of

    require_step(options)
    metrics = chosen_metrics(options.metrics, options.device)
    scans: dict[str, Scan] = {
        _name(target, options.target): on_model(options, target, lambda _, scan: read(scan, metrics))
        for target in options.target
    }
    put(table_of(scans, metrics).write(options.format, width=options.width), options)


def _name(target: str, others: list[str]) -> str:
    """Without the collection or the module that it comes from, unless another is called the same."""
    name = target.rpartition(":")[2]
    return name if sum(other.endswith(f":{name}") for other in others) == 1 else target
