"""The one table: every report is laid out as one, and every format is written from one. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from torchscan.errors import InputError
from torchscan.results import Result, load_writers

Format = Literal["text", "markdown", "github", "latex", "csv", "json", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)

#: where a text that does not fit is cut
Cut = Literal["head", "mid", "tail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What one column shows: its key in data, and what people read above it."""

    key: str
    heading: str
    is_number: bool = True
    #: what the values in data are counted in: "B", "s"; "" where the heading says it, or there is nothing to say
    unit: str = ""
    #: what must stay of a text that may be cut; None: a shape or a number that is cut says nothing
    narrowest: int | None = None
    cut: Cut = "mid"
    #: whether the figures of several rows have a sum
    adds_up: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, for data, and how it reads."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row. Its first cell is its name; rows that are deeper than the one before hang below it."""

    cells: Sequence[Cell]
    depth: int = 0
    #: the name where the row stands by itself, outside the tree; "": the same
    full_name: str = ""
    #: beside each cell its sum over this row and all below it; None, or none at all, where there is none
    sums: Sequence[Cell | None] = ()
    #: how many equal rows this one stands for; its figures are the sums of all
    repeats: int = 1
    #: how many deeper rows were summed into this one
    folded: int = 0
    #: whether it is the sum of the others: it stays last, however they are sorted
    is_total: bool = False

    @property
    def name(self) -> str:
        """As it reads in the tree."""
        return printable(self.cells[0].text) + (f" ×{self.repeats}" if self.repeats > 1 else "")

    @property
    def texts(self) -> list[str]:
        """What the cells read."""
        return [self.name, *(printable(cell.text) for cell in self.cells[1:])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Result):
    """What a report shows: ``str()`` of it is text, ``write("latex")`` what a paper takes."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    #: what is shown, said above all else
    summary: Sequence[str] = ()
    #: figures of the whole: small tables of their own
    totals: Sequence[Table] = ()
    #: whether they stand above the rows
    totals_first: bool = False
    #: what must be known to read the figures right
    remarks: Sequence[str] = ()
    #: what counted, for print
    source: str = ""
    #: what a row is, in the plural
    noun: str = "rows"

    @property
    def has_headings(self) -> bool:
        """Whether totals need them: names and their figures alone do not."""
        return len(self.columns) > 2 and any(column.heading for column in self.columns)

    def __repr__(self) -> str:
        """Short: there may be thousands of rows."""
        return f"<Table {self.title!r}: {len(self.rows)} {self.noun}>"

    def write(self, style: str, *, width: int = 80) -> str:
        """The table in a format: one of ``FORMATS``. ``width`` is that of text, in characters."""
        load_writers()
        for name in FORMATS:
            if name == style:
                return _writers[name](self, width)
        raise InputError(f"{style!r} is not a format of tables: choose one of {', '.join(FORMATS)}")


Writer = Callable[[Table, int], str]
W = TypeVar("W", bound=Writer)
_writers: dict[Format, Writer] = {}


def writes(style: Format) -> Callable[[W], W]:
    """Register what writes a table in this format, in so many characters a line."""

    def register(writer: W) -> W:
        if style in _writers:
            raise ValueError(f"{style} is written already")
        _writers[style] = writer
        return writer

    return register


def totals_table(rows: Sequence[Sequence[Cell]], headings: Sequence[str] = ("", ""), title: str = "") -> Table:
    """Figures of the whole: a name in each row, its figure, and what else is said of it."""
    keys = ("name", "value", *(f"value_{number}" for number in range(2, len(headings))))
    columns = [Column(key=key, heading=heading, is_number=key != "name") for key, heading in zip(keys, headings, strict=True)]
    return Table(title=title, columns=columns, rows=[Row(cells=row) for row in rows])


def printable(text: str) -> str:
    """A module can have any name: one with line breaks or control codes must not reach a terminal or a table as it is."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "�" for sign in text)
