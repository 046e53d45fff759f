"""Records of a layer that was left out, copied from those of an equal layer that ran."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from torchscan.recording.folding.left_out_layers import LeftOut
from torchscan.recording.folding.thinned import UnfoldableError
from torchscan.trace.events import ModuleCall, OpCall
from torchscan.trace.records import StorageRecord, TensorRecord
from torchscan.trace.trace import Trace


class UnfoldedRecords:
    """The tensors and storages of the complete trace, while it grows."""

    def __init__(self, thin: Trace, left: Sequence[LeftOut]) -> None:
        """Begin with those of the trace in which layers are left out."""
        self.thin = thin
        self._places = [each.at for each in left]
        self._more = [0, *accumulate(each.end - each.begin for each in left)]
        self.parameters = {each.path: each for each in thin.parameters}
        self.tensors: list[TensorRecord] = []
        for tensor in thin.tensors:
            if tensor.producer is not None:
                tensor = tensor._replace(producer=self.op_at(tensor.producer))
            self.tensors.append(tensor)
        self.storages = [self._lasting(each) for each in thin.storages]
        #: the tensors of parameters and buffers, by their names
        self.named: dict[str, int] = {}
        for index, tensor in enumerate(thin.tensors):
            if tensor.kind in ("parameter", "buffer"):
                self.named[tensor.name] = index

    def op_at(self, op: int) -> int:
        """Return the position in the unfolded trace of an operator call of the folded one."""
        return op + self._more[bisect_right(self._places, op)]

    def num_inserted(self, num_layers: int) -> int:
        """Return the number of operators in the first of the layers that were left out."""
        return self._more[num_layers]

    def _lasting(self, storage: StorageRecord) -> StorageRecord:
        born, died = storage.born, storage.died
        if born is not None:
            born = self.op_at(born)
        if died is not None:
            died += self._more[bisect_left(self._places, died)]
        return storage._replace(born=born, died=died)

    def stays(self, storage: int, at: int) -> None:
        """Let memory outlive the layers that were left out at this place, as they need it.

        It is let go of after them, not before.
        """
        if self.thin.storages[storage].died == at:
            self.outlives(storage, at + self._more[bisect_right(self._places, at)])

    def outlives(self, storage: int, died: int | None) -> None:
        """Set when memory is let go of."""
        self.storages[storage] = self.storages[storage]._replace(died=died)


class LayerCopy:
    """The calls of an equal layer: its own tensors replaced, shared tensors as they are."""

    def __init__(self, records: UnfoldedRecords, left: LeftOut, hidden: int, memory: int) -> None:
        """Begin with the tensor that the layer is given, and its memory."""
        self._records = records
        self._left = left
        given = records.thin.tensors[left.given].storage
        self._tensors = {**self._matching_inputs(), left.given: hidden}
        self._storages = {given: memory}
        died = records.thin.storages[given].died
        if died is None or not left.lets_go(died):
            raise UnfoldableError("what a layer is given is kept for later")
        records.outlives(memory, left.moved(died))

    def _matching_inputs(self) -> dict[int, int]:
        """Return the inputs of this layer by those of the layer that ran, without caches.

        A cache may contain those of other layers.
        """
        thin, call, model = self._records.thin, self._left.call, self._left.model
        mine = dict(zip(call.input_names, call.inputs, strict=True))
        found = {}
        for name, other in zip(model.input_names, model.inputs, strict=True):
            if thin.storages[thin.tensors[other].storage].kind == "cache":
                continue
            if name not in mine:
                raise UnfoldableError("a layer is given something else than an equal one")
            found[other] = mine[name]
        return found

    def op(self, op: OpCall, number: int) -> OpCall:
        """Return the copy of an operator call; ``number`` is that of the layer's module call."""
        return op._replace(
            inputs=tuple(map(self.tensor, op.inputs)),
            outputs=tuple(map(self.tensor, op.outputs)),
            module_call=number + op.module_call - self._left.model.index,
        )

    def modules(self, numbers: Sequence[int]) -> list[ModuleCall]:
        """Return the module calls of the layer and of the modules in it."""
        model = self._left.model
        more = numbers[self._left.call.index] - model.index
        parent = numbers[self._left.call.parent or 0]
        inside = self._left.calls_in(self._records.thin)
        return [self._module(each, more, parent) for each in inside]

    def _module(self, call: ModuleCall, more: int, parent: int) -> ModuleCall:
        left = self._left
        if call.index != left.model.index:
            parent = (call.parent or 0) + more
        end = None if call.end is None else left.moved(call.end)
        return call._replace(
            index=call.index + more,
            path=left.renamed(call.path) or call.path,
            parent=parent,
            children=tuple([each + more for each in call.children]),
            inputs=tuple(map(self.tensor, call.inputs)),
            outputs=tuple(map(self.tensor, call.outputs)),
            ops=tuple(map(left.moved, call.ops)),
            end=end,
        )

    def tensor(self, tensor: int) -> int:
        """Return the copy of a tensor, which is made when it is asked for first."""
        if tensor not in self._tensors:
            self._tensors[tensor] = self._tensor(tensor, self._records.thin.tensors[tensor])
        return self._tensors[tensor]

    def _tensor(self, tensor: int, record: TensorRecord) -> int:
        name = None
        if record.kind in ("parameter", "buffer"):
            name = self._left.renamed(record.name)
        is_made = self._left.has(record.producer)
        storage = self._storages.get(record.storage)
        if storage is None:
            storage = self._new_storage(record.storage)
            self._storages[record.storage] = storage
        if name is not None and name in self._records.named:
            return self._records.named[name]
        if name is None and not is_made and storage == record.storage:
            return tensor
        producer = None
        if record.producer is not None and is_made:
            producer = self._left.moved(record.producer)
        tensors = self._records.tensors
        tensors.append(
            record._replace(storage=storage, producer=producer, name=name or record.name)
        )
        if name is not None:
            self._records.named[name] = len(tensors) - 1
        return len(tensors) - 1

    def _new_storage(self, storage: int) -> int:
        record = self._records.thin.storages[storage]
        name = self._left.renamed(record.name)
        if name is not None:
            return self._records.parameters[name].storages[0]
        is_made = self._left.has(record.born)
        if not is_made and not (record.kind == "cache" and record.born is None):
            self._records.stays(storage, self._left.at)
            return storage
        born, died = record.born, record.died
        if born is not None:
            born = self._left.moved(born)
        if died is not None and self._left.lets_go(died):
            died = self._left.moved(died)
        self._records.storages.append(record._replace(born=born, died=died))
        return len(self._records.storages) - 1
