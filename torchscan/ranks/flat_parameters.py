"""Flat parameters, as FSDP1 has them: those of a layer lie one after the other in one parameter.

torch's FSDP1 cannot be built without a GPU. FSDP2 of a single flat parameter has the same memory
and communication: each rank holds ``⌈n / ranks⌉`` of ``n`` elements, with one all-gather for a
layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class _Slot(NamedTuple):
    """A place of a parameter in a module."""

    module: nn.Module
    name: str


def flatten_parameters(unit: nn.Module) -> None:
    """Replace the parameters in a module by views of flat parameters in each pass.

    Parameters of different types, and trained and frozen parameters, get separate flat parameters.
    Parameters that are already flat stay.
    """
    slots: dict[nn.Parameter, list[_Slot]] = {}
    for module in unit.modules():
        for name, tensor in list(module._parameters.items()):
            if tensor is not None and not name.startswith(_PREFIX):
                slots.setdefault(tensor, []).append(_Slot(module, name))
    groups: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    for tensor in slots:
        groups.setdefault((tensor.dtype, tensor.requires_grad), []).append(tensor)
    for number, tensors in enumerate(groups.values()):
        _flatten(unit, f"{_PREFIX}{number}", tensors, [slots[each] for each in tensors])


#: as FSDP1 names its parameters, with a number
_PREFIX = "_flat_param_"


def _flatten(
    unit: nn.Module, name: str, tensors: list[nn.Parameter], slots: list[list[_Slot]]
) -> None:
    with torch.no_grad():
        flat = torch.cat([each.reshape(-1) for each in tensors])
    sizes = [each.numel() for each in tensors]
    shapes = [each.shape for each in tensors]
    unit.register_parameter(name, nn.Parameter(flat, tensors[0].requires_grad))
    for each in slots:
        for slot in each:
            del slot.module._parameters[slot.name]

    def set_views(*_: object) -> None:
        whole: Tensor = getattr(unit, name)
        for view, shape, places in zip(torch.split(whole, sizes), shapes, slots, strict=True):
            shaped: Any = view.view(shape)
            for slot in places:
                setattr(slot.module, slot.name, shaped)

    hook: Callable[..., None] = set_views
    unit.register_forward_pre_hook(hook)
