"""The recorder of a pass: a dispatch mode sees operators, the call tree knows their modules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import Inventory, is_frozen
from torchscan.recording.bookkeeping.slot_names import name_weights
from torchscan.recording.bookkeeping.tensor_layouts import are_plain
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.call_tree import CallTree
from torchscan.recording.execution.assumed import NOTHING, AssumedValues
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.composite_operands import on_one_device
from torchscan.recording.execution.higher_order import named_call
from torchscan.recording.execution.op_traits import OpTraits, traits_of
from torchscan.recording.execution.outcomes import Execution, describe_outcome
from torchscan.recording.execution.reads import CHECKING, TRUTH
from torchscan.recording.module_calls import Call, Given
from torchscan.recording.module_ends import ModuleEnds
from torchscan.recording.operator_log import LIFT, OperatorLog, is_inside_checkpoint
from torchscan.recording.undo import WAITING, deliver_interrupts, run_at_end_of_pass
from torchscan.torch_versions import (
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    aten,
    count_function_modes,
    is_faking,
    on_its_way,
    without_torch_function,
)
from torchscan.trace.events import ModuleCall, Phase
from torchscan.trace.provenance import InputRecord

#: about to be initialized: no part of the pass
_LAZY_TYPES = frozenset({nn.UninitializedParameter, nn.UninitializedBuffer})

_DETACH = aten.detach_.default
_EQUAL = aten.equal.default
_DEVICE: OpOverload = torch.ops.prim.device.default

#: what torch does about a Python number or list that becomes a tensor: no part of the model
_BOOKKEEPING = frozenset(map(id, (LIFT, aten.detach_.default, aten.scalar_tensor.default)))
_READS_TRUTH = frozenset(map(id, TRUTH))

#: whether a composite operator is recorded as one call, and not as the operators in it
IsWhole = Callable[[OpOverload], bool]


class Failure(NamedTuple):
    """An exception, and where it came from."""

    error: BaseException
    #: the innermost module call that it left
    call: Call | None
    #: the operator call that failed, or None if something else did
    request: OpRequest | None


class Recorder(TorchDispatchMode):
    """Records the operators that the calling thread runs while it is entered.

    Its ``tree`` knows which module each belongs to, its ``table`` which tensors are the same and
    what replaces them.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        inventory: Inventory,
        execution: Execution,
        is_whole: IsWhole,
        assume: Callable[[Note], None],
        after_recomputation: Callable[[], None],
        *,
        is_last_resort: bool = True,
    ) -> None:
        """Create a recorder.

        ``assume`` is called with each assumption, ``after_recomputation`` when a checkpoint has
        recomputed its part. With ``is_last_resort``, a branch may depend on an assumed index,
        because there is no other way to run the pass.
        """
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it without annotations
        self.tree = CallTree(inventory.path_of)
        self._exception_origin = self.tree.origin
        self.table = TensorTable(execution.needs_proxy)
        name_weights(inventory, self.table)
        #: what the model was called with
        self.inputs: list[InputRecord] = []
        self.assume = assume
        self.values = AssumedValues(self.table, assume, is_last_resort=is_last_resort)
        self._log = OperatorLog(self.tree, self.table, self.values)
        self._write_down = self._log.write_down
        self.ops = self._log.calls
        self.took_packed = self._log.took_packed
        self._after_recomputation = after_recomputation
        self._execution = execution
        self._is_whole = is_whole
        self._module_ends = ModuleEnds(self.table)
        #: by the addresses of operators, whose hash is worked out in Python
        self._traits: dict[int, OpTraits] = {}
        self._taken_apart: set[int] = set()
        #: the exception that an operator call raised
        self._failed: tuple[BaseException, OpRequest] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False.

        Torch would wrap the dispatch function to hide it from its compiler, which takes a second
        to import.
        """
        return False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is done in this context."""
        run_at_end_of_pass(self.tree.stop)
        with self.tree.watched(self._note_tensors), self:
            yield

    def begin(self, phase: Phase) -> None:
        """Start another phase, for example the backward pass."""
        self._log.phase = phase
        if phase == "optimizer":
            self._execution.begin_optimizer()

    def end(self) -> None:
        """End the pass: memory that is freed from now on is freed after its end."""
        self.table.storages.end()
        self._failed = None
        self._exception_origin.forget()

    def failure_of(self, error: BaseException) -> Failure:
        """Return the origin of this exception, ignoring those that the model caught before."""
        request = None
        if self._failed is not None and self._failed[0] is error:
            request = self._failed[1]
        call = self._exception_origin.call_of(error)
        if call is not None:
            self._note_tensors(call, (self._exception_origin.arguments, {}), ())
        return Failure(error, call, request)

    def module_calls(self) -> tuple[ModuleCall, ...]:
        """Return the module calls, each with its operator calls."""
        return self._module_ends.describe(self.tree.calls, self.ops)

    def _note_tensors(self, call: Call, given: Given, result: object) -> None:
        self._module_ends.note(call, given, result, len(self.ops))

    def __torch_dispatch__(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record one operator call, outside of function modes, which are for the user's calls."""
        if func is _DEVICE:  # half of all calls ask on which device a tensor without data is
            return func(*args)
        if count_function_modes():
            with without_torch_function():
                result = self._record(func, types, args, kwargs)
        else:
            result = self._record(func, types, args, kwargs)
        if WAITING:
            deliver_interrupts()
        return result

    def _record(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        """Record an operator call; one on tensor subclasses is recorded as those in it."""
        keywords = kwargs or {}
        if is_faking():
            # A tensor subclass asks for the shape of what it is going to make.
            return func(*args, **keywords)
        self._notice_what_is_over()

        if not isinstance(func, OpOverload):
            return self._record_with_functions(func, args, keywords)
        if func.namespace == "prim":
            # A tensor that pretends to be on a device is asked on which one.
            return func(*args, **keywords)
        if types and not are_plain(types):
            if _LAZY_TYPES.issuperset(types):
                return func(*args, **keywords)
            return NotImplemented
        return self._record_overload(func, args, keywords)

    def _record_overload(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record a call of an operator on plain tensors."""
        traits = self._traits.get(id(func)) or self._find_traits(func)
        if traits.is_wrapper:
            return on_its_way(args[0])
        if traits.is_aside or (func is _EQUAL and self._is_being_frozen()):
            return func(*args, **kwargs)
        if func is _DETACH:
            # Autograd has done it already; where it has not, the tensor's own graph would be cut.
            return args[0]
        if id(func) in self._taken_apart:
            return self._decompose(func, args, kwargs)

        request = OpRequest(func, traits, args, kwargs, self.table)
        try:
            met = self.values.met_by(request)
            if id(func) in _READS_TRUTH and self.values.are_validated(request):
                outcome = describe_outcome(request, True)
            else:
                outcome = self._execution.run(request)
        except Exception as error:
            self._failed = (error, request)
            raise
        if id(func) in _BOOKKEEPING:
            return self._log.leave_out(request, outcome)
        return self._write_down(request, outcome, met)

    def _is_being_frozen(self) -> bool:
        """Return whether torch optimizes a frozen script, as it does in the first calls.

        It compares constants, to store equal ones once.
        """
        return self.tree.current is not None and is_frozen(self.tree.current.module)

    def _decompose(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record the operators in a composite one."""
        args, kwargs = on_one_device(args, kwargs, self.table)
        checked: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if func in CHECKING:
            checked = self.values.checked()
        with self, checked:
            return func.decompose(*args, **kwargs)

    def _notice_what_is_over(self) -> None:
        """Release caught exceptions, whose frames hold tensors; detect the end of recomputation."""
        self._exception_origin.forget_caught()
        if self._failed is not None and sys.exception() is not self._failed[0]:
            self._failed = None
        if self._log.is_recomputing and not is_inside_checkpoint():
            self._log.is_recomputing = False
            self._after_recomputation()

    def _find_traits(self, func: OpOverload) -> OpTraits:
        """Read the schema of an operator that is met for the first time."""
        traits = traits_of(func)
        self._traits[id(func)] = traits

        if traits.is_composite and not self._is_whole(func):
            self._taken_apart.add(id(func))
        return traits

    def _record_with_functions(
        self, func: HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        call = named_call(func, args, kwargs)
        request = OpRequest(call.op, traits_of(call.op), call.args, None, self.table)
        try:
            outcome = describe_outcome(request, call.run(request.operand))
        except Exception as error:
            self._failed = (error, request)
            raise
        return self._write_down(request, outcome, NOTHING)
