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
    streams: dict[int, int] = {}
    if not any(op.signature.operator in (_COPY_IN, _COPY_OUT) for op in trace.ops):
        return streams
    for op in trace.ops:
        operator = op.signature.operator
        if operator == _COPY_IN:
            _allocate(trace, op.inputs, COPY_IN, streams)
        elif operator == _REDUCE_SCATTER:
            _allocate(trace, op.inputs[:1], REDUCE, streams)
        elif operator in _CASTS and op.phase == "backward":
            read = {streams.get(trace.tensors[each].storage) for each in op.inputs}
            if read == {REDUCE}:
                _allocate(trace, op.outputs, REDUCE, streams)
    return streams


def _allocate(trace: Trace, tensors: tuple[int, ...], stream: int, streams: dict[int, int]) -> None:
    """Note the stream of those among these tensors that the pass has created."""
    for tensor in tensors:
        storage = trace.tensors[tensor].storage
        if trace.storages[storage].born is not None:
            streams[storage] = stream
