"""A cheap check of every training step: loss, gradients, and parameters after the optimizer.

Each is one sum or one fused norm. On a CUDA device nothing waits for it: it is read when it has
arrived, up to a step later. When a check fails, the call that is to blame is repeated on a copy and
inspected closely, until module, operator and line are known. The guard puts nothing on models. It
takes the place of the function that runs backward passes, and of two methods of ``GradScaler``, and
listens to hooks of all modules and optimizers. This file knows *when* something is checked; *what*
is checked is in ``training_checks``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from time import time_ns
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.checked_steps import GuardFacts
from torchscan.inspecting.finding_log import FindingLog
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.guard_scope import GuardScope
from torchscan.inspecting.line_notes import LineNotes
from torchscan.inspecting.loss_graph import LossGraph
from torchscan.inspecting.memory_trend import MemoryLog, MemoryTrend
from torchscan.inspecting.module_hooks import ModuleHooks
from torchscan.inspecting.root_call import RootCall
from torchscan.inspecting.root_calls import RootCalls
from torchscan.inspecting.root_names import InspectionLink, RootNames
from torchscan.inspecting.scaler_watch import ScalerWatch
from torchscan.inspecting.timing import without_collections
from torchscan.inspecting.trained_tensors import TrainedTensors
from torchscan.inspecting.training_checks import TrainingChecks
from torchscan.inspecting.training_thread import TrainingThread
from torchscan.inspecting.values import Listener
from torchscan.observing.backward_watch import BackwardPass, BackwardWatch, OptimizerWatch
from torchscan.observing.internal_errors import InternalErrors
from torchscan.recording.call_threads import is_in_backward_pass
from torchscan.recording.running_modules import is_running

#: calls of other modules than the inspected one whose times are kept
_MAX_OTHER_CALLS = 8192


class NonFiniteGuard:
    """The check of training steps. It is at work while it is started."""

    def __init__(self, listener: Listener, model: nn.Module | None = None) -> None:
        """``model`` is the only one whose training is checked; None: every one."""
        #: the inspection of one module that goes on beside the guard
        self.inspection = InspectionLink()
        self._thread = TrainingThread(model)
        self._calls = RootCalls(self._thread)
        self._tensors = TrainedTensors(self._calls, model)
        self._names = RootNames(self._calls, self.inspection)
        self._log = FindingLog(listener, self._calls, self._tensors, self._names, self.inspection)
        self._checks = TrainingChecks(
            self._calls, self._tensors, self._names, self._log, self.inspection
        )
        self._lines = LineNotes()
        #: memory after each optimizer step
        self.memory = MemoryLog()
        #: start and end of calls of other modules than the inspected one, in nanoseconds since 1970
        self.other_calls: deque[tuple[int, int]] = deque(maxlen=_MAX_OTHER_CALLS)
        #: optimizers whose steps go on
        self._stepping: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        #: optimizer steps that have begun
        self._num_updates = 0
        self._scope = GuardScope()
        self._backward_watch = BackwardWatch(self._note_backward)
        self._optimizer_watch = OptimizerWatch(self._before_update, self._after_update)
        self._errors = InternalErrors("checking for NaN", self._stop)
        self._scaler = ScalerWatch(self._is_off, self._check_safely, self._checks.note_scaler_step)
        self._hooks = ModuleHooks(self._note_start, self._note_end, self._lines.switch_off)

    @property
    def is_started(self) -> bool:
        """True from start to finish."""
        return self._scope.is_started

    @property
    def is_scaled(self) -> bool:
        """True during a backward pass whose loss a GradScaler scales: it skips overflows."""
        return self._checks.is_scaled

    @property
    def is_checking_here(self) -> bool:
        """True if backward passes that this thread runs are checked."""
        return self.is_started and self._thread.is_current()

    def open_call(self) -> RootCall | None:
        """Return the call of a root that goes on in this thread, or None."""
        return self._calls.open_call()

    def refine(self, found: NonFinite) -> NonFinite | None:
        """Add what the guard knows about parameters; return None if it has reported the finding."""
        return self._log.refine(found)

    def facts(self) -> GuardFacts:
        """Return what was checked and found so far."""
        self._checks.on_device.read(waits=True)
        trained = self._calls.trained()
        main = self._calls.find_main(self.inspection.inspected(), trained)
        modules = self._names.list_checked(trained, main)
        if len(modules) == 1:
            modules.clear()
        skipped = self._checks.skipped
        return GuardFacts(
            checked_steps=0 if main is None else main.num_checked,
            trained_modules=tuple(modules),
            skipped_steps=len(skipped),
            first_skipped=next(iter(skipped), None),
            findings=tuple(self._log.findings),
            nonfinite_steps=self._log.num_bad_steps,
            unchecked_threads=tuple(sorted(self._thread.unchecked)),
            memory=MemoryTrend.of(self.memory.sizes),
        )

    # -- lifetime ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Check from now on."""
        if self.is_started:
            return
        self._scope.is_started = True
        self._hooks.start()
        self._optimizer_watch.start()
        self._lines.start()
        self._backward_watch.start()
        self._scaler.start()

    def finish(self) -> None:
        """Check no longer."""
        if not self.is_started:
            return
        self._scope.is_started = False
        self._hooks.close()
        self._optimizer_watch.close()
        self._lines.finish()
        self._backward_watch.close()
        self._scaler.close()
        self._checks.on_device.read(waits=True)
        self._calls.recent.clear()
        self._stepping.clear()

    def _is_off(self) -> bool:
        return self._scope.is_outside() or not self._thread.is_here()

    @contextlib.contextmanager
    def _check_safely(self) -> Iterator[None]:
        """Keep an internal error from ending the user's run."""
        self._scope.is_busy = True
        try:
            with self._errors.caught(), self.inspection.as_overhead(), without_collections():
                yield
        finally:
            self._scope.is_busy = False

    def _stop(self) -> None:
        self._checks.on_device.forget()
        self.finish()

    # -- calls of modules --------------------------------------------------------------------------

    def _note_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._calls.is_inside_trained(module):  # most calls
            return
        if self._scope.is_outside():
            return
        try:
            with self.inspection.as_overhead():
                if not self._thread.begin_call(module):
                    return
                call = self._calls.begin(module, args)
                if call is None or not call.steps.has_parameters:
                    return
                call.began = time_ns()
                self._lines.switch_off()
                self._hooks.compiler.adapt()
                if call.steps.is_new:
                    call.steps.is_new = False
                    self._tensors.note_masks(module)
        except Exception as error:
            self._errors.give_up(error)

    def _note_end(self, module: nn.Module, _args: tuple[Any, ...], *rest: Any) -> None:
        if self._calls.is_inside_trained(module) or self._scope.is_outside():
            return
        *kwargs, result = rest
        try:
            with self.inspection.as_overhead():
                call = self._calls.end(module, kwargs[0] if kwargs else {}, result)
                if call is None:
                    return
                if call.has_graph:
                    self._lines.switch_on()
                if call.began and self.inspection.is_beside(module):
                    self.other_calls.append((call.began, time_ns()))
        except Exception as error:
            self._errors.give_up(error)

    # -- backward passes ---------------------------------------------------------------------------

    def _note_backward(self, backward: BackwardPass) -> AbstractContextManager[object] | None:
        """Check the loss, and return a context that checks the gradients after the pass."""
        with self.inspection.as_overhead():
            if self._is_off():
                self._thread.note_unchecked()
                return None
            if is_in_backward_pass():
                self._thread.note_unchecked()
                with self._check_safely():
                    self._calls.note_inner_backward(backward)
                return None
            self._lines.switch_off()
            graph = None
            with self._check_safely():
                if self._calls.is_open() and not any(map(is_running, self._calls.open_modules())):
                    self._calls.forget_open()
                graph = self._checks.check_loss(backward)
            return self._checked(backward, graph)

    @contextlib.contextmanager
    def _checked(self, backward: BackwardPass, graph: LossGraph | None) -> Iterator[None]:
        try:
            yield
            if graph is not None and backward.is_stored:
                with self._check_safely():
                    self._checks.check_gradients(graph)
        finally:
            if graph is not None:
                with self.inspection.as_overhead():
                    graph.close()
        with self.inspection.as_overhead():
            if backward.keeps_graph or self._calls.await_gradient():
                self._lines.switch_on()

    # -- optimizers --------------------------------------------------------------------------------

    def _before_update(self, optimizer: Optimizer) -> None:
        with self.inspection.as_overhead():
            if self._is_off():
                return
            self._scaler.has_stepped = True
            self._num_updates += 1
            self._log.update = self._num_updates
            self._stepping.add(optimizer)
            with self._check_safely():
                self._tensors.add_optimizer(optimizer)
                is_scaled = optimizer is self._scaler.optimizer
                if not is_scaled and self._checks.is_trained_by(optimizer):
                    self._checks.check_unread(optimizer)

    def _after_update(self, optimizer: Optimizer) -> None:
        with self.inspection.as_overhead():
            if self._is_off() or optimizer not in self._stepping:
                return
            self._stepping.discard(optimizer)
            self._log.update = None
            with self._check_safely():
                if self._tensors.is_trained_by(optimizer):
                    self._checks.check_update(optimizer)
                    self.memory.note(optimizer)
