"""One operator call on its way through the recorder: its operands, and the key under which equal calls meet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.packed_weights import packed_tensors
from torchscan.recording.bookkeeping.tensors import TensorTable, Tracked
from torchscan.recording.execution.groups import NAMESPACES, with_groups
from torchscan.torch_versions import OpOverload, aten, share_memory
from torchscan.trace.events import OpSignature, TensorKind, TensorSpec

_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
_PLAIN = frozenset({int, str, type(None), torch.dtype, torch.layout, torch.memory_format})
_COMPARABLE = frozenset({float, bool, complex, torch.device})
_OPEN, _CLOSE, _SAME = (
    object(),
    object(),
    object(),
)  # marks in a flat key: ([1], 2) is not ([1, 2],)


#: from so many outputs on, what they share memory with is looked up
_MANY = 8
_RUNNING_STATISTICS = (3, 4)
_TRAINING = 5  # the position of the flag that says whether they are written

#: operators that write to arguments without saying so in their schema
_SILENT_WRITES: Mapping[OpOverload, tuple[int, ...]] = {
    aten.batch_norm.default: _RUNNING_STATISTICS,
    aten.instance_norm.default: _RUNNING_STATISTICS,
    aten.native_batch_norm.default: _RUNNING_STATISTICS,
    aten.cudnn_batch_norm.default: _RUNNING_STATISTICS,
    aten.miopen_batch_norm.default: _RUNNING_STATISTICS,
}


#: what tolist() and numpy() call before they read
RESOLVE = frozenset({aten.resolve_conj.default, aten.resolve_neg.default})

_WRAPPER = "_c10d_functional._wrap_tensor_autograd.default"

#: operators that need values without a tag that says so, by name: their library may not be there
_NEED_VALUES = frozenset({"torchvision.nms.default", "aten.is_nonzero.default", *map(str, RESOLVE)})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """Traits of an operator, read from its schema."""

    #: positions, or names for keyword-only arguments, of the arguments that it writes to
    written: tuple[int | str, ...]
    #: those of them that it does not return
    written_only: tuple[int | str, ...]
    #: those that it writes to without saying so
    silently_written: tuple[int, ...]
    #: makes a tensor from no tensor, on a device that an argument names
    is_factory: bool
    #: its result or its result's shape depends on values
    needs_values: bool
    #: implemented in terms of other operators
    is_composite: bool
    #: takes objects that hold weights in a kernel's own format
    takes_packed: bool
    #: draws random numbers, unless its arguments say that it doesn't
    may_draw: bool
    #: what torch does besides, no part of a pass: ask about an assignment to ``.data``, measure itself
    is_aside: bool
    #: makes of what other processes send a tensor by whose use this one waits for it
    is_wrapper: bool


@functools.cache
def traits_of(op: OpOverload) -> OpTraits:
    """Read the schema of an operator."""
    arguments = op._schema.arguments
    written = [
        (argument.name if argument.kwarg_only else position, argument.alias_info.before_set)
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    returned = [
        result.alias_info.before_set
        for result in op._schema.returns
        if result.alias_info is not None
    ]
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    takes_device = any(argument.name == "device" for argument in arguments)
    value_tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return OpTraits(
        written=tuple(where for where, _ in written),
        written_only=tuple(where for where, name in written if name not in returned),
        silently_written=_SILENT_WRITES.get(op, ()),
        is_factory=takes_device and not takes_tensors,
        needs_values=bool(value_tags & set(op.tags)) or str(op) in _NEED_VALUES,
        is_composite=op._can_decompose(),
        takes_packed=any(_holds_weights(str(argument.type)) for argument in arguments),
        may_draw=torch.Tag.nondeterministic_seeded in op.tags,
        is_aside=op is aten._has_compatible_shallow_copy_type.default or op.namespace == "profiler",
        is_wrapper=str(op) == _WRAPPER,
    )


def _holds_weights(type_name: str) -> bool:
    """Objects of torch's classes hold weights, or are groups of processes."""
    return "__torch__" in type_name and ".c10d." not in type_name


