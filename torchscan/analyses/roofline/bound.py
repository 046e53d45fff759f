"""The lower bound of a compiled pass: its products, and one read and write of inputs and outputs.

Everything between may stay in registers, in shared memory or in the cache, run in another order, or
be recomputed. So only the pass as a whole has a bound::

    max(Σ products / peak, (bytes − bytes of the cache) / bandwidth, bytes / rate of the cache)

over the calls that the outputs depend on. ``bytes`` are the inputs that are read and the outputs.
As many of them as the cache holds may still be there from the pass before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchscan.analyses.roofline.fused_traffic import kept_storages
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops import OpCost
from torchscan.trace.trace import Trace


def needed_calls(trace: Trace) -> list[bool]:
    """Return for each call whether the outputs of the pass depend on it."""
    needed = set(kept_storages(trace))
    calls: list[bool] = []
    for op in reversed(trace.ops):
        inputs = [trace.tensors[tensor] for tensor in op.inputs]
        results = {trace.tensors[tensor].storage for tensor in op.outputs}
        # An operator may write to operands that it does not return.
        in_place = {id(spec) for spec in op.signature.written}
        results.update(each.storage for each in inputs if id(each.spec) in in_place)

        is_needed = not needed.isdisjoint(results)
        calls.append(is_needed)
        if is_needed:
            needed.update(each.storage for each in inputs)
    calls.reverse()
    return calls


def min_bytes(
    trace: Trace,
    costs: Sequence[OpCost],
    needed: Sequence[bool],
    count_by_storage: Mapping[int, int],
) -> int:
    """Return the bytes that a pass reads and did not write, and that it writes and leaves.

    Args:
        trace: the trace.
        costs: the costs of its calls.
        needed: True for each call that the outputs depend on.
        count_by_storage: the number of times that memory of repeated layers exists.
    """
    kept = kept_storages(trace)
    given: dict[int, int] = {}
    left: dict[int, int] = {}
    for op, cost, is_needed in zip(trace.ops, costs, needed, strict=True):
        if not is_needed or not is_launched(op.signature):
            continue
        sizes = {tensor: trace.tensors[tensor].spec.stored_bytes for tensor in op.inputs}
        all_read = sum(sizes.values())
        for tensor, size in sizes.items():
            storage = trace.tensors[tensor].storage
            if trace.storages[storage].born is None:
                # Of a table of which few rows are read, no more than these count.
                read = min(size, max(0, cost.min_bytes_read - all_read + size))
                given[storage] = max(given.get(storage, 0), read)
        for tensor in op.outputs:
            record = trace.tensors[tensor]
            if record.storage in kept:
                size = max(left.get(record.storage, 0), record.spec.stored_bytes)
                left[record.storage] = size

    total = 0
    for storage, size in (*given.items(), *left.items()):
        total += count_by_storage.get(storage, 1) * size
    return total
