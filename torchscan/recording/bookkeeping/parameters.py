"""The record of a model's parameters and buffers, written when the pass is over."""

from __future__ import annotations

from torch import Tensor

from torchscan.recording.bookkeeping.inventory import Inventory, Slot
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.trace.events import ParameterRecord


def parameter_records(inventory: Inventory, table: TensorTable) -> tuple[ParameterRecord, ...]:
    """One for each slot, in the order of the inventory."""
    first: dict[int, int] = {}
    identities = [first.setdefault(slot.tensor._cdata, position) for position, slot in enumerate(inventory.slots)]
    used = [table.is_used(slot.tensor) for slot in inventory.slots]  # before the table is asked for those that are not
    return tuple(_record_of(*each, table) for each in zip(inventory.slots, identities, used, strict=True))


def _record_of(slot: Slot, identity: int, is_used: bool, table: TensorTable) -> ParameterRecord:
    parts = _parts_of(slot.tensor)
    return ParameterRecord(
        owner=slot.owner,
        name=slot.name,
        identity=identity,
        is_buffer=slot.is_buffer,
        requires_grad=slot.tensor.requires_grad,
        numel=slot.tensor.numel(),
        stored_bytes=sum(part.numel() * part.element_size() for part in parts),
        is_used=is_used,
        storages=tuple(table.foreign_storage(part) for part in parts),
    )


def _parts_of(tensor: Tensor) -> list[Tensor]:
    """What is in memory: a tensor subclass (a quantised weight, say) is stored as the tensors that it wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    return [part for name in flatten()[0] for part in _parts_of(getattr(tensor, name))]
