"""``torchscan roofline``: how long a pass takes on a device, and what limits it."""

from __future__ import annotations

import argparse
from typing import Any

from torchscan.cli.arguments import (
    INPUTS,
    TARGETS,
    add_command,
    add_model,
    add_output,
    add_step,
    on_scan,
    positive,
    put,
)

_EXAMPLES = """\
examples
  torchscan roofline torchvision:resnet50 --batch-size 64 --device "RTX 4090" --precision fp16
  torchscan roofline timm:vit_base_patch16_224 --training --device H200 --precision bf16-mixed
torchscan devices lists the devices; torchscan devices --measure measures the one at hand."""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "roofline", "how long a pass takes on a device, and what limits it", TARGETS, INPUTS, _EXAMPLES, run=_run
    )
    add_model(parser)
    add_step(parser)
    parser.add_argument("--device", metavar="NAME", default="auto", help="which device (default: this machine's)")
    parser.add_argument("--compiled", action="store_true", help="as torch.compile runs it")
    rows = parser.add_argument_group("rows")
    rows.add_argument("--by", choices=("layer", "kind", "operator"), default="layer", help="default layer")
    rows.add_argument("--depth", metavar="N", type=int, default=2, help="fold layers deeper than this (default 2)")
    rows.add_argument("--top", metavar="N", type=positive, default=15, help="how many rows (default 15)")
    add_output(parser, ("text", "json"))


def _run(options: argparse.Namespace) -> None:
    import json

    from torchscan.report.roofline import format_roofline

    roofline = on_scan(options, lambda scan: scan.roofline)
    if options.format == "json":
        put(json.dumps(roofline.as_dict(), indent=2), options)
    else:
        put(format_roofline(roofline, options.by, max_depth=options.depth, rows=options.top, width=options.width), options)
