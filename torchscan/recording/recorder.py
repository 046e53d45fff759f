"""Running a model once and writing down what happens: a dispatch mode sees the operators, global hooks see the modules."""

from __future__ import annotations

import bisect
import contextlib
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.execution.calls import Execution, OpOutcome, OpRequest, OpTraits, describe_outcome, traits_of
from torchscan.recording.execution.higher_order import named_call
from torchscan.trace.events import ModuleCall, OpCall, Origin, Phase

_PLAIN_TYPES = frozenset({Tensor, nn.Parameter, nn.Buffer})
_LAZY_TYPES = frozenset({nn.UninitializedParameter, nn.UninitializedBuffer})  # about to be initialised: no part of the pass

_NUMBER_OF_LEAVES = 2**63  # the nodes that store gradients are numbered from the end
_ADD = torch.ops.aten.add.Tensor
_DETACH = torch.ops.aten.detach_.default
_COMPATIBLE = torch.ops.aten._has_compatible_shallow_copy_type.default  # asked when somebody assigns ``.data``

#: what torch does about a Python number or list that becomes a tensor: no part of the model
_LIFT = torch.ops.aten.lift_fresh.default
_BOOKKEEPING = frozenset({_LIFT, torch.ops.aten.detach_.default, torch.ops.aten.scalar_tensor.default})

#: whether a composite operator is recorded as one call; if not, the operators that it is made of are
IsWhole = Callable[[OpOverload], bool]


class OpenCall:
    """A module call while it is under way."""

    __slots__ = (
        *("call", "children", "depth", "handled", "index", "inputs"),
        *("module", "ops", "outer", "outputs", "parent", "path", "type_name"),
    )

    def __init__(
        self, module: nn.Module, path: str, call: int, index: int, parent: OpenCall | None, outer: OpenCall | None
    ) -> None:
        self.module = module
        #: what goes on when it has ended: its parent, unless the backward pass called it
        self.outer = outer
        self.path = path
        self.type_name = ""
        #: the exception that was being handled when it was called
        self.handled = sys.exception()
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
        origin = type(self.module).__module__
        return ModuleCall(*where, tuple(self.children), self.inputs, self.outputs, tuple(self.ops), origin)


class Failure(NamedTuple):
    """An exception, the innermost module call that it came from, and the operator call, if it was one that failed."""

    error: BaseException
    call: OpenCall | None
    request: OpRequest | None


