"""Stacked areas over time in block characters, for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby

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
    """Return the rows from the top down; the highest column fills all rows.

    A column has the sizes of its kinds, from the bottom up.
    """
    max_size = max(map(sum, columns)) or 1.0
    cells_by_column = []
    for sizes in columns:
        heights = [rows * height / max_size for height in accumulate(sizes)]
        cells = []
        for row in range(rows):
            if has_colours:
                cells.append(_color_cell(heights, kinds, row))
                continue
            middle = _kind_at(heights, row + 0.5)
            cells.append(" " if middle is None else SIGNS[kinds[middle]])
        cells_by_column.append(cells)
    lines = ["".join(cells).rstrip() for cells in zip(*cells_by_column, strict=True)]
    lines.reverse()
    return lines


def _kind_at(heights: Sequence[float], level: float) -> int | None:
    """Return the index of the kind at a level, or None above all."""
    for index, height in enumerate(heights):
        if height > level:
            return index
    return None


def _color_cell(heights: Sequence[float], kinds: Sequence[str], row: int) -> str:
    """Return a cell of one color, or of two, one above the other, with the most eighths right."""
    middles = [row + (number + 0.5) / 8 for number in range(8)]
    eighths = [_kind_at(heights, middle) for middle in middles]
    lowest = eighths[0]
    if len(set(eighths)) == 1:
        return " " if lowest is None else in_colour("█", kinds[lowest])

    best = lower = upper = None
    most_right = 0
    for num_lower in range(1, 8):
        low, num_low = _most_common(eighths[:num_lower])
        high, num_high = _most_common(eighths[num_lower:])
        if num_low + num_high > most_right:
            most_right = num_low + num_high
            best, lower, upper = num_lower, low, high
    if best is None or lower is None:  # above nothing there is nothing
        return " "
    ground = None if upper is None else kinds[upper]
    return in_colour(_LOWER[best], kinds[lower], ground)


def _most_common(eighths: Sequence[int | None]) -> tuple[int | None, int]:
    """Return the most common kind, and in how many eighths it is."""
    return Counter(eighths).most_common(1)[0]


def ticks(most: float, count: int) -> list[float]:
    """Return about ``count`` multiples of 1, 2 or 5 times a power of ten, up to ``most``."""
    if most <= 0:
        return []
    min_step = most / count
    power = 10.0 ** math.floor(math.log10(min_step))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= 0.999 * min_step)
    num_steps = int(most / step + 1e-9)
    return [step * number for number in range(1, num_steps + 1)]


def axis(names: Sequence[str]) -> str:
    """Return ``└forward────┴backward──────``: the start of each stretch of equal names.

    Names that do not fit their stretch are left out.
    """
    line = ""
    for name, members in groupby(names):
        length = len(list(members))
        start = "┴" if line else "└"
        if len(name) < length:
            start += name
        line += start.ljust(length, "─")
    return line
