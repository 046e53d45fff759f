"""The CUDA stream in which each block of memory is allocated.

torch's allocator keeps the free blocks of each stream apart. FSDP2 allocates in three streams:
shards are converted and copied into the buffer of an all-gather in one, what a reduce-scatter
returns, which gradients are views of, is allocated in another, and all other tensors in the stream
that computes. Blocks return to their stream when they are freed: FSDP2 orders streams by events.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchscan.trace.trace import Trace

COMPUTE, COPY_IN, REDUCE = range(3)

_COPY_IN = "fsdp.all_gather_copy_in"
_COPY_OUT = "fsdp.chunk_cat"
_REDUCE_SCATTER = "c10d._reduce_scatter_base_"
_CASTS = frozenset({"aten._to_copy", "aten.div", "aten.mul"})


def streams_of(trace: Trace) -> Mapping[int, int]:
    """Return the stream by storage, for those that are not allocated in the one that computes."""
    operators = {op.signature.operator for op in trace.ops}
    if not operators & {_COPY_IN, _COPY_OUT}:
        return {}
    streams: dict[int, int] = {}
    for op in trace.ops:
        operator = op.signature.operator
        if operator == _COPY_IN:
            for storage in _new_storages(trace, op.inputs):
                streams[storage] = COPY_IN
        elif operator == _REDUCE_SCATTER:
            for storage in _new_storages(trace, op.inputs[:1]):
                streams[storage] = REDUCE
        elif operator in _CASTS and op.phase == "backward":
            inputs = {trace.tensors[each].storage for each in op.inputs}
            if inputs and all(streams.get(each) == REDUCE for each in inputs):
                for storage in _new_storages(trace, op.outputs):
                    streams[storage] = REDUCE
    return streams


def _new_storages(trace: Trace, tensors: tuple[int, ...]) -> set[int]:
    """Return the storages of these tensors that the pass has created."""
    storages = {trace.tensors[each].storage for each in tensors}
    return {each for each in storages if trace.storages[each].born is not None}
