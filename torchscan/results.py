"""The common methods of all results, which display, draw and export them.

Readers of runs load this file without torch, so functions import what only they need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from torchscan.errors import InputError
from torchscan.escapes import printable_text
from torchscan.formatters import (
    data_table_of,
    formatters_of,
    page_of,
    page_part_of,
    require_options,
    table_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from torchscan.report.table import Table

FilePath = str | os.PathLike[str]
#: for a screen, or for a paper of two columns: as wide as one column, or as the page
PlotSize = Literal["screen", "column", "page"]


class Result:
    """Base class of all results.

    Options of a format are listed with its method; all other keyword arguments go to ``table``.
    A path writes a file and returns None; without a path, the text is returned.
    """

    __slots__ = ()

    def table(self) -> Table:
        """Return the result as a table."""
        return table_of(self)

    def plot(self, ax: Axes | None = None, *, size: PlotSize = "screen") -> Axes:
        """Draw the result with matplotlib, into ``ax`` or into a new figure."""
        return draw(self, ax=ax, size=size)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        from torchscan.plain import to_plain

        content: dict[str, Any] = to_plain(self)
        return content

    @overload
    def to_json(self, path: None = None, *, indent: int | None = 2) -> str: ...
    @overload
    def to_json(self, path: FilePath, *, indent: int | None = 2) -> None: ...
    def to_json(self, path: FilePath | None = None, *, indent: int | None = 2) -> str | None:
        """Write JSON with all that ``to_dict`` returns, and the name of its schema, if any."""
        import json

        document = formatters_of(self).document
        content = self.to_dict() if document is None else document(self)
        return _save(json.dumps(content, indent=indent, allow_nan=False), path)

    @overload
    def to_csv(self, path: None = None, *, escape_formulas: bool = False, **table: Any) -> str: ...
    @overload
    def to_csv(self, path: FilePath, *, escape_formulas: bool = False, **table: Any) -> None: ...
    def to_csv(
        self, path: FilePath | None = None, *, escape_formulas: bool = False, **table: Any
    ) -> str | None:
        """Write comma-separated values: a header of keys, then the rows with exact numbers.

        With ``escape_formulas``, texts that a spreadsheet would run (``=1+1``) begin with an
        apostrophe.
        """
        written = data_table_of(self, "to_csv", table).write("csv", escape_formulas=escape_formulas)
        return _save(f"{written}\n", path)

    def to_pandas(self, **table: Any) -> pd.DataFrame:
        """Return a DataFrame with the rows of ``to_csv``; ``attrs`` has what is not in a row."""
        try:
            import pandas as pd
        except ImportError as error:
            raise InputError("to_pandas() needs pandas: run pip install pandas") from error
        found = data_table_of(self, "to_pandas", table)
        keys = [column.key for column in found.columns]
        frame = pd.DataFrame([row.values for row in found.rows], columns=keys)
        frame.attrs = self._attributes(table)
        return frame

    @overload
    def to_markdown(self, path: None = None, *, details: bool = False, **table: Any) -> str: ...
    @overload
    def to_markdown(self, path: FilePath, *, details: bool = False, **table: Any) -> None: ...
    def to_markdown(
        self, path: FilePath | None = None, *, details: bool = False, **table: Any
    ) -> str | None:
        """Write Markdown. With ``details``, for a comment on GitHub: rows open on a click."""
        return _save(table_of(self, **table).write("github" if details else "markdown"), path)

    @overload
    def to_latex(
        self,
        path: None = None,
        *,
        caption: str | None = None,
        label: str | None = None,
        long: bool | None = None,
        wide: bool | None = None,
        siunitx: bool = False,
        **table: Any,
    ) -> str: ...
    @overload
    def to_latex(
        self,
        path: FilePath,
        *,
        caption: str | None = None,
        label: str | None = None,
        long: bool | None = None,
        wide: bool | None = None,
        siunitx: bool = False,
        **table: Any,
    ) -> None: ...
    def to_latex(
        self,
        path: FilePath | None = None,
        *,
        caption: str | None = None,
        label: str | None = None,
        long: bool | None = None,
        wide: bool | None = None,
        siunitx: bool = False,
        **table: Any,
    ) -> str | None:
        r"""Write a LaTeX table, which needs ``\usepackage{booktabs}``.

        Args:
            path: the file to write.
            caption: LaTeX (``\%`` for a percent sign); by default what the table shows.
            label: the name for ``\ref``.
            long: a table over several pages, which also needs ``\usepackage{longtable}``; by
                default if there are more rows than fit on a page.
            wide: over both columns of a two-column page (``table*``); by default if one column is
                too narrow for it.
            siunitx: align numbers at their points, which also needs ``\usepackage{siunitx}``.
            table: options of ``table``.
        """
        options: dict[str, Any] = {"caption": caption, "label": label, "long": long, "wide": wide}
        return _save(table_of(self, **table).write("latex", siunitx=siunitx, **options), path)

    @overload
    def to_html(
        self, path: None = None, *, standalone: bool | None = None, **table: Any
    ) -> str: ...
    @overload
    def to_html(self, path: FilePath, *, standalone: bool | None = None, **table: Any) -> None: ...
    def to_html(
        self, path: FilePath | None = None, *, standalone: bool | None = None, **table: Any
    ) -> str | None:
        """Write HTML that folds and sorts and fetches nothing.

        A file is a complete page, and the text that is returned is a part of a page, as notebooks
        show it; ``standalone`` overrides this.
        """
        is_page = standalone
        if is_page is None:
            is_page = path is not None
        return _save(page_of(self, table) if is_page else page_part_of(self, table), path)

    @overload
    def to_text(self, path: None = None, *, width: int = 80, **table: Any) -> str: ...
    @overload
    def to_text(self, path: FilePath, *, width: int = 80, **table: Any) -> None: ...
    def to_text(self, path: FilePath | None = None, *, width: int = 80, **table: Any) -> str | None:
        """Write text that is at most ``width`` characters wide, as ``print`` shows it."""
        text = formatters_of(self).text
        if text is None:
            return _save(table_of(self, **table).write("text", width=width), path)
        require_options(self, "to_text", text, table)
        return _save(text(self, width=width, **table), path)

    def __str__(self) -> str:
        """Return the result as text, without control characters in names of modules."""
        return printable_text(self.to_text())

    def _repr_html_(self) -> str:
        return page_part_of(self, {})

    def _repr_mimebundle_(
        self,
        include: object = None,  # noqa: ARG002 - IPython's
        exclude: object = None,  # noqa: ARG002
    ) -> dict[str, str]:
        """Return text and HTML for a notebook.

        ``_repr_pretty_`` would not work: IPython prefers the ``repr`` of a subclass.
        """
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _attributes(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a DataFrame with these options of the table holds besides its rows."""
        found = table_of(self, **options)
        return {
            "title": found.title,
            "summary": list(found.summary),
            "remarks": list(found.remarks),
        }


class RowsResult(Result):
    """Base class of results that are drawn as bars: a column of their table."""

    __slots__ = ()

    def plot(
        self,
        ax: Axes | None = None,
        *,
        by: str | None = None,
        top: int = 15,
        size: PlotSize = "screen",
    ) -> Axes:
        """Draw a column of the table, ``by``, as bars: the ``top`` rows with the largest values."""
        return draw(self, ax=ax, by=by, top=top, size=size)


def draw(result: Result, **options: Any) -> Axes:
    """Draw a result, or raise an InputError if its type has no plot."""
    formatters = formatters_of(result)
    if formatters.plot is None:
        advice = "to_svg()" if formatters.languages else "table(), which has its values"
        raise InputError(f"a {type(result).__name__} has no plot: call {advice}")
    return formatters.plot(result, **options)


def write_in(result: Result, language: str, path: FilePath | None) -> str | None:
    """Write a result in a format that only its type has."""
    languages = formatters_of(result).languages or {}
    return _save(languages[language](result), path)


def _save(text: str, path: FilePath | None) -> str | None:
    if path is None:
        return text
    from torchscan.files import path_of, write_text

    write_text(path_of(path), text if text.endswith("\n") else f"{text}\n")
    return None
