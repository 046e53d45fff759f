"""Fewer layers of an info: a selection, or deep layers folded into their parents."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torchscan.errors import InputError
from torchscan.report.columns import COLUMNS
from torchscan.report.info import Info
from torchscan.report.info_data import SUMS, InfoDict, Layer, Selection, data_of
from torchscan.report.layer_table import check_columns, check_estimates
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def select_layers(
    info: InfoDict, *, match: str | None = None, sort: str | None = None, top: int | None = None
) -> Info:
    """Return a copy of ``info`` with some of its layers, as a list of paths, and the totals of all.

    Args:
        info: what ``crawl_module`` returned.
        match: a pattern for the path or the type of a layer: ``layer4.*``, ``*.attn``, ``Conv2d``;
            ``*`` is any text.
        sort: the column to order by: numbers from the largest, texts in alphabetical order.
        top: the number of layers to keep, from the first.
    """
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise InputError.of_value("top", top, "give a number of layers, 1 or more")
    if match is None and sort is None and top is None:
        return Info(info)

    data = data_of(info)
    layers = data["layers"]
    if match is not None:
        layers = _find_matching(layers, match)
    if sort is not None:
        check_columns([sort])
        check_estimates([sort], layers)
        values = COLUMNS[sort].values(layers, data["overall"])
        order = sorted(range(len(layers)), key=lambda index: _sort_key(values[index]))
        layers = list(map(layers.__getitem__, order))

    whole: Selection = {"match": None, "sort": None, "layers": len(data["layers"])}
    before = data.get("selection", whole)
    chosen: Selection = {
        "match": match or before["match"],
        "sort": sort or before["sort"],
        "layers": before["layers"],
    }
    return Info(info, layers=list(layers[:top]), selection=chosen)


def _find_matching(layers: list[Layer], pattern: str) -> list[Layer]:
    def matches(layer: Layer) -> bool:
        return fnmatchcase(layer["path"], pattern) or fnmatchcase(layer["type"], pattern)

    matching = list(filter(matches, layers))
    if not matching:
        some = ", ".join(layer["path"] for layer in layers[1:4]) or "(none)"
        raise InputError(
            f"no layer matches {pattern!r} by its path or type: give a pattern with * for any "
            f"text, for paths such as {some}"
        )
    return matching


def _sort_key(value: Any) -> tuple[int, float, str]:
    """Return a key for numbers, largest first, then text and lists, then missing values."""
    if isinstance(value, bool | int | float):
        return (0, -float(value), "")
    if value is None:
        return (2, 0.0, "")
    return (1, 0.0, str(value))


@explain_wrong_types
def aggregate_info(info: InfoDict, max_depth: int) -> Info:
    """Return a copy of ``info`` without the layers below ``max_depth``.

    Their values are added to the parents that remain. Raise an InputError if the model is not that
    deep.
    """
    layers = data_of(info)["layers"]
    if "selection" in info:
        raise InputError(
            "the info dict has only selected layers: fold first (aggregate_info), then select "
            "(select_layers)"
        )
    if not isinstance(max_depth, int):
        raise InputError.of_value("max_depth", max_depth, "give a whole number")
    deepest = max(layer["depth"] for layer in layers)
    if not 0 <= max_depth <= deepest:
        raise InputError.of_value(
            "max_depth", max_depth, f"give 0 to {deepest}, the depths of this model"
        )

    kept: list[Layer] = []
    for layer in layers:
        if layer["depth"] <= max_depth:
            kept.append(layer.copy())
        else:
            _fold(layer, kept[-1])  # layers are in call order: the last one kept is the ancestor
    if max_depth == deepest:
        return Info(info, layers=kept)
    return Info(info, layers=kept, max_depth=max_depth)


def _fold(layer: Layer, into: Layer) -> None:
    into["is_leaf"] = True
    into["is_shared"] |= layer["is_shared"]
    for key in SUMS:
        into[key] += layer[key]
    if "time_estimate" in layer:
        into["time_estimate"] += layer["time_estimate"]


def folded_to(info: InfoDict, max_depth: int | None) -> Info:
    """Return an info folded to ``max_depth``, or complete if the model has fewer levels."""
    if max_depth is not None and (isinstance(max_depth, bool) or not isinstance(max_depth, int)):
        raise InputError.of_value(
            "max_depth", max_depth, "give a number of levels, or None for all"
        )
    if max_depth is None:
        return Info(info)
    deepest = max(layer["depth"] for layer in info["layers"])
    return aggregate_info(info, min(max_depth, deepest))
