"""Parameters and buffers by module call, each counted once."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from torchscan.trace.events import ParameterRecord
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Elements of trainable parameters, frozen parameters and buffers, and the bytes that store them."""

    grad_params: int = 0
    nograd_params: int = 0
    param_size: int = 0
    num_buffers: int = 0
    buffer_size: int = 0
    #: whether some of it was already counted, where it first appeared
    is_shared: bool = False


_NOTHING = ParameterCount()


def parameters_by_call(trace: Trace) -> tuple[ParameterCount, ...]:
    """The count of each call of ``trace.modules``, in order; they sum to the count of the model.

    A tensor counts where it first appears. A module that is never called itself (a list of parameters, an auxiliary head
    skipped in evaluation) counts with the nearest enclosing module that is.
    """
    slots = _slots_by_owner(trace)
    seen: set[int] = set()
    return tuple(
        _count(slots[call.path], seen) if call.path in slots else _NOTHING for call in trace.modules
    )


def unused_parameters(trace: Trace) -> dict[str, int]:
    """Path -> elements of the parameters that no operator used, by the outermost module that has only such parameters."""
    used = {prefix for path in _paths_of_used(trace) for prefix in enclosing_modules(path)}
    unused: dict[str, int] = {}
    seen: set[int] = {each.identity for each in trace.parameters if each.is_used}
    for record in trace.parameters:
        if not record.is_buffer and not record.is_used and record.identity not in seen:
            seen.add(record.identity)
            group = _outermost_unused(record.path, used)
            unused[group] = unused.get(group, 0) + record.numel
    return unused


def _paths_of_used(trace: Trace) -> set[str]:
    """One for each owner suffices."""
    return set({each.owner: each.path for each in trace.parameters if each.is_used}.values())


def _slots_by_owner(trace: Trace) -> dict[str, list[ParameterRecord]]:
    called = {call.path for call in trace.modules}
    slots: dict[str, list[ParameterRecord]] = {}
    for record in trace.parameters:
        slots.setdefault(_nearest_called(record.owner, called), []).append(record)
    return slots


def _count(slots: list[ParameterRecord], seen: set[int]) -> ParameterCount:
    new = {slot.identity: slot for slot in slots if slot.identity not in seen}
    is_shared = not seen.isdisjoint([slot.identity for slot in slots])
    seen.update(new)
    numels, sizes = [0, 0, 0], [0, 0, 0]  # trainable, frozen, buffers
    for slot in new.values():
        kind = 2 if slot.is_buffer else 0 if slot.requires_grad else 1
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


def _outermost_unused(path: str, used: set[str]) -> str:
    """The outermost module around ``path`` without used parameters, else ``path`` itself."""
    return next((module for module in enclosing_modules(path) if module not in used), path)


def enclosing_modules(path: str) -> list[str]:
    """``a.b.weight -> [a, a.b]``, from the outermost in."""
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _nearest_called(path: str, called: Container[str]) -> str:
    """The module of this path, or the innermost around it that was called."""
    while path and path not in called:
        path = path.rpartition(".")[0]
    return path
