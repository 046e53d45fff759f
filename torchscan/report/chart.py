"""Stacked areas over time in block characters, for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

from torchscan.report.colours import in_colour

#: without colours each kind has a sign of its own, dense ones for what is always there
SIGNS: Mapping[str, str] = {
    "parameters": "█",
    "buffers": "▛",
    "optimizer": "▓",
    "inputs": "▞",
    "cache": "▚",
    "gradients": "▒",
    "gathered": "▙",
    "activations": "░",
    "temporary": "·",
}
_LOWER = (" ", *"▁▂▃▄▅▆▇", "█")


def stacked(
    columns: Sequence[Sequence[float]], kinds: Sequence[str], rows: int, *, has_colours: bool
) -> list[str]:
    """The rows from the top down. A column has the sizes of its kinds, from the bottom up; the highest fills all rows."""
    most = max(map(sum, columns)) or 1.0
    heights = [[rows * height / most for height in accumulate(sizes)] for sizes in columns]
    draw = _coloured if has_colours else _plain
    return [
        "".join(draw(each, kinds, row) for each in heights).rstrip()
        for row in reversed(range(rows))
    ]


def _kind_at(heights: Sequence[float], level: float) -> int | None:
    return next((place for place, height in enumerate(heights) if height > level), None)


def _plain(heights: Sequence[float], kinds: Sequence[str], row: int) -> str:
    """A cell shows what is in its middle."""
    place = _kind_at(heights, row + 0.5)
    return " " if place is None else SIGNS[kinds[place]]


def _coloured(heights: Sequence[float], kinds: Sequence[str], row: int) -> str:
    """A cell has two colours at most, one above the other: as its eighths have them, as far as that goes."""
    eighths = [_kind_at(heights, row + (number + 0.5) / 8) for number in range(8)]
    if len(set(eighths)) == 1:
        return " " if eighths[0] is None else in_colour("█", kinds[eighths[0]])
    return max((_two(eighths, below) for below in range(1, 8)), key=lambda two: two.hits).render(
        kinds
    )


class _Two(NamedTuple):
    """So many eighths of a cell in one colour, and those above in another, or in none."""

    below: int
    low: int | None
    high: int | None
    #: eighths that are as they ought to be
    hits: int

    def render(self, kinds: Sequence[str]) -> str:
        if self.low is None:  # above nothing there is nothing
            return " "
        return in_colour(
            _LOWER[self.below], kinds[self.low], None if self.high is None else kinds[self.high]
        )


def _two(eighths: Sequence[int | None], below: int) -> _Two:
    (low, first), (high, second) = (
        Counter(part).most_common(1)[0] for part in (eighths[:below], eighths[below:])
    )
    return _Two(below, low, high, first + second)


def ticks(most: float, count: int) -> list[float]:
    """Round numbers from 0 on: multiples of 1, 2 or 5 times a power of ten, about so many."""
    if most <= 0:
        return []
    least = most / count
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= 0.999 * least)
    return [step * number for number in range(1, int(most / step + 1e-9) + 1)]


def axis(names: Sequence[str]) -> str:
    """``└forward────┴backward──────``: where each stretch of equal names begins, with the name if there is room for it."""
    stretches = [(name, len(list(members))) for name, members in groupby(names)]
    drawn = [
        f"{'┴' if number else '└'}{name if len(name) < length else ''}"
        for number, (name, length) in enumerate(stretches)
    ]
    return "".join(
        each.ljust(length, "─") for each, (_, length) in zip(drawn, stretches, strict=True)
    )
