"""``torchscan report``: all that is known of a model, on one page."""

from __future__ import annotations

import argparse
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchscan.cli.arguments import INPUTS, TARGETS, add_command, add_model, add_step, on_model, step_of
from torchscan.cli.saying import answer
from torchscan.errors import TorchscanError
from torchscan.files import write_text

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

    if options.device is not None:
        device_named(options.device)
    step_of(options)
    sections = [("Layers", _layers, True), ("Operators", _operators, False), ("Memory", _memory, False)]
    sections += [("Time", _time, False)] if options.device is not None else []
    parts = [f"<h2>{title}</h2>\n{_part(options, part, is_needed=is_needed)}\n" for title, part, is_needed in sections]
    write_text(options.output, page(f"torchscan: {options.target}", f"<h1>{html.escape(options.target)}</h1>\n", *parts))
    answer(f"written to {options.output}")


def _part(options: argparse.Namespace, part: Callable[..., str], *, is_needed: bool) -> str:
    """One section; but for the layers it may be missing, with the reason in its place."""
    try:
        return on_model(options, options.target, lambda module, inputs: part(options, module, inputs))
    except TorchscanError as error:
        if is_needed:
            raise
        return f"<p>Not known: {html.escape(str(error))}</p>"


def _layers(options: argparse.Namespace, module: Any, inputs: dict[str, Any]) -> str:
    from torchscan.crawler import crawl_module
    from torchscan.report.export import to_html

    return to_html(crawl_module(module, **inputs, mode=options.mode or "eval"))


def _operators(options: argparse.Namespace, module: Any, inputs: dict[str, Any]) -> str:
    from torchscan.crawler import record
    from torchscan.report.costs import cost_table
    from torchscan.report.html import part_of

    mode: Any = options.mode or ("train" if options.training else "eval")
    return part_of(cost_table(record(module, **inputs, mode=mode, backward=options.training)))


def _memory(options: argparse.Namespace, module: Any, inputs: dict[str, Any]) -> str:
    from torchscan.estimator import estimate_memory
    from torchscan.report.memory import format_memory

    return _text(format_memory(estimate_memory(module, **inputs, **step_of(options), device=options.device), _WIDTH))


def _time(options: argparse.Namespace, module: Any, inputs: dict[str, Any]) -> str:
    from torchscan.estimator import analyze_roofline
    from torchscan.report.roofline import format_roofline

    return _text(format_roofline(analyze_roofline(module, **inputs, **step_of(options), device=options.device), width=_WIDTH))


def _text(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
