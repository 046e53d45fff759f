"""The inputs and outputs of module calls, by the numbers of their tensors in a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from torchscan.recording.bookkeeping.containers import arguments_named, named_tensors
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.module_calls import Call, Given
from torchscan.torch_versions import local_part
from torchscan.trace.events import ModuleCall, OpCall


class _Ends(NamedTuple):
    """Inputs and outputs of a module call with their names, and the number of operators so far."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    end: int | None = None


_NO_ENDS = _Ends()


class ModuleEnds:
    """The inputs and outputs of module calls. It holds no tensors."""

    def __init__(self, table: TensorTable) -> None:
        self._table = table
        #: by the index of a module call
        self._ends: dict[int, _Ends] = {}

    def note(self, call: Call, given: Given, result: object, num_ops: int) -> None:
        """Note the tensors of a call that ends after a number of operator calls."""
        input_names, inputs = self._indices(arguments_named(type(call.module), *given))
        output_names, outputs = self._indices(named_tensors(result))
        self._ends[call.index] = _Ends(inputs, outputs, input_names, output_names, num_ops)

    def describe(self, calls: Sequence[Call], ops: Sequence[OpCall]) -> tuple[ModuleCall, ...]:
        """Return the module calls for the trace, each with its operator calls."""
        indices: list[list[int]] = [[] for _ in calls]
        for index, op in enumerate(ops):
            indices[op.module_call].append(index)
        return tuple(map(self._describe_call, calls, indices))

    def _describe_call(self, call: Call, ops: Sequence[int]) -> ModuleCall:
        """Return a module call for the trace, with the indices of its operator calls."""
        ends = self._ends.get(call.index, _NO_ENDS)
        parent = None if call.parent is None else call.parent.index
        children = tuple(call.children)
        type_name = type_name_of(call.module)
        type_module = type(call.module).__module__
        return ModuleCall(
            call.index,
            call.path,
            type_name,
            call.invocation,
            call.depth,
            parent,
            children,
            ends.inputs,
            ends.outputs,
            tuple(ops),
            type_module,
            ends.input_names,
            ends.output_names,
            ends.end,
        )

    def _indices(
        self, named: Iterable[tuple[str, Tensor]]
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        names = []
        indices = []
        for name, tensor in named:
            names.append(name)
            indices.append(self._table.find(local_part(tensor)).index)
        return tuple(names), tuple(indices)
