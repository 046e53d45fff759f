"""What a compiler fuses into one kernel: chains of pointwise operators, including reductions of rows.

Contractions stay kernels of their own. Within a kernel, values are passed in registers: it reads only what comes from outside,
and writes only what is needed outside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from torchscan.analyses.roofline.cache import Piece, piece_of
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: streaming operators that a compiler puts into kernels of their own, or leaves to torch's
_SEARCHING = ("sort", "topk", "unique", "nonzero", "cumsum", "multinomial", "bernoulli")
_PLACING = ("index_put", "_index_put", "scatter", "embedding_dense_backward", "im2col", "col2im", "max_pool", "grid_sampler")
_APART = (*_SEARCHING, *_PLACING, "_foreach", "_fused", "_fft", "linalg", "_cudnn", "native_group_norm")


def is_fusible(op: OpCall, cost: OpCost) -> bool:
    """Whether a compiler writes the kernel of this call."""
    name = op.signature.operator.removeprefix("aten.")
    takes_statistics = "batch_norm" in name and op.signature.arguments.get("training", True)
    return not cost.macs and not takes_statistics and not name.startswith(_APART)


def fused_kernels(trace: Trace, costs: tuple[OpCost, ...]) -> list[int | None]:
    """For each call, the number of its kernel: the index of the first call in it. Views are in none."""
    fusion = _Fusion(trace)
    for index, cost in enumerate(costs):
        fusion.add(index, cost)
    return fusion.kernels


class _Fusion:
    """Goes through the calls, joining each to the kernel of a producer if possible."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.kernels: list[int | None] = []
        #: kernel -> elements that it goes through
        self._places: dict[int, int] = {}

    def add(self, index: int, cost: OpCost) -> None:
        op = self._trace.ops[index]
        if not is_launched(op.signature):
            self.kernels.append(None)
            return
        fusible = is_fusible(op, cost)
        joined = self._kernel_to_join(op) if fusible else None
        self.kernels.append(index if joined is None else joined)
        if joined is None and fusible:
            self._places[index] = self._size(op)

    def _kernel_to_join(self, op: OpCall) -> int | None:
        """That of a producer which goes through the same places, if all other operands were there when it began."""
        producers = [made for tensor in op.inputs if (made := self._maker(tensor)) is not None]
        candidates = {kernel for made in producers if (kernel := self.kernels[made]) is not None}
        for candidate in sorted(candidates, reverse=True):
            inner = [made for made in producers if self.kernels[made] == candidate]
            begun_before = all(made < candidate for made in producers if made not in inner)
            in_step = self._places.get(candidate) == self._size(op) and self._trace.ops[candidate].phase == op.phase
            if begun_before and in_step and not any(self._needs_all(self._trace.ops[made]) for made in inner):
                return candidate
        return None

    def _maker(self, tensor: int) -> int | None:
        """The call that computed a tensor; views are looked through."""
        made = self._trace.tensors[tensor].producer
        while made is not None and self.kernels[made] is None:
            inputs = self._trace.ops[made].inputs
            made = self._trace.tensors[inputs[0]].producer if inputs else None
        return made

    def _size(self, op: OpCall) -> int:
        return max((self._trace.tensors[tensor].spec.numel for tensor in (*op.inputs, *op.outputs)), default=0)

    def _needs_all(self, op: OpCall) -> bool:
        """Whether its result is complete only after all places have been visited: a reduction over more than rows."""
        if not op.outputs or self._trace.tensors[op.outputs[0]].spec.numel == self._size(op):
            return False
        dims = op.signature.arguments.get("dim", None)
        rank = len(op.signature.inputs[0].shape) if op.signature.inputs else 0
        return (dims if isinstance(dims, tuple) else (dims,)) not in ((-1,), (rank - 1,))


def traffic_when_fused(trace: Trace, costs: tuple[OpCost, ...], kernels: list[int | None]) -> tuple[OpCost, ...]:
    """The costs, where within a kernel nothing is read that was read or made there, nor written that is used there only."""
    readers: dict[int, set[int | None]] = defaultdict(set)
    for op, kernel in zip(trace.ops, kernels, strict=True):
        if kernel is not None:
            for tensor in op.inputs:
                readers[trace.tensors[tensor].storage].add(kernel)
    results = {trace.tensors[tensor].storage for tensor in trace.root.outputs}
    inner = {
        storage: each.pop() for storage, each in readers.items() if len(each) == 1 and not _is_kept(trace, storage, results)
    }
    sizes = Counter(kernels)
    known: dict[int, set[Piece]] = defaultdict(set)
    return tuple(
        cost if kernel is None or sizes[kernel] == 1 else _outside(trace, op, cost, known[kernel], inner, kernel)
        for op, cost, kernel in zip(trace.ops, costs, kernels, strict=True)
    )


def _outside(trace: Trace, op: OpCall, cost: OpCost, known: set[Piece], inner: Mapping[int, int | None], kernel: int) -> OpCost:
    """``inner``: what one kernel only reads, and which."""
    read = written = 0
    for tensor in dict.fromkeys(op.inputs):
        piece = piece_of(trace, tensor)
        if piece not in known and (piece[0], None) not in known:
            read += trace.tensors[tensor].spec.stored_bytes
            known.add(piece)
    for tensor in dict.fromkeys(op.outputs):
        if inner.get(trace.tensors[tensor].storage) != kernel:
            written += trace.tensors[tensor].spec.stored_bytes
        known.add(piece_of(trace, tensor))
    return replace(
        cost,
        bytes_read=min(read, cost.bytes_read),
        bytes_written=min(written, cost.bytes_written),
        avoidable_bytes_read=max(0, min(read, cost.bytes_read) - cost.least_bytes_read),
    )


def _is_kept(trace: Trace, storage: int, results: set[int]) -> bool:
    """Whether it outlives the pass, or existed before."""
    record = trace.storages[storage]
    return storage in results or record.died is None or record.born is None or record.kind != "intermediate"
