"""``torchscan compare``: what changed between two reports."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from torchscan.cli.arguments import add_command, add_output, in_full, put_table

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
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.report.compare import compare_info, comparison_table, format_comparison
    from torchscan.report.data import read_report

    comparison = compare_info(read_report(options.before), read_report(options.after))
    text = partial(format_comparison, comparison, width=options.width)
    markdown = partial(format_comparison, comparison, markdown=True)
    put_table(comparison_table(comparison), options, text=text, markdown=markdown, json=partial(in_full, comparison))
