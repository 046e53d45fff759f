"""``torchscan compare``: what changed between two reports."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchscan.cli.arguments import add_command, add_output, put

_EXAMPLES = """\
Reports are what torchscan summary TARGET --format json writes, to_json() returns, and
torchscan check --update records.

examples
  torchscan compare before.json after.json
  torchscan compare before.json after.json --format github >> $GITHUB_STEP_SUMMARY"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(commands, "compare", "what changed between two reports, layer by layer", _EXAMPLES, run=_run)
    parser.add_argument("before", type=Path, help="a report")
    parser.add_argument("after", type=Path, help="another")
    add_output(parser, ("text", "markdown", "github", "json"))


def _run(options: argparse.Namespace) -> None:
    import json

    from torchscan.report.compare import compare_info, format_comparison
    from torchscan.report.data import read_report

    comparison = compare_info(read_report(options.before), read_report(options.after))
    if options.format == "json":
        put(json.dumps(comparison.as_dict(), indent=2), options)
    else:
        put(format_comparison(comparison, markdown=options.format != "text", width=options.width), options)
