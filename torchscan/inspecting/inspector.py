"""Follows the calls of a model through real steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchscan.analyses.memory_snapshot.snapshot_result import MemorySnapshot
from torchscan.errors import InputError
from torchscan.inspecting.checks import Check, CheckResult
from torchscan.inspecting.facts import StepFacts
from torchscan.inspecting.kept_steps import KeptSteps, Observations
from torchscan.inspecting.model_examples import ModelExamples
from torchscan.inspecting.nodes import HeldLeaves
from torchscan.inspecting.out_of_memory import explain_out_of_memory
from torchscan.inspecting.step_boundaries import StepBoundaries
from torchscan.inspecting.step_labels import StepCounts
from torchscan.inspecting.step_maker import StepMaker
from torchscan.inspecting.values import Listener, masks_in
from torchscan.observing.backward_watch import BackwardPass, BackwardWatch, OptimizerWatch
from torchscan.observing.compiling import Compilation, CompileWatch
from torchscan.observing.internal_errors import InternalErrors
from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.recording.call_threads import with_autograd_threads
from torchscan.recording.call_tree import CallTree
from torchscan.recording.module_calls import FAILED, Begun, Call, Given
from torchscan.recording.undo import is_recording


class Inspector:
    """Follows the calls of one model while it is started. It puts nothing on the model."""

    def __init__(
        self,
        model: nn.Module,
        listener: Listener,
        checks: Sequence[Check] = (),
        alarmed: Callable[[CheckResult], None] = lambda _: None,
        *,
        at_step: Callable[[StepCounts], object] | None = None,
        warm_up: int = 0,
        is_second_look: bool = False,
    ) -> None:
        """Call ``at_step`` with the counts of finished steps when another step begins.

        In a second look, within a pass of torchscan itself, all values are checked where they are
        produced.
        """
        self._is_second_look = is_second_look
        self._at_step = at_step
        #: with the modules, whose identity others could have after them
        self._paths = {id(module): (path, module) for path, module in modules_of(model)}
        self.model = model
        self._follows = with_autograd_threads()
        self._tree = CallTree(self._path_of, self._follows)
        self._kept = KeptSteps(warm_up)
        self._maker = StepMaker(
            model, self._tree, listener, checks, alarmed, is_second_look=is_second_look
        )
        self.examples = ModelExamples(model)
        self.is_started = False
        #: False if the model is known not to train: then no step is treated as an evaluation
        self.awaits_training = True
        self._boundaries = StepBoundaries(model)
        self._entries = self._boundaries.entries
        self._backward_watch = BackwardWatch(self.note_backward_pass)
        self._optimizer_watch = OptimizerWatch(self.note_optimizer, self.note_update)
        self._errors = InternalErrors("inspecting", self._stop_following)
        #: the compiled version of the model whose call goes on, or None
        self._compiled: nn.Module | None = None
        self._compilation: Compilation | None = None
        self._has_begun = self._is_on_device = False
        #: returns a context that excludes what runs in it from the times of the current step; not
        #: a method, because it is called for calls of other modules as well
        self.as_overhead: Callable[[], AbstractContextManager[None]] = nullcontext

    def start(self, under_way: Begun | None = None) -> None:
        """Follow the model from now on, with the call ``under_way`` if its hook starts this."""
        if self.is_started:
            raise InputError("this inspection has already started: call finish() first")
        self.is_started = True
        tree = self._tree
        self._compiler = CompileWatch(tree.pause, tree.go_on, keep_out=tree.keep_compiler_out)
        self._maker.found_before.reported |= masks_in(self._paths.values())
        self._leaves = HeldLeaves(self._paths.values(), self._errors.give_up)
        self._begin()
        if not self._is_second_look:
            self._optimizer_watch.start()
            self._backward_watch.start()
        tree.start(self.note_end, at_start=self.note_start, at_root=self._begin_pass)
        self._compiler.adapt()
        if under_way is not None:
            tree.join(*under_way)

    def finish(self) -> None:
        """Follow it no longer."""
        if not self.is_started:
            return
        self.is_started = False
        self._tree.stop()
        self._compiler.close()
        self._optimizer_watch.close()
        self._backward_watch.close()
        try:
            if not self._errors.has_failed:
                try:
                    self._close_step(is_followed=False)
                except Exception as error:
                    self._errors.give_up(error)
        finally:  # a listener may raise
            self._kept.settle(waits=True)
            self._compilation = self._compiler.compiled(self._paths.values())
            self._leaves.close()
            self._paths.clear()
            self._maker.parameters = {}

    def watched(self) -> Observations:
        """Return the observations."""
        return self._kept.watched(self._compilation)

    @property
    def steps(self) -> Sequence[StepFacts]:
        """Facts of the steps, or of a sample of thousands."""
        return self._kept.facts

    @property
    def has_found(self) -> bool:
        """True if the current step has a finding."""
        return self._has_begun and self._step.nonfinite is not None

    def has_checked(self, gradient: Tensor) -> bool:
        """Return whether a gradient was checked when it was stored, and is still finite."""
        return self._has_begun and self._step.is_known_finite(gradient)

    def explain(self, error: BaseException) -> MemorySnapshot | None:
        """Return what held the GPU's memory if an exception says that it was full, or None."""
        if not self.is_started or not isinstance(error, torch.OutOfMemoryError):
            return None
        found = None
        with self._errors.caught():
            optimizers = self._boundaries.find_optimizers()
            found = explain_out_of_memory(error, self.model, optimizers, self._tree.maker_of)
        return found  # noqa: RET504 - None after an internal error

    @property
    def looking(self) -> int:
        """Nanoseconds that were spent on looking in the current step."""
        return self._step.times.looking if self._has_begun else 0

    def _path_of(self, module: nn.Module) -> str | None:
        # a pass of torchscan's own, of the same model
        if is_recording() and not self._is_second_look:
            return None
        # to be run later; nodes of other streams would stop that
        if self._is_on_device and self._step.times.is_captured:
            self._leaves.let_go()
            return None
        known = self._paths.get(id(module))
        if known is None:
            return "" if self._entries.is_model(module) else None
        if module is self.model and self._compiled is not None:
            current = self._tree.current
            if current is not None and current.outermost.module is self._compiled:
                return None  # what runs in the compiled version belongs to its call
        return known[0]

    def _stop_following(self) -> None:
        self._tree.pause()
        self._leaves.watch = None

    # -- steps -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._tree.reset()
        self._step = self._maker.begin(self._leaves, self.counts.num_training)
        self._is_on_device = self._step.times.device is not None
        self.as_overhead = self._step.times.stand_still
        self._has_begun = True

    @property
    def counts(self) -> StepCounts:
        """Counts of finished steps."""
        return self._kept.counts

    def _begin_pass(self, module: nn.Module) -> bool:
        """Note that a forward pass begins, and return whether it is a pass of the model."""
        if not self._entries.is_entry(module):
            return False
        try:
            self._begin_step_or_pass(module)
        except Exception as error:
            self._errors.give_up(error)
        return True

    def _begin_step_or_pass(self, module: nn.Module) -> None:
        is_compiled = module is not self.model and self._entries.is_model(module)
        self._compiled = module if is_compiled else None
        if not self._boundaries.begin_pass(module, self._step, self._end_step):
            return
        if not self._tree.calls:
            is_evaluation = self.awaits_training and not torch.is_grad_enabled()
            self._step.label.set(self.counts, is_evaluation=is_evaluation)
        self._compiler.adapt()
        self._step.begin_pass()

    def _end_step(self) -> bool:
        """Close the step and report the counts. Return whether the next one is followed.

        The receiver of the counts ends the inspection once it has seen enough.
        """
        if self._tree.calls:
            self._close_step(is_followed=True)
            if self._at_step is not None:
                self._at_step(self.counts)
        return self.is_started

    def note_backward_pass(self, backward: BackwardPass) -> None:
        """Note that a backward pass begins."""
        if not self._is_following:
            return

        with self._errors.caught(), self.as_overhead():
            self._boundaries.note_backward(backward, self._step)

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Note that an optimizer begins its step."""
        self._step.times.note_optimizer(is_start=True)
        self._boundaries.add_optimizer(optimizer)

    def note_update(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has ended its step."""
        self._step.times.note_optimizer(is_start=False)
        if not self._is_following:
            return
        with self._errors.caught(), self.as_overhead():
            self._boundaries.note_update(optimizer, self._step)

    @property
    def _is_following(self) -> bool:
        """True if the program trains in this thread, and a pass of the step has begun."""
        return bool(self._tree.calls) and self._follows() and not is_recording()

    def _close_step(self, *, is_followed: bool) -> None:
        step, calls = self._step, self._tree.calls
        if not calls:
            return

        self._kept.add(step)
        modules, parameters = self._paths.values(), self._maker.parameters
        try:
            step.close(calls, modules, parameters, is_followed=is_followed)
            self._kept.settle(waits=False)
        finally:  # a listener may raise
            self._begin()

    # -- calls -------------------------------------------------------------------------------------

    def note_start(self, call: Call, args: tuple[object, ...]) -> None:
        """Note that a call starts."""
        try:
            self._step.note_start(call, args)
        except Exception as error:
            self._errors.give_up(error)

    def note_end(self, call: Call, given: Given, result: object) -> None:
        """Note that a call has ended, or was left by an exception."""
        try:
            if call.outer is None and call.parent is None:
                self.examples.note(given)
                self._step.note_pass_end(has_failed=given is FAILED)
            self._step.note_end(call, given, result)
        except Exception as error:
            self._errors.give_up(error)
