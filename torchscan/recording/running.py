"""One run of a model: forward, and if asked for backward and an optimizer's step.

:mod:`torchscan.recording.passes` chooses how to run it, and puts everything back afterwards.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from torchscan.notes import Note
from torchscan.ops import is_known
from torchscan.recording.attempts import Attempt
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.slot_names import name_parts
from torchscan.recording.call_arguments import CallArguments, enter_parameters
from torchscan.recording.control_flow import OmittedCalls, control_flow_followed
from torchscan.recording.engine_attention import attention_of_engines
from torchscan.recording.execution.kernels import Kernels, functions_let_through
from torchscan.recording.execution.known_constants import KnownConstants
from torchscan.recording.failures import explain, in_the_model
from torchscan.recording.kernel_launches import kernel_launches
from torchscan.recording.own_calls import own_calls_followed
from torchscan.recording.patches import Contexts, overridden, replaced
from torchscan.recording.recorder import Recorder
from torchscan.recording.request import PassRequest
from torchscan.recording.surroundings import make_room_for_nesting
from torchscan.recording.training.autocast import Autocast, autocast_of_meta_tensors
from torchscan.recording.training.backward_updates import BackwardUpdates
from torchscan.recording.training.checkpoints import checkpointed
from torchscan.recording.training.gradients import BackwardError, loss_of
from torchscan.recording.training.offloading import leave_shards_on_host
from torchscan.recording.training.optimizers import OptimizerError
from torchscan.recording.training.substitutes import Substitutes
from torchscan.recording.training.training_step import differentiate, name_gradients, optimize
from torchscan.recording.undo import interruptible, is_recording, run_at_end_of_pass
from torchscan.torch_versions import (
    arrived,
    compiles_flex_attention,
    is_wrapped_by_ddp,
    outside_of_everything,
    placement_verbs,
    resizing_verbs,
    waiting_verbs,
    with_operands_of_functions,
    without_modes,
)


class PassRun:
    """One run of a model as an attempt says, with the recorder that sees it."""

    def __init__(self, request: PassRequest, attempt: Attempt, inventory: Inventory) -> None:
        self.request = request
        self.attempt = attempt
        self.inventory = inventory
        #: in the order in which they were made, each once
        self.assumptions: dict[Note, None] = {}
        # Not a method: the recorder keeps it, and a cycle would keep all tensors of the pass alive.
        self.assume: Callable[[Note], None] = self.assumptions.setdefault
        self.omitted = OmittedCalls()
        self._autocast = Autocast(request.autocast, request.device_type)
        self.recorder = Recorder(
            inventory,
            attempt.execution(request.device_type),
            is_known,
            self.assume,
            self._autocast.forget,
            is_last_resort=attempt.is_last_resort,
        )
        self._substitutes = Substitutes(
            self.recorder.table,
            self.recorder.values,
            Kernels(request.device_type, has_flash=request.has_flash),
            self._autocast,
            on_meta=attempt.is_abstract,
            is_without_data=attempt.without_data is not None,
            home=attempt.home,
        )

    def run(self) -> None:
        """Run the model, which the caller restores; its exceptions become RecordErrors."""
        request, inventory, recorder = self.request, self.inventory, self.recorder
        make_room_for_nesting(inventory)
        if not self.attempt.is_abstract:
            name_parts(inventory, recorder.table)
        is_inside_ddp = is_wrapped_by_ddp(request.module) and inventory.root is not request.module
        if request.has_backward and is_inside_ddp:
            self.assume(Note.of("gradients-not-reduced"))

        arguments = CallArguments.of(request, self.attempt, inventory)
        arguments.enter(recorder, request, self.attempt)
        enter_parameters(inventory, request, self.attempt, recorder.table)
        if request.parameters_on_host:
            leave_shards_on_host((slot.tensor for slot in inventory.slots), recorder.table)
        try:
            self._run_recorded(arguments)
        except (BackwardError, OptimizerError):
            raise
        except Exception as error:
            failure = recorder.failure_of(error)
            explained = explain(failure, inventory.root, recorder.inputs, request)
            raise explained from in_the_model(error)
        self._autocast.forget()  # the model may have left a context open

    def _run_recorded(self, arguments: CallArguments) -> None:
        request = self.request
        with contextlib.ExitStack() as stack:
            run_at_end_of_pass(stack.close, is_of_process=False)
            for context in self._contexts():
                stack.enter_context(context)
            for _ in range(2 if request.accumulate else 1):
                kept: Any = None  # of the batch before
                kept = self._run_batch(arguments)
            self._hand_over(kept[0])
            slots = self.inventory.slots
            tensors = [*((slot.path, slot.tensor) for slot in slots), *arguments.owned]
            name_gradients(tensors, self._substitutes, self.recorder)
            if request.optimizer is not None and not request.updates_in_backward:
                optimize(request, slots, self.recorder, self._substitutes)
            self.recorder.end()
            del kept  # a training loop has the loss of the last batch until its end
        if request.handover is not None:
            request.handover.copy()

    def _contexts(self) -> Contexts:
        """Yield all that surrounds the run, from the outside in: the recorder is innermost."""
        request, attempt, recorder = self.request, self.attempt, self.recorder
        modules = self.inventory.modules
        for device in attempt.ignored_autocasts(request):
            self.assume(Note.of("autocast-ignored", device=device))
            yield torch.autocast(device, enabled=False)
        yield attempt.grad_mode()

        compiles_flex = compiles_flex_attention()
        if compiles_flex is not None:
            yield replaced(*compiles_flex, lambda _: True)
        for verb in (*placement_verbs(), *waiting_verbs()):
            yield overridden(*verb, _unrecorded)
        for verb in resizing_verbs():
            yield overridden(*verb, self._noting_size)

        if attempt.is_decomposed:
            yield self._substitutes
        elif attempt.is_abstract:
            yield KnownConstants(recorder.table, attempt.home)
        if attempt.is_abstract or attempt.without_data is not None:
            if attempt.is_decomposed:
                yield from functions_let_through()
                yield overridden(*with_operands_of_functions(self._substitutes.of, is_recording))
            home = attempt.home if attempt.is_abstract else attempt.device
            yield from autocast_of_meta_tensors(request.device_type, home)

        yield from own_calls_followed(modules.values(), recorder.tree)
        if request.has_engine_attention:
            yield from attention_of_engines(modules.values(), self.assume)
        yield from checkpointed(modules, request.checkpointed)
        yield from kernel_launches(self.assume)
        yield from control_flow_followed(
            recorder, self.omitted, self.assume, request.loop_iterations
        )
        yield recorder.recording()

    def _noting_size(self, resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Return the function with a note of the new size, of which no operator tells."""
        table = self.recorder.table

        def run(tensor: Tensor) -> None:
            resize(tensor)
            table.note_size(tensor)

        return run

    def _run_batch(self, arguments: CallArguments) -> tuple[Any, Any]:
        """Run forward, and backward if asked for; return the output (if held) and the loss."""
        request, recorder = self.request, self.recorder
        recorder.begin("forward")
        loss: Any = None
        with self._autocast.on():
            root = self.inventory.root
            call = partial(interruptible, root)
            output = recorder.tree.run(root, call, arguments.args, arguments.kwargs)
            if isinstance(output, GeneratorType):  # nothing has run yet
                with recorder.tree.resumed():
                    interruptible(deque, output, maxlen=0)
            if request.has_backward:
                loss = interruptible(loss_of, output, request.backward)
        if request.drops_output:
            _wait_for(output)
            output = None
        if request.updates_in_backward:
            updates = BackwardUpdates(request, recorder, self._substitutes)
            updates.prepare(self.inventory.slots)
        if request.has_backward:
            differentiate(loss, recorder, self._substitutes)
        _wait_for((output, loss))
        return output, loss

    def _hand_over(self, output: Any) -> None:
        """Note which memory of the output the next pass gets."""
        handover, storages = self.request.handover, self.recorder.table.storages
        if handover is None:
            return
        storage_by_name = {
            name: storages.name_memory(tensor, "cache", "")
            for name, tensor in handover.take(output)
        }
        handover.storages = {
            name: storage for name, storage in storage_by_name.items() if storage is not None
        }


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
