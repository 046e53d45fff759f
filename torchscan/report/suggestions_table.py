"""What would help, as a table."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.suggestions_result import Suggestion, Suggestions
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.wrong_arguments import explain_wrong_types

_WHAT = {
    "time_estimate": "Expected time",
    "peak_bytes": "Peak memory",
    "reserved_bytes": "Reserved",
}


@explain_wrong_types
def suggestions_table(suggestions: Suggestions) -> Table:
    """The pass as it is, then the changes that help, the best first; the remarks name those that don't."""
    is_time = suggestions.metric == "time_estimate"
    rows = (suggestions.as_it_is, *suggestions.suggestions)
    has_verdict = len({each.fits for each in rows}) > 1
    return Table(
        title="What would help",
        columns=[
            Column(key="change", heading="Change", is_number=False, min_width=8, truncate="tail"),
            Column(
                key=suggestions.metric,
                heading=_WHAT[suggestions.metric],
                unit="s" if is_time else "B",
            ),
            Column(key="saves", heading="Saves"),
            *([Column(key="fits", heading="Fits", is_number=False)] if has_verdict else []),
            Column(
                key="how", heading="How", is_number=False, min_width=8, wrap=True
            ),  # code to type is never cut
        ],
        rows=[_row(each, has_verdict=has_verdict) for each in rows],
        summary=[suggestions.question],
        remarks=[f"Of no help: {'; '.join(suggestions.of_no_help)}."]
        if suggestions.of_no_help
        else [],
        noun="changes",
    )


def _row(suggestion: Suggestion, *, has_verdict: bool) -> Row:
    verdict = [Cell(suggestion.fits, "yes" if suggestion.fits else "no")] if has_verdict else []
    saved = Cell(suggestion.saves, f"{100 * suggestion.saves:.0f} %" if suggestion.saves else "")
    return Row(
        cells=[
            Cell(suggestion.change, suggestion.change),
            _value(suggestion),
            saved,
            *verdict,
            Cell(suggestion.how, suggestion.how),
        ]
    )


def _value(suggestion: Suggestion) -> Cell:
    if suggestion.share_off is None:
        return Cell(suggestion.after, units.memory(int(suggestion.after)))
    return Cell(
        suggestion.after, f"{units.duration(suggestion.after)} ± {100 * suggestion.share_off:.0f} %"
    )
