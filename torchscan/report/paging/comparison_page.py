"""Page of a comparison: two models, reports or runs, aligned."""

from __future__ import annotations

from torchscan.errors import InputError
from torchscan.report.comparison import Comparison
from torchscan.report.paging.comparison_data import comparison_data
from torchscan.report.paging.framed_page import Page
from torchscan.report.paging.model_page import document
from torchscan.report.paging.run_comparison_data import run_comparison_data
from torchscan.report.run_comparison import RunComparison


def comparison_page(
    comparison: Comparison | RunComparison, *, names: tuple[str, str] | None = None
) -> Page:
    """Return the page, which fetches nothing. ``names`` are those of the two sides."""
    if names is not None:
        is_pair = isinstance(names, tuple | list) and list(map(type, names)) == [str, str]
        if not is_pair:
            raise InputError(f"names is {names!r}: give two strings, for before and after")

    if isinstance(comparison, RunComparison):
        data = run_comparison_data(comparison, names)
    else:
        data = comparison_data(comparison, names)
    return Page(document(data))
