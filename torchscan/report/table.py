"""The one table as plain data: every report is laid out as one, and each format writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from torchscan.errors import Argument, InputError
from torchscan.formatters import load_writers
from torchscan.report.table_rows import NONE, Cell, Row
from torchscan.results import PlotSize, Result, draw
from torchscan.terminal import check_width
from torchscan.units import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Format = Literal["text", "markdown", "github", "latex", "csv", "json", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)
#: formats for programs, which take all columns
_DATA: tuple[Format, ...] = ("csv", "json")

#: a function that chooses the unit that values share
Scaling = Callable[[Iterable[float]], Scale]
#: where a text that does not fit is truncated
Cut = Literal["head", "mid", "tail"]


class Screen(NamedTuple):
    """The terminal that text is written for."""

    #: in characters
    width: int = 80
    has_colours: bool = False


class ColumnRemark(str):
    """A remark about some columns. It is left out of text that has room for none of them."""

    __slots__ = ("columns",)
    columns: frozenset[str]

    def __new__(cls, text: str, columns: Iterable[str]) -> ColumnRemark:
        """Make a remark about the columns with these keys."""
        made = super().__new__(cls, text)
        made.columns = frozenset(columns)
        return made

    def __reduce__(self) -> tuple[type[ColumnRemark], tuple[str, frozenset[str]]]:
        """Return the arguments for a copy, or when it is unpickled."""
        return type(self), (str(self), self.columns)


class Conclusion(str):
    """A remark that ends the text, also after the names of hidden columns."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its key in data, and its heading."""

    key: str
    heading: str
    is_number: bool = True
    #: unit of the values in data: "B", "s"; "" if the heading names it or there is none
    unit: str = ""
    #: unit of the texts, if the heading has one: 1e6 for "MACs (M)"
    size: float = 1.0
    #: smallest width of truncated texts, or None if texts cannot be truncated, as of shapes and
    #: numbers
    min_width: int | None = None
    truncate: Cut = "mid"
    #: True if long texts continue on further lines, as formulas do
    wrap: bool = False
    #: True if texts are shown below their rows when the column does not fit the width
    falls_below: bool = False
    #: True if values of several rows have a sum
    summable: bool = False
    #: color of bars beside the values, which are shares of a total
    bars: str = ""
    #: True if the column is less important
    dim: bool = False
    #: 0 for columns that are always shown; of others, those with the largest number are dropped
    #: first
    priority: int = 0
    #: False for columns of CSV and JSON only
    is_shown: bool = True
    #: True for columns that the author of the table added, which are dropped last
    is_added: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Result):
    """A table of a result: ``str()`` returns text, ``write("latex")`` the code for a paper."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    #: sentences above the table
    summary: Sequence[str] = ()
    #: small tables with values of the complete model
    totals: Sequence[Table] = ()
    #: True if totals stand above the rows
    totals_first: bool = False
    #: notes below the table
    remarks: Sequence[str] = ()
    #: versions and convention, for print
    source: str = ""
    #: name of the rows, in the plural
    noun: str = "rows"

    def table(self) -> Table:
        """Return this table: a table of a table is the same one."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return rows, totals and remarks as plain data."""
        content: dict[str, Any] = json.loads(self.write("json"))
        return content

    @property
    def has_headings(self) -> bool:
        """True if totals show their headings. A name and its value need none."""
        return len(self.columns) > 2 and any(column.heading for column in self.columns)

    @property
    def shown(self) -> Table:
        """The table without columns that are hidden from people."""
        if all(column.is_shown for column in self.columns):
            return self
        return self.only([column for column in self.columns if column.is_shown])

    def only(self, columns: Sequence[Column]) -> Table:
        """Return the table with some of its columns."""
        indices = [index for index, column in enumerate(self.columns) if column in columns]
        if len(indices) == len(self.columns):
            return self
        keys = {column.key for column in columns}
        remarks = [
            remark
            for remark in self.remarks
            if not isinstance(remark, ColumnRemark) or remark.columns & keys
        ]
        rows = [row.only(indices) for row in self.rows]
        return replace(self, columns=columns, rows=rows, remarks=remarks)

    def __repr__(self) -> str:
        """Return a short text, as there may be thousands of rows."""
        return f"<Table {self.title!r}: {len(self.rows)} {self.noun}>"

    def with_column(self, heading: str, values: Mapping[str, object]) -> Table:
        """Return the table with a column at the end: a value for some rows by their names.

        Values are numbers or words, as in ``{"resnet50": 80.9}``.
        """
        names = [row.full_name or row.cells[0].value for row in self.rows]
        known = dict.fromkeys(names)
        for name in values:
            if name not in known:
                raise InputError(
                    Argument("values"),
                    f" names {name!r}, which is not a row of the table: choose from "
                    f"{', '.join(map(str, known))}",
                )
        is_number = all(isinstance(value, int | float) for value in values.values())
        column = Column(key=heading, heading=heading, is_number=is_number, is_added=True)
        rows = []
        for name, row in zip(names, self.rows, strict=True):
            value = values.get(name)
            cell = Cell(value, NONE if value is None else str(value))
            sums = [*row.sums, None] if row.sums else ()
            rows.append(row._replace(cells=[*row.cells, cell], sums=sums))
        return replace(self, columns=[*self.columns, column], rows=rows)

    def write(self, style: str, *, width: int = 80, colours: bool = False, **options: Any) -> str:
        """Return the table in a format: one of ``FORMATS``.

        Text has this ``width``, in characters, and ``colours`` for a terminal. LaTeX takes
        ``caption``, ``label``, ``long``, ``wide`` and ``siunitx``, as ``to_latex`` does.
        """
        check_width(width)
        load_writers()
        for name in FORMATS:
            if name == style:
                table = self if name in _DATA else self.shown
                return _writers[name](table, Screen(width, colours), **options)
        raise InputError(f"{style!r} is not a format of tables: choose from {', '.join(FORMATS)}")


Writer = Callable[..., str]
W = TypeVar("W", bound=Writer)
_writers: dict[Format, Writer] = {}


def writes(style: Format) -> Callable[[W], W]:
    """Register a function that writes tables in this format; it takes what text is for."""

    def register(writer: W) -> W:
        if style in _writers:
            raise ValueError(f"{style} already has a writer")
        _writers[style] = writer
        return writer

    return register


def in_unit(column: Column, scale: Scale) -> Column:
    """Return the column with the unit of its texts in the heading."""
    if not scale.unit:
        return column
    return replace(column, heading=f"{column.heading} ({scale.unit})", size=scale.size)


class ModelTable(Table):
    """A table of models, one per row."""

    __slots__ = ()

    def plot(
        self,
        ax: Axes | None = None,
        *,
        x: str = "macs",
        y: str | Mapping[str, float] = "params",
        y_label: str | None = None,
        size: PlotSize = "screen",
    ) -> Axes:
        """Draw models as points, each with its name.

        Args:
            ax: where to draw; by default in a new figure.
            x: a metric of the table.
            y: another one, or a value for each model by name: ``{"resnet50": 80.9}``.
            y_label: what these values are: "Top-1 accuracy, %".
            size: of a new figure.
        """
        return draw(self, ax=ax, x=x, y=y, y_label=y_label, size=size)
