"""The record of a whole model from that of one in which some layers handed on what they were given."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from torchscan.once import once
from torchscan.recording.folding.thinned import UnfoldableError
from torchscan.trace.events import (
    ModuleCall,
    OpCall,
    OpSignature,
    ParameterRecord,
    StorageRecord,
    TensorRecord,
)
from torchscan.trace.trace import Trace


def require_equal_layers(trace: Trace, run: Sequence[Sequence[str]]) -> None:
    """Refuse a record in which layers that should be equal call other operators, or on tensors of other sizes."""
    calls = {each.path: each for each in trace.modules}
    for paths in run:
        seen = [_signatures(trace, calls[each]) for each in paths if each in calls]
        if any(each != seen[0] for each in seen[1:]):
            raise UnfoldableError(f"{paths[0]} does something else than one that looks equal")


def _signatures(trace: Trace, call: ModuleCall) -> list[OpSignature]:
    return [
        trace.ops[op].signature for each in _inside(trace, call) for op in trace.modules[each].ops
    ]


def unfolded(trace: Trace, stands_in: Mapping[str, str]) -> Trace:
    """``stands_in``: by the path of a layer that was left out that of the equal one whose operators it has."""
    return _Unfolding(trace, left_out_of(trace, stands_in)).whole()


def times_of_caches(trace: Trace, stands_in: Mapping[str, str]) -> dict[int, int]:
    """Return the number of layers that a cache represents, by its storage, if there are several."""
    many = Counter((each.begin, each.end) for each in left_out_of(trace, stands_in))
    met = (
        (trace.tensors[tensor].storage, 1 + more)
        for (begin, end), more in many.items()
        for op in trace.ops[begin:end]
        for tensor in (*op.inputs, *op.outputs)
    )
    return {storage: times for storage, times in met if trace.storages[storage].kind == "cache"}


class LeftOut(NamedTuple):
    """The call of a layer that was left out, and that of an equal one, whose operators are those from ``begin`` to ``end``."""

    call: ModuleCall
    model: ModuleCall
    begin: int
    end: int
    #: how many operators had been called before, in the whole record
    start: int
    #: modules in it, itself among them
    size: int

    @property
    def at(self) -> int:
        """Number of operators in the folded trace before the layer's place."""
        return _end_of(self.call)

    @property
    def hidden(self) -> int:
        """The tensor that it has handed on."""
        return self.call.outputs[0]

    @property
    def given(self) -> int:
        """The tensor that the layer which ran took as its hidden state."""
        name = self.call.input_names[self.call.inputs.index(self.hidden)]
        return self.model.inputs[self.model.input_names.index(name)]

    def calls_in(self, trace: Trace) -> Sequence[ModuleCall]:
        """Return the module calls in the layer that ran, itself among them."""
        return trace.modules[self.model.index : self.model.index + self.size]

    def has(self, op: int | None) -> bool:
        """Return whether an operator call of the folded trace belongs to the layer that ran."""
        return op is not None and self.begin <= op < self.end

    def lets_go(self, died: int | None) -> bool:
        """Return whether memory is released during the layer that ran."""
        return died is not None and self.begin < died <= self.end

    def moved(self, place: int) -> int:
        """From the other's part of the thin record to its own part of the whole one."""
        return self.start + place - self.begin

    def renamed(self, name: str) -> str | None:
        """The name of a parameter of the other as it is called here; None: it has none of that name."""
        path = self.model.path
        return (
            self.call.path + name.removeprefix(path)
            if name == path or name.startswith(f"{path}.")
            else None
        )


