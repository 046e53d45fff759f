"""``torchscan memory``: peak memory of a pass, and whether it fits."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import (
    add_output,
    colours_of,
    model_command,
    on_scan,
    put_suggestions,
    put_table,
    to_complete_json,
)

_EXAMPLES = """\
examples
  torchscan memory torchvision:resnet50 -b 32
  torchscan memory timm:vit_base_patch16_224 --training --optimizer AdamW -d "RTX 4090"
  torchscan memory torchvision:resnet50 --training -d "8 GiB" --largest-batch
  torchscan memory hf:config.json --input input_ids=4096:long -d "24 GiB" --format json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Estimate the peak memory of a pass, and whether it fits."
    parser = model_command(commands, "memory", help_, _EXAMPLES, run=_run, step=True)
    help_ = "Check whether it fits on this device: a name ('RTX 4090') or a size ('24 GiB')"
    add_option(parser, "device", help=help_)
    add_option(parser, "cuda_context")
    exclusive = parser.add_mutually_exclusive_group()
    add_options(exclusive, "suggestions", "largest_batch", "longest_sequence")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.estimator import memory_of
    from torchscan.report.memory_table import format_memory, memory_table

    if options.suggestions:
        put_suggestions(options, lambda scan: scan.memory)
        return
    searched = {
        "largest_batch": options.largest_batch,
        "longest_sequence": options.longest_sequence,
    }
    estimate = on_scan(options, lambda scan: memory_of(scan, **searched))
    text = partial(format_memory, estimate, options.width, colours=colours_of(options))
    put_table(memory_table(estimate), options, text=text, json=partial(to_complete_json, estimate))
