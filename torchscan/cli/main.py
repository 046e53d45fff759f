"""``torchscan COMMAND``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from torchscan._version import __version__
from torchscan.cli import (
    check,
    compare,
    completion,
    devices,
    graph,
    inspect,
    llm,
    memory,
    model_table,
    receptive_field,
    report,
    roofline,
    runs,
    summary,
)
from torchscan.cli.answers import choose_format
from torchscan.cli.help_layout import HelpLayout
from torchscan.cli.options import parsers_by_command
from torchscan.cli.output import (
    INVALID_USE,
    SUCCESS,
    discard,
    print_remark,
    report_internal_error,
)
from torchscan.cli.renamed import describe_renamed
from torchscan.cli.spelling import ShellSpelling
from torchscan.cli.unknown_words import describe_command, describe_options
from torchscan.errors import TorchscanError
from torchscan.files import shortened
from torchscan.user_warnings import TorchscanWarning

#: warnings that are meant for authors of libraries
_WARNINGS_FOR_AUTHORS = (
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    ImportWarning,
    ResourceWarning,
)
#: errors of a path that was given
_OF_PATHS = (
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.ENOENT,
    errno.EINVAL,
)
INTERRUPTED, UNREAD = 130, 141  # as shells report these signals

_COMMANDS = (
    summary,
    receptive_field,
    memory,
    roofline,
    llm,
    graph,
    report,
    inspect,
    runs,
    model_table,
    compare,
    check,
    devices,
    completion,
)
_EPILOG = """\
examples
  torchscan summary torchvision:resnet50
  torchscan summary 'models.py:Net(width=64)' --input 3,32,32 --max-depth 2
  torchscan memory timm:vit_base_patch16_224 --training --optimizer AdamW -d "RTX 4090"
  torchscan table torchvision:resnet18 torchvision:resnet50 --format latex
  torchscan inspect -- python train.py
  torchscan check

Run torchscan COMMAND --help for details. Exit status: 0 success; 1 a budget is exceeded, or inspect
--on-nonfinite raise found a NaN; 2 invalid arguments; 3 internal error."""


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, and takes no abbreviations of options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fixed = {"add_help": False, "allow_abbrev": False, "formatter_class": HelpLayout}
        super().__init__(*args, **{**kwargs, **fixed})
        self.add_argument("--help", "-h", action="help", help="Show this help and exit.")

    def error(self, message: str) -> NoReturn:
        """Exit with the message and the command that explains more."""
        self.exit(INVALID_USE, f"torchscan: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = _Parser(
        "torchscan",
        description="Analyze what a PyTorch model consists of and costs, and inspect its training.",
        epilog=_EPILOG,
    )
    help_ = "Show the version and exit."
    top.add_argument("--version", action="version", version=__version__, help=help_)
    commands = top.add_subparsers(
        required=True, dest="command", metavar="COMMAND", title="commands"
    )
    for command in _COMMANDS:
        command.add_to(commands)
    top.set_defaults(commands=commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status. Errors go to standard error.

    Without ``arguments`` it is what this process was started for, and the process ends with it.
    """
    words, program = inspect.parted(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams(is_for_program=program is not None)
    top = parser()
    if not words and program is None:
        top.print_help(sys.stderr)
        return INVALID_USE
    commands = top.get_default("commands")
    renamed = describe_renamed(words, parsers_by_command(commands))
    if renamed is not None:
        print_remark(renamed)
        return INVALID_USE
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        top.error(describe_command(words[0], commands.choices))
    words = runs.with_default_command(words)
    given = argparse.Namespace(program=program, is_last=arguments is None)
    options, unknown = top.parse_known_args(words, given)
    if unknown:
        options.parser.error(describe_options(options, unknown, words))
    return _run_command(options)


def _prepare_streams(*, is_for_program: bool) -> None:
    """Replace streams that the caller has closed, and let others print what a terminal lacks.

    A program keeps its streams.
    """
    if sys.stdout is None or sys.stderr is None:
        nowhere = open(os.devnull, "w")  # noqa: SIM115
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if is_for_program:
        return
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")


def _run_command(options: argparse.Namespace) -> int:
    """Run a command, report its errors and return the exit status.

    A program keeps its warnings.
    """
    is_for_program = options.program is not None
    try:
        choose_format(options)
        with contextlib.nullcontext() if is_for_program else _notes(options):
            status = options.function(options)
            sys.stdout.flush()
        return SUCCESS if status is None else int(status)
    except TorchscanError as error:
        print_remark(error.write(ShellSpelling(options)))
        return INVALID_USE
    except BrokenPipeError:
        # The reader has closed the pipe, so the rest of the command is unknown.
        discard(sys.stdout)
        return UNREAD
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None and error.errno in _OF_PATHS:
            print_remark(f"{shortened(error.filename)} cannot be used: {error.strerror}")
            return INVALID_USE
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            return report_internal_error(error)
        print_remark(f"the answer cannot be written: {error.strerror}")
        discard(sys.stdout)
        return INVALID_USE
    except Exception as error:
        return report_internal_error(error)


@contextlib.contextmanager
def _notes(options: argparse.Namespace) -> Iterator[None]:
    """Show each warning once, as a line."""
    shown: set[str] = set()

    def show(message: Any, *_: Any, **__: Any) -> None:
        text = str(message)
        if text in shown:
            return
        shown.add(text)
        if isinstance(message, TorchscanWarning):
            text = message.write(ShellSpelling(options))
        print_remark(f"note: {text}")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for kind in _WARNINGS_FOR_AUTHORS:
            warnings.simplefilter("ignore", kind)
        # torch warns of this when it is imported, and nothing here needs NumPy.
        warnings.filterwarnings("ignore", "Failed to initialize NumPy")
        warnings.showwarning = show
        yield
