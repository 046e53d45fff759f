"""Integer buffers that a model on the meta device has lost and its constructor can make again.

Under ``torch.device("meta")``, a stride or a table of positions that a constructor puts into a
buffer has no values. A model that keeps its config is created once more, with buffers on the CPU,
and with parameters that take no memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.inventory import Inventory, Slot
from torchscan.recording.bookkeeping.tensor_layouts import CONCRETE_INTEGERS, is_plain, meta_copy
from torchscan.recording.patches import overridden
from torchscan.recording.state import keep_random_state, leave_surroundings
from torchscan.recording.undo import Undo, interruptible, put_back_after


def rebuilt_buffers(inventory: Inventory) -> Mapping[str, Tensor]:
    """Return the integer buffers without values that a second model from the same config has."""
    lost = {slot.path: slot for slot in inventory.slots if _has_lost_values(slot)}
    config = getattr(inventory.root, "config", None)
    if not lost or config is None:
        return {}
    try:
        made = Inventory(_made_again(type(inventory.root), config))
    except Exception:  # it takes more than its config
        return {}
    return {
        slot.path: slot.tensor
        for slot in made.slots
        if slot.path in lost and _are_alike(slot, lost[slot.path])
    }


def _has_lost_values(slot: Slot) -> bool:
    is_known = (
        slot.tensor.is_floating_point()
        or slot.tensor.is_complex()
        or slot.tensor.numel() > CONCRETE_INTEGERS
    )
    return slot.is_buffer and slot.tensor.is_meta and not is_known


def _are_alike(made: Slot, lost: Slot) -> bool:
    has_values = (
        is_plain(made.tensor) and made.tensor.device.type == "cpu" and made.tensor.is_contiguous()
    )
    return (
        has_values
        and made.tensor.shape == lost.tensor.shape
        and made.tensor.dtype == lost.tensor.dtype
    )


def _made_again(kind: Callable[[Any], nn.Module], config: object) -> nn.Module:
    def make(undo: Undo) -> nn.Module:
        leave_surroundings(undo)
        keep_random_state(undo)
        with torch.device("cpu"), overridden(nn.Module, "register_parameter", _without_data):
            return interruptible(kind, config)

    return put_back_after(make)


def _without_data(register: Callable[..., None]) -> Callable[..., None]:
    """Each parameter becomes a meta tensor as soon as a module of this thread has it."""
    thread = threading.get_ident()

    def run(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and threading.get_ident() == thread and is_plain(parameter):
            module._parameters[name] = nn.Parameter(
                meta_copy(parameter), requires_grad=parameter.requires_grad
            )

    return run
