"""``torchscan roofline``: how long a pass takes on a device, and what limits it."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torchscan.cli.answers import put_checkpoints, put_suggestions, put_table, to_complete_json
from torchscan.cli.on_targets import on_scan
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_output, add_recipe, model_command

_EXAMPLES = """\
examples
  torchscan roofline torchvision:resnet50 -b 64 -d "RTX 4090" --precision fp16
  torchscan roofline timm:vit_base_patch16_224 --training -d H200 --precision bf16-mixed
  torchscan roofline hf:config.json --input input_ids=4096:long --input labels=4096:long \\
    --training --loss loss --optimizer AdamW --precision bf16 --float8 rowwise -d H100
  torchscan roofline torchvision:resnet50 --training -b 64 -d "RTX 4090" --suggestions
torchscan devices lists the devices; torchscan devices --measure measures this machine's."""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Estimate how long a pass takes on a device, and what limits it."
    parser = model_command(commands, "roofline", help_, _EXAMPLES, run=_run, step=True)
    add_option(parser, "device")
    add_options(parser, "compiled", "suggestions")
    add_recipe(parser)
    rows = parser.add_argument_group("rows")
    add_option(rows, "by", choices="report/roofline_table.py:Rows", default="layer")
    add_option(rows, "max_depth", default=2)
    add_option(rows, "top", default=15)
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.report.roofline_table import format_roofline, roofline_table

    if put_checkpoints(options, "suggestions"):
        return
    if options.suggestions:
        put_suggestions(options, lambda scan: scan.roofline)
        return
    roofline = on_scan(options, lambda scan: scan.roofline)
    shown: dict[str, Any] = {"by": options.by, "max_depth": options.max_depth, "top": options.top}
    text = partial(format_roofline, roofline, **shown, width=options.width)
    put_table(
        roofline_table(roofline, **shown),
        options,
        partial(roofline.to_html, **shown),
        text=text,
        json=partial(to_complete_json, roofline),
    )
