"""What a compiler makes one kernel of: chains of pointwise operators and of the reductions among them.

Contractions stay kernels of their own. Within a kernel values are handed on in registers: only what comes from outside is read,
and only what is needed outside is written.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: streaming operators of which a compiler makes a kernel of its own, or calls torch's
_SEARCHING = ("sort", "topk", "unique", "nonzero", "cumsum", "multinomial", "bernoulli")
_PLACING = ("index_put", "_index_put", "scatter", "embedding_dense_backward", "im2col", "col2im", "max_pool", "grid_sampler")
_APART = (*_SEARCHING, *_PLACING, "_foreach", "_fused", "_fft", "linalg", "_cudnn")


def fused_kernels(trace: Trace, costs: tuple[OpCost, ...]) -> list[int | None]:
    """For each call the number of the kernel that it is part of: the index of the first call in it."""
    kernel: list[int | None] = []
    places: dict[int, int] = {}
    for index, (op, cost) in enumerate(zip(trace.ops, costs, strict=True)):
        if not is_launched(op.signature):
            kernel.append(None)
            continue
        joined = _kernel_to_join(trace, op, kernel, places) if is_fusible(op, cost) else None
        kernel.append(index if joined is None else joined)
        if joined is None and is_fusible(op, cost):
            places[index] = _places(trace, op)
    return kernel


def is_fusible(op: OpCall, cost: OpCost) -> bool:
    """Whether a compiler writes the kernel of this call."""
    return not cost.macs and not op.signature.operator.removeprefix("aten.").startswith(_APART)


def _kernel_to_join(trace: Trace, op: OpCall, kernel: list[int | None], places: dict[int, int]) -> int | None:
    """That of a producer which goes through the same places, if all other operands were there when it began."""
    producers = [made for tensor in op.inputs if (made := _maker(trace, tensor, kernel)) is not None]
    candidates = {kernel[made] for made in producers} - {None}
    for candidate in sorted((each for each in candidates if each is not None), reverse=True):
        begun_before = all(kernel[made] == candidate or made < candidate for made in producers)
        same = trace.ops[candidate].phase == op.phase and places.get(candidate) == _places(trace, op)
        if begun_before and same:
            return candidate
    return None


def _maker(trace: Trace, tensor: int, kernel: list[int | None]) -> int | None:
    """The call that computed a tensor; views are looked through."""
    made = trace.tensors[tensor].producer
    while made is not None and kernel[made] is None:
        inputs = trace.ops[made].inputs
        made = trace.tensors[inputs[0]].producer if inputs else None
    return made


def _places(trace: Trace, op: OpCall) -> int:
    return max((trace.tensors[tensor].spec.numel for tensor in (*op.inputs, *op.outputs)), default=0)


def traffic_when_fused(trace: Trace, costs: tuple[OpCost, ...], kernel: list[int | None]) -> tuple[OpCost, ...]:
    """The costs, where within a kernel nothing is read that was read or made there, nor written that is used there only."""
    users: dict[int, set[int | None]] = defaultdict(set)
    for index, op in enumerate(trace.ops):
        if kernel[index] is not None:
            for tensor in op.inputs:
                users[trace.tensors[tensor].storage].add(kernel[index])
    sizes: dict[int, int] = defaultdict(int)
    for number in kernel:
        sizes[number if number is not None else -1] += 1
    seen: dict[int, set[int]] = defaultdict(set)
    fused = []
    for index, (op, cost) in enumerate(zip(trace.ops, costs, strict=True)):
        number = kernel[index]
        if number is None or sizes[number] == 1:
            fused.append(cost)
            continue
        fused.append(_outside(trace, op, cost, seen[number], users, number))
    return tuple(fused)


def _outside(trace: Trace, op: OpCall, cost: OpCost, seen: set[int], users: dict[int, set[int | None]], number: int) -> OpCost:
    read = written = 0
    for tensor in dict.fromkeys(op.inputs):
        record = trace.tensors[tensor]
        if record.storage not in seen:
            read += record.spec.stored_bytes
            seen.add(record.storage)
    for tensor in dict.fromkeys(op.outputs):
        record = trace.tensors[tensor]
        if users[record.storage] - {number} or not users[record.storage]:
            written += record.spec.stored_bytes
        seen.add(record.storage)
    return replace(cost, bytes_read=min(read, cost.bytes_read), bytes_written=min(written, cost.bytes_written))
