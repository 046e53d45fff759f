"""Parameters and buffers by module call, each counted once."""

from __future__ import annotations

from dataclasses import dataclass

from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
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
    slots_by_owner: dict[str, list[ParameterRecord]] = {}
    for record in trace.parameters:
        owner = record.owner
        while owner and owner not in called:
            owner, _, _ = owner.rpartition(".")
        slots_by_owner.setdefault(owner, []).append(record)

    seen: set[int] = set()
    counts: list[ParameterCount] = []
    for call in trace.modules:
        slots = slots_by_owner.get(call.path)
        counts.append(_count(slots, seen) if slots else _NOTHING)
    return tuple(counts)


def unused_parameters(trace: Trace) -> dict[str, int]:
    """Return the elements of the parameters that no operator used.

    The keys are the paths of the outermost modules that have only such parameters, or of
    parameters.
    """
    # One path for each owner suffices.
    path_by_owner = {each.owner: each.path for each in trace.parameters if each.is_used}
    used = {prefix for path in path_by_owner.values() for prefix in enclosing_modules(path)}
    unused: dict[str, int] = {}
    seen: set[int] = {each.identity for each in trace.parameters if each.is_used}
    for record in trace.parameters:
        if record.is_buffer or record.identity in seen:
            continue
        seen.add(record.identity)
        around = enclosing_modules(record.path)
        group = next((module for module in around if module not in used), record.path)
        unused[group] = unused.get(group, 0) + record.numel
    return unused


def _count(slots: list[ParameterRecord], seen: set[int]) -> ParameterCount:
    new = {slot.identity: slot for slot in slots if slot.identity not in seen}
    is_shared = not seen.isdisjoint([slot.identity for slot in slots])
    seen.update(new)
    numels, sizes = [0, 0, 0], [0, 0, 0]  # trainable, frozen, buffers
    for slot in new.values():
        if slot.is_buffer:
            kind = 2
        else:
            kind = 0 if slot.requires_grad else 1
        numels[kind] += slot.numel
        sizes[kind] += slot.stored_bytes
    return ParameterCount(
        grad_params=numels[0],
        nograd_params=numels[1],
        param_size=sizes[0] + sizes[1],
        num_buffers=numels[2],
        buffer_size=sizes[2],
        is_shared=is_shared,
    )


def enclosing_modules(path: str) -> list[str]:
    """Return the modules around a parameter, ``a.b.weight -> [a, a.b]``, from the outermost in."""
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]