class Recorder(TorchDispatchMode):
    """Records what the calling thread does while it is entered."""

    supports_higher_order_operators = True

    def __init__(self, inventory: Inventory, execution: Execution, is_whole: IsWhole, assume: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it without annotations
        self.inventory = inventory
        self.table = TensorTable(execution.needs_standin)
        for slot in inventory.slots:
            self.table.name(slot.tensor, "buffer" if slot.is_buffer else "parameter", slot.path)
        self.calls: list[OpenCall] = []
        self.ops: list[OpCall] = []
        #: where an exception came from
        self.failure: Failure | None = None
        #: paths of modules that ran in other threads
        self.missed: set[str] = set()
        #: says what was assumed on the way
        self.assume = assume
        self._execution = execution
        self._is_whole = is_whole
        self._traits: dict[OpOverload, OpTraits] = {}
        self._taken_apart: set[OpOverload] = set()
        self._counts: dict[int, int] = {}
        self._current: OpenCall | None = None
        self._phase: Phase = "forward"
        #: called when a checkpoint has computed once more what it needs
        self.after_recomputation: Callable[[], None] = lambda: None
        self._is_computing_again = False
        #: by operator call of the backward pass the number of the graph's node that made it
        self._nodes: dict[int, int | None] = {}
        #: the graph's nodes are numbered as they are made: from which number on they belong to which call
        self._owners: list[tuple[int, OpenCall]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would wrap the dispatch function to hide it from its compiler, which takes a second to import."""
        return False

    # -- operators ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record one operator call; what is done to record it is nothing that functions are replaced in."""
        if not torch._C._len_torch_function_stack():
            return self._record(func, types, args, kwargs)
        with torch._C.DisableTorchFunction():
            return self._record(func, types, args, kwargs)

    def _record(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        """Tensor subclasses come first and are recorded as what they are made of."""
        if self.failure is not None and sys.exception() is not self.failure.error:
            self.failure = None  # somebody caught it; its frames hold tensors
        if self._is_computing_again and not _is_inside_checkpoint():
            self._is_computing_again = False
            self.after_recomputation()
        if isinstance(func, HigherOrderOperator):
            return self._run_with_functions(func, args, kwargs or {})
        if types and not _PLAIN_TYPES.issuperset(types) and not _LAZY_TYPES.issuperset(types):
            return NotImplemented
        if (types and _LAZY_TYPES.issuperset(types)) or func is _COMPATIBLE:
            return func(*args, **(kwargs or {}))
        if func is _DETACH:  # autograd has done it already; where it has not, the tensor's own graph would be cut
            return args[0]
        if func.namespace == "profiler":
            return func(*args, **(kwargs or {}))
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = traits_of(func)
            if traits.is_composite and not self._is_whole(func):
                self._taken_apart.add(func)
        if func in self._taken_apart:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        request = OpRequest(func, traits, args, kwargs, self.table)
        try:
            outcome = self._execution.run(request)
        except Exception as error:
            self.failure = Failure(error, self._current, request)
            raise
        if func is _LIFT:
            self.table.storages.find_or_add(args[0], "constant", "")
        if func in _BOOKKEEPING:
            return self._with_originals(request, outcome) if request.has_standin else outcome.result
        return self._write_down(request, outcome)

    def _run_with_functions(self, func: HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = named_call(func, args, kwargs)
        request = OpRequest(call.op, traits_of(call.op), call.args, None, self.table)
        try:
            outcome = describe_outcome(request, call.run(request.operand))
        except Exception as error:
            self.failure = Failure(error, self._current, request)
            raise
        return self._write_down(request, outcome)

    def _write_down(self, request: OpRequest, outcome: OpOutcome) -> Any:
        index = len(self.ops)
        inputs = tuple([tracked.index for tracked in request.tracked])
        result = self._with_originals(request, outcome) if request.has_standin else outcome.result
        outputs = self._enter_outputs(request, outcome, index)
        call = self._current or self._owner()
        self.ops.append(OpCall(outcome.signature, inputs, outputs, call.index, self._phase, self._origin(request, index)))
        self.table.storages.now = index + 1
        call.ops.append(index)
        for tracked in request.tracked:
            if tracked.assumption is not None:
                self.assume(tracked.assumption)
        return result

    def _enter_outputs(self, request: OpRequest, outcome: OpOutcome, producer: int) -> tuple[int, ...]:
        entered = []
        for tensor, spec, alias in zip(outcome.outputs, outcome.signature.outputs, outcome.alias_of, strict=True):
            base = None if alias is None else request.tracked[alias]
            if alias is not None and request.operand(request.tensors[alias]) is tensor:
                tracked = self.table.rewrite(request.tensors[alias], spec, producer)
            else:
                tracked = self.table.add(tensor, spec, producer, base)
                if outcome.assumption is not None and not spec.is_arithmetic:
                    tracked.assumption = outcome.assumption
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

    def begin(self, phase: Phase) -> None:
        """The forward pass is over and gradients follow, say."""
        self._phase = phase
        if phase == "optimizer":
            self._execution.begin_optimizer()

    def _origin(self, request: OpRequest, index: int) -> Origin:
        if self._phase != "backward":
            return "function"
        if _is_inside_checkpoint():
            self._is_computing_again = True
            return "checkpoint"
        node = torch._C._current_autograd_node()
        self._nodes[index] = None if node is None else node._sequence_nr()
        return "engine" if request.op is _ADD and self._sums_up_gradients(request, index) else "function"

    def _sums_up_gradients(self, request: OpRequest, index: int) -> bool:
        """The engine adds what a node has just made to what it was handed by another one, which that node itself never sees."""
        producers = [self.table.records[tracked.index].producer for tracked in request.tracked]
        if len(producers) != 2 or any(producer not in self._nodes for producer in producers):
            return False
        return any(producer is not None and self._nodes[producer] != self._nodes[index] for producer in producers)

    def _owner(self) -> OpenCall:
        """The call whose gradient is being computed, else the model's: what a generator does after it was returned, say."""
        node = torch._C._current_autograd_node() if self._phase == "backward" else None
        if node is None or node._sequence_nr() >= _NUMBER_OF_LEAVES:
            return self.calls[0]
        position = bisect.bisect_right(self._owners, node._sequence_nr(), key=lambda owner: owner[0])
        return self._owners[position - 1][1] if position else self.calls[0]

    def _nodes_belong_to(self, call: OpenCall | None) -> None:
        if call is not None and torch.is_grad_enabled():
            self._owners.append((torch._C._autograd._get_sequence_nr(), call))

    def resume(self) -> None:
        """The model has returned a generator: what it does from now on is the model's again."""
        self._current = self.calls[0]

    # -- modules -----------------------------------------------------------------------------------------------------

    def open_call(self, module: nn.Module) -> None:
        """A module starts. One that the model does not own (a slice of a Sequential) leaves its operators to its caller."""
        path = self.inventory.path_of(module)
        if path is None:
            return
        count = self._counts.get(id(module), 0)
        self._counts[id(module)] = count + 1
        again = self._phase == "backward" and self._current is None  # a checkpoint runs it once more
        parent = self._owner() if again else self._current
        call = OpenCall(module, path, count, len(self.calls), parent, self._current)
        if parent is not None:
            parent.children.append(call.index)
        self.calls.append(call)
        self._current = call
        self._nodes_belong_to(call)

    def close_call(self, module: nn.Module, inputs: object, result: object) -> None:
        """A module ends."""
        call = self._current
        if call is None or call.module is not module:
            return
        call.handled = None
        call.type_name = type_name_of(module)
        call.inputs = self._indices(inputs)
        call.outputs = self._indices(result)
        self._current = call.outer
        self._nodes_belong_to(call.outer)

    def abandon_call(self, module: nn.Module, error: BaseException | None) -> None:
        """An exception leaves a module. The first that it leaves is where it came from."""
        known = self.failure is not None and self.failure.error is error
        if self._current is not None and self._current.module is module and error is not None and not known:
            self.failure = Failure(error, self._current, None)
        self.close_call(module, (), ())

    def note_elsewhere(self, module: nn.Module) -> None:
        """A module runs in another thread, where it is not recorded."""
        path = self.inventory.path_of(module)
        if path is not None:
            self.missed.add(path)

    def is_failing(self, module: nn.Module) -> bool:
        """Whether an exception is about to leave the module, other than one that was being handled when it was called."""
        call = self._current
        return call is not None and call.module is module and sys.exception() is not call.handled

    def warn_of_leftovers(self) -> None:
        """Tensors without data that outlive the pass would fail later, far from here."""
        self.failure = None
        if self.table.leftovers():
            gc.collect()  # some are held by nothing but cycles
        left = self.table.leftovers()
        if left:
            shapes = ", ".join(str(list(spec.shape)) for spec in left[:3])
            warnings.warn(
                f"the model keeps {len(left)} tensor(s) without data where torchscan cannot take them back ({shapes}; in a "
                "functools.lru_cache?): clear them before you use the model, or pass execute='real'",
                stacklevel=6,
            )

    def _indices(self, value: object) -> tuple[int, ...]:
        return tuple([self.table.find(tensor).index for tensor in tensors_in(value)])


_registering = threading.Lock()


@contextlib.contextmanager
def module_hooks(recorder: Recorder) -> Iterator[None]:
    """Tell the recorder of the module calls of this thread. The hooks are global: nothing is put on the user's modules."""
    thread = threading.get_ident()

    def before(module: nn.Module, _args: object) -> None:
        if threading.get_ident() == thread:
            recorder.open_call(module)
        else:
            recorder.note_elsewhere(module)

    def after(module: nn.Module, args: object, *rest: object) -> None:
        *kwargs, result = rest  # torch leaves out the kwargs when it calls a global hook because of an exception
        if threading.get_ident() != thread:
            return
        if result is None and recorder.is_failing(module):
            recorder.abandon_call(module, sys.exception())
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


def _is_inside_checkpoint() -> bool:
    """During the backward pass: gradients are watched, or, while a result is put away for them, were a moment ago."""
    return torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def type_name_of(module: nn.Module) -> str:
    """The class name; a ScriptModule's is that of the class it was made from."""
    return str(getattr(module, "original_name", type(module).__name__))
