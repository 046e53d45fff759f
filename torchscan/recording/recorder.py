"""The recorder of a pass: a dispatch mode sees operators, the call tree knows their modules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import Inventory, is_frozen
from torchscan.recording.bookkeeping.parameter_records import name_weights
from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES, are_plain
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.call_tree import CallTree
from torchscan.recording.exception_origin import Failure
from torchscan.recording.execution.assumed import NOTHING, AssumedValues
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.composite_operands import on_one_device
from torchscan.recording.execution.higher_order import named_call
from torchscan.recording.execution.op_traits import OpTraits, traits_of
from torchscan.recording.execution.outcomes import Execution, OpOutcome, describe_outcome
from torchscan.recording.execution.reads import CHECKING
from torchscan.recording.operator_log import ModuleEnds, OperatorLog, is_inside_checkpoint
from torchscan.recording.undo import WAITING, deliver_interrupts
from torchscan.torch_versions import (
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    aten,
    count_function_modes,
    fake_mode,
    on_its_way,
    without_torch_function,
)
from torchscan.trace.events import Phase
from torchscan.trace.provenance import InputRecord

#: about to be initialized: no part of the pass
_LAZY_TYPES: frozenset[type] = frozenset({nn.UninitializedParameter, nn.UninitializedBuffer})

_DETACH = aten.detach_.default
_EQUAL = aten.equal.default
_DEVICE: OpOverload = torch.ops.prim.device.default

#: whether a composite operator is recorded as one call, and not as the operators in it
IsWhole = Callable[[OpOverload], bool]

_NO_CONTEXT = contextlib.nullcontext()
_NOT_SPECIAL = object()


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
        after_recomputation: Callable[[], None] | None,
        *,
        is_last_resort: bool = True,
    ) -> None:
        """Create a recorder.

        ``assume`` is called with each assumption, ``after_recomputation``, if given, when a
        checkpoint has recomputed its part. With ``is_last_resort``, a branch may depend on an
        assumed index, because there is no other way to run the pass.
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
        #: inputs and outputs of the module calls
        self.ends = ModuleEnds(self.table, self.ops)
        #: by the addresses of operators, whose hash is worked out in Python
        self._traits: dict[int, OpTraits] = {}
        self._taken_apart: dict[int, Callable[..., Any]] = {}
        #: addresses of operators that are not, or not always, recorded as one call
        self._special: set[int] = set()
        #: the exception that an operator call raised
        self._failed: tuple[BaseException, OpRequest] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False.

        Torch would wrap the dispatch function to hide it from its compiler, which takes a second
        to import.
        """
        return False

    def begin(self, phase: Phase) -> None:
        """Start another phase, for example the backward pass."""
        self._log.phase = phase
        if phase == "optimizer":
            self._execution.begin_optimizer()

    def end(self) -> None:
        """End the pass: memory that is freed from now on is freed after its end."""
        self.table.storages.end()
        self._failed = None
        if self._exception_origin.error is not None:
            self._exception_origin.forget()

    def failure_of(self, error: BaseException) -> Failure:
        """Return the origin of this exception, ignoring those that the model caught before."""
        request = None
        if self._failed is not None and self._failed[0] is error:
            request = self._failed[1]
        call = self._exception_origin.call_of(error)
        if call is not None:
            self.ends.note(call, (self._exception_origin.arguments, {}), ())
        return Failure(error, call, request)

    def __torch_dispatch__(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record one operator call, outside of function modes, which are for the user's calls.

        A call on tensor subclasses is recorded as those in it.
        """
        if func is _DEVICE:  # half of all calls ask on which device a tensor without data is
            return func(*args)
        with without_torch_function() if count_function_modes() else _NO_CONTEXT:
            keywords = kwargs or {}
            if fake_mode() is not None:
                # A tensor subclass asks for the shape of the tensor that it is about to create.
                return func(*args, **keywords)
            if self._failed or self._log.is_recomputing or self._exception_origin.error is not None:
                self._notice_what_is_over()
            if isinstance(func, OpOverload) and PLAIN_TYPES.issuperset(types):
                result = self._record_overload(func, args, keywords)
            else:
                result = self._record_rare(func, types, args, keywords)
        if WAITING:
            deliver_interrupts()
        return result

    def _record_rare(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record a call of an operator that takes functions, or one on tensor subclasses."""
        if not isinstance(func, OpOverload):
            return self._record_with_functions(func, args, kwargs)
        if func.namespace == "prim":
            # A tensor that pretends to be on a device is asked on which one.
            return func(*args, **kwargs)
        if are_plain(types):
            return self._record_overload(func, args, kwargs)
        if _LAZY_TYPES.issuperset(types):
            return func(*args, **kwargs)
        return NotImplemented

    def _record_overload(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record a call of an operator on plain tensors."""
        traits = self._traits.get(id(func)) or self._find_traits(func)
        if id(func) in self._special:
            result = self._run_special(func, traits, args, kwargs)
            if result is not _NOT_SPECIAL:
                return result

        request = OpRequest(op=func, traits=traits, args=args, kwargs=kwargs, table=self.table)
        request.look_up()
        try:
            met = NOTHING
            if self.values.by_storage:
                met = self.values.met_by(request)
            run = self._answer if traits.asks_truth else self._execution.run
            outcome = run(request)
        except Exception as error:
            self._failed = (error, request)
            raise
        if traits.is_bookkeeping:
            return self._log.leave_out(request, outcome)
        return self._write_down(request, outcome, met)

    def _answer(self, request: OpRequest) -> OpOutcome:
        """Return the outcome of an operator that returns a truth value, which may be assumed."""
        answer = self.values.answer(request)
        if answer is None:
            return self._execution.run(request)
        return describe_outcome(request, answer)

    def _run_special(
        self, func: OpOverload, traits: OpTraits, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return the result of an operator that is not recorded as one, or ``_NOT_SPECIAL``."""
        if traits.is_wrapper:
            return on_its_way(args[0])
        current = self.tree.current
        is_script = func is _EQUAL and current is not None and is_frozen(current.module)
        # In its first calls, torch compares constants of a frozen script, to store equal ones once.
        if traits.is_aside or is_script:
            return func(*args, **kwargs)
        if func is _DETACH:
            # Autograd has detached it already. If not, detaching would cut the tensor's own graph.
            return args[0]
        if id(func) in self._taken_apart:
            return self._decompose(func, args, kwargs)
        return _NOT_SPECIAL

    def _decompose(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record the operators in a composite one."""
        args, kwargs = on_one_device(args, kwargs, self.table)
        checked: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if func in CHECKING:
            checked = self.values.checked()
        with self, checked:
            return self._taken_apart[id(func)](*args, **kwargs)

    def _notice_what_is_over(self) -> None:
        """Release caught exceptions, whose frames hold tensors; detect the end of recomputation."""
        if self._exception_origin.error is not None:
            self._exception_origin.forget_caught()
        if self._failed is not None and sys.exception() is not self._failed[0]:
            self._failed = None
        if self._log.is_recomputing and not is_inside_checkpoint():
            self._log.is_recomputing = False
            if self._after_recomputation is not None:
                self._after_recomputation()

    def _find_traits(self, func: OpOverload) -> OpTraits:
        """Read the schema of an operator that is met for the first time."""
        traits = traits_of(func)
        self._traits[id(func)] = traits

        apart = func.decompose if traits.is_composite else traits.launches_kernels
        if apart is not None and not self._is_whole(func):
            self._taken_apart[id(func)] = apart
        is_apart = id(func) in self._taken_apart
        if is_apart or traits.is_wrapper or traits.is_aside or func in (_DETACH, _EQUAL):
            self._special.add(id(func))
        return traits

    def _record_with_functions(
        self, func: HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        call = named_call(func, args, kwargs)
        op = call.op
        traits = traits_of(op)
        request = OpRequest(op=op, traits=traits, args=call.args, kwargs={}, table=self.table)
        request.look_up()
        try:
            outcome = describe_outcome(request, call.run(request.operand))
        except Exception as error:
            self._failed = (error, request)
            raise
        return self._write_down(request, outcome, NOTHING)
