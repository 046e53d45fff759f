"""What would help, as a table."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.remedies import Remedies, Remedy
from torchscan.report.table import Cell, Column, Row, Table

_WHAT = {"time_estimate": "Expected time", "peak_bytes": "Peak memory", "reserved_bytes": "Reserved"}


def remedies_table(remedies: Remedies) -> Table:
    """The changes that help, the best first; the remarks name those that don't."""
    is_time = remedies.metric == "time_estimate"
    metric = Column(key=remedies.metric, heading=_WHAT[remedies.metric], unit="s" if is_time else "B")
    return Table(
        title="What would help",
        columns=[
            Column(key="change", heading="Change", is_number=False, narrowest=8, cut="tail"),
            Column(key="how", heading="How", is_number=False, narrowest=12, cut="tail"),
            metric,
            Column(key="saves", heading="Saves"),
        ],
        rows=[_as_it_is(remedies), *(_row(each, is_time) for each in remedies.remedies)],
        remarks=[f"Of no help: {'; '.join(remedies.of_no_help)}."] if remedies.of_no_help else [],
        noun="changes",
    )


def _as_it_is(remedies: Remedies) -> Row:
    before = _written(remedies.before, remedies.metric == "time_estimate")
    return Row(cells=[Cell("as it is", "as it is"), Cell("", ""), Cell(remedies.before, before), Cell(0.0, "")])


def _row(remedy: Remedy, is_time: bool) -> Row:
    saved = Cell(remedy.saves, f"{100 * remedy.saves:.0f} %")
    cells = [Cell(remedy.change, remedy.change), Cell(remedy.how, remedy.how)]
    return Row(cells=[*cells, Cell(remedy.after, _written(remedy.after, is_time)), saved])


def _written(value: float, is_time: bool) -> str:
    return units.duration(value) if is_time else units.memory(int(value))
