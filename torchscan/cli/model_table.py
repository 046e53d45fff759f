"""``torchscan table``: several models, one per row, for a paper or a page."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torchscan.cli.answers import put_table
from torchscan.cli.on_targets import on_one_of_several
from torchscan.cli.option_table import add_option
from torchscan.cli.options import add_output, model_command

_METRICS = """\
Metrics: params trainable_params model_size macs flops dmas activation_memory peak_memory
receptive_field latency. A latency is an estimate for a --device."""
_EXAMPLES = """\
examples
  torchscan table torchvision:resnet18 torchvision:resnet50 --format latex
  torchscan table timm:vit_tiny_patch16_224 timm:vit_base_patch16_224 -d "RTX 4090"
  torchscan table torchvision:resnet50 torchvision:vit_b_16 --metrics params,macs --format markdown\
"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Compare several models in a table, one per row, for a paper."
    parser = model_command(
        commands, "table", help_, _METRICS, _EXAMPLES, run=_run, models="+", step=True
    )
    add_option(parser, "metrics")
    add_option(parser, "device", help="Estimate the latency on this device: 'RTX 4090'")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.tables import chosen_metrics, read, table_of

    metrics = chosen_metrics(options.metrics, options.device)
    called: dict[str, str] = {}
    for target in options.target:
        _, _, name = target.rpartition(":")
        is_unique = sum(other.endswith(f":{name}") for other in options.target) == 1
        # Names have no collection or module, unless several models share one.
        called[target] = name if is_unique else target
    scans = {
        name: on_one_of_several(options, target, partial(read, metrics=metrics))
        for target, name in called.items()
    }
    put_table(table_of(scans, metrics), options)
