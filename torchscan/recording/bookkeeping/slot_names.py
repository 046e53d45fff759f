"""Names of a model's parameters and buffers, entered in the table of tensors before a pass."""

from __future__ import annotations

from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.torch_versions import local_part


def name_weights(inventory: Inventory, table: TensorTable) -> None:
    """Name the parameters and buffers of a model, and the memory of packed weights."""
    for slot in inventory.slots:
        table.name(slot.tensor, slot.kind, slot.path)
    for packed in inventory.packed:
        for size in packed.sizes or ():
            table.storages.find_or_add(size.memory, "parameter", packed.path)


def name_parts(inventory: Inventory, table: TensorTable) -> None:
    """Name the local parts of sharded tensors, which a pass uses in their place."""
    if not inventory.is_sharded:
        return
    for slot in inventory.slots:
        part = local_part(slot.tensor)
        if part is not slot.tensor:
            table.name(part, slot.kind, slot.path)
            table.foreign_storage(part)
