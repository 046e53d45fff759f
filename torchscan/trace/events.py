"""The calls of operators and modules in a trace, and the specs of the tensors that they get.

They hold no tensor, so a trace can outlive its model, be compared, copied and sent elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

import torch

from torchscan.once import once
from torchscan.torch_versions import OpOverload
from torchscan.trace.kernel_operators import KERNELS, kernel_operator, parameters_of

_QUANTISED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})
_IN_A_BYTE = {torch.quint4x2: 2, torch.quint2x4: 4}

Shape = tuple[int, ...]
#: the backward pass includes all that runs while gradients are computed, also recomputation
Phase = Literal["forward", "backward", "optimizer"]
#: caller of an operator: a function or its gradient; autograd's engine, which sums the gradients of
#: tensors that were used twice; or a function that a checkpoint recomputes
Origin = Literal["function", "engine", "checkpoint"]


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The storage of a sparse tensor: number of elements, and bytes of their indices."""

    stored: int
    index_bytes: int


class GroupSpec(NamedTuple):
    """A process group, as an argument of a collective."""

    #: torch's name of the group
    name: str
    #: description that its creator gave, such as ``mesh_tp``
    purpose: str
    #: global ranks of its members, in the order of their ranks in the group
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.ranks)


@dataclass(frozen=True)  # no slots: what follows from the fields is kept
class TensorSpec:
    """Shape, element type and memory layout of a tensor, without its data."""

    shape: Shape
    dtype: torch.dtype
    stride: Shape
    #: None if the tensor is dense
    sparsity: Sparsity | None = None
    #: True for a nested tensor; its shape has the number of elements
    is_nested: bool = field(default=False, kw_only=True)
    #: shapes of the samples of a nested tensor, or None if they are unknown
    samples: tuple[Shape, ...] | None = field(default=None, kw_only=True)

    @once
    def numel(self) -> int:
        """Logical number of elements, ``prod(shape)``."""
        return math.prod(self.shape)

    @once
    def stored_numel(self) -> int:
        """Number of distinct elements in memory.

        An expanded dimension (stride 0) stores one element; overlapping windows share elements.
        """
        if self.sparsity is not None:
            return self.sparsity.stored
        if 0 in self.shape:
            return 0
        if not self.stride:
            return self.numel
        span = distinct = 1
        for size, step in zip(self.shape, self.stride, strict=True):
            span += (size - 1) * step
            distinct *= size if step else 1
        return min(span, distinct)

    @once
    def stored_bytes(self) -> int:
        """Bytes of the distinct elements."""
        index_bytes = 0 if self.sparsity is None else self.sparsity.index_bytes
        return stored_size(self.stored_numel, self.dtype) + index_bytes

    @once
    def accessed_numel(self) -> int:
        """Number of elements that one access touches: all, or those that a sparse tensor stores."""
        return self.numel if self.sparsity is None else self.sparsity.stored

    @once
    def is_arithmetic(self) -> bool:
        """True if arithmetic on the tensor counts: floating-point, complex or quantized."""
        return self.dtype.is_floating_point or self.dtype.is_complex or self.dtype in _QUANTISED


