"""Rows of a table and their cells, as plain data.

They are tuples: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchscan.escapes import printable

#: text of a missing value
NONE = "–"
#: mark after the name of the row that answers a search
BEST = "*"
#: levels by which a tree is indented at most
MAX_LEVELS = 100


class Cell(NamedTuple):
    """A value, and how it reads."""

    value: Any
    text: str


class Row(NamedTuple):
    """One row. The first cell is its name; deeper rows that follow hang below it."""

    cells: Sequence[Cell]
    depth: int = 0
    #: name outside the tree, in a sorted list; "" for the same name
    full_name: str = ""
    #: for each cell the sum over this row and all rows below it, or None
    sums: Sequence[Cell | None] = ()
    #: number of equal rows that this one stands for; its values are their sums
    repeats: int = 1
    #: number of deeper rows that were summed into this one
    folded: int = 0
    #: True if the row is the sum of the others, so that it stays last in any order
    is_total: bool = False
    #: True if the row is the answer to a search, whose name ends with ``BEST``
    is_best: bool = False
    #: text of a column that does not fit the width, shown below the row
    below: str = ""

    @property
    def values(self) -> list[Any]:
        """The values of the cells, as data holds them."""
        return [cell.value for cell in self.cells]

    @property
    def name(self) -> str:
        """The name as it reads in the tree."""
        name = printable(self.cells[0].text)
        return name + self.times if self.repeats > 1 else name

    @property
    def times(self) -> str:
        """The number of rows that this one stands for, as the end of its name, if several."""
        return f" ×{self.repeats}" if self.repeats > 1 else ""

    @property
    def end(self) -> int:
        """Number of characters at the end of the name that are never truncated: ``" … 11 ×12"``."""
        if self.repeats == 1:
            return 0
        last = self.name.rfind(" … ")
        return len(self.times) if last < 0 else len(self.name) - last

    @property
    def indent(self) -> int:
        """Number of levels that the name is indented, up to a maximum."""
        return min(self.depth, MAX_LEVELS)

    @property
    def shown(self) -> Sequence[Cell]:
        """The cells that people see: sums where there are some."""
        if not self.sums:
            return self.cells
        return [total or cell for total, cell in zip(self.sums, self.cells, strict=True)]

    @property
    def texts(self) -> list[str]:
        """The texts of these."""
        return [self.name, *[printable(cell.text) for cell in self.shown[1:]]]

    def only(self, indices: Sequence[int]) -> Row:
        """Return the row with some of its cells."""
        cells = [self.cells[index] for index in indices]
        sums: list[Cell | None] = []
        if self.sums:
            sums = [self.sums[index] for index in indices]
        return self._replace(cells=cells, sums=sums)
