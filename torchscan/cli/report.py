"""``torchscan report``: an HTML report of a model."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.on_targets import on_model
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import model_command
from torchscan.cli.output import INVALID_USE, SUCCESS, print_remark, print_written
from torchscan.cli.spelling import ShellSpelling
from torchscan.errors import Give, InputError, RecordError, TorchscanError
from torchscan.files import read_text, write_text

if TYPE_CHECKING:
    from torchscan.scan import Scan
    from torchscan.targets import Built

#: file that is written if none is named
_USUAL = "torchscan.html"
_EXAMPLES = """\
examples
  torchscan report torchvision:resnet50
  torchscan report timm:vit_base_patch16_224 --training --optimizer AdamW -d H100 -o vit.html
  torchscan inspect torchvision:resnet50 --training --save run.json
  torchscan report torchvision:resnet50 --training --run run.json
  torchscan report torchvision:resnet50 --overlay sensitivity.csv"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Write an HTML report: graph, layers, memory and times of a model."
    parser = model_command(commands, "report", help_, _EXAMPLES, run=_run, step=True)
    add_options(parser, "device", "run", "overlay")
    add_option(parser, "output", help=f"Write to this file (default: {_USUAL})")


def _run(options: argparse.Namespace) -> int:
    from torchscan.hardware.device_specs import can_estimate_for, device_named
    from torchscan.pages import html_report
    from torchscan.report.paging.overlay_file import read_overlays
    from torchscan.watching.opening import open_run

    output = options.output or _usual_output()
    if can_estimate_for(options.device):
        device_named(options.device)
    run = None if options.run is None else open_run(options.run)
    overlay = None if options.overlay is None else read_overlays(options.overlay)
    failures: list[str] = []
    spelling = ShellSpelling(options)

    def made(built: Built, scan: Scan) -> str:
        return html_report(
            scan,
            options.target,
            run=run,
            overlay=overlay,
            excuse=partial(_excuse, built, spelling, failures),
        )

    page = on_model(options, options.target, made)
    write_text(output, page)
    print_written(output)
    for each in failures:
        print_remark(each)
    return INVALID_USE if failures else SUCCESS


def _usual_output() -> Path:
    """Return the file for reports without a name, unless it has another content."""
    from torchscan.report.paging.model_page import is_page

    output = Path(_USUAL)
    if output.is_file() and not is_page(read_text(output, "the file")):
        raise InputError(
            f"{_USUAL} exists and is not a report of torchscan: give ",
            Give("output", "report.html"),
            " or another name",
        )
    return output


def _excuse(
    built: Built, spelling: ShellSpelling, failures: list[str], error: TorchscanError
) -> str:
    """Return why a part is missing, unless the model has another chance, with data.

    A pass that fails has a report, too.
    """
    from torchscan.targets import may_need_data

    if built.has_another_chance and may_need_data(error):
        raise error
    text = error.write(spelling)
    if isinstance(error, RecordError):
        failures.append(text)
    return text
