"""Shared experts, which engines run on a second stream beside the routed ones."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from torchscan.analyses.roofline.kernels import is_launched
from torchscan.ops.communication import COLLECTIVES
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: calls after a mixture among which the sum with a shared expert is looked for
_REACH = 200
_ADDS = frozenset({"aten.add", "aten.add_"})


def shared_expert_calls(
    trace: Trace, router_product: int, last_call: int, results: Collection[int]
) -> frozenset[int]:
    """Return the calls of a shared expert, which gets the same rows as the router.

    Args:
        trace: the trace.
        router_product: the index of the product that computes the scores of a router.
        last_call: the index of the last call of the routed experts.
        results: the storages of their results.
    """
    search = _SharedExpert(trace, trace.ops[router_product], set(results))
    return search.calls_before(search.sum_after(last_call))


class _SharedExpert:
    """The search for what is added to the results of routed experts."""

    def __init__(self, trace: Trace, router_product: OpCall, results: set[int]) -> None:
        self._trace = trace
        self._results = results
        #: storages with the rows that the router reads, also in another type
        self._sources: set[int] = set()
        #: index of the call that makes these rows
        self._start = 0
        self._follow_rows(router_product)

    def _follow_rows(self, op: OpCall) -> None:
        for tensor in op.inputs:
            storage = self._trace.tensors[tensor].storage
            self._sources.add(storage)
            born = self._trace.storages[storage].born
            if born is None:
                continue
            if self._trace.ops[born].signature.operator == "aten._to_copy":
                self._follow_rows(self._trace.ops[born])
            else:
                self._start = max(self._start, born)

    def sum_after(self, last_call: int) -> int | None:
        """Return a tensor that is added to the results of the routed experts, or None."""
        tensors = self._trace.tensors
        for op in islice(self._trace.ops, last_call + 1, last_call + _REACH):
            others = [each for each in op.inputs if tensors[each].storage not in self._results]
            if len(others) == len(op.inputs):
                continue  # reads no result
            if op.signature.operator in _ADDS and len(others) == 1:
                return others[0]
            if op.signature.operator in COLLECTIVES or not others:
                storages = (tensors[tensor].storage for tensor in op.outputs)
                self._results.update(storages)
                continue
            return None
        return None

    def calls_before(self, result: int | None) -> frozenset[int]:
        """Return the calls from the rows of the router to a result, none if it starts earlier."""
        found: set[int] = set()
        pending = [] if result is None else [result]
        while pending:
            record = self._trace.tensors[pending.pop()]
            storage = self._trace.storages[record.storage]
            if record.storage in self._sources or storage.kind == "parameter":
                continue
            producer = record.producer
            if producer is None or producer <= self._start:
                return frozenset()
            if producer not in found:
                found.add(producer)
                pending += self._trace.ops[producer].inputs
        return frozenset(index for index in found if is_launched(self._trace.ops[index].signature))
