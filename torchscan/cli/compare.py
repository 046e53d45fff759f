"""``torchscan compare``: what changed between two models."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.cli.answers import put_table, to_complete_json
from torchscan.cli.on_targets import on_one_of_several
from torchscan.cli.option_table import add_options
from torchscan.cli.options import INPUTS, TARGETS, add_command, add_inputs, add_output, first_given
from torchscan.cli.spelling import ShellSpelling
from torchscan.errors import InputError, TorchscanError

if TYPE_CHECKING:
    from torchscan.inspecting.run import RunFacts
    from torchscan.report.comparison import ComparedSide
    from torchscan.report.info import Info
    from torchscan.scan import Scan
    from torchscan.targets.inputs import SavedInputs

#: options of a TARGET
_PASS = (
    *("input", "dtype", "mode", "batch_size", "loop_iterations"),
    *("training", "optimizer", "precision", "device"),
)

_REPORTS = """\
A report is a file that torchscan summary TARGET --format json writes, to_json() returns, or
torchscan check --update records; a TARGET whose inputs are not known takes those of the report.
Two files that run.save() wrote can be compared, too.
The HTML page (-o page.html) shows both sides aligned, and the graphs of two TARGETs."""
_EXAMPLES = """\
examples
  torchscan compare torchvision:resnet18 torchvision:resnet34
  torchscan compare before.json 'models.py:Net(width=64)' --input 3,32,32
  torchscan compare torchvision:resnet50 torchvision:resnet101 -d "RTX 4090" -o page.html
  torchscan compare before.json after.json --format github >> $GITHUB_STEP_SUMMARY
  torchscan compare run-on-h100.json run-on-h200.json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Show what changed between two models or reports, layer by layer."
    parser = add_command(commands, "compare", help_, TARGETS, _REPORTS, INPUTS, _EXAMPLES, run=_run)
    parser.add_argument(
        "before", metavar="BEFORE", help="Compare this TARGET or report; see below."
    )
    parser.add_argument("after", metavar="AFTER", help="Compare it with this one.")
    add_inputs(parser, step=True)
    parser.set_defaults(batch_size=None)  # a report may have a batch size other than 1
    group = parser.add_argument_group("pass")
    add_options(group, "training", "optimizer", "precision", "device")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.comparing import compare
    from torchscan.report.comparison import Comparison
    from torchscan.report.comparison_table import comparison_table, format_comparison
    from torchscan.report.paging.comparison_page import comparison_page
    from torchscan.report.run_data import open_run_or_report

    useless = first_given(options, *_PASS)
    if useless and _is_report(options.before) and _is_report(options.after):
        raise InputError(
            f"{useless} is for a TARGET, and {options.before} and {options.after} are reports: "
            "leave it out"
        )
    given = (options.before, options.after)
    _refuse_watched(given)
    reports = {each: open_run_or_report(Path(each)) for each in given if _is_report(each)}
    saved = _inputs_of_report(reports.values())
    sides: list[Any] = []
    for each in given:
        if each in reports:
            sides.append(reports[each])
        else:
            side_of = partial(_side_of, options, each)
            sides.append(on_one_of_several(options, each, side_of, saved))
    comparison = compare(*sides)
    if isinstance(comparison, Comparison):
        comparison = replace(comparison, names=given)
    put_table(
        comparison_table(comparison),
        options,
        text=partial(format_comparison, comparison, width=options.width),
        markdown=partial(format_comparison, comparison, markdown=True),
        html=partial(comparison_page, comparison, names=(options.before, options.after)),
        json=partial(to_complete_json, comparison),
    )


def _refuse_watched(given: Sequence[str]) -> None:
    """Refuse runs that were watched, which another command compares."""
    from torchscan.targets.parsing import is_watched

    watched = [each for each in given if is_watched(each)]
    if not watched:
        return
    runs = watched if len(watched) > 1 else [*watched, "OTHER"]
    command = shlex.join(["torchscan", "runs", "open", *runs])
    raise InputError(
        f"{watched[0]} is a watched run, and compare takes inspected runs: give {command} instead"
    )


def _inputs_of_report(reports: Iterable[RunFacts | Info]) -> SavedInputs | None:
    """Return the inputs of the first report, for a model that has none."""
    from torchscan.targets.inputs import saved_inputs

    for report in reports:
        if isinstance(report, Mapping):
            return saved_inputs(report["provenance"])
    return None


def _side_of(options: argparse.Namespace, target: str, scan: Scan) -> ComparedSide:
    """Return what is compared of a model, with the content of a page if a page is written."""
    from torchscan.comparing import side_of_scan

    spelling = ShellSpelling(options)

    def excuse(error: TorchscanError) -> str:
        return error.write(spelling)

    return side_of_scan(scan, target, excuse, has_page=options.format == "html")


def _is_report(given: str) -> bool:
    """Return whether a text is a file, existing or not, and not a target."""
    return os.path.exists(given) or (given.endswith(".json") and not given.startswith("hf:"))