def left_out_of(trace: Trace, stands_in: Mapping[str, str]) -> list[LeftOut]:
    """Return the calls of layers that were left out, in their order."""
    calls = Counter(each.path for each in trace.modules)
    last = {each.path: each for each in trace.modules}
    found: list[LeftOut] = []
    more = 0
    for call in trace.modules:
        if call.path not in stands_in:
            continue
        model = last.get(stands_in[call.path])
        if (
            model is None
            or calls[call.path] > 1
            or calls[model.path] > 1
            or not set(call.outputs[:1]) & set(call.inputs)
        ):
            raise UnfoldableError(
                "a layer is called several times, or in another way than an equal one"
            )
        inside = _inside(trace, model)
        ops = sum(len(trace.modules[each].ops) for each in inside)
        end = _end_of(model)
        found.append(LeftOut(call, model, end - ops, end, _end_of(call) + more, len(inside)))
        more += ops
    return found


def _end_of(call: ModuleCall) -> int:
    if call.end is None:
        raise UnfoldableError("a layer has not ended")
    return call.end


def _inside(trace: Trace, call: ModuleCall) -> range:
    """The calls in it, and itself: they come one after the other."""
    last = call
    while last.children:
        last = trace.modules[last.children[-1]]
    return range(call.index, last.index + 1)


