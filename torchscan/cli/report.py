"""``torchscan report``: all that is known of a model, on one page."""

from __future__ import annotations

import argparse
import html
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.arguments import INPUTS, TARGETS, add_command, add_model, add_step, on_model, require_step
from torchscan.cli.saying import answer
from torchscan.errors import TorchscanError
from torchscan.files import write_text

if TYPE_CHECKING:
    from torchscan.scan import Scan
    from torchscan.targets import Built

_EXAMPLES = """\
examples
  torchscan report torchvision:resnet50
  torchscan report timm:vit_base_patch16_224 --training --optimizer AdamW --output vit.html"""
_WIDTH = 110


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "report", "layers, costs, memory and times of a model as one page", TARGETS, INPUTS, _EXAMPLES, run=_run
    )
    add_model(parser)
    add_step(parser)
    parser.add_argument("--device", metavar="NAME", help="does it fit there, and how long does it take?")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, default=Path("torchscan.html"), help="the page (default torchscan.html)"
    )


def _run(options: argparse.Namespace) -> None:
    from torchscan.hardware.devices import device_named
    from torchscan.report.html import page

    require_step(options)
    if options.device is not None:
        device_named(options.device)
    parts = on_model(options, options.target, _sections)
    write_text(options.output, page(f"torchscan: {options.target}", f"<h1>{html.escape(options.target)}</h1>\n", *parts))
    answer(f"written to {options.output}")


def _sections(built: Built, scan: Scan) -> list[str]:
    """All of them from one scan."""
    sections = [("Layers", _layers), ("Operators", _operators), ("Memory", _memory)]
    sections += [("Time", _time)] if scan.question.device is not None else []
    return [f"<h2>{title}</h2>\n{_part(built, scan, part)}\n" for title, part in sections]


def _part(built: Built, scan: Scan, part: Callable[[Scan], str]) -> str:
    """One section; but for the layers it may be missing, with the reason in its place."""
    from torchscan.targets import may_need_data

    try:
        return part(scan)
    except TorchscanError as error:
        if part is _layers or (built.has_another_chance and may_need_data(error)):
            raise
        return f"<p>Not known: {html.escape(str(error))}</p>"


def _layers(scan: Scan) -> str:
    from torchscan.report.export import to_html

    return to_html(scan.forward.info)


def _operators(scan: Scan) -> str:
    """Of a training step as the device runs them, which takes no record of its own."""
    from torchscan.report.costs import cost_table
    from torchscan.report.html import part_of

    return part_of(cost_table(scan.steps if scan.question.training else scan.trace))


def _memory(scan: Scan) -> str:
    from torchscan.report.memory import format_memory

    return _text(format_memory(scan.memory, _WIDTH))


def _time(scan: Scan) -> str:
    from torchscan.report.roofline import format_roofline

    return _text(format_roofline(scan.roofline, width=_WIDTH))


def _text(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
