"""Names of a model's parameters and buffers, and their records, written when the pass is over."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from torch import Tensor

from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import Inventory, PackedObject, Slot, is_frozen
from torchscan.recording.bookkeeping.packed_weights import Fingerprint
from torchscan.recording.bookkeeping.storages import bytes_of
from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.torch_versions import local_part
from torchscan.trace.records import ParameterRecord


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


def parameter_records(
    inventory: Inventory, table: TensorTable, took_packed: Container[Fingerprint | None]
) -> tuple[ParameterRecord, ...]:
    """Return a record of each slot, in the order of the inventory, then one of each packed weight.

    Args:
        inventory: the modules and slots of the model.
        table: the tensors that the pass met.
        took_packed: the packed weights that operators took.
    """
    used_memory = []
    # Look up all of them first: `_record_of` adds the memory of unused parameters to the table.
    for slot in inventory.slots:
        storage = table.memory_of(slot.tensor)
        if storage is None and type(slot.tensor) not in PLAIN_TYPES:  # it wraps other tensors
            of_parts = map(table.memory_of, _parts_of(slot.tensor))
            storage = next((each for each in of_parts if each is not None), None)
        used_memory.append(storage)

    first: dict[int, int] = {}
    records: list[ParameterRecord] = []
    for slot, storage in zip(inventory.slots, used_memory, strict=True):
        identity = first.setdefault(slot.tensor._cdata, len(records))
        records.append(_record_of(slot, identity, storage, table))
    if inventory.packed:
        records += _packed_records(inventory.packed, len(records), table, took_packed)
    return tuple(records)


def _packed_records(
    packed: Sequence[PackedObject],
    before: int,
    table: TensorTable,
    took_packed: Container[Fingerprint | None],
) -> Iterator[ParameterRecord]:
    first: dict[tuple[int, int], tuple[int, Tensor]] = {}
    position = before
    for each in packed:
        for place, size in enumerate(each.sizes or ()):
            identity, memory = first.setdefault((each.identity, place), (position, size.memory))
            storage, _ = table.storages.find_or_add(memory, "parameter", each.path)
            yield ParameterRecord(
                owner=each.owner,
                name=f"{each.name}[{place}]",
                identity=identity,
                is_buffer=False,
                requires_grad=False,
                numel=size.numel,
                local_numel=size.numel,
                stored_bytes=size.memory.numel(),
                is_used=each.fingerprint in took_packed,
                storages=(storage,),
            )
            position += 1


def notes_on_shares(records: Sequence[ParameterRecord]) -> list[Note]:
    """Return a note of the parameters that this rank holds, unless it holds all."""
    distinct = {each.identity: each for each in records if not each.is_buffer}.values()
    held = sum(each.local_numel for each in distinct)
    params = sum(each.numel for each in distinct)
    if held == params:
        return []
    return [Note.of("rank-share", held=held, params=params)]


def unseen_parameters(
    inventory: Inventory, took_packed: Mapping[Fingerprint | None, str]
) -> list[Note]:
    """Return notes of weights that may exist besides.

    Objects may not give access to their weights, modules may be lazy or frozen, and operators may
    use packed weights that no module shows.
    """
    unreadable = [each for each in inventory.packed if each.sizes is None]
    notes = [Note.of("unreadable-weights", path=each.path) for each in unreadable]

    owners = [slot.owner for slot in inventory.lazy_slots]
    notes += [Note.of("lazy-module", path=path) for path in dict.fromkeys(owners)]

    modules = inventory.modules.items()
    notes += [Note.of("frozen-weights", path=path) for path, each in modules if is_frozen(each)]

    shown = {each.fingerprint for each in inventory.packed}
    hidden = {path for fingerprint, path in took_packed.items() if fingerprint not in shown}
    notes += [Note.of("hidden-weights", path=path) for path in sorted(hidden)]
    return notes


def _record_of(
    slot: Slot, identity: int, used_memory: int | None, table: TensorTable
) -> ParameterRecord:
    tensor = slot.tensor
    if type(tensor) in PLAIN_TYPES:
        local = tensor
        size = bytes_of(tensor)
        storages: tuple[int, ...] = (
            table.foreign_storage(tensor) if used_memory is None else used_memory,
        )
    else:
        parts = _parts_of(tensor)
        local = local_part(tensor)
        size = sum(map(bytes_of, parts))
        storages = tuple(map(table.foreign_storage, parts))
    return ParameterRecord(
        owner=slot.owner,
        name=slot.name,
        identity=identity,
        is_buffer=slot.kind == "buffer",
        requires_grad=tensor.requires_grad,
        numel=tensor.numel(),
        local_numel=local.numel(),
        stored_bytes=size,
        is_used=used_memory is not None,
        storages=storages,
    )


def _parts_of(tensor: Tensor) -> list[Tensor]:
    """Return the tensors in memory: those that a subclass, such as a quantized weight, wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, *_ = flatten()
    parts = []
    for name in names:
        held = getattr(tensor, name)  # for example a mesh of devices
        if isinstance(held, Tensor):
            parts += _parts_of(held)
    return parts
