"""Table of suggestions."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.suggestions_result import Suggestion, Suggestions
from torchscan.report.make_table import make_table, number, words, yes_or_no
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

_WHAT = {
    "time_estimate": "Expected time",
    "peak_bytes": "Peak memory",
    "reserved_bytes": "Reserved",
}


@explain_wrong_types
def suggestions_table(suggestions: Suggestions) -> Table:
    """Return the pass as it is, then the changes that help, the best first.

    A remark names the changes without effect.
    """

    def value(suggestion: Suggestion) -> Cell:
        after, margin = suggestion.after, suggestion.error_share
        if margin is None:
            return Cell(after, units.memory(int(after)))
        return Cell(after, f"{units.duration(after)} ± {100 * margin:.0f} %")

    rows = (suggestions.baseline, *suggestions.suggestions)
    metric = suggestions.metric
    unit = "s" if metric == "time_estimate" else "B"
    columns = [
        words("change", "Change", min_width=8, truncate="tail"),
        number(metric, _WHAT[metric], value, unit=unit),
        number("saves", "Saves", text=lambda share: f"{100 * share:.0f} %" if share else ""),
    ]
    verdicts = {suggestion.fits for suggestion in rows}
    if len(verdicts) > 1:
        columns.append(words("fits", "Fits", lambda each: Cell(each.fits, yes_or_no(each.fits))))
    # Code to type wraps, so that it is never truncated.
    columns.append(words("how", "How", lambda each: str(each.how or ""), min_width=8, wrap=True))
    remarks = []
    if suggestions.ineffective:
        remarks.append(f"No effect: {'; '.join(map(str, suggestions.ineffective))}.")
    return make_table(
        "Suggestions",
        columns,
        rows,
        summary=[suggestions.question],
        remarks=remarks,
        noun="changes",
    )
