"""Collectives and messages between ranks: no arithmetic, and the traffic of a copy.

Bytes are those of the whole tensor, which all have afterwards (all-gather) or had before
(reduce-scatter, all-reduce).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torchscan.ops.registry import declare_costless
from torchscan.trace.events import GroupSpec, OpSignature, TensorSpec

Kind = Literal[
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "receive",
]

COLLECTIVES: Mapping[str, Kind] = {
    "c10d._allgather_base_": "all-gather",
    "c10d.allgather_": "all-gather",
    "c10d.allgather_into_tensor_coalesced_": "all-gather",
    "_c10d_functional.all_gather_into_tensor": "all-gather",
    "_c10d_functional.all_gather_into_tensor_out": "all-gather",
    "_c10d_functional.all_gather_into_tensor_coalesced": "all-gather",
    "c10d._reduce_scatter_base_": "reduce-scatter",
    "c10d.reduce_scatter_": "reduce-scatter",
    "c10d.reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "_c10d_functional.reduce_scatter_tensor": "reduce-scatter",
    "_c10d_functional.reduce_scatter_tensor_out": "reduce-scatter",
    "_c10d_functional.reduce_scatter_tensor_coalesced": "reduce-scatter",
    "c10d.allreduce_": "all-reduce",
    "c10d.allreduce_coalesced_": "all-reduce",
    "_c10d_functional.all_reduce": "all-reduce",
    "_c10d_functional.all_reduce_": "all-reduce",
    "c10d.alltoall_": "all-to-all",
    "c10d.alltoall_base_": "all-to-all",
    "_c10d_functional.all_to_all_single": "all-to-all",
    "c10d.broadcast_": "broadcast",
    "_c10d_functional.broadcast": "broadcast",
    "_c10d_functional.broadcast_": "broadcast",
    "c10d.reduce_": "reduce",
    "c10d.gather_": "gather",
    "c10d.scatter_": "scatter",
    "c10d.send": "send",
    "c10d.recv_": "receive",
}

declare_costless(*(name.replace(".", "::") for name in COLLECTIVES))
declare_costless("c10d::barrier", "_c10d_functional::wait_tensor")


def group_of(signature: OpSignature) -> GroupSpec | None:
    """Return the process group of a collective, or None if its arguments do not name one."""
    return next(
        (
            each
            for each in (*signature.args, *signature.kwargs.values())
            if isinstance(each, GroupSpec)
        ),
        None,
    )


def whole_bytes(signature: OpSignature) -> int:
    """Return the bytes of the complete tensors: the largest of the arguments and the result."""
    return max(map(_bytes_in, (*signature.args, signature.outputs)))


def _bytes_in(value: object) -> int:
    if isinstance(value, TensorSpec):
        return value.stored_bytes
    return sum(map(_bytes_in, value)) if type(value) is tuple else 0


def sent_bytes(kind: Kind, size: int, processes: int) -> int:
    """Return the bytes that each of n ranks sends at least: ``(n − 1)/n`` of the complete tensor.

    An all-reduce sends twice as much, because it is a reduce-scatter and an all-gather.
    """
    if kind in ("broadcast", "reduce", "gather", "scatter", "send", "receive"):
        return size if processes > 1 or kind in ("send", "receive") else 0
    return (1 + (kind == "all-reduce")) * size * (processes - 1) // max(1, processes)
