"""``torchscan memory``: what a pass peaks at, and whether it fits."""

from __future__ import annotations

import argparse
from typing import Any

from torchscan.cli.arguments import INPUTS, TARGETS, add_command, add_model, add_output, add_step, on_scan, put

_EXAMPLES = """\
examples
  torchscan memory torchvision:resnet50 --batch-size 32
  torchscan memory timm:vit_base_patch16_224 --training --optimizer AdamW --device "RTX 4090"
  torchscan memory hf:config.json --input input_ids=4096:long --device "24 GiB" --format json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "memory", "how much memory a pass peaks at, and whether it fits", TARGETS, INPUTS, _EXAMPLES, run=_run
    )
    add_model(parser)
    add_step(parser)
    parser.add_argument(
        "--device", metavar="NAME", help="does it fit there? torchscan devices lists them; or just a size, '24 GiB'"
    )
    parser.add_argument("--largest-batch", action="store_true", help="also look for the largest batch that fits there")
    add_output(parser, ("text", "json"))


def _run(options: argparse.Namespace) -> None:
    import json

    from torchscan.estimator import memory_of
    from torchscan.report.memory import format_memory

    estimate = on_scan(options, lambda scan: memory_of(scan, largest_batch=options.largest_batch))
    is_text = options.format == "text"
    put(format_memory(estimate, options.width) if is_text else json.dumps(estimate.as_dict(), indent=2), options)
