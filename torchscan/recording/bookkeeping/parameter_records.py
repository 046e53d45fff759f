"""The record of a model's parameters and buffers, written when the pass is over."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from torch import Tensor

from torchscan.recording.bookkeeping.containers import Fingerprint
from torchscan.recording.bookkeeping.inventory import Inventory, PackedObject, Slot, is_frozen
from torchscan.recording.bookkeeping.storages import bytes_of
from torchscan.recording.bookkeeping.tensors import PLAIN_TYPES, TensorTable
from torchscan.torch_versions import local_part
from torchscan.trace.events import ParameterRecord


def parameter_records(
    inventory: Inventory, table: TensorTable, took_packed: Container[Fingerprint | None]
) -> tuple[ParameterRecord, ...]:
    """One for each slot, in the order of the inventory, then one for each that is packed away; operators ``took_packed``."""
    first: dict[int, int] = {}
    identities = [
        first.setdefault(slot.tensor._cdata, position)
        for position, slot in enumerate(inventory.slots)
    ]
    # before the table is asked for the memory of those that are not used
    known = [table.memory_of(slot.tensor) for slot in inventory.slots]
    used = [
        number is not None or _is_used(table, slot)
        for number, slot in zip(known, inventory.slots, strict=True)
    ]
    plain = [
        _record_of(*each, table)
        for each in zip(inventory.slots, identities, known, used, strict=True)
    ]
    return (*plain, *_packed_records(inventory.packed, len(plain), table, took_packed))


def _packed_records(
    packed: Sequence[PackedObject],
    before: int,
    table: TensorTable,
    took_packed: Container[Fingerprint | None],
) -> Iterator[ParameterRecord]:
    first: dict[tuple[int, int], tuple[int, Tensor]] = {}
    parameters = (
        (each, place, size) for each in packed for place, size in enumerate(each.sizes or ())
    )
    for position, (each, place, size) in enumerate(parameters, before):
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


def shared_among_processes(records: Sequence[ParameterRecord]) -> str | None:
    """What to say where other processes hold a part of the parameters."""
    distinct = {each.identity: each for each in records if not each.is_buffer}.values()
    held, all_ = sum(each.local_numel for each in distinct), sum(each.numel for each in distinct)
    if held == all_:
        return None
    return f"one of several processes: it holds {held:,} of {all_:,} parameters, and bytes and costs are its own"


def unseen_parameters(
    inventory: Inventory, took_packed: Mapping[Fingerprint | None, str]
) -> list[str]:
    """What else there may be: an object doesn't hand out its weights, or one was used that no module shows."""
    shown = {each.fingerprint for each in inventory.packed}
    hidden = {path for fingerprint, path in took_packed.items() if fingerprint not in shown}
    unread = [
        f"what {each.path} holds, which cannot be read"
        for each in inventory.packed
        if each.sizes is None
    ]
    lazy = dict.fromkeys(slot.owner or "the model" for slot in inventory.lazy_slots)
    unread += [f"{owner}, which is lazy and is not reached by the pass" for owner in lazy]
    frozen = (path or "the model" for path, each in inventory.modules.items() if is_frozen(each))
    unread += [
        f"the weights of {path}, which was frozen: they are constants now" for path in frozen
    ]
    return unread + [
        f"the packed weights that {path or 'the model'} uses and no module shows"
        for path in sorted(hidden)
    ]


def _is_used(table: TensorTable, slot: Slot) -> bool:
    """Return whether memory that a tensor subclass wraps was used."""
    return type(slot.tensor) not in PLAIN_TYPES and any(
        table.memory_of(part) is not None for part in _parts_of(slot.tensor)
    )


def _record_of(
    slot: Slot, identity: int, known: int | None, is_used: bool, table: TensorTable
) -> ParameterRecord:
    owner, name, _, tensor, is_buffer = slot
    requires_grad, numel = tensor.requires_grad, tensor.numel()
    if type(tensor) in PLAIN_TYPES:
        local, size = tensor, bytes_of(tensor)
        storages: tuple[int, ...] = (table.foreign_storage(tensor) if known is None else known,)
    else:
        parts = _parts_of(tensor)
        local, size, storages = (
            local_part(tensor),
            sum(map(bytes_of, parts)),
            tuple(map(table.foreign_storage, parts)),
        )
    return ParameterRecord(
        owner,
        name,
        identity,
        is_buffer,
        requires_grad,
        numel,
        local.numel(),
        size,
        is_used,
        storages,
    )


def _parts_of(tensor: Tensor) -> list[Tensor]:
    """Return the tensors in memory: those that a subclass, such as a quantized weight, wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    held = (getattr(tensor, name) for name in flatten()[0])  # a mesh of devices among them, say
    return [part for each in held if isinstance(each, Tensor) for part in _parts_of(each)]
