"""Rotary embeddings that are computed in two halves, which a call joins."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.trace.trace import Trace

#: calls of a half: two products, and their sum or difference
_HALF = 3


def are_rotated_halves(trace: Trace, kernels: Sequence[Sequence[int]]) -> bool:
    """Return whether two kernels compute halves of a rotary embedding, from the same operands.

    ``kernels``: the indices of the calls of each.
    """
    if [len(each) for each in kernels] != [_HALF, _HALF]:
        return False
    one, other = (_storages_read(trace, each) for each in kernels)
    return one == other


def _storages_read(trace: Trace, kernel: Sequence[int]) -> set[int]:
    """Return the memory that the calls of a kernel read and have not made."""
    read: set[int] = set()
    made: set[int] = set()
    for index in kernel:
        call = trace.ops[index]
        read |= {trace.tensors[tensor].storage for tensor in call.inputs}
        made |= {trace.tensors[tensor].storage for tensor in call.outputs}
    return read - made
