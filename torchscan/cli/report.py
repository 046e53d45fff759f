"""``torchscan report``: everything about a model on one page."""

from __future__ import annotations

import argparse
import html
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.arguments import model_command, on_model
from torchscan.cli.saying import answer, in_options
from torchscan.errors import TorchscanError
from torchscan.files import write_text

if TYPE_CHECKING:
    from torchscan.scan import Scan
    from torchscan.targets import Built

_EXAMPLES = """\
examples
  torchscan report torchvision:resnet50
  torchscan report timm:vit_base_patch16_224 --training --optimizer AdamW --output vit.html"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "layers, costs, memory and times of a model as one page"
    parser = model_command(commands, "report", help_, _EXAMPLES, run=_run, step=True)
    parser.add_argument("--device", metavar="NAME", help="does it fit there, and how long does it take?")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, default=Path("torchscan.html"), help="the page (default torchscan.html)"
    )


def _run(options: argparse.Namespace) -> None:
    from torchscan.hardware.devices import device_named
    from torchscan.report.html import page
    from torchscan.units import printable

    if options.device is not None:
        device_named(options.device)
    parts = on_model(options, options.target, _sections)
    write_text(
        options.output, page(f"torchscan: {options.target}", f"<h1>{html.escape(printable(options.target))}</h1>\n", *parts)
    )
    answer(f"written to {options.output}")


def _sections(built: Built, scan: Scan) -> list[str]:
    """All sections, from one scan. For a training step, operators are those in pieces, whose record exists anyway."""
    from torchscan.report.costs import cost_table
    from torchscan.report.export import to_html
    from torchscan.report.html import part_of
    from torchscan.report.memory import memory_table
    from torchscan.report.roofline import roofline_table

    is_step = scan.question.training
    sections: dict[str, Callable[[], str]] = {
        f"Layers{', forward pass' if is_step else ''}": lambda: to_html(scan.forward.info),
        f"Operators{', whole training step' if is_step else ''}": lambda: part_of(
            cost_table(scan.steps if is_step else scan.trace)
        ),
        "Memory": lambda: part_of(memory_table(scan.memory)),
    }
    if scan.question.device is not None:
        sections["Time"] = lambda: part_of(roofline_table(scan.roofline))
    return [f"<h2>{title}</h2>\n{_part(built, title, part)}\n" for title, part in sections.items()]


def _part(built: Built, title: str, part: Callable[[], str]) -> str:
    """One section. Any section except the layers may be missing; then the reason takes its place."""
    from torchscan.targets import may_need_data

    try:
        return part()
    except TorchscanError as error:
        if title.startswith("Layers") or (built.has_another_chance and may_need_data(error)):
            raise
        return f"<p>Not known: {html.escape(in_options(str(error)))}</p>"
