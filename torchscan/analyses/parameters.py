"""Parameters and buffers by module call, each counted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace


class ParameterCount(NamedTuple):
    """Elements of trainable parameters, frozen parameters and buffers, and their bytes."""

    grad_params: int = 0
    nograd_params: int = 0
    param_size: int = 0
    num_buffers: int = 0
    buffer_size: int = 0
    #: True if some of it was already counted, where it first appeared
    is_shared: bool = False


_NOTHING = ParameterCount()


def parameters_by_call(trace: Trace) -> tuple[ParameterCount, ...]:
    """Return the count of each call of ``trace.modules``, in order.

    They sum to the count of the model. A tensor counts where it first appears. A module that is
    never called itself (a list of parameters, an auxiliary head skipped in evaluation) counts with
    the nearest enclosing module that is.
    """
    called = {call.path for call in trace.modules}
    slots_by_owner: dict[str, list[ParameterRecord]] = defaultdict(list)
    for record in trace.parameters:
        owner = record.owner
        while owner and owner not in called:
            owner, _, _ = owner.rpartition(".")
        slots_by_owner[owner].append(record)

    seen: set[int] = set()
    counts = []
    for call in trace.modules:
        slots = slots_by_owner.get(call.path)
        counts.append(_NOTHING if slots is None else _count(slots, seen))
    return tuple(counts)


def _count(slots: Sequence[ParameterRecord], seen: set[int]) -> ParameterCount:
    """Count the slots of a module call that were not seen before, and add them to the seen ones."""
    slot_by_identity = {slot.identity: slot for slot in slots}
    is_shared = not seen.isdisjoint(slot_by_identity)
    trainable = frozen = param_size = num_buffers = buffer_size = 0
    for identity, slot in slot_by_identity.items():
        if identity in seen:
            continue
        if slot.is_buffer:
            num_buffers += slot.numel
            buffer_size += slot.stored_bytes
            continue
        param_size += slot.stored_bytes
        if slot.requires_grad:
            trainable += slot.numel
        else:
            frozen += slot.numel
    seen.update(slot_by_identity)
    return ParameterCount(trainable, frozen, param_size, num_buffers, buffer_size, is_shared)


def unused_parameters(trace: Trace) -> dict[str, int]:
    """Return the elements of the parameters that no operator used.

    The keys are the paths of the outermost modules that have only such parameters, or of
    parameters.
    """
    seen = {each.identity for each in trace.parameters if each.is_used}
    numel_by_path = {}
    for record in trace.parameters:
        if not record.is_buffer and record.identity not in seen:
            seen.add(record.identity)
            numel_by_path[record.path] = record.numel
    return _sum_in_unused_modules(numel_by_path, trace) if numel_by_path else {}


def _sum_in_unused_modules(numel_by_path: Mapping[str, int], trace: Trace) -> dict[str, int]:
    """Return the sums of unused parameters over the outermost modules without used parameters."""
    # One path for each owner suffices.
    path_by_owner = {each.owner: each.path for each in trace.parameters if each.is_used}
    used = {prefix for path in path_by_owner.values() for prefix in enclosing_modules(path)}
    unused: dict[str, int] = {}
    for path, numel in numel_by_path.items():
        around = enclosing_modules(path)
        group = next((module for module in around if module not in used), path)
        unused[group] = unused.get(group, 0) + numel
    return unused


def enclosing_modules(path: str) -> list[str]:
    """Return the modules around a parameter, ``a.b.weight -> [a, a.b]``, from the outermost in."""
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]
