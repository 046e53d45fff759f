"""Fusion by a compiler: chains of pointwise operators and row reductions become one kernel.

Contractions stay separate kernels. Inside a kernel, values stay in registers: it reads only tensors
from outside, and writes only those that are needed outside.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from torchscan.analyses.roofline.cache import Piece, piece_of
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops import OpCost
from torchscan.ops.communication import COLLECTIVES
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace

#: streaming operators that a compiler puts into kernels of their own, or leaves to torch's
_SEARCHING = ("sort", "topk", "unique", "nonzero", "cumsum", "multinomial", "bernoulli")
_PLACING = (
    "index_put",
    "_index_put",
    "scatter",
    "embedding_dense_backward",
    "im2col",
    "col2im",
    "max_pool",
    "grid_sampler",
)
#: calls of a kernel that a compiler computes again where their result is joined with others
_MAX_PART = 3
_SUMS = frozenset({"mean", "sum", "amax"})
_APART = (
    *(*_SEARCHING, *_PLACING, "torchscan.", "_foreach", "_fused", "_fft", "linalg", "_cudnn"),
    "fsdp.",
)


def is_fusible(op: OpCall, cost: OpCost) -> bool:
    """Return whether a compiler generates the kernel of this call.

    It does so for all calls but products, collectives and the operators in ``_APART``, such as
    sorts and scatters, those of optimizers and FSDP's own copies, which no compiled graph has.
    """
    name = op.signature.operator.removeprefix("aten.")
    return (
        not cost.macs and not name.startswith(_APART) and op.signature.operator not in COLLECTIVES
    )


def begins_kernel(op: OpCall) -> bool:
    """Return whether a call starts a kernel, because it reads all of its operand first.

    Statistics of a batch norm do that, and sums over images whose channels lie innermost. Calls
    before it belong to another kernel.
    """
    name = op.signature.operator.removeprefix("aten.")
    takes_statistics = "batch_norm" in name and op.signature.arguments.get("training", True)
    return takes_statistics or name.startswith("native_group_norm") or _sums_images(op, name)


def _sums_images(op: OpCall, name: str) -> bool:
    dims = op.signature.arguments.get("dim", None) if name in _SUMS else None
    is_over_places = isinstance(dims, tuple) and {dim % 4 for dim in dims} >= {2, 3}
    return name == "_adaptive_avg_pool2d" or (
        is_over_places and len(op.signature.inputs[0].shape) == 4
    )


def fused_kernels(
    trace: Trace,
    costs: tuple[OpCost, ...],
    appends: Collection[int] = (),
    apart: Collection[int] = (),
    regions: Sequence[int] | None = None,
) -> list[int | None]:
    """Return for each call the number of its kernel: the index of a call in it. Views are in none.

    Args:
        trace: the trace.
        costs: the costs of its calls.
        appends: the calls that write at the end of a block, of which they touch nothing else.
        apart: calls that are not fused with others.
        regions: the part of the model that each call is compiled in; None: all in one.
    """
    fusion = _Fusion(trace, appends, apart, regions or [0] * len(trace.ops))
    for index, cost in enumerate(costs):
        fusion.add(index, cost)
    return fusion.kernels


class _Fusion:
    """Goes through the calls, joining each to the kernels of its producers if possible."""

    def __init__(
        self,
        trace: Trace,
        appends: Collection[int],
        apart: Collection[int],
        regions: Sequence[int],
    ) -> None:
        self._trace = trace
        self._regions = regions
        self._appends = appends
        self._apart = apart
        self.kernels: list[int | None] = []
        #: kernel -> its calls
        self._members: dict[int, list[int]] = {}
        #: kernel -> elements that it goes through
        self._places: dict[int, int] = {}
        #: kernel -> numbers of rows that it has reduced its elements to, which stay in registers
        self._rows: dict[int, set[int]] = defaultdict(set)
        #: kernels that reduce their elements to columns
        self._columns: set[int] = set()
        #: kernel -> all kernels that must have run before it, and itself, as bits; the one that got a call last comes last
        self._after: dict[int, int] = {}
        #: kernel -> its last call
        self._last: dict[int, int] = {}
        #: storage -> how many calls read it
        self._num_readers: Counter[int] = Counter()
        for op in trace.ops:
            if is_launched(op.signature):
                self._num_readers.update({trace.tensors[tensor].storage for tensor in op.inputs})

    def add(self, index: int, cost: OpCost) -> None:
        op = self._trace.ops[index]
        if not is_launched(op.signature):
            self.kernels.append(None)
            return
        fusible = index not in self._apart and is_fusible(op, cost)
        size = self._largest(op)
        if index in self._appends:
            size = min(self._trace.tensors[tensor].spec.numel for tensor in op.inputs)
        needed = {kernel for made in self._makers(op) if (kernel := self.kernels[made]) is not None}
        joined = None
        if fusible and not begins_kernel(op):
            joined = self._kernel_to_join(index, size, needed)
        kernel = index if joined is None else joined
        self.kernels.append(kernel)
        self._members.setdefault(kernel, []).append(index)
        self._note(kernel, needed, index)
        if fusible:
            self._places[kernel] = max(size, self._places.get(kernel, 0))
            self._note_rows(kernel, op)
        if joined is not None:
            self._merge_producers(kernel, needed, op)

    def _note_rows(self, kernel: int, op: OpCall) -> None:
        """Note the number of rows if a call reduces its elements to rows, or that it reduces more."""
        if self._needs_all(op):
            self._columns.add(kernel)
        if not op.outputs or self._needs_all(op):
            return
        rows = self._trace.tensors[op.outputs[0]].spec.numel
        if rows < self._largest(op):
            self._rows[kernel].add(rows)

    def _note(self, kernel: int, needed: set[int], index: int) -> None:
        """It runs after these, and so does whatever runs after it: what has got no call since it began does not."""
        before = self._after.pop(kernel, 1 << kernel)
        now = before
        for each in needed - {kernel}:
            now |= self._after[each]
        for each in reversed(self._after) if now != before else ():
            if self._last[each] < kernel:
                break
            if self._after[each] >> kernel & 1:
                self._after[each] |= now
        self._after[kernel], self._last[kernel] = now, index

    def _kernel_to_join(self, index: int, size: int, needed: set[int]) -> int | None:
        """Return a producer's kernel over the same elements, or None.

        No other operand may be made after it, and it must be of the same phase and region.
        """
        op, place = self._trace.ops[index], self._place(index)
        for candidate in sorted(needed, reverse=True):
            if self._place(candidate) != place:
                continue
            others = needed - {candidate}
            if any(self._after[kernel] >> candidate & 1 for kernel in others):
                continue
            if self._is_part(candidate, op):
                return candidate
            if not self._goes_along(candidate, op, size):
                continue
            inner = (made for made in self._makers(op) if self.kernels[made] == candidate)
            if not any(self._needs_all(self._trace.ops[made]) for made in inner):
                return candidate
        return None

    def _place(self, index: int) -> tuple[Phase, int]:
        """Return the phase and the region of a call, or of a kernel."""
        return self._trace.ops[index].phase, self._regions[index]

    def _goes_along(self, kernel: int, op: OpCall, size: int) -> bool:
        """Return whether the loops of a kernel go along the elements of a call, or its rows.

        They go along rows or along columns.
        """
        rows = self._rows[kernel]
        if rows and self._needs_all(op):
            return False
        return self._places.get(kernel) == size or size in rows

    def _is_part(self, kernel: int, op: OpCall) -> bool:
        """Return whether this kernel only makes one of the tensors that a call joins.

        A compiler computes such a part where the result is written.
        """
        if op.signature.operator != "aten.cat" or kernel not in self._places:
            return False
        members = self._members[kernel]
        made = self._trace.ops[members[-1]].outputs
        if len(members) > _MAX_PART or len(made) != 1:
            return False
        return self._num_readers[self._trace.tensors[made[0]].storage] == 1

    def _merge_producers(self, kernel: int, needed: set[int], op: OpCall) -> None:
        """Merge kernels over the same elements, or that make parts, whose results meet in a call."""
        for other in needed - {kernel}:
            is_similar = self._places.get(other) == self._places[kernel]
            if (is_similar or self._is_part(other, op)) and self._can_merge(other, kernel):
                self._merge(other, kernel)

    def _can_merge(self, other: int, kernel: int) -> bool:
        """Return whether two kernels become one: none of them may have to wait for the other."""
        if self._place(other) != self._place(kernel):
            return False
        if kernel in self._columns and self._rows[other]:
            return False
        if self._waits_between(other, kernel):
            return False
        members = (self._trace.ops[each] for each in self._members[other])
        return not any(self._needs_all(op) for op in members)

    def _waits_between(self, first: int, last: int) -> bool:
        """Return whether a third kernel needs the first and is needed by the last."""
        needed = self._after[last]
        for each, after in self._after.items():
            is_third = each not in (first, last)
            if is_third and after >> first & 1 and needed >> each & 1:
                return True
        return False

    def _merge(self, other: int, kernel: int) -> None:
        for each in self._members[other]:
            self.kernels[each] = kernel
        self._members[kernel] = sorted(self._members[kernel] + self._members.pop(other))
        self._rows[kernel] |= self._rows.pop(other, set())
        self._places.pop(other)
        self._after[kernel] |= self._after.pop(other)
        self._last.pop(other)
        for each, after in self._after.items():
            if after >> other & 1:
                self._after[each] = after & ~(1 << other) | 1 << kernel | self._after[kernel]

    def _makers(self, op: OpCall) -> list[int]:
        return [made for tensor in op.inputs if (made := self._maker(tensor)) is not None]

    def _maker(self, tensor: int) -> int | None:
        """The call that computed a tensor; views are looked through."""
        made = self._trace.tensors[tensor].producer
        while made is not None and self.kernels[made] is None:
            inputs = self._trace.ops[made].inputs
            made = self._trace.tensors[inputs[0]].producer if inputs else None
        return made

    def _largest(self, op: OpCall) -> int:
        return max(
            (self._trace.tensors[tensor].spec.numel for tensor in (*op.inputs, *op.outputs)),
            default=0,
        )

    def _needs_all(self, op: OpCall) -> bool:
        """Return whether a call reduces more than rows, so that it must visit all places first."""
        if not op.outputs or self._trace.tensors[op.outputs[0]].spec.numel == self._largest(op):
            return False
        dims = op.signature.arguments.get("dim", None)
        rank = len(op.signature.inputs[0].shape) if op.signature.inputs else 0
        return (dims if isinstance(dims, tuple) else (dims,)) not in ((-1,), (rank - 1,))


def traffic_when_fused(
    trace: Trace, costs: tuple[OpCost, ...], kernels: list[int | None], needed: Needed
) -> tuple[OpCost, ...]:
    """The costs, where a kernel reads nothing twice, nor what was made in it, and writes only what is needed outside, once."""
    known: dict[int, set[Piece]] = defaultdict(set)
    return tuple(
        cost if kernel is None else _outside(trace, index, cost, known[kernel], needed)
        for index, (cost, kernel) in enumerate(zip(costs, kernels, strict=True))
    )


def handed_over(
    trace: Trace, costs: tuple[OpCost, ...], kernels: list[int | None], needed: Needed
) -> list[int]:
    """Bytes that each call hands from a product to the pointwise kernel after it, or is handed so."""
    handed = [0] * len(costs)
    for index, cost in enumerate(costs):
        reader = needed.next_kernel(index) if cost.macs and kernels[index] is not None else None
        if (
            reader is not None
            and is_fusible(trace.ops[reader], costs[reader])
            and not begins_kernel(trace.ops[reader])
        ):
            handed[index] = handed[reader] = trace.tensors[
                trace.ops[index].outputs[0]
            ].spec.stored_bytes
    return handed


class Needed:
    """The results that must be written: those that outlive the pass or that another kernel reads.

    Of several writes to one place in a kernel only the last counts. Results without a reader cost
    nothing.
    """

    def __init__(self, trace: Trace, kernels: Sequence[int | None]) -> None:
        self._trace = trace
        self._kernels = kernels
        self._kept = kept_storages(trace)
        self._last_write: dict[tuple[int | None, Piece], int] = {}
        #: by memory all calls that read it
        self._readers: dict[int, list[int]] = defaultdict(list)
        for index, (op, kernel) in enumerate(zip(trace.ops, kernels, strict=True)):
            if kernel is None:
                continue
            for tensor in op.outputs:
                self._last_write[kernel, piece_of(trace, tensor)] = index
            for tensor in op.inputs:
                self._readers[trace.tensors[tensor].storage].append(index)

    def writes(self, index: int, tensor: int) -> bool:
        """Return whether a call writes this result to memory."""
        storage, kernel = self._trace.tensors[tensor].storage, self._kernels[index]
        if self._last_write[kernel, piece_of(self._trace, tensor)] != index:
            return False
        return storage in self._kept or any(
            self._kernels[each] != kernel for each in self._read_later(index, storage)
        )

    def next_kernel(self, index: int) -> int | None:
        """The first call that reads the first result of this one, if all that do are in one other kernel."""
        outputs = self._trace.ops[index].outputs
        later = self._read_later(index, self._trace.tensors[outputs[0]].storage) if outputs else []
        kernels = {self._kernels[each] for each in later}
        return later[0] if len(kernels) == 1 and kernels != {self._kernels[index]} else None

    def _read_later(self, index: int, storage: int) -> list[int]:
        readers = self._readers.get(storage, [])
        return readers[bisect.bisect_right(readers, index) :]


def _outside(trace: Trace, index: int, cost: OpCost, known: set[Piece], needed: Needed) -> OpCost:
    """Return the cost of a call's reads that are new to its kernel, and of its needed writes."""
    op = trace.ops[index]
    read = written = 0
    for tensor in dict.fromkeys(op.inputs):
        piece = piece_of(trace, tensor)
        if piece not in known and (piece[0], None) not in known:
            read += trace.tensors[tensor].spec.stored_bytes
            known.add(piece)
    if not op.outputs:  # it writes to its operands, as those for lists of tensors do
        written = cost.bytes_written
    for tensor in dict.fromkeys(op.outputs):
        if needed.writes(index, tensor):
            written += trace.tensors[tensor].spec.stored_bytes
        known.add(piece_of(trace, tensor))
    return replace(
        cost,
        bytes_read=min(read, cost.bytes_read),
        bytes_written=min(written, cost.bytes_written),
        avoidable_bytes_read=max(0, min(read, cost.bytes_read) - cost.min_bytes_read),
    )


def kept_storages(trace: Trace) -> frozenset[int]:
    """The memory that outlives the pass, or existed before."""
    results = [trace.tensors[tensor].storage for tensor in trace.root.outputs]
    kept = (
        number
        for number, record in enumerate(trace.storages)
        if record.died is None or record.born is None or record.kind != "intermediate"
    )
    return frozenset((*results, *kept))
