"""``torchscan receptive-field``: the part of the input that a unit of each layer sees."""

from __future__ import annotations

import argparse
from typing import Any

from torchscan.cli.answers import put_table
from torchscan.cli.on_targets import on_scan
from torchscan.cli.option_table import add_options
from torchscan.cli.options import add_output, model_command

_EXAMPLES = """\
examples
  torchscan receptive-field torchvision:vgg16
  torchscan receptive-field torchvision:resnet50 --layer layer3.0.conv2
  torchscan receptive-field torchvision:swin_t --format json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Show which part of the input a unit of each layer sees."
    parser = model_command(commands, "receptive-field", help_, _EXAMPLES, run=_run)
    add_options(parser, "layer", "strict_norm")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.analyses.receptive_field import receptive_fields
    from torchscan.report.field_table import field_table

    fields = on_scan(
        options, lambda scan: receptive_fields(scan.trace, strict_norm=options.strict_norm)
    )
    put_table(field_table(fields, options.layer), options)
