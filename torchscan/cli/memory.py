"""``torchscan memory``: peak memory of a pass, and whether it fits."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torchscan.cli.options import (
    add_output,
    colours_of,
    memory_size,
    model_command,
    on_scan,
    put_remedies,
    put_table,
    to_complete_json,
)

_EXAMPLES = """\
examples
  torchscan memory torchvision:resnet50 --batch-size 32
  torchscan memory timm:vit_base_patch16_224 --training --optimizer AdamW --device "RTX 4090"
  torchscan memory hf:config.json --input input_ids=4096:long --device "24 GiB" --format json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "how much memory a pass peaks at, and whether it fits"
    parser = model_command(commands, "memory", help_, _EXAMPLES, run=_run, step=True)
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="does it fit there? torchscan devices lists them; or just a size, '24 GiB'",
    )
    parser.add_argument(
        "--context",
        metavar="SIZE",
        dest="cuda_context",
        type=memory_size,
        help="what a process holds there besides tensors",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--remedies", action="store_true", help="what would make it smaller, each change estimated"
    )
    asked.add_argument(
        "--largest-batch", action="store_true", help="also find the largest batch that fits there"
    )
    asked.add_argument(
        "--longest-sequence", action="store_true", help="also find the most tokens that fit there"
    )
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.estimator import memory_of
    from torchscan.report.memory_table import format_memory, memory_table

    if options.remedies:
        put_remedies(options, lambda scan: scan.memory)
        return
    searched = {
        "largest_batch": options.largest_batch,
        "longest_sequence": options.longest_sequence,
    }
    estimate = on_scan(options, lambda scan: memory_of(scan, **searched))
    text = partial(format_memory, estimate, options.width, colours=colours_of(options))
    put_table(memory_table(estimate), options, text=text, json=partial(to_complete_json, estimate))
