"""Low-rank adapters (LoRA) beside the linear layers of a model, which are frozen. The model is changed: it is nobody else's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen linear layer, and beside it a product of two small ones that is trained: ``y = W x + B A x``."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        place = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.base = base
        self.into = nn.Linear(base.in_features, rank, bias=False, **place)
        self.out_of = nn.Linear(rank, base.out_features, bias=False, **place)

    def forward(self, given: Tensor) -> Tensor:
        """Both together."""
        result: Tensor = self.base(given) + self.out_of(self.into(given))
        return result


def adapt(module: nn.Module, layers: Iterable[nn.Module], rank: int) -> None:
    """Freeze the model, and put adapters beside all linear layers that are in its layers."""
    module.requires_grad_(False)
    with torch.no_grad():
        for layer in layers:
            for path, each in list(layer.named_modules()):
                if isinstance(each, nn.Linear):
                    parent, _, name = path.rpartition(".")
                    setattr(layer.get_submodule(parent), name, Adapted(each, rank))
