"""A comment for a pull request: what models cost beside their limits, with the details folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchscan.budgets.outcome import Outcome, heading_of
from torchscan.escapes import printable
from torchscan.report.markdown import escape, escape_html

#: the metrics in the first table, with or without a limit
COMMENT_METRICS = ("params", "macs", "peak_memory", "latency")

#: within the budget, beyond it, not checked because of an error, nothing to check
Sign = Literal["✓", "✗", "?", "-"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """The report on one budget."""

    name: str
    sign: Sign
    #: the lines of the text format, without the sign
    lines: Sequence[str]
    #: None if the budget was not checked
    outcome: Outcome | None = None


def format_comment(reports: Sequence[BudgetReport]) -> str:
    """Return Markdown for a comment: a table of all budgets, and a folded section for each."""
    shown: list[str] = []
    for name in COMMENT_METRICS:
        cells = [_cell(each, name) for each in reports]
        if any(cells):
            shown.append(name)
    rules = [":--", ":--", *["--:"] * len(shown)]
    rows = [["", "Budget", *map(heading_of, shown)], rules]
    for each in reports:
        cells = [_cell(each, name) or "–" for name in shown]
        rows.append([each.sign, escape(printable(each.name)), *cells])
    sections = [_section(each) for each in reports]
    return "\n\n".join([f"### {_headline(reports)}", _in_markdown(rows), *sections])


def _headline(reports: Sequence[BudgetReport]) -> str:
    total = len(reports)
    of_all = f"of {total} {'model' if total == 1 else 'models'}"
    count = Counter(each.sign for each in reports)
    exceeded, failed, within = count["✗"], count["?"], count["✓"]
    parts = []
    if exceeded:
        verb = "exceeds" if exceeded == 1 else "exceed"
        parts.append(f"✗ {exceeded} {of_all} {verb} the budget")
    if failed:
        parts.append(f"? {failed} {of_all} cannot be checked")
    if not parts:
        verb = "is" if within == 1 else "are"
        parts.append(f"✓ {within} {of_all} {verb} within budget")
    return "; ".join(parts)


def _cell(report: BudgetReport, name: str) -> str:
    """Return a metric with its limit, in bold if it exceeds it; "" if it is not known."""
    outcome = report.outcome
    if outcome is None:
        return ""
    if name not in outcome.values:
        return escape(outcome.shown.get(name, ""))
    text, limit = escape(outcome.written(name)), escape(outcome.written_limit(name))
    if any(excess.metric == name for excess in outcome.excesses):
        text = f"**{text}**"
    return f"{text} ({limit})" if limit else text


def _section(report: BudgetReport) -> str:
    """Return the details of one budget, open if there is something to do."""
    head, *body = map(printable, report.lines)
    state = " open" if report.sign in "✗?" else ""
    parts = [f"<details{state}><summary>{report.sign} {escape_html(head)}</summary>"]
    if report.outcome is not None:
        parts.append(_metric_table(report.outcome))
    if body:
        parts.append("\n".join(["```text", *body, "```"]))
    return "\n\n".join([*parts, "</details>"])


def _metric_table(outcome: Outcome) -> str:
    rows = [["Metric", "Value", "Limit"], [":--", "--:", "--:"]]
    for name in outcome.values:
        limit = outcome.written_limit(name) or "–"
        heading = escape(heading_of(name, outcome.timed))
        rows.append([heading, escape(outcome.written(name)), escape(limit)])
    for name, text in outcome.shown.items():
        rows.append([heading_of(name), escape(text), "–"])
    return _in_markdown(rows)


def _in_markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
