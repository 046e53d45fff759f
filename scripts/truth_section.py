"""What a comparison adds to the page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of the summary, and blocks of the page by name."""

    #: question, what it was compared with, how many, result
    summary: list[tuple[str, str, str, str]]
    blocks: dict[str, str] = field(default_factory=dict)


def percent(share: float) -> str:
    """With a decimal."""
    return f"{100 * share:.1f} %"


def of(part: int, whole: int) -> str:
    """How many of how many."""
    return f"all {whole:,}" if part == whole else f"{part:,} of {whole:,}"


def lines(text: str) -> str:
    """Broken so that the source of the page is easy to read."""
    return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False) + "\n"
