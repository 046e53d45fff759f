"""Writing down the operators of a pass: a dispatch mode sees them, the call tree says which module they belong to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import (
    Fingerprint,
    arguments_named,
    copy_arguments,
    fingerprint_of,
    named_tensors,
    packed_objects,
    packed_tensors,
    tensors_in,
)
from torchscan.recording.bookkeeping.inventory import Inventory, is_frozen, type_name_of
from torchscan.recording.bookkeeping.tensors import TensorTable, Tracked, are_plain, meta_tensor
from torchscan.recording.call_tree import Call, CallTree, Given
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
from torchscan.trace.events import InputRecord, ModuleCall, OpCall, Origin, Phase, TensorSpec

_LAZY_TYPES = frozenset(
    {nn.UninitializedParameter, nn.UninitializedBuffer}
)  # about to be initialised: no part of the pass

_ADD = aten.add.Tensor
_DETACH = aten.detach_.default
_EQUAL = aten.equal.default
_DEVICE: OpOverload = torch.ops.prim.device.default

#: what torch does about a Python number or list that becomes a tensor: no part of the model
_LIFT = aten.lift_fresh.default
_BOOKKEEPING = frozenset(map(id, (_LIFT, aten.detach_.default, aten.scalar_tensor.default)))
_READS_TRUTH = frozenset(map(id, TRUTH))

#: whether a composite operator is recorded as one call; if not, the operators that it is made of are
IsWhole = Callable[[OpOverload], bool]


class Failure(NamedTuple):
    """An exception, the innermost module call that it came from, and the operator call, if it was one that failed."""

    error: BaseException
    call: Call | None
    request: OpRequest | None


class _Ends(NamedTuple):
    """Inputs and outputs of a module call with their names, and the number of operators so far."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    end: int | None = None


_NO_ENDS = _Ends()


