"""One operator call on its way through the recorder: its operands and its key.

Equal calls have the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.packed_weights import packed_tensors
from torchscan.recording.bookkeeping.shared_memory import Tracked
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.execution.groups import NAMESPACES, with_groups
from torchscan.recording.execution.op_traits import OpTraits
from torchscan.torch_versions import OpOverload
from torchscan.trace.events import OpSignature, TensorSpec

_PLAIN = frozenset({int, str, type(None), torch.dtype, torch.layout, torch.memory_format})
_COMPARABLE = frozenset({float, bool, complex, torch.device})
_ROWS = (list, tuple)
#: marks in a flat key: ([1], 2) is not ([1, 2],)
_OPEN, _CLOSE, _SAME = object(), object(), object()
_TRAINING = 5  # the position of the flag that says whether running statistics are written


@dataclass(slots=True, kw_only=True, eq=False)
class OpRequest:
    """An operator call before it runs: the operands in order, each with its tracked state.

    :meth:`look_up` finds the operands.
    """

    op: OpOverload
    traits: OpTraits
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    table: TensorTable
    tensors: list[Tensor] = field(init=False)
    tracked: list[Tracked] = field(init=False)
    #: index of the first occurrence of an entry, by address: optimizers pass lists of all tensors
    places: dict[int, int] = field(init=False)
    has_proxy: bool = field(init=False)
    #: True if another pass can have the same call: objects and groups of ranks end with a pass
    is_repeatable: bool = field(init=False)
    #: equal for calls that have equal outcomes
    key: tuple[Any, ...] = field(init=False)

    def look_up(self) -> None:
        """Find the operands' entries and the key (again, after an entry has changed)."""
        self.tensors = []
        self.tracked = []
        self.places = {}
        self.has_proxy = False
        self.is_repeatable = self.op.namespace == "aten"
        key: list[Any] = [id(self.op)]  # whose hash is worked out in Python
        self._scan(self.args, key)
        for name, value in self.kwargs.items():
            key.append(name)
            self._scan((value,), key)
        self.key = tuple(key)

    def _scan(self, values: Iterable[Any], key: list[Any]) -> None:
        """Add values to the lists of operands and to the key.

        Equal keys mean the same operator on tensors of the same specs, with the same other
        arguments.
        """
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
                if tracked.has_proxy:
                    self.has_proxy = True
                key.append(id(tracked.spec) if tracked.is_concrete else -id(tracked.spec))
            elif isinstance(value, _ROWS):
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
        """Return the tensors among the arguments that the operator writes to."""
        return self._tensors_at((*self.traits.written, *self._silently_written()))

    def knows(self, tensor: Tensor) -> bool:
        """Return whether the values of an operand are available."""
        return self.table.find(tensor).is_concrete

    def _silently_written(self) -> tuple[int, ...]:
        silently = self.traits.silently_written
        if silently and len(self.args) > _TRAINING and self.args[_TRAINING]:
            return silently
        return ()

    def _tensors_at(self, places: Iterable[int | str]) -> list[Tensor]:
        found: list[Tensor] = []
        for where in places:
            value = None
            if isinstance(where, str):
                value = self.kwargs.get(where)
            elif where < len(self.args):
                value = self.args[where]
            if isinstance(value, Tensor):
                found.append(value)
            elif value:
                found.extend(value)
        return found

    def call(
        self,
        operands: Sequence[Tensor] | None = None,
        device: torch.device | None = None,
        op: Callable[..., Any] | None = None,
    ) -> Any:
        """Run the operator, or ``op``, on other operands, by default on the proxy tensors.

        Factories create on ``device`` if one is given.
        """
        run = op or self.op
        is_changed = operands is not None or device is not None or self.has_proxy
        if not is_changed and "generator" not in self.kwargs:
            return run(*self.args, **self.kwargs)
        operands = self.operands() if operands is None else operands
        by_id = dict(zip(map(id, self.tensors), operands, strict=True))
        args = [self._replace(value, by_id, device) for value in self.args]
        kwargs = {}
        for name, value in self.kwargs.items():
            if name != "pin_memory":
                kwargs[name] = self._replace(value, by_id, device)
        if device is not None and self.traits.is_factory:
            kwargs["device"] = device
        return run(*args, **kwargs)

    def describe(self, outputs: tuple[TensorSpec, ...], is_view: bool) -> OpSignature:
        """Return the signature of this call."""
        first = [self.places[id(each)] for each in self.tracked]
        repeated = [position for position, earlier in enumerate(first) if earlier != position]
        written: list[Tensor] = []
        if self.traits.written_only or self.traits.silently_written:
            written = self._tensors_at((*self.traits.written_only, *self._silently_written()))
        written_specs = tuple([self.table.find(tensor).spec for tensor in written])
        args = tuple(map(self._describe, self.args))
        if self.op.namespace in NAMESPACES:
            args = with_groups(self.op, self.args, args)
        return OpSignature(
            op=self.op,
            args=args,
            kwargs={name: self._describe(value) for name, value in self.kwargs.items()},
            outputs=outputs,
            is_view=is_view,
            repeated=tuple(repeated),
            written=written_specs,
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
        if isinstance(value, torch.Generator | torch.device):
            return None  # a trace holds nothing of the machine's
        return value

    def _replace(self, value: Any, by_id: Mapping[int, Tensor], device: torch.device | None) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return by_id[id(value)]
        if type(value) in (list, tuple):
            return type(value)(self._replace(item, by_id, device) for item in value)
        if isinstance(value, torch.Generator):
            if device is not None and device.type == "meta":
                return None
            return self.table.generator_for(value)
        if device is not None and isinstance(value, torch.device):
            return device
        return value

    def operands(self) -> list[Tensor]:
        """Return the tensors to compute with, in the order of ``tensors``."""
        operands = list(self.tensors)
        for position, tracked in enumerate(self.tracked):
            proxy = tracked.proxy
            if proxy is not None:
                operands[position] = proxy
        return operands

    def operand(self, tensor: Tensor) -> Tensor:
        """Return the proxy tensor to compute with, or the tensor itself if it has none."""
        proxy = self.table.find(tensor).proxy
        return tensor if proxy is None else proxy