class OpRequest:
    """An operator call before it ran: the operands in order, each with what is known of it."""

    __slots__ = (
        "args",
        "has_proxy",
        "is_repeatable",
        "key",
        "kwargs",
        "op",
        "places",
        "table",
        "tensors",
        "tracked",
        "traits",
    )

    def __init__(
        self,
        op: OpOverload,
        traits: OpTraits,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        table: TensorTable,
    ) -> None:
        self.op = op
        self.traits = traits
        self.args = args
        self.kwargs = kwargs or _NO_KWARGS
        self.table = table
        self.look_up()

    def look_up(self) -> None:
        """Find the operands' entries and the key (again, after an entry has changed)."""
        self.tensors: list[Tensor] = []
        self.tracked: list[Tracked] = []
        #: by the address of an entry where it came first: optimizers hand over lists of all tensors
        self.places: dict[int, int] = {}
        self.has_proxy = False
        #: True if another pass can have the same call: objects and groups of ranks end with a pass
        self.is_repeatable = self.op.namespace == "aten"
        key: list[Any] = [id(self.op)]  # whose hash is worked out in Python
        self._scan(self.args, key)
        for name, value in self.kwargs.items():
            key.append(name)
            self._scan((value,), key)
        self.key = tuple(key)

    def _scan(self, values: Iterable[Any], key: list[Any]) -> None:
        """Equal keys mean: the same operator on tensors of the same specs with the same other arguments."""
        find, met = self.table.find, self.tracked
        for value in values:
            kind = type(value)
            if kind in _PLAIN:
                key.append(value)
            elif kind is Tensor or kind is nn.Parameter or isinstance(value, Tensor):
                tracked = find(value)
                place = self.places.setdefault(id(tracked), len(met))
                if place != len(met):  # x * x reads x once
                    key.append((_SAME, place))
                self.tensors.append(value)
                met.append(tracked)
                if tracked.proxy is not None:
                    self.has_proxy = True
                key.append(id(tracked.spec) if tracked.is_concrete else -id(tracked.spec))
            elif kind is list or kind is tuple or isinstance(value, list | tuple):
                if _PLAIN.issuperset(map(type, value)):
                    key.append(tuple(value))
                else:
                    key.append(_OPEN)
                    self._scan(value, key)
                    key.append(_CLOSE)
            else:  # numbers that equal integers, and whatever is not hashable
                key.append(kind)
                if kind in _COMPARABLE:
                    key.append(value)
                else:
                    key.append(id(value))
                    self.is_repeatable = False

    def written_tensors(self) -> list[Tensor]:
        """The tensors among the arguments that the operator writes to."""
        return self._tensors_at((*self.traits.written, *self._silently_written()))

    def knows(self, tensor: Tensor) -> bool:
        """Return whether the values of an operand are available."""
        return self.table.find(tensor).is_concrete

    def _silently_written(self) -> tuple[int, ...]:
        silently = self.traits.silently_written
        return silently if silently and len(self.args) > _TRAINING and self.args[_TRAINING] else ()

    def _tensors_at(self, places: Iterable[int | str]) -> list[Tensor]:
        found: list[Tensor] = []
        for where in places:
            if isinstance(where, str):
                value = self.kwargs.get(where)
            else:
                value = self.args[where] if where < len(self.args) else None
            found.extend([value] if isinstance(value, Tensor) else value or [])
        return found

    def call(
        self,
        replace: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | None = None,
        op: Callable[..., Any] | None = None,
    ) -> Any:
        """Run the operator (or ``op``), each tensor replaced (by default by its stand-in), on ``device`` if one is given."""
        run = op or self.op
        if (
            replace is None
            and device is None
            and not self.has_proxy
            and "generator" not in self.kwargs
        ):
            return run(*self.args, **self.kwargs)
        swap = replace or self.operand
        args = self._replace(self.args, swap, device)
        kwargs = {
            name: self._replace(value, swap, device)
            for name, value in self.kwargs.items()
            if name != "pin_memory"
        }
        if device is not None and self.traits.is_factory:
            kwargs["device"] = device
        return run(*args, **kwargs)

    def describe(self, outputs: tuple[TensorSpec, ...], is_view: bool) -> OpSignature:
        """The signature of this call."""
        first = [self.places[id(each)] for each in self.tracked]
        repeated = tuple(
            [position for position, earlier in enumerate(first) if earlier != position]
        )
        written = self._tensors_at((*self.traits.written_only, *self._silently_written()))
        args = tuple(map(self._describe, self.args))
        return OpSignature(
            op=self.op,
            args=with_groups(self.op, self.args, args) if self.op.namespace in NAMESPACES else args,
            kwargs={name: self._describe(value) for name, value in self.kwargs.items()},
            outputs=outputs,
            is_view=is_view,
            repeated=repeated,
            written=tuple([self.table.find(tensor).spec for tensor in written]),
        )

    def _describe(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self.table.find(value).spec
        if isinstance(value, list | tuple):
            return tuple(map(self._describe, value))
        if isinstance(value, torch.ScriptObject):  # a group of processes has none
            return tuple(self.table.spec_of(tensor) for tensor in packed_tensors(value) or ())
        return (
            None if isinstance(value, torch.Generator | torch.device) else value
        )  # a record holds nothing of the machine's

    def _replace(
        self, value: Any, swap: Callable[[Tensor], Tensor], device: torch.device | None
    ) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return swap(value)
        if type(value) in (list, tuple):
            return type(value)(self._replace(item, swap, device) for item in value)
        if isinstance(value, torch.Generator):
            return (
                None
                if device is not None and device.type == "meta"
                else self.table.generator_for(value)
            )
        return device if device is not None and isinstance(value, torch.device) else value

    def operand(self, tensor: Tensor) -> Tensor:
        """Return the proxy tensor to compute with, or the tensor itself if it has none."""
        proxy = self.table.find(tensor).proxy
        return tensor if proxy is None else proxy


class About(IntEnum):
    """The kind of information in values that depend on an assumption, the strongest last.

    See :mod:`torchscan.recording.execution.assumed`.
    """

    #: how many were picked, and where
    LOADS = 0
    #: integers that were made up, or computed from such: every pass has the same
    IDS = 1
    #: random numbers between 0 and 1, as they were drawn
    FRACTIONS = 2
    #: what was computed from random numbers
    DRAWN = 3
    #: how often this one was, in fewer rows than there are choices: a load only if most others are asked for too
    LOAD = 4
    #: of each choice, whether it was picked
    MARKS = 5
    #: whether it is this one that was picked
    HITS = 6
    #: which one was picked
    PICKS = 7
    #: what was computed from inputs that were made up
    DATA = 8

    @property
    def is_picked(self) -> bool:
        """True if the information comes from indices that were assumed."""
        return self is About.LOADS or About.LOAD <= self <= About.PICKS

    @property
    def is_drawn(self) -> bool:
        """True if the information comes from random numbers that the model draws."""
        return self in (About.FRACTIONS, About.DRAWN)


class Assumed(NamedTuple):
    """The assumption that the values of a tensor depend on."""

    about: About
    #: what picked by values that are not known
    operator: str = ""
    #: and from how many
    choices: int = 1
    #: the number of the call that did
    call: int = -1

    def with_about(self, about: About) -> Assumed:
        """Return the same assumption with another kind of information."""
        return self if about is self.about else self._replace(about=about)


class OpOutcome(NamedTuple):
    """The result of a call, for the model, and its description, for the record."""

    result: Any
    signature: OpSignature
    #: the tensors in the result, in order
    outputs: Sequence[Tensor]
    #: for each output the position of the operand whose memory it shares, None for new memory
    alias_of: Sequence[int | None]
    #: what the values of its integer outputs rest on
    assumed: Assumed | None = None


class Execution(Protocol):
    """A way to run operators: for real, or on shapes alone."""

    def needs_proxy(self, tensor: Tensor, spec: TensorSpec, kind: TensorKind) -> bool:
        """Return whether a tensor from outside the pass needs a meta tensor as its proxy."""

    def begin_optimizer(self) -> None:
        """The gradients are there, and what follows is an optimizer's step."""

    def run(self, request: OpRequest) -> OpOutcome:
        """Run one operator."""


def tensors_of_result(result: Any) -> list[Tensor]:
    """The tensors that an operator returned."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in tensors_of_result(item)]
    return []


def alias_positions(
    outputs: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[int | None, ...]:
    """For each output the first operand that shares its memory."""
    if len(outputs) > _MANY:
        return _aliases_of_many(outputs, operands)
    return tuple([_first_alias(output, operands) for output in outputs])


def _aliases_of_many(
    outputs: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[int | None, ...]:
    """Told by the memory itself: not every output is held against every operand."""
    try:
        first = {
            operand.untyped_storage()._cdata: place
            for place, operand in reversed([*enumerate(operands)])
        }
        return tuple([first.get(output.untyped_storage()._cdata) for output in outputs])
    except (NotImplementedError, RuntimeError):  # some have no memory of their own
        return tuple([_first_alias(output, operands) for output in outputs])


def _first_alias(output: Tensor, operands: Sequence[Tensor]) -> int | None:
    for position, operand in enumerate(operands):
        if output is operand or share_memory(output, operand):
            return position
    return None


def describe_outcome(request: OpRequest, result: Any) -> OpOutcome:
    """Describe what a call returned."""
    outputs = [result] if type(result) is Tensor else tensors_of_result(result)
    alias_of = alias_positions(outputs, [request.operand(tensor) for tensor in request.tensors])
    is_view = bool(outputs) and all(position is not None for position in alias_of)
    is_view = is_view and (not request.traits.written or torch.Tag.inplace_view in request.op.tags)
    specs = tuple(request.table.spec_of(output) for output in outputs)
    signature = request.describe(specs, is_view)
    return OpOutcome(result, signature, outputs, alias_of)


def protect_foreign(request: OpRequest, is_at_risk: Callable[[Tensor], bool] | None = None) -> bool:
    """Before a write: let copies stand in for the memory that is not the pass's own, also if it is about to be shared.

    Whether there are any that were not there before. Of what is not at risk, there is nothing to be copied.
    """
    written = (
        request.tensors if request.op is aten.set_.source_Tensor else request.written_tensors()
    )
    return sum(map(request.table.protect, filter(is_at_risk or (lambda _: True), written))) > 0
