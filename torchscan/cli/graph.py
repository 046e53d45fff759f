"""``torchscan graph``: the data flow inside a module, as a plot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.on_targets import on_scan
from torchscan.cli.option_table import add_option
from torchscan.cli.options import model_command
from torchscan.cli.output import print_answer, print_written
from torchscan.errors import InputError
from torchscan.files import write_text
from torchscan.terminal import width_of

if TYPE_CHECKING:
    from torchscan.analyses.module_graph import ModuleGraph
    from torchscan.scan import Scan

_EXAMPLES = """\
examples
  torchscan graph torchvision:resnet50 layer3.0
  torchscan graph torchvision:resnet50 layer3.0 -o bottleneck.svg
  torchscan graph timm:vit_base_patch16_224 blocks.0.attn --operators -o attention.dot"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Show the data flow inside a module, as a table or a plot."
    parser = model_command(commands, "graph", help_, _EXAMPLES, run=_run)
    help_ = "Show this module (default: the model itself)."
    parser.add_argument("path", metavar="PATH", nargs="?", default="", help=help_)
    add_option(parser, "call", default=1)
    add_option(parser, "operators")
    help_ = "Write a plot (FILE.svg), or source for Graphviz (FILE.dot) or Mermaid (FILE.mmd)"
    add_option(parser.add_argument_group("output"), "output", help=help_)


def _run(options: argparse.Namespace) -> None:
    import sys

    from torchscan.analyses.module_graph import module_graph
    from torchscan.report.graphs.languages import graph_table

    write = None if options.output is None else _writer(options.output)

    def build(scan: Scan) -> ModuleGraph:
        index = options.call - 1
        return module_graph(scan.trace, options.path, index, fold=not options.operators)

    graph = on_scan(options, build)
    if write is None:
        table = graph_table(graph)
        print_answer(table.write("text", width=width_of(sys.stdout)))
    else:
        write_text(options.output, write(graph))
        print_written(options.output)


def _writer(output: Path) -> Callable[[ModuleGraph], str]:
    """Return the writer for the suffix of a file's name."""
    from torchscan.report.graphs.languages import to_dot, to_mermaid
    from torchscan.report.graphs.svg import to_svg

    known: Mapping[str, Callable[[ModuleGraph], str]] = {
        ".svg": to_svg,
        ".dot": to_dot,
        ".gv": to_dot,
        ".mmd": to_mermaid,
    }
    if output.suffix not in known:
        raise InputError(f"{output} has an unknown ending: give one of {', '.join(known)}")
    return known[output.suffix]
