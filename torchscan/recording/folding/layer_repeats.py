"""Layers that did not run, as repeats of an equal one in the same trace.

Analyses go through the short trace, and count what belongs to a layer as often as it is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from torchscan.once import once
from torchscan.recording.folding.left_out_layers import LeftOut, left_out_of
from torchscan.recording.folding.thinned import UnfoldableError
from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace


class Repeats:
    """The repeats in a trace."""

    def __init__(
        self, trace: Trace, stands_in: Mapping[str, str], unfold: Callable[[], Trace]
    ) -> None:
        """``unfold`` returns the trace of all layers."""
        self.trace = trace
        self.unfold = unfold
        self.layers: Sequence[LeftOut] = left_out_of(trace, stands_in)
        for each in self.layers:
            _require_passed_on(trace, each)
        #: the number of repeats by the calls of the layer that ran: the first, and that after it
        self._num_repeats = Counter((each.begin, each.end) for each in self.layers)

    def order(self) -> Iterator[tuple[int, LeftOut | None]]:
        """Yield the index of each operator call in order, with the layer that repeats it."""
        done = 0
        for each in self.layers:
            yield from ((index, None) for index in range(done, each.at))
            yield from ((index, each) for index in range(each.begin, each.end))
            done = each.at
        yield from ((index, None) for index in range(done, len(self.trace.ops)))

    @once
    def counts(self) -> list[int]:
        """Number of times that each operator call takes place."""
        counts = [1] * len(self.trace.ops)
        for (begin, end), more in self._num_repeats.items():
            counts[begin:end] = [1 + more] * (end - begin)
        return counts

    @once
    def count_by_storage(self) -> Mapping[int, int]:
        """Number of copies of the memory of layers that are repeated, by its storage."""
        counts: dict[int, int] = {}
        for layer in {(each.begin, each.end): each for each in self.layers}.values():
            count = 1 + self._num_repeats[layer.begin, layer.end]
            for storage in self._storages_in(layer):
                record = self.trace.storages[storage]
                is_given = record.kind == "cache" and record.born is None
                is_parameter = layer.renamed(record.name) is not None
                if is_given or is_parameter or layer.has(record.born):
                    counts[storage] = count
        return counts

    @once
    def keeps_memory(self) -> bool:
        """True if a layer leaves memory behind besides its result and the cache."""
        layers = {(each.begin, each.end): each for each in self.layers}.values()
        return any(self._leaves_memory(each) for each in layers)

    @once
    def storage_in_layer_that_ran(self) -> Mapping[int, int]:
        """The storages of parameters in layers that ran, by those in layers that did not."""
        by_path = {each.path: each for each in self.trace.parameters}
        parameters: dict[str, list[ParameterRecord]] = {}
        found: dict[int, int] = {}
        for layer in self.layers:
            path = layer.model.path
            if path not in parameters:
                inside = (each for each in by_path.values() if each.path.startswith(f"{path}."))
                parameters[path] = list(inside)
            for like in parameters[path]:
                mine = by_path.get(layer.renamed(like.path) or "")
                if mine is not None:
                    found.update(zip(mine.storages, like.storages, strict=False))
        return found

    def _storages_in(self, layer: LeftOut) -> set[int]:
        ops = self.trace.ops[layer.begin : layer.end]
        tensors = {tensor for op in ops for tensor in (*op.inputs, *op.outputs)}
        return {self.trace.tensors[each].storage for each in tensors}

    def _leaves_memory(self, layer: LeftOut) -> bool:
        result = self.trace.tensors[layer.model.outputs[0]].storage
        for storage in self._storages_in(layer) - {result}:
            record = self.trace.storages[storage]
            is_left = layer.has(record.born) and not layer.lets_go(record.died)
            if is_left and record.kind != "cache" and record.size:
                return True
        return False


def _require_passed_on(trace: Trace, layer: LeftOut) -> None:
    """Raise an UnfoldableError if a layer takes other arguments, or its input is kept."""
    given = trace.storages[trace.tensors[layer.given].storage]
    if given.died is None or not layer.lets_go(given.died):
        raise UnfoldableError("what a layer is given is kept for later")
    names = set(layer.call.input_names)
    for name, tensor in zip(layer.model.input_names, layer.model.inputs, strict=True):
        kind = trace.storages[trace.tensors[tensor].storage].kind
        if kind != "cache" and name not in names:
            raise UnfoldableError("a layer is given something else than an equal one")
