"""Plain data of a model that tell whether it was changed in place since its pass was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from torchscan.recording.bookkeeping.inventory import type_name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """Plain data of a model, to find out later whether the model was changed in place."""

    #: class of each module by its path
    types: Mapping[str, str]
    #: ``extra_repr()`` of each module by its path, if it has one
    settings: Mapping[str, str]
    #: shape (None for lazy parameters), type and ``requires_grad`` of each parameter by its path
    parameters: Mapping[str, tuple[torch.Size | None, torch.dtype, bool]]

    @classmethod
    def of(cls, module: nn.Module) -> ModelState:
        """Return the state of a model as it is now."""
        parameters = {}
        for path, each in module.named_parameters():
            shape = None if nn.parameter.is_lazy(each) else each.shape
            parameters[path] = (shape, each.dtype, each.requires_grad)
        types = {path: type_name_of(each) for path, each in module.named_modules()}
        return cls(types=types, settings=settings_of(module), parameters=parameters)


def settings_of(module: nn.Module) -> dict[str, str]:
    """Return the ``extra_repr()`` of each module. A module whose method raises is left out."""
    found = {}
    for path, each in module.named_modules():
        try:
            text = each.extra_repr()
        except Exception:  # noqa: S112 - a model's own code, for a tooltip
            continue
        if isinstance(text, str) and text:
            found[path] = text
    return found
