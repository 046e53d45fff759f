"""The lower bound of a compiled pass: its products, and one read and write of inputs and outputs.

Everything between may stay in registers, in shared memory or in the cache, run in another order, or
be recomputed. So only the pass as a whole has a bound::

    max(Σ products / peak, (bytes − bytes of the cache) / bandwidth, bytes / rate of the cache)

over the calls that the outputs depend on. ``bytes`` are the inputs that are read and the outputs.
As many of them as the cache holds may still be there from the pass before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchscan.analyses.roofline.fusion import kept_storages
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace


def needed_calls(trace: Trace) -> list[bool]:
    """Return for each call whether the outputs of the pass depend on it."""
    needed = set(kept_storages(trace))
    calls: list[bool] = []
    for op in reversed(trace.ops):
        written = {
            trace.tensors[tensor].storage for tensor in (*op.outputs, *_written_in_place(trace, op))
        }
        calls.append(not needed.isdisjoint(written))
        if calls[-1]:
            needed.update(trace.tensors[tensor].storage for tensor in op.inputs)
    return calls[::-1]


def _written_in_place(trace: Trace, op: OpCall) -> list[int]:
    """Operands that an operator writes to and does not return."""
    written = {id(spec) for spec in op.signature.written}
    return [tensor for tensor in op.inputs if id(trace.tensors[tensor].spec) in written]


def min_bytes(
    trace: Trace,
    costs: Sequence[OpCost],
    needed: Sequence[bool],
    count_by_storage: Mapping[int, int],
) -> int:
    """Bytes of what was there before and is read, and of what is written and left.

    ``count_by_storage``: how often there is memory of layers that are repeated.
    """
    kept = kept_storages(trace)
    given: dict[int, int] = {}
    left: dict[int, int] = {}
    for op, cost, is_needed in zip(trace.ops, costs, needed, strict=True):
        if not is_needed or not is_launched(op.signature):
            continue
        sizes = {tensor: trace.tensors[tensor].spec.stored_bytes for tensor in op.inputs}
        for tensor, size in sizes.items():
            storage = trace.tensors[tensor].storage
            if (
                trace.storages[storage].born is None
            ):  # of a table of which few rows are read no more than these
                read = min(size, max(0, cost.min_bytes_read - sum(sizes.values()) + size))
                given[storage] = max(given.get(storage, 0), read)
        for tensor in op.outputs:
            storage = trace.tensors[tensor].storage
            if storage in kept:
                left[storage] = max(left.get(storage, 0), trace.tensors[tensor].spec.stored_bytes)
    return sum(
        count_by_storage.get(storage, 1) * size
        for sizes in (given, left)
        for storage, size in sizes.items()
    )
