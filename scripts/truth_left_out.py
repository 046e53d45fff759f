"""What the constants that one card's table sets give on another card."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark_constants import Checked, leave_one_out, two_cards
from changed_constants import value_of
from truth_section import Section, lines, percent

from tests.far_off import four_of_five
from tests.marked import rows_of, table

BLOCK = "leave-one-out"
HEADINGS = (
    "constants set from",
    "checked on",
    "models held out",
    "median error",
    "four of five",
    "as they are",
)


def left_out(truth: Path, made: str) -> Section:
    """Fitted anew, which takes a quarter to half an hour."""
    return left_out_section(leave_one_out(two_cards(truth)), made)


def left_out_section(findings: Sequence[Checked], made: str) -> Section:
    """The paragraph of these findings, and the summary of that."""
    changed = {each.fitted: _changed(each.changed) for each in findings}
    text = "\n".join(
        lines(f"The table of the {_short(card)} sets {names}.") for card, names in changed.items()
    )
    return _section(
        f"\n{table(HEADINGS, map(_row, findings))}\n{text}\n{lines(f'Made on {made}.')}\n"
    )


def left_out_before(blocks: Mapping[str, str]) -> Section:
    """The paragraph that the page has."""
    return _section(blocks[BLOCK])


def _section(text: str) -> Section:
    elsewhere = [row for row in rows_of(text) if row[0] != row[1]]
    summary = [
        (
            f"time, eager, {card}, constants set without it",
            "timm's tables",
            models,
            f"median error {median}",
        )
        for _, card, models, median, *_ in elsewhere
    ]
    return Section(summary, {BLOCK: text})


def _row(each: Checked) -> tuple[object, ...]:
    return (
        _short(each.fitted),
        _short(each.checked),
        f"{each.models:,}",
        percent(statistics.median(each.after)),
        percent(four_of_five(each.after)),
        percent(statistics.median(each.before)),
    )


def _short(card: str) -> str:
    return card.removeprefix("NVIDIA GeForce ")


def _changed(values: Mapping[str, float]) -> str:
    pairs = [f"`{name}` {value_of(name):g} → {value:.3g}" for name, value in values.items()]
    return ", ".join(pairs) or "nothing"
