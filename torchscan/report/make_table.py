"""Tables from columns that are declared as data, and the totals below them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from torchscan import units
from torchscan.report.table import Column, Scaling, Table, in_unit
from torchscan.report.table_rows import BEST, NONE, Cell, Row

Item = TypeVar("Item")
#: how a column takes its value from an item: a function, or the name of an attribute
Value = Callable[[Any], Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOf(Generic[Item]):
    """A column, with how its cells are made from items."""

    column: Column
    #: the value of an item, or a complete cell where the text depends on more than the value
    value: Callable[[Item], Any]
    #: writes a value that is not None
    text: Callable[[Any], str] = str
    #: the unit that all values share, instead of ``text``
    scale: Scaling | None = None
    #: what stands before a value in that unit: ``"≥ "`` for a lower bound
    mark: Callable[[Item], str] | None = None
    #: what stands for 0 and None in that unit, instead of a dash
    absent: Callable[[Item], str] | None = None

    def write(self, items: Sequence[Item]) -> tuple[Column, list[Cell]]:
        """Return the column, with its unit in the heading, and a cell for each item."""
        values = [self.value(item) for item in items]
        cells: list[Cell] = []
        if self.scale is None:
            for value in values:
                if isinstance(value, Cell):
                    cells.append(value)
                else:
                    cells.append(Cell(value, NONE if value is None else self.text(value)))
            return self.column, cells

        scale = self.scale(abs(value) for value in values if value and math.isfinite(value))
        return in_unit(self.column, scale), self._write_in(scale, items, values)

    def _write_in(
        self, scale: units.Scale, items: Sequence[Item], values: Sequence[Any]
    ) -> list[Cell]:
        """Return the cells of values in a unit."""
        cells = []
        for item, value in zip(items, values, strict=True):
            mark = "" if self.mark is None else self.mark(item)
            text = NONE
            if value or mark:
                text = f"{mark}{scale.text(value or 0)}"
            elif self.absent is not None:
                text = self.absent(item)
            cells.append(Cell(value, text))
        return cells


def number(
    key: str,
    heading: str,
    value: Value | None = None,
    text: Callable[[Any], str] = str,
    *,
    scale: Scaling | None = None,
    mark: Callable[[Any], str] | None = None,
    **options: Any,
) -> ColumnOf[Any]:
    """Return a column of numbers, by default of the attribute ``key``.

    ``options`` are those of ``Column``.
    """
    source = key if value is None else value
    take = attrgetter(source) if isinstance(source, str) else source
    column = Column(key=key, heading=heading, **options)
    return ColumnOf(column=column, value=take, text=text, scale=scale, mark=mark)


def words(
    key: str,
    heading: str,
    value: Value | None = None,
    text: Callable[[Any], str] = str,
    **options: Any,
) -> ColumnOf[Any]:
    """Return a column of words."""
    return number(key, heading, value, text, is_number=False, **options)


def yes_or_no(value: bool | None) -> str:
    """Return ``"yes"`` or ``"no"``."""
    return "yes" if value else "no"


def share_text(share: float) -> str:
    """Return ``"24 %"``, or a dash for 0."""
    return units.share(share) if share else NONE


def counts(key: str, heading: str, value: Value | None = None, **options: Any) -> ColumnOf[Any]:
    """Return a column of counts with one prefix."""
    return number(key, heading, value, scale=units.scale_of_counts, **options)


def sizes(key: str, heading: str, value: Value | None = None, **options: Any) -> ColumnOf[Any]:
    """Return a column of bytes in one unit."""
    return number(key, heading, value, scale=units.scale_of_memory, unit="B", **options)


def durations(key: str, heading: str, value: Value | None = None, **options: Any) -> ColumnOf[Any]:
    """Return a column of seconds in one unit."""
    return number(key, heading, value, scale=units.scale_of_durations, unit="s", **options)


def mark_best(items: Iterable[Item], best: Item | None) -> list[dict[str, bool]]:
    """Return the options of rows for a search: one of the items is its answer."""
    return [{"is_best": each is best} for each in items]


class TableParts(TypedDict, total=False):
    """The parts of a table beside its rows, as in ``Table``."""

    summary: Sequence[str]
    totals: Sequence[Table]
    totals_first: bool
    remarks: Sequence[str]
    noun: str


def make_table(
    title: str,
    columns: Iterable[ColumnOf[Item]],
    items: Sequence[Item],
    row_options: Iterable[Mapping[str, Any]] | None = None,
    **parts: Unpack[TableParts],
) -> Table:
    """Return a table with a row for each item.

    ``row_options`` are those of each ``Row``, such as its depth.
    """
    written = [column.write(items) for column in columns]
    headings, cells_by_column = zip(*written, strict=True)
    options = repeat({}, len(items)) if row_options is None else row_options

    rows = []
    for index, each in enumerate(options):
        cells = [cells[index] for cells in cells_by_column]
        if each.get("is_best"):
            cells[0] = cells[0]._replace(text=f"{cells[0].text} {BEST}")
        rows.append(Row(cells=cells, **each))
    return Table(title=title, columns=headings, rows=rows, **parts)


def total(
    key: str, name: str, value: Any, text: str | Callable[[Any], str], *more: str
) -> list[Cell]:
    """Return a row of totals: a name, its value, and what else there is to say."""
    written = text if isinstance(text, str) else text(value)
    return [Cell(key, name), Cell(value, written), *(Cell(each, each) for each in more)]


def totals_table(
    rows: Iterable[Sequence[Cell]],
    headings: Sequence[str] = ("", ""),
    title: str = "",
    *,
    words_key: str | None = None,
) -> Table:
    """Return totals; their last column has words where it has a ``words_key``."""
    keys = ("name", "value", *(f"value_{number}" for number in range(2, len(headings))))
    columns = [
        Column(key=key, heading=heading, is_number=key != "name")
        for key, heading in zip(keys, headings, strict=True)
    ]
    if words_key is not None:
        columns[-1] = replace(columns[-1], key=words_key, is_number=False)
    return Table(title=title, columns=columns, rows=[Row(cells=row) for row in rows])
