"""The published figures of torchvision's and timm's models, and how to build the model that each row is about."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.torchvision_cpu import torchvision

# isort: split
import timm  # imports torchvision

#: published after fusing branches or normalisations into convolutions, which computes with values
REPARAMETRISED = (
    "repvgg",
    "mobileone",
    "ghostnetv3",
    "repghostnet",
    "repvit",
    "fastvit",
    "levit",
    "efficientvit_m",
)

_OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {
        "aux_logits": False,
        "init_weights": False,
    },  # published without the auxiliary heads
    "inception_v3": {"init_weights": False},
    "SemanticSegmentation": {"weights_backbone": None, "aux_loss": True},
    "ObjectDetection": {"weights_backbone": None},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
}


@dataclass(frozen=True)
class Row:
    """One published model: what it is, its inputs, its figures and how far they are rounded."""

    source: str
    model: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    parameters_tolerance: int
    macs: float
    macs_tolerance: float

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments of record()."""
        if self.kind == "ObjectDetection":
            return {"args": ([torch.rand(self.shape)],)}
        sample = self.shape[1:]
        return {"input_shape": [sample, sample] if self.kind == "OpticalFlow" else sample}

    def build(self) -> nn.Module:
        """On the meta device, unless the constructor or, for detection, the pass itself computes with values."""
        if self.kind == "ObjectDetection" or self.model.startswith(REPARAMETRISED):
            return self._create()
        try:
            with torch.device("meta"):
                return self._create()
        except (RuntimeError, NotImplementedError):
            return self._create()

    def _create(self) -> nn.Module:
        if self.source == "timm":
            model = timm.create_model(self.model)
            return (
                timm.utils.reparameterize_model(model)
                if self.model.startswith(REPARAMETRISED)
                else model
            )
        options = _OPTIONS.get(self.model, _OPTIONS.get(self.kind, {}))
        model = torchvision.models.get_model(self.model, weights=None, **options)
        if self.kind == "ObjectDetection":
            _freeze_norms(model.backbone.body)
        return model


def _freeze_norms(backbone: nn.Module) -> None:
    """A pretrained backbone, as in the published models, has its batch norms as buffers."""
    for module in backbone.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, torchvision.ops.FrozenBatchNorm2d(child.num_features))


def rows(path: Path) -> Iterator[Row]:
    """All rows of zoo.csv."""
    with path.open() as file:
        for row in csv.DictReader(file):
            yield Row(
                source=row["source"],
                model=row["model"],
                kind=row["kind"],
                shape=tuple(int(size) for size in row["shape"].split("x")),
                parameters=int(row["params"]),
                parameters_tolerance=int(row["params_tol"]),
                macs=float(row["gmacs"]) * 1e9,
                macs_tolerance=float(row["gmacs_tol"]) * 1e9,
            )
