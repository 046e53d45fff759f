"""The formatters of results by type: how to load them, and how to call them with options.

Results must not import formatters. Formatters register here for the types that they format; the
package sets how to load them, and the first result to be formatted loads them. ``import torchscan``
loads this file, so functions import what only they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchscan.notes import Note
    from torchscan.report.table import Table

R = TypeVar("R")


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


def table_of(result: object, **options: Any) -> Table:
    """Return a result's table with these options."""
    table = formatters_of(result).table
    require_options(result, "table", table, options)
    return table(result, **options)


def data_table_of(result: object, method: str, options: dict[str, Any]) -> Table:
    """Return a result's table for CSV and pandas; ``method`` is the one that was called."""
    data_table = formatters_of(result).data_table
    if data_table is None:
        return table_of(result, **options)
    require_options(result, method, data_table, options)
    return data_table(result, **options)


def page_of(result: object, options: dict[str, Any]) -> str:
    """Return a result as a complete HTML page."""
    page = formatters_of(result).page
    if page is None:
        part = page_part_of(result, options)
        return _page_writers[0](table_of(result, **options).title, part)
    require_options(result, "to_html", page, options)
    return page(result, **options)


def page_part_of(result: object, options: dict[str, Any]) -> str:
    """Return a result as a part of an HTML page."""
    page_part = formatters_of(result).page_part
    if page_part is None:
        return table_of(result, **options)._repr_html_()
    require_options(result, "to_html", page_part, options)
    return page_part(result, **options)


def require_options(
    result: object, method: str, function: Callable[..., Any], options: dict[str, Any]
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
