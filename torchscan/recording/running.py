"""One run of a model: forward, and if asked for backward and an optimizer's step.

:mod:`torchscan.recording.passes` chooses how to run it, and puts everything back afterwards.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import Any

import torch

from torchscan.notes import Note
from torchscan.ops import is_known
from torchscan.recording.attempts import Attempt
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.parameter_records import name_parts
from torchscan.recording.call_arguments import CallArguments, enter_parameters
from torchscan.recording.control_flow import ControlFlow, OmittedCalls
from torchscan.recording.engine_attention import attention_of_engines
from torchscan.recording.execution.kernels import Kernels, functions_let_through
from torchscan.recording.execution.known_constants import KnownConstants
from torchscan.recording.failures import explain, in_the_model
from torchscan.recording.handover import Handover
from torchscan.recording.kernel_launches import kernel_launches
from torchscan.recording.own_calls import own_calls_followed
from torchscan.recording.patches import Contexts, overridden, substituted
from torchscan.recording.recorder import Recorder
from torchscan.recording.request import PassRequest
from torchscan.recording.sharded_pass import collectives_followed, wait_for
from torchscan.recording.state import keep_everything, make_room_for_nesting
from torchscan.recording.training.autocast import Autocast, autocast_of_meta_tensors
from torchscan.recording.training.backward_updates import BackwardUpdates
from torchscan.recording.training.checkpoints import checkpointed
from torchscan.recording.training.gradients import BackwardError, loss_of
from torchscan.recording.training.offloading import leave_shards_on_host
from torchscan.recording.training.optimizers import OptimizerError
from torchscan.recording.training.substitutes import Substitutes
from torchscan.recording.training.training_step import differentiate, name_gradients, optimize
from torchscan.recording.undo import Undo, interruptible, is_recording, run_at_end_of_pass
from torchscan.torch_versions import (
    compiles_flex_attention,
    control_flow,
    has_process_group,
    is_wrapped_by_ddp,
    unoptimized_scripts,
    with_operands_of_functions,
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
        self._autocast: Autocast | None = None
        #: the tensors that autograd gets in place of the user's, or None if operators are fused
        self._substitutes: Substitutes | None = None
        if attempt.is_decomposed or request.autocast is not None:
            self._autocast = Autocast(request.autocast, request.device_type)
        self.recorder = Recorder(
            inventory,
            attempt.execution(request.device_type),
            is_known,
            self.assume,
            None if self._autocast is None else self._autocast.forget,
            is_last_resort=attempt.is_last_resort,
        )
        if attempt.is_decomposed and self._autocast is not None:
            self._substitutes = Substitutes(
                self.recorder.table,
                self.recorder.values,
                Kernels(request.device_type, has_flash=request.has_flash),
                self._autocast,
                on_meta=attempt.is_abstract,
                is_without_data=attempt.without_data is not None,
                home=attempt.home,
            )

    def run(self, undo: Undo, original: Inventory | None = None) -> None:
        """Run the model and write down what it does; ``undo`` gets what restores it.

        Exceptions of the model become RecordErrors. If the model is a copy of ``original`` that
        shares tensors with it, that is restored.
        """
        request, recorder = self.request, self.recorder
        kept, mode = (self.inventory, request.mode) if original is None else (original, "same")
        keep_everything(undo, kept, mode, [request.args, request.kwargs], recorder.table)
        make_room_for_nesting(self.inventory)
        arguments = self._enter_inputs()
        try:
            with contextlib.ExitStack() as stack:
                undo.push(stack.close, is_of_process=False)
                for context in self._contexts():
                    stack.enter_context(context)
                for _ in range(2 if request.accumulate else 1):
                    held: Any = None  # of the previous batch
                    held = self._run_batch(arguments)
                if request.handover is not None:
                    self._hand_over(held[0], request.handover)
                if self._substitutes is not None:
                    self._finish_step(arguments, self._substitutes)
                recorder.end()
                del held  # a training loop has the loss of the last batch until its end
            if request.handover is not None:
                request.handover.copy()
        except (BackwardError, OptimizerError):
            raise
        except Exception as error:
            failure = recorder.failure_of(error)
            explained = explain(failure, self.inventory.root, recorder.inputs, request)
            raise explained from in_the_model(error)
        if self._autocast is not None:
            self._autocast.forget()  # the model may have left a context open

    def _enter_inputs(self) -> CallArguments:
        """Return the arguments of the call, after entering them and the parameters."""
        request, inventory, table = self.request, self.inventory, self.recorder.table
        if not self.attempt.is_abstract:
            name_parts(inventory, table)
        has_wrapper = inventory.root is not request.module and is_wrapped_by_ddp(request.module)
        if has_wrapper and request.has_backward:
            self.assume(Note.of("gradients-not-reduced"))

        arguments = CallArguments.of(request, self.attempt, inventory)
        arguments.enter(self.recorder, request, self.attempt)
        if request.originals or self.attempt.is_decomposed or self.attempt.buffers:
            enter_parameters(inventory, request, self.attempt, table)
        if request.parameters_on_host:
            leave_shards_on_host((slot.tensor for slot in inventory.slots), table)
        return arguments

    def _contexts(self) -> Contexts:
        """Yield all that surrounds the run, from the outside in: the recorder is innermost."""
        request, attempt, recorder = self.request, self.attempt, self.recorder
        for device in attempt.ignored_autocasts:
            self.assume(Note.of("autocast-ignored", device=device))
            yield torch.autocast(device, enabled=False)
        yield attempt.grad_mode()
        yield unoptimized_scripts()
        if self._substitutes is not None:
            yield self._substitutes
        elif attempt.is_abstract:
            yield KnownConstants(recorder.table, attempt.home)
        if attempt.is_abstract or attempt.without_data is not None:
            if self._substitutes is not None:
                yield from functions_let_through()
                yield overridden(*with_operands_of_functions(self._substitutes.of, is_recording))
            home = attempt.home if attempt.is_abstract else attempt.device
            yield from autocast_of_meta_tensors(request.device_type, home)

        yield from self._patches()
        run_at_end_of_pass(recorder.tree.stop)
        yield recorder.tree.watched(recorder.ends.note)
        yield recorder

    def _patches(self) -> Contexts:
        """Yield the contexts in which modules and functions of torch are called in another way."""
        request, recorder, modules = self.request, self.recorder, self.inventory.modules
        if has_process_group():
            yield from collectives_followed(recorder.table)
        yield from own_calls_followed(modules.values(), recorder.tree)
        if request.has_engine_attention:
            yield from attention_of_engines(modules.values(), self.assume)
        if request.checkpointed:
            yield from checkpointed(modules, request.checkpointed)
        if "triton.runtime.jit" in sys.modules:
            yield from kernel_launches(self.assume)
        for owner, name in compiles_flex_attention():
            yield substituted(owner, name, True)
        flow = ControlFlow(recorder, self.omitted, self.assume, request.loop_iterations)
        for owner, name in control_flow():
            yield substituted(owner, name, getattr(flow, name))

    def _run_batch(self, arguments: CallArguments) -> tuple[Any, Any]:
        """Run forward, and backward if asked for; return the output (if held) and the loss."""
        request, recorder, substitutes = self.request, self.recorder, self._substitutes
        recorder.begin("forward")
        loss: Any = None
        with contextlib.nullcontext() if self._autocast is None else self._autocast.on():
            root = self.inventory.root
            call = partial(interruptible, root)
            output = recorder.tree.run(root, call, arguments.args, arguments.kwargs)
            if isinstance(output, GeneratorType):  # nothing has run yet
                with recorder.tree.resumed():
                    interruptible(deque, output, maxlen=0)
            if request.has_backward:
                loss = interruptible(loss_of, output, request.backward)
        if request.drops_output:
            if has_process_group():
                wait_for(output)
            output = None
        if substitutes is not None and request.has_backward:
            if request.updates_in_backward:
                updates = BackwardUpdates(request, recorder, substitutes)
                updates.prepare(self.inventory.slots)
            differentiate(loss, recorder, substitutes)
        if has_process_group():
            wait_for((output, loss))
        return output, loss

    def _finish_step(self, arguments: CallArguments, substitutes: Substitutes) -> None:
        """Name the gradients that stay, and take the optimizer's step if it is asked for."""
        request, slots = self.request, self.inventory.slots
        tensors = [*((slot.path, slot.tensor) for slot in slots), *arguments.owned]
        name_gradients(tensors, substitutes, self.recorder)
        if request.optimizer is not None and not request.updates_in_backward:
            optimize(request, slots, self.recorder, substitutes)

    def _hand_over(self, output: Any, handover: Handover) -> None:
        """Note which memory of the output the next pass gets."""
        storages = self.recorder.table.storages
        storage_by_name = {
            name: storages.name_memory(tensor, "cache", "")
            for name, tensor in handover.take(output)
        }
        handover.storages = {
            name: storage for name, storage in storage_by_name.items() if storage is not None
        }
