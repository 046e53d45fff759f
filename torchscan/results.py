"""The common methods of all results, which display, draw and export them.

Results must not import formatters. Formatters register here for the types that they format; the
package sets how to load them, and the first result to be formatted loads them. ``import torchscan``
loads this file, so functions import what only they need.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

from torchscan.errors import InputError
from torchscan.escapes import printable_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from torchscan.notes import Note
    from torchscan.report.table import Table

R = TypeVar("R")
FilePath = str | os.PathLike[str]
#: for a screen, or for a paper of two columns: as wide as one column, or as the page
PlotSize = Literal["screen", "column", "page"]


class Formatters(NamedTuple):
    """The formatters of one type of results."""

    table: Callable[..., Table]
    #: text for a terminal, in place of the table's
    text: Callable[..., str] | None = None
    #: part of an HTML page, in place of the table's
    page_part: Callable[..., str] | None = None
    #: a complete HTML page, in place of one around the part
    page: Callable[..., str] | None = None
    #: the table for CSV and pandas, with one value per cell and nothing folded
    data_table: Callable[..., Table] | None = None
    plot: Callable[..., Axes] | None = None
    #: plain data with its schema, in place of what ``to_dict`` returns
    document: Callable[[Any], dict[str, Any]] | None = None
    #: formats that only this type has, by name
    languages: Mapping[str, Callable[[Any], str]] | None = None
    #: findings in the result, which its text and its page name
    findings: Callable[[Any], tuple[Note, ...]] | None = None


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
        written = _data_table(self, "to_csv", table).write("csv", escape_formulas=escape_formulas)
        return _save(f"{written}\n", path)

    def to_pandas(self, **table: Any) -> pd.DataFrame:
        """Return a DataFrame with the rows of ``to_csv``; ``attrs`` has what is not in a row."""
        try:
            import pandas as pd
        except ImportError as error:
            raise InputError("to_pandas() needs pandas: run pip install pandas") from error
        found = _data_table(self, "to_pandas", table)
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
        return _save(_page(self, table) if is_page else _page_part(self, table), path)

    @overload
    def to_text(self, path: None = None, *, width: int = 80, **table: Any) -> str: ...
    @overload
    def to_text(self, path: FilePath, *, width: int = 80, **table: Any) -> None: ...
    def to_text(self, path: FilePath | None = None, *, width: int = 80, **table: Any) -> str | None:
        """Write text that is at most ``width`` characters wide, as ``print`` shows it."""
        text = formatters_of(self).text
        if text is None:
            return _save(table_of(self, **table).write("text", width=width), path)
        _require_options(self, "to_text", text, table)
        return _save(text(self, width=width, **table), path)

    def __str__(self) -> str:
        """Return the result as text, without control characters in names of modules."""
        return printable_text(self.to_text())

    def _repr_html_(self) -> str:
        return _page_part(self, {})

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


#: type of result -> its formatters
_registered: dict[type, Formatters] = {}
#: beginning of a module's name -> loads the formatters of its results
_loaders: dict[str, Callable[[], object]] = {}
#: makes a complete page of a title and a part
_page_writers: list[Callable[[str, str], str]] = []


def register_formatters(
    kind: type[R],
    table: Callable[..., Table],
    *,
    text: Callable[..., str] | None = None,
    page_part: Callable[..., str] | None = None,
    page: Callable[..., str] | None = None,
    data_table: Callable[..., Table] | None = None,
    plot: Callable[..., Axes] | None = None,
    document: Callable[[R], dict[str, Any]] | None = None,
    languages: Mapping[str, Callable[[Any], str]] | None = None,
    findings: Callable[[R], tuple[Note, ...]] | None = None,
) -> None:
    """Register how to format results of this type."""
    if kind in _registered:
        raise ValueError(f"formatters of {kind.__name__} are already registered")
    _registered[kind] = Formatters(
        table=table,
        text=text,
        page_part=page_part,
        page=page,
        data_table=data_table,
        plot=plot,
        document=document,
        languages=languages,
        findings=findings,
    )


def register_page_writer(write: Callable[[str, str], str]) -> None:
    """Register how to make a complete HTML page of a title and a part."""
    _page_writers[:] = [write]


def load_writers_by(loader: Callable[[], object], package: str = "") -> None:
    """Set how to load formatters, the first time that a result of a package is formatted."""
    _loaders[package] = loader


def load_writers(module: str = "") -> None:
    """Load the formatters for results of this module, unless that has been done."""
    for package in [each for each in list(_loaders) if module.startswith(each)]:
        load = _loaders.get(package)
        if load is not None:
            # Before it is removed: other threads may ask meanwhile, and wait for the same import.
            load()
            _loaders.pop(package, None)


def formatters_of(result: object) -> Formatters:
    """Return the formatters of a result's type."""
    for kind in type(result).__mro__:
        load_writers(kind.__module__)
        if kind in _registered:
            return _registered[kind]
    raise TypeError(f"no formatters are registered for a {type(result).__name__}")


def table_of(result: Result, **options: Any) -> Table:
    """Return a result's table with these options."""
    table = formatters_of(result).table
    _require_options(result, "table", table, options)
    return table(result, **options)


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


def _data_table(result: Result, method: str, options: dict[str, Any]) -> Table:
    data_table = formatters_of(result).data_table
    if data_table is None:
        return table_of(result, **options)
    _require_options(result, method, data_table, options)
    return data_table(result, **options)


def _page(result: Result, options: dict[str, Any]) -> str:
    page = formatters_of(result).page
    if page is None:
        part = _page_part(result, options)
        return _page_writers[0](table_of(result, **options).title, part)
    _require_options(result, "to_html", page, options)
    return page(result, **options)


def _page_part(result: Result, options: dict[str, Any]) -> str:
    page_part = formatters_of(result).page_part
    if page_part is None:
        return table_of(result, **options)._repr_html_()
    _require_options(result, "to_html", page_part, options)
    return page_part(result, **options)


def _require_options(
    result: Result, method: str, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    """Raise a TypeError that names the method which was called, and not the function behind it."""
    from inspect import signature  # slow to import, and only for options

    if not options:
        return
    _, *known = signature(function).parameters
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        choice = f"choose from {', '.join(known)}" if known else "leave it out"
        called = f"{type(result).__name__}.{method}()"
        raise TypeError(f"{unknown!r} is not an option of {called}: {choice}")


def _save(text: str, path: FilePath | None) -> str | None:
    if path is None:
        return text
    from torchscan.files import path_of, write_text

    write_text(path_of(path), text if text.endswith("\n") else f"{text}\n")
    return None
