"""The trace of a complete model, given one in which some layers handed on their input."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from torchscan.recording.folding.layer_copies import LayerCopy, UnfoldedRecords
from torchscan.recording.folding.left_out_layers import LeftOut, calls_inside, left_out_of
from torchscan.recording.folding.thinned import UnfoldableError
from torchscan.trace.events import ModuleCall, OpCall, OpSignature
from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace


def require_equal_layers(trace: Trace, run: Sequence[Sequence[str]]) -> None:
    """Raise an UnfoldableError if layers that should be equal are not.

    They call other operators then, or on tensors of other sizes.
    """
    calls = {each.path: each for each in trace.modules}
    for paths in run:
        seen = [_signatures(trace, calls[each]) for each in paths if each in calls]
        if any(each != seen[0] for each in seen[1:]):
            raise UnfoldableError(f"{paths[0]} does something else than one that looks equal")


def _signatures(trace: Trace, call: ModuleCall) -> list[OpSignature]:
    signatures: list[OpSignature] = []
    for each in calls_inside(trace, call):
        signatures += [trace.ops[op].signature for op in trace.modules[each].ops]
    return signatures


def unfolded(trace: Trace, stands_in: Mapping[str, str]) -> Trace:
    """Return the trace of the complete model.

    ``stands_in`` has the path of the equal layer whose operators a layer has that was left out, by
    the path of the latter.
    """
    return _Unfolding(trace, left_out_of(trace, stands_in)).whole()


class _Unfolding:
    """The modules and operator calls of the complete trace, while it grows.

    ``_now`` and ``_memory_now`` tell what there is in place of a tensor that was handed on, and of
    its memory.
    """

    def __init__(self, trace: Trace, left: Sequence[LeftOut]) -> None:
        self._thin = trace
        self._left = left
        self._records = UnfoldedRecords(trace, left)
        self._places = [each.at for each in left]
        sizes = {each.call.index: each.size for each in left}
        sizes_in_order = (sizes.get(each.index, 1) for each in trace.modules)
        self._numbers = [*accumulate(sizes_in_order, initial=0)]
        self._ops: list[OpCall] = []
        self._copied: dict[int, list[ModuleCall]] = {}
        #: by a tensor what came in its place, after the layer of which index
        self._replaced: dict[int, list[tuple[int, int]]] = {}
        self._now: dict[int, int] = {}
        self._memory_now: dict[int, int] = {}

    def whole(self) -> Trace:
        """Return the complete trace."""
        done = 0
        for index, op in enumerate(self._thin.ops):
            while done < len(self._left) and self._places[done] <= index:
                self._insert(self._left[done])
                done += 1
            self._keep(op)
        for left in self._left[done:]:
            self._insert(left)
        return self._trace()

    # -- what was run ----------------------------------------------------------------------------

    def _keep(self, op: OpCall) -> None:
        tensors = self._records.tensors
        for output in op.outputs:
            storage = tensors[output].storage
            storage = self._memory_now.get(storage, storage)
            tensors[output] = tensors[output]._replace(storage=storage)
        inputs = tuple([self._now.get(each, each) for each in op.inputs])
        self._ops.append(op._replace(inputs=inputs, module_call=self._numbers[op.module_call]))

    def _kept(self, call: ModuleCall) -> ModuleCall:
        last = calls_inside(self._thin, call)[-1]
        parent = None if call.parent is None else self._numbers[call.parent]
        end = call.end
        if end is not None:
            end += self._num_inserted(end, last)
        return call._replace(
            index=self._numbers[call.index],
            parent=parent,
            children=tuple([self._numbers[each] for each in call.children]),
            inputs=tuple([self._at(each, call.index) for each in call.inputs]),
            outputs=tuple([self._at(each, last + 1) for each in call.outputs]),
            ops=tuple(map(self._records.op_at, call.ops)),
            end=end,
        )

    def _num_inserted(self, end: int, last: int) -> int:
        """Return the number of operators in left-out layers that end by then.

        Layers without an operator since then count, too.
        """
        over = bisect_left(self._places, end)
        while over < len(self._left):
            left = self._left[over]
            if left.at != end or left.call.index > last:
                break
            over += 1
        return self._records.num_inserted(over)

    def _at(self, tensor: int, layer: int) -> int:
        """Return the tensor that was in this place when the module with that index started."""
        for after, new in reversed(self._replaced.get(tensor, ())):
            if after < layer:
                return new
        return tensor

    # -- what was left out -----------------------------------------------------------------------

    def _insert(self, left: LeftOut) -> None:
        memory = self._thin.tensors[left.hidden].storage
        hidden_now = self._now.get(left.hidden, left.hidden)
        memory_now = self._memory_now.get(memory, memory)
        at_last = self._records.storages[memory_now].died
        copy = LayerCopy(self._records, left, hidden_now, memory_now)
        number = self._numbers[left.call.index]
        self._ops += [copy.op(each, number) for each in self._thin.ops[left.begin : left.end]]
        self._copied[left.call.index] = copy.modules(self._numbers)
        result = copy.tensor(left.model.outputs[0])
        self._now[left.hidden] = result
        self._replaced.setdefault(left.hidden, []).append((left.call.index, result))
        self._memory_now[memory] = self._records.tensors[result].storage
        self._records.outlives(self._memory_now[memory], at_last)

    def _trace(self) -> Trace:
        modules: list[ModuleCall] = []
        for call in self._thin.modules:
            modules += self._copied.get(call.index) or [self._kept(call)]
        return replace(
            self._thin,
            modules=tuple(modules),
            ops=tuple(self._ops),
            tensors=tuple(self._records.tensors),
            storages=tuple(self._records.storages),
            parameters=self._parameters(),
        )

    def _parameters(self) -> tuple[ParameterRecord, ...]:
        """Return the parameters; those of layers that were left out are used as their equals."""
        by_path = self._records.parameters
        parameters_by_model: dict[str, list[str]] = {}
        for path in {each.model.path for each in self._left}:
            parameters_by_model[path] = [each for each in by_path if each.startswith(f"{path}.")]
        equals: dict[str, str] = {}
        for left in self._left:
            for path in parameters_by_model[left.model.path]:
                equals[left.call.path + path.removeprefix(left.model.path)] = path

        parameters = []
        for parameter in self._thin.parameters:
            other = by_path.get(equals.get(parameter.path, ""))
            if other is not None:
                parameter = parameter._replace(is_used=other.is_used)
            parameters.append(parameter)
        return tuple(parameters)
