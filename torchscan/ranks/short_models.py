"""Copies of a model with only a few of its equal layers, which share its parameters."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchscan.once import once
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.folding.layer_folds import equal_layers, outermost_lists
from torchscan.recording.folding.shortened import EqualLayers, shortened


@dataclass(frozen=True)  # no slots: what follows from the fields is kept
class LayeredModel:
    """A model, with the kinds of its layers."""

    module: nn.Module

    @once
    def kinds(self) -> tuple[EqualLayers, ...]:
        """All kinds of layers, in the order of their first ones."""
        found = equal_layers(self.module, more_than=1)
        return tuple(
            EqualLayers(path, tuple(indices)) for path, groups in found for indices in groups
        )

    @once
    def kind_by_layer(self) -> dict[str, EqualLayers]:
        """The kind of each layer by its path, in the order of the module lists."""
        kinds = {f"{kind.path}.{index}": kind for kind in self.kinds for index in kind.indices}
        ordered: dict[str, EqualLayers] = {}
        for path, layers in outermost_lists(self.module, more_than=1):
            for index in range(len(layers)):
                layer = f"{path}.{index}"
                ordered[layer] = kinds[layer]
        return ordered

    def shorten(self, numbers: Sequence[int]) -> tuple[nn.Module, dict[str, str]]:
        """Return a copy with fewer layers of each kind, and their former paths by the new paths.

        Layers that are left out are not copied, because copying takes longer than recording.
        """
        kept = {id(each): each for each in tensors_of(self.module)}
        memo: dict[int, Any] = dict(kept)
        for kind, number in zip(self.kinds, numbers, strict=True):
            layers = self.module.get_submodule(kind.path)
            end = number // 2
            left_out = kind.indices[number - end : kind.number - end]
            memo |= {id(layers.get_submodule(str(index))): nn.Module() for index in left_out}
        model = copy.deepcopy(self.module, memo)
        return model, shortened(model, self.kinds, numbers)
