"""Folding deep layers into their parents."""

from __future__ import annotations

from torchscan.errors import InputError
from torchscan.report.info import Info
from torchscan.report.info_data import SUMS, InfoDict, Layer, data_of
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def aggregate_info(info: InfoDict, max_depth: int) -> Info:
    """A copy of ``info`` without the layers below ``max_depth``, with their figures added to the parents that remain.

    Raises ``ValueError`` if the model is not that deep.
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
            kept[-1]["is_leaf"] = True
            kept[-1]["is_shared"] |= layer["is_shared"]
            _fold(layer, kept[-1])  # layers are in call order: the last one kept is the ancestor
    return Info(info, layers=kept, **({"max_depth": max_depth} if max_depth < deepest else {}))


def _fold(layer: Layer, into: Layer) -> None:
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
    deepest = max(layer["depth"] for layer in info["layers"])
    return Info(info) if max_depth is None else aggregate_info(info, min(max_depth, deepest))
