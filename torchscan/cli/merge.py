"""``torchscan merge``: one file of a run that several processes have written."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchscan.cli.options import add_command

_EXAMPLES = """\
examples
  torchscan merge runs/first first.sqlite"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "merge", "unite the files of a watched run's processes", _EXAMPLES, run=_run
    )
    parser.add_argument("folder", type=Path, help="the folder of the run")
    parser.add_argument("output", type=Path, help="the file to write; open_run() reads it")


def _run(options: argparse.Namespace) -> None:
    from torchscan.live.merging import merge

    merge(options.folder, options.output)
