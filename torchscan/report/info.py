"""The info dict, which is shown as a table."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from torchscan.formatters import table_of
from torchscan.hints import HintedDict
from torchscan.results import PlotSize, Result, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchscan.report.table import Cut, Table


class Info(Result, HintedDict):
    """The result of ``crawl_module``: a dict of plain data that is shown as a table.

    In a notebook, the table opens and sorts.
    """

    def table(
        self,
        columns: Sequence[str] | None = None,
        truncate: Cut = "mid",
        *,
        fold_repeats: bool | None = None,
    ) -> Table:
        """Return the layers as a tree, each with the sums over everything that it calls.

        Args:
            columns: what to show of each layer, by name.
            truncate: where to truncate a name that does not fit: "head", "mid" or "tail".
            fold_repeats: collapse identical blocks into one row and hide layers without operators;
                by default if that saves half of the rows.
        """
        return table_of(self, columns=columns, truncate=truncate, fold_repeats=fold_repeats)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        by: str = "macs",
        top: int = 15,
        size: PlotSize = "screen",
    ) -> Axes:
        """Draw the ``top`` layers with the largest values of a column, ``by``, as bars."""
        return draw(self, ax=ax, by=by, top=top, size=size)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy that is a plain dict."""
        return copy.deepcopy(dict(self))

    def _attributes(
        self,
        options: Mapping[str, Any],  # noqa: ARG002 - the same for all columns
    ) -> dict[str, Any]:
        return {key: value for key, value in self.to_dict().items() if key != "layers"}

    def __str__(self) -> str:
        """Return the table, or the plain dict if the layers were removed."""
        return super().__str__() if "layers" in self else repr(self)

    def _repr_html_(self) -> str:
        """Return the table, or without layers what is left as the dict that it is."""
        if "layers" in self:
            return super()._repr_html_()

        # IPython would print the traceback of an error
        text = escape(str(self))
        return f"<pre>{text}</pre>"

    def _repr_pretty_(
        self,
        printer: Any,
        cycle: bool,  # noqa: ARG002 - the signature that IPython calls
    ) -> None:
        """Print the table in IPython, which prefers its own printer for dicts."""
        printer.text(str(self))
