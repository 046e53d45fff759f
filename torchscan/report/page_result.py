"""Results whose HTML is a page of its own, with a script and two sides."""

from __future__ import annotations

from typing import Any, overload

from torchscan.results import FilePath, RowsResult


class PageResult(RowsResult):
    """Base class of results that HTML shows as a complete page."""

    __slots__ = ()

    @overload
    def to_html(
        self, path: None = None, *, standalone: bool | None = None, **table: Any
    ) -> str: ...
    @overload
    def to_html(self, path: FilePath, *, standalone: bool | None = None, **table: Any) -> None: ...
    def to_html(
        self, path: FilePath | None = None, *, standalone: bool | None = None, **table: Any
    ) -> str | None:
        """Return one HTML page that shows both sides aligned and needs no network, or write it.

        With ``standalone=False`` it is a frame for another page, as notebooks show it. ``names``
        are the names of the two sides.
        """
        is_page = True if standalone is None else standalone
        return super().to_html(path, standalone=is_page, **table)
