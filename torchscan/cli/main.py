"""``torchscan COMMAND``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from torchscan._version import __version__
from torchscan.cli import (
    check,
    compare,
    completion,
    devices,
    flops,
    memory,
    receptive_field,
    report,
    roofline,
    summary,
    table,
)
from torchscan.errors import TorchscanError

FINE, EXCEEDED, WRONG_USE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130

_COMMANDS = (summary, flops, roofline, memory, receptive_field, table, report, compare, check, devices, completion)
_EPILOG = """\
examples
  torchscan summary torchvision:resnet50
  torchscan summary 'models.py:Net(width=64)' --input 3,32,32 --depth 2
  torchscan memory timm:vit_base_patch16_224 --training --optimizer AdamW --device "RTX 4090"
  torchscan table torchvision:resnet18 torchvision:resnet50 --format latex
  torchscan check

torchscan COMMAND --help says more. Exit status: 0 fine, 1 a budget is exceeded, 2 wrong use,
3 torchscan itself failed."""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        "torchscan",
        description="What a PyTorch model is and what it costs, before anything is trained.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for command in _COMMANDS:
        command.add_to(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status; what is wrong goes to standard error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # rules and signs, where they cannot be shown
    options = parser().parse_args(arguments)
    try:
        with _notes():
            status = options.run(options)
            sys.stdout.flush()
        return FINE if status is None else int(status)
    except TorchscanError as error:
        _say(str(error))
        return WRONG_USE
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if "TORCHSCAN_DEBUG" in os.environ:
            traceback.print_exc()
        _say(f"this is a mistake of torchscan's, please report it: {error!r} (TORCHSCAN_DEBUG=1 shows where)")
        return FAILED


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Warnings as a person reads them, each once."""
    told: set[str] = set()

    def show(message: Any, *_: Any, **__: Any) -> None:
        if str(message) not in told:
            told.add(str(message))
            _say(f"note: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _say(text: str) -> None:
    print(f"torchscan: {text}", file=sys.stderr)  # noqa: T201 - printing is what it is for
