"""Answers of commands, printed or written in the format of the options."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchscan.cli.on_targets import on_scan
from torchscan.cli.option_values import COMPARE
from torchscan.cli.options import first_given
from torchscan.cli.output import print_answer, print_written
from torchscan.errors import Argument, Give, InputError, Value
from torchscan.files import write_text
from torchscan.report.csv import csv_of
from torchscan.report.html import page
from torchscan.report.table import Table
from torchscan.terminal import has_colours, is_terminal, width_of

if TYPE_CHECKING:
    from torchscan.scan import Scan

#: how to choose a row of the table of checkpoints
_HOW_TO_CHECKPOINT = (
    "For a row, give --checkpoint none (nothing), a number (every n-th layer), full (all layers) "
    "or selective. All but …: a policy, the checkpoint of curve.choices[i] in Python."
)
_FORMATS_BY_SUFFIX = {
    ".csv": "csv",
    ".html": "html",
    ".json": "json",
    ".md": "markdown",
    ".tex": "latex",
    ".txt": "text",
}


def choose_format(options: argparse.Namespace) -> None:
    """Choose the format by the name of the output file, unless one was given."""
    if getattr(options, "format", "") is not None:
        return
    output = getattr(options, "output", None)
    options.format = "text"
    if output is None or not output.suffix:
        return
    suffix = output.suffix.lower()
    if suffix not in _FORMATS_BY_SUFFIX:
        *first, last = _FORMATS_BY_SUFFIX
        advice = f": give a name that ends in {', '.join(first)} or {last}, or "
        raise InputError(
            Argument("output"), " is ", Value(str(output)), advice, Give("format", "text")
        )
    options.format = _FORMATS_BY_SUFFIX[suffix]


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if the answer goes elsewhere."""
    return width_of(sys.stdout) if is_terminal(sys.stdout) else None


def colours_of(options: argparse.Namespace) -> bool:
    """Return whether the answer goes to a terminal that has colors."""
    return options.output is None and has_colours(sys.stdout)


def put_table(
    table: Table,
    options: argparse.Namespace,
    part: Callable[[], str] | None = None,
    **special: Callable[[], str],
) -> None:
    """Print a table or write it to the named file.

    Args:
        table: the table.
        options: the options, with the format.
        part: returns the HTML of the result, where it has more than the table, such as a plot.
        special: other writers of formats.
    """
    writers: dict[str, Callable[[], str]] = {
        "csv": partial(csv_of, table, escape_formulas=True),
        "html": partial(_write_page, table, options, part or table.to_html),
        **special,
    }
    text = writers.get(
        options.format,
        partial(table.write, options.format, width=options.width, colours=colours_of(options)),
    )()
    if options.output is None:
        print_answer(text, is_document=options.format != "text")
    else:
        write_text(options.output, text if text.endswith("\n") else f"{text}\n")
        print_written(options.output)


def _write_page(table: Table, options: argparse.Namespace, part: Callable[[], str]) -> str:
    """Return an HTML page, whose heading names the model or the snapshot."""
    title, given = table.title, vars(options)
    subject = given.get("target")
    if subject is None:
        subject = given.get("snapshot")
    if subject is not None:
        title = f"{title}: {subject}"
    return page(title, part())


def put_suggestions(options: argparse.Namespace, function: Callable[[Scan], Any]) -> None:
    """Print suggestions for the estimate that ``function`` returns."""
    from torchscan.report.suggestions_table import suggestions_table

    suggestions = on_scan(options, lambda scan: function(scan).suggestions())
    put_table(suggestions_table(suggestions), options, json=partial(to_complete_json, suggestions))


def put_checkpoints(options: argparse.Namespace, *others: str) -> bool:
    """Print the memory and time of ways to checkpoint the step, if they are asked for.

    Returns whether they are.

    Args:
        options: the options.
        others: the names of options for a single step.
    """
    from torchscan.report.checkpoint_table import checkpoint_table

    if options.checkpoint != COMPARE:
        if options.max_memory is not None:
            compare = Give("checkpoint", COMPARE)
            raise InputError(Argument("max_memory"), " limits a comparison: give ", compare)
        return False
    given = first_given(options, *others)
    if given is not None:
        raise InputError(f"{given} is for one step, not for a comparison: leave it out")
    max_memory, options.checkpoint = options.max_memory, False
    curve = on_scan(options, lambda scan: scan.checkpointing(max_memory))
    table, json = checkpoint_table(curve), partial(to_complete_json, curve)
    legend, *remarks = table.remarks
    table = replace(table, remarks=[legend, _HOW_TO_CHECKPOINT, *remarks])
    put_table(table, options, curve.to_html, json=json)
    return True


def to_complete_json(result: Any) -> str:
    """Return the complete result as JSON, which holds more than the table shows."""
    return json.dumps(result.to_dict(), indent=2)
