"""Fusion by a compiler: chains of pointwise operators and row reductions become one kernel.

Contractions stay separate kernels. Inside a kernel, values stay in registers: it reads only tensors
from outside, and writes only those that are needed outside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from torchscan.analyses.roofline.fusible_calls import begins_kernel, is_fusible
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace

#: calls of a kernel that a compiler computes again where their result is joined with others
_MAX_PART = 3


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
        #: kernel -> all kernels that must have run before it, and itself, as bits; the one that got
        #: a call last comes last
        self._after: dict[int, int] = {}
        #: kernel -> its last call
        self._last: dict[int, int] = {}
        #: storage -> number of calls that read it
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
        needed = set(self._makers(op).values())
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
        """Note the rows that a call reduces its elements to, or that it reduces them further."""
        if self._needs_all(op):
            self._columns.add(kernel)
            return
        if not op.outputs:
            return
        rows = self._trace.tensors[op.outputs[0]].spec.numel
        if rows < self._largest(op):
            self._rows[kernel].add(rows)

    def _note(self, kernel: int, needed: set[int], index: int) -> None:
        """Note that a kernel runs after these, and so do all kernels that run after it.

        A kernel without a call since this one began does not run after it.
        """
        before = self._after.pop(kernel, 1 << kernel)
        now = before
        for each in needed - {kernel}:
            now |= self._after[each]

        if now != before:
            for each in reversed(self._after):
                if self._last[each] < kernel:
                    break
                if self._after[each] >> kernel & 1:
                    self._after[each] |= now
        self._after[kernel] = now
        self._last[kernel] = index

    def _kernel_to_join(self, index: int, size: int, needed: set[int]) -> int | None:
        """Return a producer's kernel over the same elements, or None.

        No other operand may be made after it, and it must be of the same phase and region.
        """
        op = self._trace.ops[index]
        place = self._place(index)
        for candidate in sorted(needed, reverse=True):
            if self._place(candidate) != place:
                continue
            others = needed - {candidate}
            if any(self._after[kernel] >> candidate & 1 for kernel in others):
                continue
            if self._is_part(candidate, op) or self._can_append(candidate, op, size):
                return candidate
        return None

    def _place(self, index: int) -> tuple[Phase, int]:
        """Return the phase and the region of a call, or of a kernel."""
        return self._trace.ops[index].phase, self._regions[index]

    def _can_append(self, kernel: int, op: OpCall, size: int) -> bool:
        """Return whether the loops of a kernel can go along the elements of a call, or its rows.

        Loops go along rows or along columns, and none of the results that the call reads may need
        all places of the kernel first.
        """
        rows = self._rows[kernel]
        if rows and self._needs_all(op):
            return False
        if self._places.get(kernel) != size and size not in rows:
            return False
        inner = (maker for maker, owner in self._makers(op).items() if owner == kernel)
        return not any(self._needs_all(self._trace.ops[maker]) for maker in inner)

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
        """Merge kernels whose results meet in a call.

        They go through as many elements as this one, or compute a part of a joined tensor.
        """
        for other in needed - {kernel}:
            is_similar = self._places.get(other) == self._places[kernel]
            if not is_similar and not self._is_part(other, op):
                continue
            if self._can_merge(other, kernel):
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

    def _makers(self, op: OpCall) -> dict[int, int]:
        """Return the calls that computed the operands, also behind views, with their kernels."""
        makers: dict[int, int] = {}
        for tensor in op.inputs:
            maker = self._trace.tensors[tensor].producer
            while maker is not None:
                kernel = self.kernels[maker]
                if kernel is not None:
                    makers[maker] = kernel
                    break
                inputs = self._trace.ops[maker].inputs
                maker = self._trace.tensors[inputs[0]].producer if inputs else None
        return makers

    def _largest(self, op: OpCall) -> int:
        tensors = (*op.inputs, *op.outputs)
        return max((self._trace.tensors[tensor].spec.numel for tensor in tensors), default=0)

    def _needs_all(self, op: OpCall) -> bool:
        """Return whether a call reduces more than rows, so that it must visit all places first."""
        if not op.outputs or self._trace.tensors[op.outputs[0]].spec.numel == self._largest(op):
            return False
        dims = op.signature.arguments.get("dim", None)
        if not isinstance(dims, tuple):
            dims = (dims,)
        rank = len(op.signature.inputs[0].shape) if op.signature.inputs else 0
        return dims not in ((-1,), (rank - 1,))
