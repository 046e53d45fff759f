"""Asynchronous tensor parallelism: collectives that overlap with the products beside them.

torch's compiler divides an all-gather and the products that read it, or a product and the
reduce-scatter after it, into a piece for each rank. While one piece travels, another is multiplied.
The first piece has nothing to overlap with::

    waiting = collective − ASYNC_TP_GAIN · min(collective, (n − 1)/n · product)

Pieces of a product take longer than the product, and copies take bandwidth and multiprocessors from
it, so that a part of what overlaps is won.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from torchscan.analyses.roofline.collective_constants import ASYNC_TP_GAIN
from torchscan.analyses.roofline.links import Fabric
from torchscan.ops.communication import COLLECTIVES, group_of
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: collectives that a function waits for, as tensor parallelism has them
_FUNCTIONAL = "_c10d_functional."
#: products by the names of their operators
_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.linear", "aten._scaled_mm"})
#: calls between a collective and its product, such as views, a concatenation and casts
_MAX_CALLS = 40


def overlap_with_products(
    trace: Trace,
    fabric: Fabric | None,
    times: Mapping[int, float],
    seconds: Mapping[int, float],
) -> Mapping[int, float]:
    """Return the times of collectives, without the part that runs behind products.

    Args:
        trace: the trace.
        fabric: the links; the times stay as they are unless collectives overlap with products.
        times: seconds of each collective, by the index of its call.
        seconds: seconds of each other call, by its index.
    """
    if fabric is None or not fabric.overlaps_products:
        return times
    neighbors = _Neighbors(trace)
    left = dict(seconds)
    waits = dict(times)
    for index, time in times.items():
        products = neighbors.products_of(index)
        group = group_of(trace.ops[index].signature)
        if not products or group is None:
            continue
        overlapped = (1 - 1 / group.size) * sum(left.get(each, 0.0) for each in products)
        hidden = min(time, overlapped)
        waits[index] = time - ASYNC_TP_GAIN * hidden
        for each in products:  # a product hides each second of collectives once
            left[each] = left.get(each, 0.0) * (1 - hidden / overlapped if overlapped else 1.0)
    return waits


class _Neighbors:
    """Products before and after collectives."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._readers: dict[int, list[int]] = defaultdict(list)
        self._maker: dict[int, int] = {}
        for index, op in enumerate(trace.ops):
            for tensor in op.inputs:
                self._readers[tensor].append(index)
            for tensor in op.outputs:
                self._maker.setdefault(tensor, index)

    def products_of(self, index: int) -> list[int]:
        """Return the products that read an all-gather, or the one that a reduce-scatter follows."""
        op = self._trace.ops[index]
        kind = COLLECTIVES.get(op.signature.operator)
        if not op.signature.operator.startswith(_FUNCTIONAL):
            return []
        if kind == "all-gather":
            return self._search(op, is_forward=True)
        return self._search(op, is_forward=False) if kind == "reduce-scatter" else []

    def _search(self, op: OpCall, *, is_forward: bool) -> list[int]:
        """Return the nearest products of the same phase among the calls after or before a call."""
        queue = list(self._next(op, is_forward=is_forward))
        seen = set(queue)
        found = []
        while queue and len(seen) < _MAX_CALLS:
            index = queue.pop(0)
            other = self._trace.ops[index]
            if other.signature.operator in _PRODUCTS and other.phase == op.phase:
                found.append(index)
            elif other.phase == op.phase and other.signature.operator not in COLLECTIVES:
                new = [
                    each for each in self._next(other, is_forward=is_forward) if each not in seen
                ]
                queue += new
                seen |= set(new)
        return found

    def _next(self, op: OpCall, *, is_forward: bool) -> Iterable[int]:
        if is_forward:
            return [each for tensor in op.outputs for each in self._readers[tensor]]
        made = (self._maker.get(tensor) for tensor in op.inputs)
        return [each for each in made if each is not None]
