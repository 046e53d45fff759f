"""The output of ``torchscan inspect``: tables of one rank or all, files, and the exit status."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from torchscan.cli.answers import put_table, to_complete_json
from torchscan.cli.output import PROBLEM_FOUND, SUCCESS, print_remark, print_written
from torchscan.cli.spelling import ShellSpelling
from torchscan.errors import NonFiniteError

if TYPE_CHECKING:
    from torchscan.inspecting.run import RunFacts

#: depth of the modules in a table, by default; data and pages have all
USUAL_DEPTH = 3
#: seconds that the first process waits for what the others save
_PATIENCE = 10.0


def put_run(facts: RunFacts, error: NonFiniteError | None, options: argparse.Namespace) -> int:
    """Print the results and the error, write files, and return the exit status."""
    from torchscan.report.run_remarks import describe_findings
    from torchscan.report.run_table import run_table

    # The table of all ranks has a verdict on all.
    is_alone = facts.process is None or options.save is None
    has_verdict = is_alone or not _is_text(options)
    table = run_table(facts, max_depth=_depth(options), has_verdict=has_verdict)
    # Other ranks would write into the output of rank 0 and over its files.
    is_first = facts.process is None or facts.process.rank == 0
    try:
        _save(facts, options, is_first=is_first)
    finally:  # steps are not taken again for a file that cannot be written
        if is_first:
            put_table(table, options, json=partial(to_complete_json, facts))
    if is_first and facts.process is not None:
        _put_group(facts, options)
    if error is not None:
        print_remark(error.write(ShellSpelling(options)))
        return PROBLEM_FOUND
    if is_first and options.output is not None:
        for finding in describe_findings(facts):
            print_remark(finding)
    return SUCCESS


def _save(facts: RunFacts, options: argparse.Namespace, *, is_first: bool) -> None:
    """Write the files of ``--save`` and ``--trace``. Only rank 0 has a timeline."""
    if options.save is not None:
        facts.save(options.save)
        if is_first:
            print_written(options.save)
    if options.trace is not None and is_first:
        facts.save_trace(options.trace)
        print_written(options.trace)


def _put_group(facts: RunFacts, options: argparse.Namespace) -> None:
    """Print the table of all ranks if they save their results, else a note about ``--save``."""
    from torchscan.report.group_table import group_table
    from torchscan.watching.opening import await_group

    assert facts.process is not None  # noqa: S101 - it is one of several
    if options.save is None:
        print_remark(
            f"note: this is rank 0 of {facts.process.num_ranks}; --save FOLDER also reports which "
            "rank the others wait for"
        )
    elif _is_text(options):
        table = group_table(await_group(options.save, facts, _PATIENCE))
        print(table)  # noqa: T201 - the answer


def _is_text(options: argparse.Namespace) -> bool:
    """Return whether the answer is printed as text."""
    return options.output is None and options.format == "text"


def _depth(options: argparse.Namespace) -> int | None:
    """Return the depth of the table. Formats for programs, and foldable ones, have all modules."""
    if options.max_depth is None and options.format not in ("csv", "json", "html"):
        return USUAL_DEPTH
    depth: int | None = options.max_depth
    return depth
