"""``torchscan roofline``: how long a pass takes on a device, and what limits it."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torchscan.cli.options import (
    add_output,
    model_command,
    on_scan,
    positive,
    put_remedies,
    put_table,
    to_complete_json,
)

_EXAMPLES = """\
examples
  torchscan roofline torchvision:resnet50 --batch-size 64 --device "RTX 4090" --precision fp16
  torchscan roofline timm:vit_base_patch16_224 --training --device H200 --precision bf16-mixed
torchscan devices lists the devices; torchscan devices --measure measures this machine's."""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "how long a pass takes on a device, and what limits it"
    parser = model_command(commands, "roofline", help_, _EXAMPLES, run=_run, step=True)
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="which device (default: this machine's)"
    )
    parser.add_argument("--compiled", action="store_true", help="estimate for torch.compile")
    parser.add_argument(
        "--remedies", action="store_true", help="what would make it faster, each change estimated"
    )
    rows = parser.add_argument_group("rows")
    rows.add_argument(
        "--by", choices=("layer", "kind", "operator"), default="layer", help="default layer"
    )
    rows.add_argument(
        "--depth", metavar="N", type=int, default=2, help="fold layers deeper than this (default 2)"
    )
    rows.add_argument(
        "--top", metavar="N", type=positive, default=15, help="how many rows (default 15)"
    )
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.report.roofline_table import format_roofline, roofline_table

    if options.remedies:
        put_remedies(options, lambda scan: scan.roofline)
        return
    roofline = on_scan(options, lambda scan: scan.roofline)
    shown: dict[str, Any] = {"by": options.by, "max_depth": options.depth, "top": options.top}
    text = partial(format_roofline, roofline, **shown, width=options.width)
    put_table(
        roofline_table(roofline, **shown),
        options,
        text=text,
        json=partial(to_complete_json, roofline),
    )
