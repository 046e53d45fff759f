"""``torchscan explore``: a run in the browser, while it is written or afterwards."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torchscan.cli.options import add_command
from torchscan.cli.saying import answer

_EXAMPLES = """\
examples
  torchscan explore runs/first
  torchscan explore runs/first runs/second
  torchscan explore runs/first --output run.html"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "explore", "a watched run in the browser, live", _EXAMPLES, run=_run
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=Path,
        help="its folder; further runs are shown beside it",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default: this machine alone)"
    )
    parser.add_argument(
        "--port", type=int, help="to listen on; if it is taken, another free port is used"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write one file instead, which needs no server"
    )


def _run(options: argparse.Namespace) -> None:
    if options.output is None:
        from torchscan.live.explore.serving import PORT, explore

        explore(options.runs, options.host, PORT if options.port is None else options.port, _tell)
        return
    from torchscan.live.explore.run_page import page_of_run

    page_of_run(*options.runs).save(options.output)
    answer(f"written to {options.output}")


def _tell(url: str) -> None:
    answer(f"{url}\nCtrl+C ends it.")
    sys.stdout.flush()