def stored_size(numel: int, dtype: torch.dtype) -> int:
    """Return the bytes of these elements; several elements of fewer than 8 bits share a byte."""
    return -(-numel * dtype.itemsize // _IN_A_BYTE.get(dtype, 1))


@dataclass(frozen=True, kw_only=True)  # no slots: what follows from the fields is kept
class OpSignature:
    """An operator with its arguments, in which tensors and process groups are replaced by specs.

    Calls with the same operator and the same specs share one signature, so values that depend on it
    alone, such as the cost, are computed once.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(hash=False)
    outputs: tuple[TensorSpec, ...]
    #: True if every output shares memory with an input and nothing was written: a view costs
    #: nothing
    is_view: bool
    #: positions of inputs that came before, as in ``x * x``
    repeated: tuple[int, ...] = ()
    #: operands that are written to and not returned
    written: tuple[TensorSpec, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the operator by its name, because the object itself cannot be pickled."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        name: str | tuple[str, str] = str(self.op)
        if self.op.namespace == KERNELS:
            name = parameters_of(self.op)
        return _signature, ({**values, "op": name},)

    @property
    def out(self) -> TensorSpec | tuple[TensorSpec, ...]:
        """The output as the operator returns it: one spec, or several."""
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    @once
    def operator(self) -> str:
        """``aten.conv2d``: the operator without its overload."""
        return str(self.op.overloadpacket)

    @property
    def full_name(self) -> str:
        """``aten.conv2d.default``: with its overload, unless that is the hash of a kernel."""
        return self.operator if self.op.namespace == KERNELS else str(self.op)

    @property
    def all_written(self) -> tuple[TensorSpec, ...]:
        """The results, and the operands that are written to besides."""
        return (*self.outputs, *self.written)

    @once
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The specs among the arguments, in their order."""
        found: list[TensorSpec] = []
        _collect_specs((*self.args, *self.inputs_by_keyword.values()), found)
        return tuple(found)

    @property
    def inputs_by_keyword(self) -> Mapping[str, Any]:
        """The keyword arguments without those that are written to (``out=``)."""
        if not self.kwargs or not self.op._schema.is_mutable:
            return self.kwargs
        written = {
            each.name
            for each in self.op._schema.arguments
            if each.alias_info and each.alias_info.is_write
        }
        return {name: value for name, value in self.kwargs.items() if name not in written}

    @once
    def arguments(self) -> Mapping[str, Any]:
        """The arguments by name in the schema, without those that are written to (``out=``)."""
        positional = dict(zip(names_of_arguments(self.op), self.args, strict=False))
        return positional | dict(self.inputs_by_keyword)

    @once
    def distinct_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs, in which a tensor that is passed twice appears once."""
        return tuple(
            spec for position, spec in enumerate(self.inputs) if position not in self.repeated
        )


@cache
def names_of_arguments(op: OpOverload) -> tuple[str, ...]:
    """Return the names of an operator's arguments. They are cached because the schema is slow."""
    return tuple(argument.name for argument in op._schema.arguments)


#: namespace of operators -> the module that registers them, if ``import torch`` does not
_LIBRARIES = {
    "_c10d_functional": "torch.distributed._functional_collectives",
    "_c10d_functional_autograd": "torch.distributed._functional_collectives",
    "fsdp": "torch.distributed.fsdp",
}


def _signature(values: dict[str, Any]) -> OpSignature:
    if isinstance(values["op"], tuple):
        return OpSignature(**{**values, "op": kernel_operator(*values["op"])})
    namespace, packet, overload = values["op"].split(".")
    if namespace in _LIBRARIES:
        import_module(_LIBRARIES[namespace])
    return OpSignature(
        **{**values, "op": getattr(getattr(getattr(torch.ops, namespace), packet), overload)}
    )


def _collect_specs(values: tuple[Any, ...], found: list[TensorSpec]) -> None:
    for value in values:
        if isinstance(value, TensorSpec):
            found.append(value)
        elif isinstance(value, tuple):
            _collect_specs(value, found)


# What a record has thousands of is a tuple: a frozen dataclass takes four times as long to make.


class OpCall(NamedTuple):
    """One call of an operator: what was called, on which tensors, by which module call."""

    signature: OpSignature
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    module_call: int
    phase: Phase = "forward"
    origin: Origin = "function"


class ModuleCall(NamedTuple):
    """One invocation of one module. Its own operators are those that ran in no child."""

    index: int  # type: ignore[assignment] # tuples have a method of this name
    path: str
    type_name: str
    #: 0 for the first call of this module, 1 for the second, …
    call: int
    depth: int
    parent: int | None
    children: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[int, ...]
    #: Python module of its class, for example ``torch.nn.modules.linear``
    type_module: str = ""
    #: argument of each input: ``"x"``, ``"states[0]"``
    input_names: tuple[str, ...] = ()
    #: place of each output in the result: ``""``, ``"[0]"``, ``"['logits']"``
    output_names: tuple[str, ...] = ()
    #: number of operator calls before its end, or None if an exception ended it
    end: int | None = None
