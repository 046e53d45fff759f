"""The recorder of a pass: a dispatch mode sees operators, the call tree knows their modules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import (
    copy_arguments,
    tensors_in,
)
from torchscan.recording.bookkeeping.inventory import Inventory, is_frozen
from torchscan.recording.bookkeeping.packed_weights import (
    Fingerprint,
    fingerprint_of,
    packed_objects,
    packed_tensors,
)
from torchscan.recording.bookkeeping.tensors import TensorTable, Tracked, are_plain, meta_tensor
from torchscan.recording.call_tree import CallTree
from torchscan.recording.execution.assumed import NOTHING, AssumedValues, Met
from torchscan.recording.execution.calls import (
    Execution,
    OpOutcome,
    OpRequest,
    describe_outcome,
)
from torchscan.recording.execution.higher_order import named_call
from torchscan.recording.execution.op_traits import RESOLVE, OpTraits, traits_of
from torchscan.recording.execution.reads import CHECKING, TRUTH
from torchscan.recording.module_calls import Call, Given
from torchscan.recording.module_ends import ModuleEnds
from torchscan.recording.places import is_validation
from torchscan.recording.undo import WAITING, deliver_interrupts, run_at_end_of_pass
from torchscan.torch_versions import (
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    aten,
    count_function_modes,
    current_node,
    is_faking,
    keeps_for_gradients,
    local_part,
    on_its_way,
    without_torch_function,
)
from torchscan.trace.events import ModuleCall, OpCall, Origin, Phase
from torchscan.trace.provenance import InputRecord

#: about to be initialized: no part of the pass
_LAZY_TYPES = frozenset({nn.UninitializedParameter, nn.UninitializedBuffer})

_ADD = aten.add.Tensor
_DETACH = aten.detach_.default
_EQUAL = aten.equal.default
_DEVICE: OpOverload = torch.ops.prim.device.default

#: what torch does about a Python number or list that becomes a tensor: no part of the model
_LIFT = aten.lift_fresh.default
_BOOKKEEPING = frozenset(map(id, (_LIFT, aten.detach_.default, aten.scalar_tensor.default)))
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
        for slot in inventory.slots:
            self.table.name(slot.tensor, slot.kind, slot.path)
        for packed in inventory.packed:
            for size in packed.sizes or ():
                self.table.storages.find_or_add(size.memory, "parameter", packed.path)
        #: what the model was called with
        self.inputs: list[InputRecord] = []
        self.assume = assume
        self.values = AssumedValues(self.table, assume, is_last_resort=is_last_resort)
        #: the packed weights that operators took, with the path of the first module that gave them
        self.took_packed: dict[Fingerprint | None, str] = {}
        self._after_recomputation = after_recomputation
        self._execution = execution
        self._is_whole = is_whole
        self._phase: Phase = "forward"
        self.ops: list[OpCall] = []
        self._module_ends = ModuleEnds(self.table)
        #: by the addresses of operators, whose hash is worked out in Python
        self._traits: dict[int, OpTraits] = {}
        self._taken_apart: set[int] = set()
        self._is_computing_again = False
        #: by operator call of the backward pass the number of the graph's node that made it
        self._nodes: dict[int, int | None] = {}
        #: the exception that an operator call raised
        self._failed: tuple[BaseException, OpRequest] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False.

        Torch would wrap the dispatch function to hide it from its compiler, which takes a second
        to import.
        """
        return False

    def name_parts(self, inventory: Inventory) -> None:
        """Name the local parts of sharded tensors, which a pass uses in their place."""
        for slot in inventory.slots if inventory.is_sharded else ():
            part = local_part(slot.tensor)
            if part is not slot.tensor:
                self.table.name(part, slot.kind, slot.path)
                self.table.foreign_storage(part)

    # -- verbs -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is done in this context."""
        run_at_end_of_pass(self.tree.stop)
        with self.tree.watched(self._note_tensors), self:
            yield

    def begin(self, phase: Phase) -> None:
        """Start another phase, for example the backward pass."""
        self._phase = phase
        if phase == "optimizer":
            self._execution.begin_optimizer()

    def end(self) -> None:
        """End the pass: memory that is freed from now on is freed after its end."""
        self.table.end()
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

    def op_calls(self) -> tuple[OpCall, ...]:
        """Return the operator calls."""
        return tuple(self.ops)

    def module_calls(self) -> tuple[ModuleCall, ...]:
        """Return the module calls, each with its operator calls."""
        ops: list[list[int]] = [[] for _ in self.tree.calls]
        for index, op in enumerate(self.ops):
            ops[op.module_call].append(index)
        return tuple(map(self._module_ends.describe, self.tree.calls, ops))

    def _note_tensors(self, call: Call, given: Given, result: object) -> None:
        self._module_ends.note(call, given, result, len(self.ops))

    # -- operators ---------------------------------------------------------------------------------

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
            if id(func) in _READS_TRUTH and self._is_validated(request):
                outcome = describe_outcome(request, True)
            else:
                outcome = self._execution.run(request)
        except Exception as error:
            self._failed = (error, request)
            raise
        if id(func) in _BOOKKEEPING:
            return self._result_of_bookkeeping(request, outcome)
        return self._write_down(request, outcome, met)

    def _is_being_frozen(self) -> bool:
        """Return whether torch optimizes a frozen script, as it does in the first calls.

        It compares constants, to store equal ones once.
        """
        return self.tree.current is not None and is_frozen(self.tree.current.module)

    def _decompose(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record the operators in a composite one."""
        args, kwargs = self._on_one_device(args, kwargs)
        checked: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if func in CHECKING:
            checked = self.values.checked()
        with self, checked:
            return func.decompose(*args, **kwargs)

    def _is_validated(self, request: OpRequest) -> bool:
        """Return whether torch validates unknown values, which are then assumed to be in range."""
        first, *_ = request.tracked
        if first.is_concrete:
            return False
        if not is_validation():
            return False
        self.assume(Note.of("distribution-arguments-valid"))
        return True

    def _on_one_device(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return operands of a composite operator, which compares their devices.

        Beside a meta tensor, other floating-point tensors give up their values.
        """
        if not torch.is_inference_mode_enabled():
            return args, kwargs
        are_meta = {tensor.is_meta for tensor in tensors_in((args, kwargs))}
        if len(are_meta) < 2:
            return args, kwargs

        def without_values(tensor: Tensor) -> Tensor:
            if tensor.is_meta or not tensor.is_floating_point():
                return tensor
            substitute = meta_tensor(self.table.find(tensor).spec)
            self.table.enter_substitute(substitute, tensor)
            return substitute

        changed: tuple[Sequence[Any], Mapping[str, Any]] = copy_arguments(
            (args, kwargs), without_values
        )
        return changed

    def _notice_what_is_over(self) -> None:
        """Release caught exceptions, whose frames hold tensors; detect the end of recomputation."""
        self._exception_origin.forget_caught()
        if self._failed is not None and sys.exception() is not self._failed[0]:
            self._failed = None
        if self._is_computing_again and not _is_inside_checkpoint():
            self._is_computing_again = False
            self._after_recomputation()

    def _find_traits(self, func: OpOverload) -> OpTraits:
        """Read the schema of an operator that is met for the first time."""
        traits = traits_of(func)
        self._traits[id(func)] = traits

        if traits.is_composite and not self._is_whole(func):
            self._taken_apart.add(id(func))
        return traits

    def _result_of_bookkeeping(self, request: OpRequest, outcome: OpOutcome) -> Any:
        if request.op is _LIFT:
            self.table.enter_constant(request.args[0])
        if request.has_proxy:
            return self._with_originals(request, outcome)
        return outcome.result

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

    def _write_down(self, request: OpRequest, outcome: OpOutcome, met: Met) -> Any:
        index = len(self.ops)
        inputs = tuple([tracked.index for tracked in request.tracked])
        result = self._with_originals(request, outcome) if request.has_proxy else outcome.result
        made = self._enter_outputs(request, outcome, index)
        outputs = tuple([tracked.index for tracked in made])
        call = self.tree.current or self._owner()
        if request.traits.takes_packed:
            operands = [("", list(request.args)), ("", dict(request.kwargs))]
            for _, packed in packed_objects(operands):
                self.took_packed.setdefault(fingerprint_of(packed_tensors(packed)), call.path)
        origin = self._origin(request, index) if self._phase == "backward" else "function"
        self.ops.append(OpCall(outcome.signature, inputs, outputs, call.index, self._phase, origin))
        self.table.storages.advance(index + 1)
        if met or request.traits.may_draw or outcome.assumed is not None:
            self.values.follow(request, outcome.assumed, met, made)
        return result

    def _enter_outputs(
        self, request: OpRequest, outcome: OpOutcome, producer: int
    ) -> list[Tracked]:
        specs = outcome.signature.outputs
        entered = []
        for tensor, spec, alias in zip(outcome.outputs, specs, outcome.alias_of, strict=True):
            if alias is None:
                entered.append(self.table.add(tensor, spec, producer, None))
                continue
            operand, tracked = request.tensors[alias], request.tracked[alias]
            computed_with = operand if tracked.proxy is None else tracked.proxy
            if computed_with is tensor:  # an operand is returned
                entered.append(self.table.rewrite(operand, spec, producer))
            else:
                entered.append(self.table.add(tensor, spec, producer, tracked))
        return entered

    def _with_originals(self, request: OpRequest, outcome: OpOutcome) -> Any:
        """Return the model's own tensor if an operator returns one of its operands, not its proxy.

        C++ code that is about to read it, such as ``tolist``, gets the proxy, which has the values
        written since.
        """
        if not isinstance(outcome.result, Tensor) or request.op in RESOLVE:
            return outcome.result
        alias = outcome.alias_of[0]
        if alias is not None and request.operand(request.tensors[alias]) is outcome.result:
            return request.tensors[alias]
        return outcome.result

    def _origin(self, request: OpRequest, index: int) -> Origin:
        if _is_inside_checkpoint():
            self._is_computing_again = True
            return "checkpoint"
        node = current_node()
        self._nodes[index] = None if node is None else node._sequence_nr()
        if request.op is _ADD and self._sums_up_gradients(request, index):
            return "engine"
        return "function"

    def _sums_up_gradients(self, request: OpRequest, index: int) -> bool:
        """Return whether the engine adds two gradients.

        It adds what a node has just made to what another one made, which this node never sees.
        """
        producers = [self.table.records[tracked.index].producer for tracked in request.tracked]
        if len(producers) != 2 or any(producer not in self._nodes for producer in producers):
            return False
        return any(
            producer is not None and self._nodes[producer] != self._nodes[index]
            for producer in producers
        )

    def _owner(self) -> Call:
        """Return the call whose gradient is computed, else the model's, for example for a loss."""
        node = None
        if self._phase == "backward":
            node = current_node()
        owner = self.tree.owner_of(node)
        if owner is None:
            owner = self.tree.root
        return owner


def _is_inside_checkpoint() -> bool:
    """Return whether a checkpoint recomputes its part, asked during the backward pass.

    Gradients are enabled then, or were just before a result was saved for them.
    """
    return torch.is_grad_enabled() or keeps_for_gradients()
