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

_kinds: dict[str, Kind] = {}
#: the kind of each collective, by the name of the operator without its overload
COLLECTIVES: Mapping[str, Kind] = _kinds


def _declare(kind: Kind, *operators: str) -> None:
    """Declare collectives of a kind, which cost no arithmetic."""
    declare_costless(*operators)
    for operator in operators:
        _kinds[operator.replace("::", ".")] = kind


_declare(
    "all-gather",
    "c10d::_allgather_base_",
    "c10d::allgather_",
    "c10d::allgather_into_tensor_coalesced_",
    "_c10d_functional::all_gather_into_tensor",
    "_c10d_functional::all_gather_into_tensor_out",
    "_c10d_functional::all_gather_into_tensor_coalesced",
)
_declare(
    "reduce-scatter",
    "c10d::_reduce_scatter_base_",
    "c10d::reduce_scatter_",
    "c10d::reduce_scatter_tensor_coalesced_",
    "_c10d_functional::reduce_scatter_tensor",
    "_c10d_functional::reduce_scatter_tensor_out",
    "_c10d_functional::reduce_scatter_tensor_coalesced",
)
_declare(
    "all-reduce",
    "c10d::allreduce_",
    "c10d::allreduce_coalesced_",
    "_c10d_functional::all_reduce",
    "_c10d_functional::all_reduce_",
)
_declare(
    "all-to-all", "c10d::alltoall_", "c10d::alltoall_base_", "_c10d_functional::all_to_all_single"
)
_declare(
    "broadcast", "c10d::broadcast_", "_c10d_functional::broadcast", "_c10d_functional::broadcast_"
)
_declare("reduce", "c10d::reduce_")
_declare("gather", "c10d::gather_")
_declare("scatter", "c10d::scatter_")
_declare("send", "c10d::send")
_declare("receive", "c10d::recv_")
declare_costless("c10d::barrier", "_c10d_functional::wait_tensor")


def group_of(signature: OpSignature) -> GroupSpec | None:
    """Return the process group of a collective, or None if its arguments do not name one."""
    for each in (*signature.args, *signature.kwargs.values()):
        if isinstance(each, GroupSpec):
            return each
    return None


def whole_bytes(signature: OpSignature) -> int:
    """Return the bytes of the complete tensors: the largest of the arguments and the result."""
    return max(map(_bytes_in, (*signature.args, signature.outputs)))


def _bytes_in(value: object) -> int:
    if isinstance(value, TensorSpec):
        return value.stored_bytes
    if type(value) is tuple:
        return sum(map(_bytes_in, value))
    return 0


def sent_bytes(kind: Kind, size: int, processes: int) -> int:
    """Return the bytes that each of n ranks sends at least: ``(n − 1)/n`` of the complete tensor.

    An all-reduce sends twice as much, because it is a reduce-scatter and an all-gather.
    """
    if kind in ("send", "receive"):
        return size
    if processes <= 1:
        return 0
    if kind in ("broadcast", "reduce", "gather", "scatter"):
        return size
    num_rounds = 2 if kind == "all-reduce" else 1
    num_peers = processes - 1
    return num_rounds * size * num_peers // processes
