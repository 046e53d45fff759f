"""What a command says: its answer on standard output, errors on standard error, and the exit status."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from typing import TextIO

from torchscan.escapes import printable_styled, printable_text
from torchscan.progress import is_terminal

FINE, EXCEEDED, WRONG_USE, FAILED = 0, 1, 2, 3

#: replacements for symbols that a terminal can't show
_ASCII = str.maketrans("─│├└–−×µ█▓▒░▛▞·▼┴", "-||`--xu#%=:&x.v+") | str.maketrans(
    {"≥": ">=", "…": "...", "→": "->", "✓": "ok", "✗": "exceeded:"}
    | dict.fromkeys("▏▎▍▌", "-")
    | dict.fromkeys("▋▊▉", "=")
)

#: what errors say of arguments in Python -> of options, in this order
_OPTIONS = (
    (
        "pass dtype=, one for all inputs or one per input,",
        "add --dtype, or a type to each --input, 4:long,",
    ),
    ("pass dtype=torch.long", "add --dtype long"),
    ("(batch_size= sets it)", "(--batch-size sets it)"),
    ("pass batch_size=2", "add --batch-size 2"),
    ("and batch_size=2", "and --batch-size 2"),
    ("give one shape per argument", "give one --input per argument"),
    ("complete args= and kwargs=", "in Python complete args= and kwargs="),
    ("pass execute='real'", "in Python pass execute='real'"),
    ("leave out training=True", "leave out --training"),
    ("give device=", "add --device "),
    ("precision=None", "no --precision"),
    ("strict=True", "--strict"),
    ("batch_size and global_batch_size", "--batch-size and --global-batch-size"),
    ("precision is", "--precision is"),
    ("weights= says", "--weights says"),
    ("give apply=", "in Python give apply="),
    ("give a smaller prompt= or new=", "give a smaller --context, --prompt or --new"),
    ("give length=", "give --length "),
    ("input_shape=", "--input "),
    ("another input_shape than", "another --input than"),
    ("input_shape is", "--input is"),
)
_ADVICE = "\n  try: "
#: a shape as it is in Python, which a shell would not take without quotes
_SHAPE = re.compile(r"(?<=--input )(than )?\((\d[\d, ]*?),?\)")


def in_options(text: str) -> str:
    """The same advice for people in a shell. What comes before the advice may be in words of the model's."""
    said, label, advice = text.rpartition(_ADVICE)
    for argument, option in _OPTIONS:
        advice = advice.replace(argument, option)
    return (
        said
        + label
        + _SHAPE.sub(lambda found: f"{found[1] or ''}{found[2].replace(' ', '')}", advice)
    )


def print_remark(text: str) -> None:
    """Print a remark on standard error."""
    explain(f"torchscan: {text}")


def explain(text: str) -> None:
    """Print what belongs to a remark. Where it cannot be written, the exit status still says how it went."""
    try:
        print(_in(sys.stderr.encoding, printable_styled(text)), file=sys.stderr)  # noqa: T201 - printing is what it is for
    except OSError:
        write_no_more(sys.stderr)


def write_no_more(stream: TextIO) -> None:
    """Drop what could not be written; otherwise Python tries again at exit, and fails with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def answer(text: str, *, is_document: bool = False) -> None:
    """Print the answer. Text uses the symbols that the terminal has; a document for programs is always UTF-8."""
    buffer = getattr(sys.stdout, "buffer", None)
    if is_document and buffer is not None:
        sys.stdout.flush()
        if is_terminal(sys.stdout):
            text = printable_text(text)
        buffer.write(f"{text}\n".encode())
        buffer.flush()
    else:
        print(_in(sys.stdout.encoding, printable_styled(text)), flush=True)  # noqa: T201 - printing is what it is for


def report_internal_error(error: Exception) -> int:
    """Report a bug of torchscan, and return its exit status."""
    if "TORCHSCAN_DEBUG" in os.environ:
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    address = issue_tracker()
    place = f" at {address}" if address else ""
    print_remark(
        f"internal error of torchscan: {error!r}: please report it{place} (TORCHSCAN_DEBUG=1 shows "
        "where it happened)"
    )
    return FAILED


def issue_tracker() -> str:
    """Return the address where problems are reported, or "" if ``pyproject.toml`` names none."""
    from importlib import metadata  # slow to import, and only for this

    try:
        addresses = metadata.metadata("torchscan").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a copy of the sources that is not installed
        return ""
    by_label: dict[str, str] = dict(each.split(", ", 1) for each in addresses if ", " in each)
    return by_label.get("Issues", "")


def _in(encoding: str | None, text: str) -> str:
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return (
            text.translate(_ASCII)
            .encode(encoding or "utf-8", "backslashreplace")
            .decode(encoding or "utf-8")
        )
    return text
