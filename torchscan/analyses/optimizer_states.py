"""The moments at which the first step of a training loop creates the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping

from torchscan.trace.trace import Trace


def moments_of_state(trace: Trace) -> Mapping[int, int]:
    """Return, for each block of the optimizer's state, the call before which it is created.

    torch creates the state of all parameters of a group before it computes anything for one of
    them. What one call updates is in one group; if each call updates a single parameter, groups
    can't be told apart, and are taken for one.
    """
    owners = _find_owners(trace)
    updates = [index for index, op in enumerate(trace.ops) if op.phase == "optimizer"]
    first_update: dict[str, int] = {}
    is_at_once = False
    for index in updates:
        storages = [trace.tensors[tensor].storage for tensor in trace.ops[index].inputs]
        updated = {owners[storage] for storage in storages if storage in owners}
        if len(updated) > 1:
            is_at_once = True
        for owner in updated:
            first_update.setdefault(owner, index)

    start = next(iter(updates), 0)
    moments: dict[int, int] = {}
    for number, owner in owners.items():
        if trace.storages[number].kind == "optimizer state":
            moments[number] = first_update.get(owner, start) if is_at_once else start
    return moments


def _find_owners(trace: Trace) -> dict[int, str]:
    """Return the parameter that each block is, or whose gradient or state it is."""
    owners: dict[int, str] = {}
    for number, storage in enumerate(trace.storages):
        if storage.kind in ("parameter", "gradient"):
            owners[number] = storage.name
        elif storage.kind == "optimizer state":
            owner, _, _ = storage.name.rpartition(".")
            if owner:
                owners[number] = owner
    return owners
