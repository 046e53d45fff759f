"""``torchscan receptive-field``: the part of the input that a unit of each layer sees."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torchscan.cli.answers import put_table
from torchscan.cli.on_targets import on_scan
from torchscan.cli.option_table import add_options
from torchscan.cli.options import add_output, model_command
from torchscan.errors import Argument, Give, InputError

if TYPE_CHECKING:
    from torchscan.report.table import Table

_EXAMPLES = """\
examples
  torchscan receptive-field torchvision:vgg16
  torchscan receptive-field torchvision:resnet50 --layer layer3.0.conv2
  torchscan receptive-field torchvision:swin_t --format json
  torchscan receptive-field torchvision:resnet50 --projective
  torchscan receptive-field torchvision:resnet50 --position 112,112"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Show which part of the input a unit of each layer sees."
    parser = model_command(commands, "receptive-field", help_, _EXAMPLES, run=_run)
    add_options(parser, "layer", "projective", "position", "strict_norm")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.analyses.receptive_field import receptive_fields
    from torchscan.report.field_table import field_table

    if options.projective or options.position is not None:
        put_table(_projective_table(options), options)
        return
    fields = on_scan(
        options, lambda scan: receptive_fields(scan.trace, strict_norm=options.strict_norm)
    )
    put_table(field_table(fields, options.layer), options)


def _projective_table(options: argparse.Namespace) -> Table:
    from torchscan.analyses.projective_field.reach_walks import projective_fields
    from torchscan.report.projective_table import projective_table

    if options.layer is not None and options.position is not None:
        raise InputError(
            Argument("position"), " is shown for all layers: leave out ", Give("layer")
        )
    fields = on_scan(
        options, lambda scan: projective_fields(scan.trace, strict_norm=options.strict_norm)
    )
    return projective_table(fields, options.layer, options.position)