class Recorder(TorchDispatchMode):
    """Records the operators that the calling thread runs while it is entered.

    Which module each belongs to it asks its ``tree``; which tensors are the same, and what stands in for them, its ``table``.
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
        #: the packed weights that operators were given, with the path of the module that gave them first
        self.took_packed: dict[Fingerprint | None, str] = {}
        self._after_recomputation = after_recomputation
        self._execution = execution
        self._is_whole = is_whole
        self._phase: Phase = "forward"
        self.ops: list[OpCall] = []
        #: by the index of a module call
        self._ends: dict[int, _Ends] = {}
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
        """Torch would wrap the dispatch function to hide it from its compiler, which takes a second to import."""
        return False

    def name_parts(self, inventory: Inventory) -> None:
        """Name the local parts of sharded tensors, which a pass uses in their place."""
        for slot in inventory.slots if inventory.is_sharded else ():
            part = local_part(slot.tensor)
            if part is not slot.tensor:
                self.table.name(part, slot.kind, slot.path)
                self.table.foreign_storage(part)

    # -- verbs -------------------------------------------------------------------------------------------------------

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
        """The pass is over: what is let go of from now on is let go of after its end."""
        self.table.end()
        self._failed = None
        self.tree.forget_exception()

    def failure_of(self, error: BaseException) -> Failure:
        """Return the origin of this exception, ignoring those that the model caught before."""
        request = self._failed[1] if self._failed is not None and self._failed[0] is error else None
        call = self.tree.origin_of(error)
        if call is not None:
            self._note_tensors(call, (self.tree.given_to_origin, {}), ())
        return Failure(error, call, request)

    def op_calls(self) -> tuple[OpCall, ...]:
        """The record of the operators."""
        return tuple(self.ops)

    def module_calls(self) -> tuple[ModuleCall, ...]:
        """The record of the modules."""
        ops: list[list[int]] = [[] for _ in self.tree.calls]
        for index, op in enumerate(self.ops):
            ops[op.module_call].append(index)
        return tuple(map(self._module_call, self.tree.calls, ops))

    def _module_call(self, call: Call, ops: Sequence[int]) -> ModuleCall:
        ends = self._ends.get(call.index, _NO_ENDS)
        parent = None if call.parent is None else call.parent.index
        return ModuleCall(
            call.index,
            call.path,
            type_name_of(call.module),
            call.invocation,
            call.depth,
            parent,
            tuple(call.children),
            ends.inputs,
            ends.outputs,
            tuple(ops),
            type(call.module).__module__,
            ends.input_names,
            ends.output_names,
            ends.end,
        )

    def _note_tensors(self, call: Call, given: Given, result: object) -> None:
        input_names, inputs = self._indices(arguments_named(type(call.module), *given))
        output_names, outputs = self._indices(named_tensors(result))
        self._ends[call.index] = _Ends(inputs, outputs, input_names, output_names, len(self.ops))

    def _indices(
        self, named: Iterable[tuple[str, Tensor]]
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        found = [(name, self.table.find(local_part(tensor)).index) for name, tensor in named]
        return tuple([name for name, _ in found]), tuple([index for _, index in found])

    # -- operators ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record one operator call; what is done to record it is nothing that functions are replaced in."""
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
        """Tensor subclasses come first and are recorded as what they are made of."""
        if is_faking():
            return func(
                *args, **(kwargs or {})
            )  # a tensor subclass asks for the shape of what it is going to make
        self._notice_what_is_over()
        if not isinstance(func, OpOverload):
            return self._record_with_functions(func, args, kwargs or {})
        if func.namespace == "prim":  # asked of a tensor that pretends to be on a device: which one
            return func(*args, **(kwargs or {}))
        if types and not are_plain(types):
            return (
                func(*args, **(kwargs or {})) if _LAZY_TYPES.issuperset(types) else NotImplemented
            )
        traits = self._traits.get(id(func)) or self._find_traits(func)
        if traits.is_wrapper:
            return on_its_way(args[0])
        if traits.is_aside or (func is _EQUAL and self._is_being_frozen()):
            return func(*args, **(kwargs or {}))
        if (
            func is _DETACH
        ):  # autograd has done it already; where it has not, the tensor's own graph would be cut
            return args[0]
        if id(func) in self._taken_apart:
            args, kwargs = self._on_one_device(args, kwargs or {})
            with self, self.values.checked() if func in CHECKING else contextlib.nullcontext():
                return func.decompose(*args, **kwargs)
        request = OpRequest(func, traits, args, kwargs, self.table)
        try:
            met = self.values.met_by(request)
            is_validated = id(func) in _READS_TRUTH and self._is_validated(request)
            outcome = (
                describe_outcome(request, True) if is_validated else self._execution.run(request)
            )
        except Exception as error:
            self._failed = (error, request)
            raise
        if id(func) in _BOOKKEEPING:
            return self._result_of_bookkeeping(request, outcome)
        return self._write_down(request, outcome, met)

    def _is_being_frozen(self) -> bool:
        """In its first calls, a frozen script is optimised: constants are compared, to store equal ones once."""
        return self.tree.current is not None and is_frozen(self.tree.current.module)

    def _is_validated(self, request: OpRequest) -> bool:
        """Return whether torch validates unknown values, which are then assumed to be in range."""
        if request.tracked[0].is_concrete or not is_validation():
            return False
        self.assume(Note.of("distribution-arguments-valid"))
        return True

    def _on_one_device(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """For composite operators, which compare devices: beside a meta tensor other fractions give up their values."""
        if (
            not torch.is_inference_mode_enabled()
            or len({tensor.is_meta for tensor in tensors_in((args, kwargs))}) < 2
        ):
            return args, kwargs
        changed: tuple[Sequence[Any], Mapping[str, Any]] = copy_arguments(
            (args, kwargs), self._without_values
        )
        return changed

    def _without_values(self, tensor: Tensor) -> Tensor:
        if tensor.is_meta or not tensor.is_floating_point():
            return tensor
        substitute = meta_tensor(self.table.find(tensor).spec)
        self.table.enter_substitute(substitute, tensor)
        return substitute

    def _notice_what_is_over(self) -> None:
        """Release caught exceptions, whose frames hold tensors; detect the end of recomputation."""
        self.tree.forget_caught()
        if self._failed is not None and sys.exception() is not self._failed[0]:
            self._failed = None
        if self._is_computing_again and not _is_inside_checkpoint():
            self._is_computing_again = False
            self._after_recomputation()

    def _find_traits(self, func: OpOverload) -> OpTraits:
        """An operator that is met for the first time."""
        traits = self._traits[id(func)] = traits_of(func)
        if traits.is_composite and not self._is_whole(func):
            self._taken_apart.add(id(func))
        return traits

    def _result_of_bookkeeping(self, request: OpRequest, outcome: OpOutcome) -> Any:
        if request.op is _LIFT:
            self.table.enter_constant(request.args[0])
        return self._with_originals(request, outcome) if request.has_proxy else outcome.result

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
            self._note_packed(request, call)
        origin = self._origin(request, index) if self._phase == "backward" else "function"
        self.ops.append(OpCall(outcome.signature, inputs, outputs, call.index, self._phase, origin))
        self.table.storages.advance(index + 1)
        if met or request.traits.may_draw or outcome.assumed is not None:
            self.values.follow(request, outcome.assumed, met, made)
        return result

    def _note_packed(self, request: OpRequest, call: Call) -> None:
        for _, packed in packed_objects([("", list(request.args)), ("", dict(request.kwargs))]):
            self.took_packed.setdefault(fingerprint_of(packed_tensors(packed)), call.path)

    def _enter_outputs(
        self, request: OpRequest, outcome: OpOutcome, producer: int
    ) -> list[Tracked]:
        specs = outcome.signature.outputs
        return [
            self.table.add(tensor, spec, producer, None)
            if alias is None
            else self._enter_alias(request, alias, tensor, spec, producer)
            for tensor, spec, alias in zip(outcome.outputs, specs, outcome.alias_of, strict=True)
        ]

    def _enter_alias(
        self, request: OpRequest, alias: int, tensor: Tensor, spec: TensorSpec, producer: int
    ) -> Tracked:
        """An operand that is returned, or what looks into its memory."""
        operand, tracked = request.tensors[alias], request.tracked[alias]
        if (operand if tracked.proxy is None else tracked.proxy) is tensor:
            return self.table.rewrite(operand, spec, producer)
        return self.table.add(tensor, spec, producer, tracked)

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
        return (
            "engine"
            if request.op is _ADD and self._sums_up_gradients(request, index)
            else "function"
        )

    def _sums_up_gradients(self, request: OpRequest, index: int) -> bool:
        """The engine adds what a node has just made to what it was handed by another one, which that node itself never sees."""
        producers = [self.table.records[tracked.index].producer for tracked in request.tracked]
        if len(producers) != 2 or any(producer not in self._nodes for producer in producers):
            return False
        return any(
            producer is not None and self._nodes[producer] != self._nodes[index]
            for producer in producers
        )

    def _owner(self) -> Call:
        """The call whose gradient is being computed, else the model's, for example for the loss."""
        node = current_node() if self._phase == "backward" else None
        return self.tree.owner_of(node) or self.tree.root


def _is_inside_checkpoint() -> bool:
    """During the backward pass: gradients are watched, or, while a result is put away for them, were a moment ago."""
    return torch.is_grad_enabled() or keeps_for_gradients()
