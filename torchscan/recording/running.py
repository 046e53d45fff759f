"""One run of a model in one of the ways there are: forward, and if asked for backward and an optimizer's step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from torchscan.errors import NeedsValuesError
from torchscan.recording.attempts import Attempt
from torchscan.recording.bookkeeping.containers import (
    copy_arguments,
    held_tensors,
    named_tensors,
    tensors_in,
)
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensors import TensorTable, shape_of, values_of
from torchscan.recording.engine_attention import attention_of_engines
from torchscan.recording.execution.assumed import AssumedValues
from torchscan.recording.execution.kernels import Kernels, functions_let_through
from torchscan.recording.execution.known_constants import KnownConstants
from torchscan.recording.failures import explain, in_the_model
from torchscan.recording.own_calls import own_calls_followed
from torchscan.recording.patches import overridden, replaced
from torchscan.recording.recorder import Recorder
from torchscan.recording.request import PassRequest
from torchscan.recording.training.autocast import Autocast, autocast_of_meta_tensors
from torchscan.recording.training.backward_updates import BackwardUpdates
from torchscan.recording.training.checkpoints import checkpointed
from torchscan.recording.training.gradients import BackwardError, Substitutes, loss_of
from torchscan.recording.training.offloading import leave_shards_on_host
from torchscan.recording.training.optimizers import OptimizerError
from torchscan.recording.training.training_step import differentiate, name_gradients, optimize
from torchscan.recording.undo import interruptible, run_at_end_of_pass
from torchscan.torch_versions import (
    arrived,
    compiles_flex_attention,
    outside_of_everything,
    placement_verbs,
    resizing_verbs,
    stands_for_itself,
    waiting_verbs,
    without_modes,
)
from torchscan.trace.events import InputRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """The arguments of the model's call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: its tensors, by their position
    named: list[tuple[str, Tensor]]
    #: those of them that were made for this run
    owned: list[tuple[str, Tensor]]
    #: what these were made of
    originals: list[Tensor]
    #: what an earlier pass has kept, by its position
    cached: list[tuple[str, Tensor]]


def run(
    request: PassRequest,
    attempt: Attempt,
    recorder: Recorder,
    inventory: Inventory,
    autocast: Autocast,
) -> None:
    """Run the model of the inventory, and tell the recorder what happens."""
    arguments = _arguments(request, attempt, inventory)
    _enter(arguments, request, inventory, recorder.table)
    if request.parameters_on_host:
        leave_shards_on_host((slot.tensor for slot in inventory.slots), recorder.table)
    for slot in inventory.slots if attempt.buffers else ():
        if slot.path in attempt.buffers:
            recorder.table.give_values(slot.tensor, attempt.buffers[slot.path].clone())
    if attempt.is_abstract and not attempt.is_decomposed:  # where autograd sees no values
        _give_values(arguments, recorder.table)
    if not attempt.is_abstract:
        _enter_made_up(arguments, request, recorder.values)
    recorder.inputs = [
        InputRecord(name, shape_of(tensor), tensor.dtype) for name, tensor in arguments.named
    ]
    try:
        _Stage(request, attempt, recorder, inventory, autocast).whole(arguments)
    except (BackwardError, OptimizerError):
        raise
    except Exception as error:
        raise explain(
            recorder.failure_of(error), inventory.root, recorder.inputs, request
        ) from in_the_model(error)


def _arguments(request: PassRequest, attempt: Attempt, inventory: Inventory) -> _Arguments:
    kept = {id(slot.tensor) for slot in inventory.slots}
    args, kwargs, owned = _make_arguments(request, attempt, kept)
    state = {name: kwargs.pop(name) for name in request.cached}
    cached = [*held_tensors(state, "kwargs")]
    named = [*named_tensors(args, "args"), *named_tensors(kwargs, "kwargs")]
    nested = [name for name, tensor in named if tensor.is_nested]
    if attempt.is_abstract and nested:
        raise NeedsValuesError(
            f"{nested[0]} is a nested tensor, which has no counterpart on the meta device"
        )
    made = [(name, tensor) for name, tensor in named if id(tensor) in owned]
    originals = [owned[id(tensor)] for _, tensor in made]
    kept_from_before = [(name, tensor) for name, tensor in cached if id(tensor) in owned]
    kwargs |= state
    return _Arguments(
        args=args,
        kwargs=kwargs,
        named=named,
        owned=made,
        originals=originals,
        cached=kept_from_before,
    )


