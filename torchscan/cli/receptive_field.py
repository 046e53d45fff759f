"""``torchscan receptive-field``: which part of the input a unit of each layer sees."""

from __future__ import annotations

import argparse
from typing import Any

from torchscan.cli.options import add_output, model_command, on_scan, put_table

_EXAMPLES = """\
examples
  torchscan receptive-field torchvision:vgg16
  torchscan receptive-field torchvision:resnet50 --layer layer3.0.conv2
  torchscan receptive-field torchvision:swin_t --format json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "which part of the input a unit of each layer sees"
    parser = model_command(commands, "receptive-field", help_, _EXAMPLES, run=_run)
    parser.add_argument(
        "--layer", metavar="PATH", help="only this layer, axis by axis, with its phases"
    )
    parser.add_argument(
        "--strict-norm",
        action="store_true",
        help="count the elements behind the statistics of norms as seen",
    )
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.analyses.receptive_field import receptive_fields
    from torchscan.report.fields import field_table

    fields = on_scan(
        options, lambda scan: receptive_fields(scan.trace, strict_norm=options.strict_norm)
    )
    put_table(field_table(fields, options.layer), options)