class _Unfolding:
    """``_now`` and ``_memory_now`` say what there is in place of a tensor that was handed on, and of its memory."""

    def __init__(self, trace: Trace, left: Sequence[LeftOut]) -> None:
        self.thin = trace
        self._left = left
        self._places = [each.at for each in left]
        self._more = [0, *accumulate(each.end - each.begin for each in left)]
        sizes = {each.call.index: each.size for each in left}
        self._numbers = [
            *accumulate((sizes.get(each.index, 1) for each in trace.modules), initial=0)
        ]
        self.parameters = {each.path: each for each in trace.parameters}
        self.tensors = [self._placed(each) for each in trace.tensors]
        self.storages = [self._lasting(each) for each in trace.storages]
        self.named = {
            each.name: at
            for at, each in enumerate(trace.tensors)
            if each.kind in ("parameter", "buffer")
        }
        self._ops: list[OpCall] = []
        self._copied: dict[int, list[ModuleCall]] = {}
        #: by a tensor what came in its place, after the layer of which index
        self._replaced: dict[int, list[tuple[int, int]]] = {}
        self._now: dict[int, int] = {}
        self._memory_now: dict[int, int] = {}

    def whole(self) -> Trace:
        """All of it."""
        done = 0
        for index, op in enumerate(self.thin.ops):
            while done < len(self._left) and self._places[done] <= index:
                self._insert(self._left[done])
                done += 1
            self._keep(op)
        for left in self._left[done:]:
            self._insert(left)
        return self._trace()

    # -- where things are --------------------------------------------------------------------------------------------------

    def op_at(self, op: int) -> int:
        """Return the position in the unfolded trace of an operator call of the folded one."""
        return op + self._more[bisect_right(self._places, op)]

    def _placed(self, tensor: TensorRecord) -> TensorRecord:
        return (
            tensor
            if tensor.producer is None
            else tensor._replace(producer=self.op_at(tensor.producer))
        )

    def _lasting(self, storage: StorageRecord) -> StorageRecord:
        born = None if storage.born is None else self.op_at(storage.born)
        died = (
            None
            if storage.died is None
            else storage.died + self._more[bisect_left(self._places, storage.died)]
        )
        return storage._replace(born=born, died=died)

    def stays(self, storage: int, at: int) -> None:
        """Layers that were left out at this place need it: it is let go of after them, not before."""
        if self.thin.storages[storage].died == at:
            self.outlives(storage, at + self._more[bisect_right(self._places, at)])

    # -- what was run ------------------------------------------------------------------------------------------------------

    def _keep(self, op: OpCall) -> None:
        for output in op.outputs:
            record = self.tensors[output]
            self.tensors[output] = record._replace(
                storage=self._memory_now.get(record.storage, record.storage)
            )
        inputs = tuple([self._now.get(each, each) for each in op.inputs])
        self._ops.append(op._replace(inputs=inputs, module_call=self._numbers[op.module_call]))

    def _kept(self, call: ModuleCall) -> ModuleCall:
        last = _inside(self.thin, call)[-1]
        end = None if call.end is None else call.end + self._more[self._over_by(call.end, last)]
        return call._replace(
            index=self._numbers[call.index],
            parent=None if call.parent is None else self._numbers[call.parent],
            children=tuple([self._numbers[each] for each in call.children]),
            inputs=tuple([self._at(each, call.index) for each in call.inputs]),
            outputs=tuple([self._at(each, last + 1) for each in call.outputs]),
            ops=tuple(map(self.op_at, call.ops)),
            end=end,
        )

    def _over_by(self, end: int, last: int) -> int:
        """Return the number of left-out layers that end by then.

        Those without an operator since then count, too.
        """
        over = bisect_left(self._places, end)
        while (
            over < len(self._left)
            and self._left[over].at == end
            and self._left[over].call.index <= last
        ):
            over += 1
        return over

    def _at(self, tensor: int, layer: int) -> int:
        """Return the tensor that was in this place when the module with that index started."""
        return next(
            (new for after, new in reversed(self._replaced.get(tensor, ())) if after < layer),
            tensor,
        )

    # -- what was left out -------------------------------------------------------------------------------------------------

    def _insert(self, left: LeftOut) -> None:
        memory = self.thin.tensors[left.hidden].storage
        at_last = self.storages[self._memory_now.get(memory, memory)].died
        copied = _Copied(
            self,
            left,
            self._now.get(left.hidden, left.hidden),
            self._memory_now.get(memory, memory),
        )
        self._ops += [
            copied.op(each, self._numbers[left.call.index])
            for each in self.thin.ops[left.begin : left.end]
        ]
        self._copied[left.call.index] = copied.modules(self._numbers)
        made = copied.tensor(left.model.outputs[0])
        self._now[left.hidden] = made
        self._replaced.setdefault(left.hidden, []).append((left.call.index, made))
        self._memory_now[memory] = self.tensors[made].storage
        self.outlives(self._memory_now[memory], at_last)

    def outlives(self, storage: int, died: int | None) -> None:
        """Say when it is let go of."""
        self.storages[storage] = self.storages[storage]._replace(died=died)

    def _trace(self) -> Trace:
        modules = [
            each
            for call in self.thin.modules
            for each in self._copied.get(call.index) or [self._kept(call)]
        ]
        return replace(
            self.thin,
            modules=tuple(modules),
            ops=tuple(self._ops),
            tensors=tuple(self.tensors),
            storages=tuple(self.storages),
            parameters=tuple(map(self._parameter, self.thin.parameters)),
        )

    def _parameter(self, parameter: ParameterRecord) -> ParameterRecord:
        other = self.parameters.get(self._stands_in.get(parameter.path, ""))
        return parameter if other is None else parameter._replace(is_used=other.is_used)

    @once
    def _stands_in(self) -> dict[str, str]:
        """Return the parameters of layers that ran, by the paths of those that were left out."""
        pairs = (
            (left, each.path)
            for left in self._left
            for each in self._of_models.get(left.model.path, ())
        )
        return {left.call.path + path.removeprefix(left.model.path): path for left, path in pairs}

    @once
    def _of_models(self) -> dict[str, list[ParameterRecord]]:
        """The parameters of the layers that stand in for others."""
        paths = {each.model.path for each in self._left}
        return {
            path: [each for each in self.thin.parameters if each.path.startswith(f"{path}.")]
            for path in paths
        }


