"""Table of suggestions."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.suggestions_result import Suggestion, Suggestions
from torchscan.report.make_table import make_table, number, words, yes_or_no
from torchscan.report.table import Cell, Table
from torchscan.wrong_arguments import explain_wrong_types

_WHAT = {
    "time_estimate": "Expected time",
    "peak_bytes": "Peak memory",
    "reserved_bytes": "Reserved",
}


@explain_wrong_types
def suggestions_table(suggestions: Suggestions) -> Table:
    """The pass as it is, then the changes that help, the best first; the remarks name those that don't."""
    rows = (suggestions.baseline, *suggestions.suggestions)
    metric = suggestions.metric
    fits = words("fits", "Fits", lambda each: Cell(each.fits, yes_or_no(each.fits)))
    unit = "s" if metric == "time_estimate" else "B"
    has_verdict = len({suggestion.fits for suggestion in rows}) > 1
    columns = [
        words("change", "Change", min_width=8, truncate="tail"),
        number(metric, _WHAT[metric], _value, unit=unit),
        number("saves", "Saves", text=lambda share: f"{100 * share:.0f} %" if share else ""),
        *([fits] if has_verdict else []),
        words(
            "how", "How", lambda each: str(each.how or ""), min_width=8, wrap=True
        ),  # code to type is never truncated
    ]
    return make_table(
        "Suggestions",
        columns,
        rows,
        summary=[suggestions.question],
        remarks=[f"No effect: {'; '.join(map(str, suggestions.ineffective))}."]
        if suggestions.ineffective
        else [],
        noun="changes",
    )


def _value(suggestion: Suggestion) -> Cell:
    if suggestion.error_share is None:
        return Cell(suggestion.after, units.memory(int(suggestion.after)))
    return Cell(
        suggestion.after,
        f"{units.duration(suggestion.after)} ± {100 * suggestion.error_share:.0f} %",
    )
