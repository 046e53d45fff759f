"""A model with fewer of its equal layers. The model is changed in place, so it must be a copy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchscan.recording.folding.layer_folds import configs_of


@dataclass(frozen=True, slots=True)
class EqualLayers:
    """Equal layers of a list."""

    path: str
    indices: tuple[int, ...]

    @property
    def number(self) -> int:
        """Number of layers that are kept."""
        return len(self.indices)


def shortened(
    module: nn.Module, kinds: Sequence[EqualLayers], numbers: Sequence[int]
) -> dict[str, str]:
    """Keep a number of layers of each kind; return the former paths by the new ones.

    One half is from the beginning and the other from the end.
    """
    _own_configs(module)
    left_out: dict[str, set[int]] = {kind.path: set() for kind in kinds}
    for kind, number in zip(kinds, numbers, strict=True):
        num_last = number // 2
        left_out[kind.path].update(kind.indices[number - num_last : kind.number - num_last])
    paths: dict[str, str] = {}
    for path, indices in left_out.items():
        kept = _leave_out(module, path, indices)
        paths |= {f"{path}.{new}": f"{path}.{former}" for new, former in enumerate(kept)}
    return paths


def _leave_out(module: nn.Module, path: str, indices: set[int]) -> list[int]:
    """Leave layers out of a list and of the configs; return the indices of those that are kept."""
    above_path, _, name = path.rpartition(".")
    above = module.get_submodule(above_path)
    layers: Any = getattr(above, name)
    kept = [index for index in range(len(layers)) if index not in indices]
    above._modules[name] = nn.ModuleList([layers[index] for index in kept])
    number = len(layers)
    for config in _configs_in(module):
        for attribute, value in list(getattr(config, "__dict__", {}).items()):
            if type(value) in (list, tuple) and len(value) == number:  # it has an entry per layer
                vars(config)[attribute] = type(value)([value[index] for index in kept])
            elif attribute == "num_hidden_layers" and value == number:
                vars(config)[attribute] = len(kept)
    return kept


def _configs_in(module: nn.Module) -> list[Any]:
    """Return the configs of modules, and those inside them, such as a text model's, each once."""
    outer = configs_of(module)
    configs = {id(config): config for config in outer}
    for config in outer:
        for value in getattr(config, "__dict__", {}).values():
            if hasattr(value, "num_hidden_layers"):
                configs[id(value)] = value
    return list(configs.values())


def _own_configs(module: nn.Module) -> None:
    """Copy the configs of a model, so that those of other models stay unchanged."""
    copies: dict[int, Any] = {}
    for each in module.modules():
        config = vars(each).get("config")
        if config is not None:
            if id(config) not in copies:
                copies[id(config)] = copy.deepcopy(config)
            each.config = copies[id(config)]
