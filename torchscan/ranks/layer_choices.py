"""Choices of checkpoints, by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from torchscan.ranks.short_models import LayeredModel


def choices_of(checkpoint: Any) -> tuple[Any, ...]:
    """Return the choices of layers that follow each other, from every n-th layer on."""
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, int):
        return (checkpoint,)
    return (True, *[False] * (checkpoint - 1))


def spread_choices(
    paths: Mapping[str, str], model: LayeredModel, choices: Sequence[Any]
) -> dict[str, Any]:
    """Return a choice of checkpoint for each layer, so that each kind of layer has each choice."""
    choices_by_kind = {kind: cycle(choices) for kind in model.kinds}
    chosen: dict[str, Any] = {}
    for path, former in paths.items():
        kind = model.kind_by_layer[former]
        chosen[path] = next(choices_by_kind[kind])
    return chosen
