"""What would help, as a table."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.remedies import Remedies, Remedy
from torchscan.report.table import Cell, Column, Row, Table

_WHAT = {"time_estimate": "Expected time", "peak_bytes": "Peak memory", "reserved_bytes": "Reserved"}


def remedies_table(remedies: Remedies) -> Table:
    """The changes that help, the best first, each estimated by itself; the remarks name those that don't."""
    of_time = remedies.figure == "time_estimate"
    figure = Column(key=remedies.figure, heading=_WHAT[remedies.figure], unit="s" if of_time else "B")
    return Table(
        title="What would help",
        columns=[
            Column(key="change", heading="Change", is_number=False, narrowest=8, cut="tail"),
            Column(key="how", heading="How", is_number=False, narrowest=12, cut="tail"),
            figure,
            Column(key="saves", heading="Saves"),
        ],
        rows=[_as_it_is(remedies), *(_row(each, of_time) for each in remedies.remedies)],
        remarks=[f"Of no help: {'; '.join(remedies.of_no_help)}."] if remedies.of_no_help else [],
        noun="changes",
    )


def _as_it_is(remedies: Remedies) -> Row:
    is_time = remedies.figure == "time_estimate"
    cells = [Cell("", "as it is"), Cell("", ""), Cell(remedies.before, _figure(remedies.before, is_time)), Cell(0.0, "")]
    return Row(cells=cells)


def _row(remedy: Remedy, is_time: bool) -> Row:
    saved = Cell(remedy.saves, f"{100 * remedy.saves:.0f} %")
    cells = [Cell(remedy.change, remedy.change), Cell(remedy.how, remedy.how)]
    return Row(cells=[*cells, Cell(remedy.after, _figure(remedy.after, is_time)), saved])


def _figure(value: float, is_time: bool) -> str:
    return units.duration(value) if is_time else units.memory(int(value))