def _make_arguments(
    request: PassRequest, attempt: Attempt, kept: Collection[int]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, Tensor]]:
    """The arguments; where those of the model have no data, fractions have none."""
    if attempt.without_data is None:
        return request.inputs(attempt.device, kept)
    args, kwargs, owned = request.inputs(torch.device("meta"), kept)
    made, originals = attempt.without_data, dict(owned)

    def placed(tensor: Tensor) -> Tensor:
        if not tensor.is_meta or tensor.layout is not torch.strided:
            return tensor
        found = made.tensor(
            tensor.shape, tensor.stride(), tensor.dtype, attempt.device
        ).requires_grad_(tensor.requires_grad)
        originals[id(found)] = owned.get(id(tensor), tensor)
        return found

    args, kwargs = copy_arguments((args, kwargs), placed)
    return args, kwargs, originals


def _enter(
    arguments: _Arguments, request: PassRequest, inventory: Inventory, table: TensorTable
) -> None:
    """Tell the table which tensors there are to begin with, and which of them the model may write to."""
    owned = {id(tensor) for _, tensor in arguments.owned}
    for name, tensor in arguments.named:
        if id(tensor) in owned:
            table.enter_copy(tensor, "input", name)
        else:
            table.name(tensor, "input", name)
    for name, tensor in arguments.cached:
        table.enter_copy(tensor, "cache", name)
    for slot in inventory.slots if request.is_converted else ():
        table.enter_copy(slot.tensor, slot.kind, slot.path)
        slot.tensor.grad = None  # as it is afterwards, whatever autograd leaves on a tensor that it is handed directly
    for slot in inventory.slots if request.has_backward else ():
        if stands_for_itself(slot.tensor):
            slot.tensor.grad = None  # it is put back when the pass is over


def _give_values(arguments: _Arguments, table: TensorTable) -> None:
    """Keep the values of small floating-point tensors that were given: they may be masks."""
    for (_, tensor), original in zip(arguments.owned, arguments.originals, strict=True):
        values = values_of(original) if tensor.is_meta else None
        if values is not None:
            table.give_values(tensor, values)


def _enter_made_up(arguments: _Arguments, request: PassRequest, values: AssumedValues) -> None:
    """Enter inputs that torchscan made from shapes: random numbers, or zeros for integers."""
    given = {
        id(tensor)
        for tensor in tensors_in([arguments.kwargs[name] for name in request.kwargs or ()])
    }
    for _, tensor in arguments.owned if request.from_shapes else ():
        if id(tensor) not in given:
            values.enter_input(tensor)


