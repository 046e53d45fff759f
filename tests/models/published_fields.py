"""Published receptive fields of torchvision's models, and how to build each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch import nn

import torchscan
from torchscan import receptive_field


class FieldOf(NamedTuple):
    """A layer's field along one axis: what was found beside what is published."""

    layer: str
    axis: int
    found: Any
    published: Any


def published_fields(path: Path) -> dict[str, Any]:
    """By model; none where the file is absent."""
    return json.loads(path.read_text()) if path.exists() else {}


def fields_of(name: str, layers: dict[str, Any]) -> Iterator[FieldOf]:
    """Of every layer of a model that has a published one, along every axis."""
    field = receptive_field(_model(name), _large_input(name))
    for path, axes in layers.items():
        found = {axis.axis - 2: axis for axis in field[path].axes}
        yield from (
            FieldOf(path, int(at), _found(found[int(at)]), _published(axis))
            for at, axis in axes.items()
        )


def _found(axis: torchscan.types.AxisField) -> Any:
    if axis.status != "local":
        return axis.status
    return (axis.status, axis.size, str(axis.stride), list(axis.starts), len(axis.starts))


def _published(axis: dict[str, Any]) -> Any:
    if axis["status"] != "local":
        return axis["status"]
    return (axis["status"], axis["rf"], axis["stride"], axis["start"], axis["period"])


def _model(name: str) -> nn.Module:
    torchvision = pytest.importorskip("tests.torchvision_cpu").torchvision
    models = torchvision.models
    if name == "r3d_18":
        return models.video.r3d_18()
    if name == "deeplabv3_resnet50":
        return models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None)
    if name == "googlenet":
        return models.googlenet(init_weights=False, aux_logits=False)
    model: nn.Module = getattr(models, name.removesuffix("-noSE"))()
    return (
        _without_gates(model, torchvision.ops.SqueezeExcitation)
        if name.endswith("-noSE")
        else model
    )


def _without_gates(model: nn.Module, gate: type[nn.Module]) -> nn.Module:
    for module in model.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, gate):
                setattr(module, name, nn.Identity())
    return model


def _large_input(name: str) -> tuple[int, ...]:
    """So large that no window is as large as the map: of Swin's last stage, which is 1/32 of it, there are 10 of 7 places."""
    return (
        (3, 64, 224, 224)
        if name == "r3d_18"
        else (3, 2240, 2240)
        if name == "swin_t"
        else (3, 1024, 1024)
    )
