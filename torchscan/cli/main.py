"""``torchscan COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchscan._version import __version__
from torchscan.cli import devices
from torchscan.errors import TorchscanError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0, or 2 with what is wrong on standard error."""
    parser = argparse.ArgumentParser("torchscan", description="What a PyTorch model is and what it costs.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    devices.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except TorchscanError as error:
        print(f"torchscan: {error}", file=sys.stderr)  # noqa: T201 - printing is what it is for
        return 2
    return 0