class _Stage:
    """The objects that work together while a model runs."""

    def __init__(
        self,
        request: PassRequest,
        attempt: Attempt,
        recorder: Recorder,
        inventory: Inventory,
        autocast: Autocast,
    ) -> None:
        self._request = request
        self._attempt = attempt
        self._recorder = recorder
        self._inventory = inventory
        self._autocast = autocast
        kernels = Kernels(request.device_type, has_flash=request.has_flash)
        self._substitutes = Substitutes(
            recorder.table,
            recorder.values,
            kernels,
            autocast,
            on_meta=attempt.is_abstract,
            is_without_data=attempt.without_data is not None,
            home=attempt.home,
        )

    def whole(self, arguments: _Arguments) -> None:
        """All that was asked for."""
        with self._recording():
            for _ in range(2 if self._request.accumulate else 1):
                kept: Any = None  # of the batch before
                kept = self._batch(arguments)
            self._hand_over(kept[0])
            self._name_gradients(arguments)
            self._optimize()
            self._recorder.end()
            del kept  # a training loop has the loss of the last batch until its end
        if self._request.handover is not None:
            self._request.handover.copy()

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """The modes and replacements that the run needs; the recorder comes last, nearest to the operators."""
        is_decomposed, is_abstract = self._attempt.is_decomposed, self._attempt.is_abstract
        with contextlib.ExitStack() as stack:
            run_at_end_of_pass(stack.close, is_of_process=False)
            stack.enter_context(self._attempt.grad_mode())
            compiles_flex = compiles_flex_attention()
            if compiles_flex is not None:
                stack.enter_context(replaced(*compiles_flex, lambda _: True))
            for verb in (*placement_verbs(), *waiting_verbs()):
                stack.enter_context(overridden(*verb, _unrecorded))
            for verb in resizing_verbs():
                stack.enter_context(overridden(*verb, self._noting_size))
            if is_decomposed:
                stack.enter_context(self._substitutes)
            elif is_abstract:
                stack.enter_context(KnownConstants(self._recorder.table, self._attempt.home))
            if is_abstract or self._attempt.without_data is not None:
                self._follow_autocast(stack)
            modules = self._inventory.modules.values()
            stack.enter_context(own_calls_followed(modules, self._recorder.tree))
            if self._request.has_engine_attention:
                stack.enter_context(attention_of_engines(modules, self._recorder.assume))
            stack.enter_context(
                checkpointed([self._inventory.modules[path] for path in self._request.checkpointed])
            )
            stack.enter_context(self._recorder.recording())
            yield

    def _follow_autocast(self, stack: contextlib.ExitStack) -> None:
        """Let functions on tensors without data run as on the device that they represent."""
        attempt = self._attempt
        if attempt.is_decomposed:
            stack.enter_context(functions_let_through())
        home = attempt.home if attempt.is_abstract else attempt.device
        stack.enter_context(autocast_of_meta_tensors(self._request.device_type, home))

    def _noting_size(self, resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """No operator tells of it."""

        def run(tensor: Tensor) -> None:
            resize(tensor)
            self._recorder.table.note_size(tensor)

        return run

    def _batch(self, arguments: _Arguments) -> tuple[Any, Any]:
        """Run forward, and backward if asked for; return the loss, and the output if it is held."""
        self._recorder.begin("forward")
        with self._autocast.on():
            root = self._inventory.root
            call = partial(interruptible, root)
            output = self._recorder.tree.run(root, call, arguments.args, arguments.kwargs)
            if isinstance(output, GeneratorType):  # nothing has run yet
                self._exhaust(output)
            loss = (
                interruptible(loss_of, output, self._request.backward)
                if self._request.has_backward
                else None
            )
        if self._request.drops_output:
            _wait_for(output)
            output = None
        if self._request.updates_in_backward:
            updates = BackwardUpdates(self._request, self._recorder, self._substitutes)
            updates.prepare(self._inventory.slots)
        if self._request.has_backward:
            differentiate(loss, self._recorder, self._substitutes)
        _wait_for((output, loss))
        return output, loss

    def _hand_over(self, output: Any) -> None:
        handover, name = self._request.handover, self._recorder.table.name_cache
        if handover is not None:
            handover.storages = {
                each: number
                for each, tensor in handover.take(output)
                if (number := name(tensor)) is not None
            }

    def _exhaust(self, generator: Iterator[Any]) -> None:
        with self._recorder.tree.resumed():
            interruptible(deque, generator, maxlen=0)

    def _name_gradients(self, arguments: _Arguments) -> None:
        tensors = [*((slot.path, slot.tensor) for slot in self._inventory.slots), *arguments.owned]
        name_gradients(tensors, self._substitutes, self._recorder)

    def _optimize(self) -> None:
        if self._request.optimizer is not None and not self._request.updates_in_backward:
            slots = self._inventory.slots
            optimize(self._request, slots, self._recorder, self._substitutes)


def _wait_for(result: Any) -> None:
    """Wait for asynchronous collectives whose results are in the output.

    Code that uses the output would wait for them.
    """
    with outside_of_everything():
        for tensor in tensors_in(result):
            arrived(tensor)


def _unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a function's own operators out of the trace.

    It runs on no data to find the shape of its result, or assembles what other ranks sent.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        with without_modes():
            return function(*args, **kwargs)

    return run