class _Copied:
    """The calls of an equal layer: its own tensors replaced, shared tensors as they are."""

    def __init__(self, whole: _Unfolding, left: LeftOut, hidden: int, memory: int) -> None:
        self._whole, self._left = whole, left
        given = whole.thin.tensors[left.given].storage
        self._tensors = {**self._matching_inputs(), left.given: hidden}
        self._storages = {given: memory}
        died = whole.thin.storages[given].died
        if died is None or not left.lets_go(died):
            raise UnfoldableError("what a layer is given is kept for later")
        whole.outlives(memory, left.moved(died))

    def _matching_inputs(self) -> dict[int, int]:
        """Return the inputs of this layer by those of the layer that ran, without caches.

        A cache may contain those of other layers.
        """
        thin, mine = (
            self._whole.thin,
            dict(zip(self._left.call.input_names, self._left.call.inputs, strict=True)),
        )
        found = {}
        for name, other in zip(self._left.model.input_names, self._left.model.inputs, strict=True):
            if thin.storages[thin.tensors[other].storage].kind == "cache":
                continue
            if name not in mine:
                raise UnfoldableError("a layer is given something else than an equal one")
            found[other] = mine[name]
        return found

    def op(self, op: OpCall, number: int) -> OpCall:
        """One of its operator calls; ``number`` is that of its module call."""
        return op._replace(
            inputs=tuple(map(self.tensor, op.inputs)),
            outputs=tuple(map(self.tensor, op.outputs)),
            module_call=number + op.module_call - self._left.model.index,
        )

    def modules(self, numbers: Sequence[int]) -> list[ModuleCall]:
        """It and what is in it."""
        model = self._left.model
        more = numbers[self._left.call.index] - model.index
        parent = numbers[self._left.call.parent or 0]
        inside = self._whole.thin.modules[model.index : model.index + self._left.size]
        return [self._module(each, more, parent) for each in inside]

    def _module(self, call: ModuleCall, more: int, parent: int) -> ModuleCall:
        left = self._left
        return call._replace(
            index=call.index + more,
            path=left.renamed(call.path) or call.path,
            parent=parent if call.index == left.model.index else (call.parent or 0) + more,
            children=tuple([each + more for each in call.children]),
            inputs=tuple(map(self.tensor, call.inputs)),
            outputs=tuple(map(self.tensor, call.outputs)),
            ops=tuple(map(left.moved, call.ops)),
            end=None if call.end is None else left.moved(call.end),
        )

    def tensor(self, tensor: int) -> int:
        """Its own, made when it is asked for."""
        if tensor not in self._tensors:
            self._tensors[tensor] = self._tensor(tensor, self._whole.thin.tensors[tensor])
        return self._tensors[tensor]

    def _tensor(self, tensor: int, record: TensorRecord) -> int:
        name = self._left.renamed(record.name) if record.kind in ("parameter", "buffer") else None
        is_made, storage = self._left.has(record.producer), self._storage(record.storage)
        if name is not None and name in self._whole.named:
            return self._whole.named[name]
        if name is None and not is_made and storage == record.storage:
            return tensor
        producer = (
            self._left.moved(record.producer) if record.producer is not None and is_made else None
        )
        self._whole.tensors.append(
            record._replace(storage=storage, producer=producer, name=name or record.name)
        )
        if name is not None:
            self._whole.named[name] = len(self._whole.tensors) - 1
        return len(self._whole.tensors) - 1

    def _storage(self, storage: int) -> int:
        if storage not in self._storages:
            self._storages[storage] = self._new_storage(storage, self._whole.thin.storages[storage])
        return self._storages[storage]

    def _new_storage(self, storage: int, record: StorageRecord) -> int:
        name = self._left.renamed(record.name)
        if name is not None:
            return self._whole.parameters[name].storages[0]
        is_made = self._left.has(record.born)
        if not is_made and not (record.kind == "cache" and record.born is None):
            self._whole.stays(storage, self._left.at)
            return storage
        born = self._left.moved(record.born) if record.born is not None else None
        died = (
            record.died
            if record.died is None or not self._left.lets_go(record.died)
            else self._left.moved(record.died)
        )
        self._whole.storages.append(record._replace(born=born, died=died))
        return len(self._whole.storages) - 1
