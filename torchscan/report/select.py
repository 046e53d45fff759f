"""A selection of layers: by name or type, the largest, or in another order."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torchscan.errors import InputError
from torchscan.report.columns import COLUMNS, check_columns, check_estimates
from torchscan.report.info import Info
from torchscan.report.info_data import InfoDict, Layer, Selection, data_of
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def select_layers(
    info: InfoDict, *, match: str | None = None, sort: str | None = None, top: int | None = None
) -> Info:
    """A copy of ``info`` with some of its layers and the totals of all; shown as a list of full paths.

    Args:
        info: what ``crawl_module`` returned.
        match: a pattern for the path or the type of a layer: ``layer4.*``, ``*.attn``, ``Conv2d``; ``*`` is any text.
        sort: the column to order by: numbers from the largest, texts in alphabetical order.
        top: how many to keep, from the first.

    """
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise InputError.of_value("top", top, "give a number of layers, 1 or more")
    if match is None and sort is None and top is None:
        return Info(info)
    data = data_of(info)
    layers = data["layers"] if match is None else _matching(data["layers"], match)
    if sort is not None:
        check_columns([sort])
        check_estimates([sort], layers)
        layers = sorted(
            layers, key=lambda layer: _order(COLUMNS[sort].value((layer, data["overall"])))
        )
    whole: Selection = {"match": None, "sort": None, "layers": len(data["layers"])}
    before = data.get("selection", whole)
    chosen: Selection = {
        "match": match or before["match"],
        "sort": sort or before["sort"],
        "layers": before["layers"],
    }
    return Info(info, layers=list(layers[:top]), selection=chosen)


def _matching(layers: list[Layer], pattern: str) -> list[Layer]:
    found = [
        layer
        for layer in layers
        if any(fnmatchcase(text, pattern) for text in (layer["path"], layer["type"]))
    ]
    if not found:
        some = ", ".join(layer["path"] for layer in layers[1:4]) or "(none)"
        raise InputError(
            f"no layer matches {pattern!r} by its path or type: give a pattern with * for any "
            f"text, for paths such as {some}"
        )
    return found


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers, largest first, then text and lists, then missing values."""
    if isinstance(value, bool | int | float):
        return (0, -float(value), "")
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))
