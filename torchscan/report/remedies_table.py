"""What would help, as a table."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.remedies_result import Remedies, Remedy
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.wrong_arguments import explain_wrong_types

_WHAT = {
    "time_estimate": "Expected time",
    "peak_bytes": "Peak memory",
    "reserved_bytes": "Reserved",
}


@explain_wrong_types
def remedies_table(remedies: Remedies) -> Table:
    """The pass as it is, then the changes that help, the best first; the remarks name those that don't."""
    is_time = remedies.metric == "time_estimate"
    rows = (remedies.as_it_is, *remedies.remedies)
    has_verdict = len({each.fits for each in rows}) > 1
    return Table(
        title="What would help",
        columns=[
            Column(key="change", heading="Change", is_number=False, min_width=8, truncate="tail"),
            Column(
                key=remedies.metric, heading=_WHAT[remedies.metric], unit="s" if is_time else "B"
            ),
            Column(key="saves", heading="Saves"),
            *([Column(key="fits", heading="Fits", is_number=False)] if has_verdict else []),
            Column(
                key="how", heading="How", is_number=False, min_width=8, wrap=True
            ),  # code to type is never cut
        ],
        rows=[_row(each, has_verdict=has_verdict) for each in rows],
        summary=[remedies.question],
        remarks=[f"Of no help: {'; '.join(remedies.of_no_help)}."] if remedies.of_no_help else [],
        noun="changes",
    )


def _row(remedy: Remedy, *, has_verdict: bool) -> Row:
    verdict = [Cell(remedy.fits, "yes" if remedy.fits else "no")] if has_verdict else []
    saved = Cell(remedy.saves, f"{100 * remedy.saves:.0f} %" if remedy.saves else "")
    return Row(
        cells=[
            Cell(remedy.change, remedy.change),
            _value(remedy),
            saved,
            *verdict,
            Cell(remedy.how, remedy.how),
        ]
    )


def _value(remedy: Remedy) -> Cell:
    if remedy.share_off is None:
        return Cell(remedy.after, units.memory(int(remedy.after)))
    return Cell(remedy.after, f"{units.duration(remedy.after)} ± {100 * remedy.share_off:.0f} %")
