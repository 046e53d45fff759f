"""Running a model once and writing down what happens: a dispatch mode sees the operators, global hooks see the modules."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from torchscan.trace.calls import Execution, OpOutcome, OpRequest, OpTraits, traits_of
from torchscan.trace.containers import tensors_in
from torchscan.trace.events import ModuleCall, OpCall
from torchscan.trace.inventory import Inventory
from torchscan.trace.tensors import TensorTable

_PLAIN_TYPES = frozenset({Tensor, nn.Parameter, nn.Buffer})
_LAZY_TYPES = frozenset({nn.UninitializedParameter, nn.UninitializedBuffer})  # about to be initialised: no part of the pass

_COMPATIBLE = torch.ops.aten._has_compatible_shallow_copy_type.default  # asked when somebody assigns ``.data``

#: what torch does about a Python number or list that becomes a tensor: no part of the model
_BOOKKEEPING = frozenset(
    {torch.ops.aten.lift_fresh.default, torch.ops.aten.detach_.default, torch.ops.aten.scalar_tensor.default}
)

#: whether a composite operator is recorded as one call; if not, the operators that it is made of are
IsWhole = Callable[[OpOverload], bool]


class OpenCall:
    """A module call while it is under way."""

    __slots__ = ("call", "children", "depth", "index", "inputs", "module", "ops", "outputs", "parent", "path", "type_name")

    def __init__(self, module: nn.Module, path: str, call: int, index: int, parent: OpenCall | None) -> None:
        self.module = module
        self.path = path
        self.type_name = ""
        self.call = call
        self.index = index
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: list[int] = []
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()
        self.ops: list[int] = []

    def closed(self) -> ModuleCall:
        """The record of the call."""
        parent = None if self.parent is None else self.parent.index
        where = (self.index, self.path, self.type_name, self.call, self.depth, parent)
        return ModuleCall(*where, tuple(self.children), self.inputs, self.outputs, tuple(self.ops))


class Recorder(TorchDispatchMode):
    """Records what the calling thread does while it is entered."""

    def __init__(self, inventory: Inventory, execution: Execution, is_whole: IsWhole) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it without annotations
        self.inventory = inventory
        self.table = TensorTable(execution.needs_standin)
        for slot in inventory.slots:
            self.table.name(slot.tensor, "buffer" if slot.is_buffer else "parameter", slot.path)
        self.calls: list[OpenCall] = []
        self.ops: list[OpCall] = []
        #: what was under way when an exception left the model
        self.failed_call: OpenCall | None = None
        self.running_op: OpRequest | None = None
        self._execution = execution
        self._is_whole = is_whole
        self._traits: dict[OpOverload, OpTraits] = {}
        self._counts: dict[int, int] = {}
        self._current: OpenCall | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would wrap the dispatch function to hide it from its compiler, which takes a second to import."""
        return False

    # -- operators ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record one operator call. Tensor subclasses come first and are recorded as what they are made of."""
        if types and not _PLAIN_TYPES.issuperset(types) and not _LAZY_TYPES.issuperset(types):
            return NotImplemented
        if (types and _LAZY_TYPES.issuperset(types)) or func is _COMPATIBLE:
            return func(*args, **(kwargs or {}))
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = traits_of(func)
        if traits.is_composite and not self._is_whole(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        request = OpRequest(func, traits, args, kwargs, self.table)
        self.running_op = request
        outcome = self._execution.run(request)
        self.running_op = None
        if func in _BOOKKEEPING:
            return self._with_originals(request, outcome) if request.has_standin else outcome.result
        return self._write_down(request, outcome)

    def _write_down(self, request: OpRequest, outcome: OpOutcome) -> Any:
        index = len(self.ops)
        inputs = tuple([tracked.index for tracked in request.tracked])
        result = self._with_originals(request, outcome) if request.has_standin else outcome.result
        outputs = self._enter_outputs(request, outcome, index)
        call = self._current
        self.ops.append(OpCall(outcome.signature, inputs, outputs, call.index if call is not None else 0))
        if call is not None:
            call.ops.append(index)
        return result

    def _enter_outputs(self, request: OpRequest, outcome: OpOutcome, producer: int) -> tuple[int, ...]:
        entered = []
        for tensor, spec, alias in zip(outcome.outputs, outcome.signature.outputs, outcome.alias_of, strict=True):
            base = None if alias is None else request.tracked[alias]
            if alias is not None and request.operand(request.tensors[alias]) is tensor:
                tracked = self.table.rewrite(request.tensors[alias], spec, producer)
            else:
                tracked = self.table.add(tensor, spec, producer, base)
            entered.append(tracked.index)
        return tuple(entered)

    def _with_originals(self, request: OpRequest, outcome: OpOutcome) -> Any:
        """An operator that returns one of its operands returns the model's own tensor, not what stood in for it."""
        if not isinstance(outcome.result, Tensor):
            return outcome.result
        alias = outcome.alias_of[0]
        if alias is not None and request.operand(request.tensors[alias]) is outcome.result:
            return request.tensors[alias]
        return outcome.result

    # -- modules -----------------------------------------------------------------------------------------------------

    def open_call(self, module: nn.Module) -> None:
        """A module starts. One that the model does not own (a slice of a Sequential) leaves its operators to its caller."""
        path = self.inventory.path_of(module)
        if path is None:
            return
        self.failed_call = None
        count = self._counts.get(id(module), 0)
        self._counts[id(module)] = count + 1
        call = OpenCall(module, path, count, len(self.calls), self._current)
        if self._current is not None:
            self._current.children.append(call.index)
        self.calls.append(call)
        self._current = call

    def close_call(self, module: nn.Module, inputs: object, result: object) -> None:
        """A module ends."""
        call = self._current
        if call is None or call.module is not module:
            return
        call.type_name = type_name_of(module)
        call.inputs = self._indices(inputs)
        call.outputs = self._indices(result)
        self._current = call.parent

    def abandon_call(self, module: nn.Module) -> None:
        """An exception leaves a module. The first that it leaves is where it came from (unless the model catches it)."""
        if self._current is not None and self._current.module is module:
            self.failed_call = self.failed_call or self._current
        self.close_call(module, (), ())

    def _indices(self, value: object) -> tuple[int, ...]:
        return tuple([self.table.find(tensor).index for tensor in tensors_in(value)])


_registering = threading.Lock()


@contextlib.contextmanager
def module_hooks(recorder: Recorder) -> Iterator[None]:
    """Tell the recorder of the module calls of this thread. The hooks are global: nothing is put on the user's modules."""
    thread = threading.get_ident()
    handled = sys.exception()  # somebody's who calls us while handling it

    def before(module: nn.Module, _args: object) -> None:
        if threading.get_ident() == thread:
            recorder.open_call(module)

    def after(module: nn.Module, args: object, *rest: object) -> None:
        *kwargs, result = rest  # torch leaves out the kwargs when it calls a global hook because of an exception
        if threading.get_ident() != thread:
            return
        if result is None and sys.exception() is not handled:
            recorder.abandon_call(module)
        else:
            recorder.close_call(module, (args, *kwargs) if any(kwargs) else args, result)

    with _registering:  # two threads could draw the same handle
        handles = (
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, with_kwargs=True, always_call=True),
        )
    try:
        yield
    finally:
        with _registering:
            for handle in handles:
                handle.remove()
                _global_forward_hooks_with_kwargs.pop(handle.id, None)  # which torch forgets


def type_name_of(module: nn.Module) -> str:
    """The class name; a ScriptModule's is that of the class it was made from."""
    return str(getattr(module, "original_name", type(module).__name__))
