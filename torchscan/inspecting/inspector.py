"""Follows the calls of a model through real steps."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchscan.analyses.memory_snapshot.snapshot_result import MemorySnapshot
from torchscan.errors import InputError
from torchscan.inspecting.call_memory import MemoryWatch, Shapes
from torchscan.inspecting.checks import Check, CheckResult, StepChecks
from torchscan.inspecting.deferred_values import DeferredValues
from torchscan.inspecting.device_times import DeviceTimes, EventPool
from torchscan.inspecting.facts import StepFacts
from torchscan.inspecting.immediate import ImmediateValues
from torchscan.inspecting.kept_steps import KeptSteps, Observations
from torchscan.inspecting.module_copies import what_is_shared
from torchscan.inspecting.nodes import HeldLeaves, NodeWatch
from torchscan.inspecting.out_of_memory import explain_out_of_memory
from torchscan.inspecting.step import Step, StepCounts, StepLabel
from torchscan.inspecting.timing import StepTimes
from torchscan.inspecting.values import Listener, Memory, Values, masks_in
from torchscan.observing.backward_watch import BackwardPass, BackwardWatch, OptimizerWatch
from torchscan.observing.compiling import Compilation, CompileWatch
from torchscan.observing.internal_errors import InternalErrors
from torchscan.observing.model_hook import ModelEntries
from torchscan.observing.model_steps import ModelParameters, ModelSteps
from torchscan.observing.steps import StepCounter
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.bookkeeping.inventory import device_of, is_on_cuda, modules_of
from torchscan.recording.bookkeeping.tensor_copies import own_copy
from torchscan.recording.bookkeeping.tensor_layouts import shape_of
from torchscan.recording.call_threads import with_autograd_threads
from torchscan.recording.call_tree import CallTree
from torchscan.recording.module_calls import FAILED, Begun, Call, Given
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import without_tracing

#: shapes of inputs that are remembered
_MAX_EXAMPLES = 64


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
        #: steps that the device has not finished yet
        self._closed: deque[Step] = deque()
        self._listener = listener
        self._checks = checks
        self._alarmed = alarmed
        self._parameters: dict[str, Tensor] = dict(model.named_parameters()) if checks else {}
        self._guard_memory = Memory()
        self._guard_memory.is_alarmed = self._guard_memory.has_found = is_second_look
        self._memory = MemoryWatch(model)
        self._pool = EventPool()
        #: what the model was called with, without data, by its shapes; None: it must not be used
        #: once more
        self._examples: dict[Shapes, Given | None] = {}
        #: the type that products are computed in, if it was called under autocast
        self.autocast: torch.dtype | None = None
        self.is_started = False
        #: False if the model is known not to train: then no step is treated as an evaluation
        self.awaits_training = True
        self._entries = ModelEntries(model)
        self._model_parameters = known = ModelParameters(model)
        self._pass_steps = ModelSteps(model, known, known.find_again, StepCounter())
        self._backward_watch = BackwardWatch(self._note_backward_pass)
        self._optimizer_watch = OptimizerWatch(self.note_optimizer, self._after_optimizer)
        #: those that have begun a step of the model
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._errors = InternalErrors("inspecting", self._stop_following)
        #: the compiled version of the model whose call goes on, or None
        self._compiled: nn.Module | None = None
        self._compilation: Compilation | None = None
        self._has_begun = self._is_on_device = False

    def start(self, under_way: Begun | None = None) -> None:
        """Follow the model from now on, with the call ``under_way`` if its hook starts this."""
        if self.is_started:
            raise InputError("this inspection has already started: call finish() first")
        self.is_started = True
        tree = self._tree
        self._compiler = CompileWatch(tree.pause, tree.go_on, keep_out=tree.keep_compiler_out)
        self._guard_memory.reported |= masks_in(self._paths.values())
        self._leaves = HeldLeaves(self._paths.values(), self._errors.give_up)
        self._begin()
        if not self._is_second_look:
            self._optimizer_watch.start()
            self._backward_watch.start()
        tree.start(self._note_end, at_start=self._note_start, at_root=self._begin_pass)
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
            self._settle(waits=True)
            self._compilation = self._compiler.compiled(self._paths.values())
            self._leaves.close()
            self._paths.clear()
            self._parameters = {}

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
        explained: list[MemorySnapshot | None] = [None]
        with self._errors.caught():
            steps = self._pass_steps
            optimizers = [each for each in self._optimizers if steps.has_optimizer(each)]
            found = explain_out_of_memory(error, self.model, optimizers, self._tree.maker_of)
            explained.append(found)
        return explained[-1]

    @contextlib.contextmanager
    def as_overhead(self) -> Iterator[None]:
        """Exclude what runs in this context from the times of the current step."""
        # another thread starts it just now, or what surrounds this is excluded
        if not self._has_begun or self._step.is_looking:
            yield
            return
        step = self._step
        start = step.begin_looking()
        try:
            yield
        finally:
            step.end_looking(start)

    @property
    def looking(self) -> int:
        """Nanoseconds that were spent on looking in the current step."""
        return self._step.looking if self._has_begun else 0

    def _path_of(self, module: nn.Module) -> str | None:
        # a pass of torchscan's own, of the same model
        if is_recording() and not self._is_second_look:
            return None
        # to be run later; nodes of other streams would stop that
        if self._is_on_device and self._step.is_captured:
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
        device = device_of(self.model)
        on_device = None
        if device is not None and device.type == "cuda":
            on_device = DeviceTimes(self._pool, device)
        self._is_on_device = on_device is not None
        times = StepTimes(on_device)
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        label = StepLabel(self._number)
        checks = StepChecks(
            self._number,
            self._checks,
            names,
            lambda found: self._alarmed(label.put_on(found)),
            times,
        )
        values = self._values(times)
        values.tell_as(label.put_on)
        self._step = Step(
            NodeWatch(self._tree, self._leaves, times, values, self._memory, checks), label
        )
        self._has_begun = True

    @property
    def counts(self) -> StepCounts:
        """Counts of finished steps."""
        counts = self._kept.counts
        for step in self._closed:
            if not step.has_failed:
                counts = counts.add(step)
        return counts

    @property
    def _number(self) -> int:
        """The number of the next step if it trains."""
        return self.counts.num_training

    def _values(self, times: StepTimes) -> Values:
        """On a device everything is looked at after the step, until something is found."""
        number = self._number
        if times.device is not None and not self._guard_memory.is_alarmed:
            place = times.device.device
            return DeferredValues(
                number,
                self._guard_memory,
                self._listener,
                device=place,
                allocated=self._memory,
                times=times,
            )
        return ImmediateValues(number, self._tree, self._guard_memory, self._listener)

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
        is_model = self._entries.is_model(module)
        self._entries.note(module)
        self._compiled = module if is_model and module is not self.model else None
        steps, step = self._pass_steps, self._step
        phase, part = steps.phase_of(module), None if is_model else id(module)
        # No graph shows whether gradients of such parameters train the model.
        if step.has_begun_backward and self._model_parameters.has_unreachable_parameters:
            self._note_training()
        if not step.can_train:
            steps.counter.abandon()
        if steps.counter.relation_of(phase, part) == "new":
            self._end_step()
            if not self.is_started:  # enough has been seen
                return
            steps.begin(phase, part)
        steps.note_replacements()
        if not self._tree.calls:
            is_evaluation = self.awaits_training and not torch.is_grad_enabled()
            self._step.label.set(self.counts, is_evaluation=is_evaluation)
        self._compiler.adapt()
        self._step.begin_pass()

    def _end_step(self) -> None:
        """Close the step before another one begins, and report the counts of steps."""
        if not self._tree.calls:
            return

        self._close_step(is_followed=True)
        if self._at_step is not None:
            self._at_step(self.counts)

    def _note_training(self) -> None:
        self._pass_steps.counter.note_backward()
        self._step.note_training()

    def _note_backward_pass(self, backward: BackwardPass) -> None:
        if not self._is_following:
            return

        with self._errors.caught(), self.as_overhead():
            if self._pass_steps.note_backward(backward, lambda: None):
                self._step.note_training()

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Note that an optimizer begins its step."""
        self._step.note_optimizer(is_start=True)
        self._optimizers.add(optimizer)

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        self._step.note_optimizer(is_start=False)
        if not self._is_following:
            return
        with self._errors.caught(), self.as_overhead():
            is_training = self._pass_steps.current.phase == "train"
            if is_training and self._pass_steps.has_optimizer(optimizer):
                self._note_training()

    @property
    def _is_following(self) -> bool:
        """True if the program trains in this thread, and a pass of the step has begun."""
        return bool(self._tree.calls) and self._follows() and not is_recording()

    def _close_step(self, *, is_followed: bool) -> None:
        step, calls = self._step, self._tree.calls
        if calls:
            self._closed.append(step)
            try:
                step.close(calls, self._paths.values(), self._parameters, is_followed=is_followed)
                self._settle(waits=False)
            finally:  # a listener may raise
                self._begin()

    def _settle(self, *, waits: bool) -> None:
        while self._closed and (waits or self._closed[0].is_known):
            step = self._closed.popleft()
            try:
                step.settle()
            finally:  # a listener may raise
                self._kept.keep(step)

    # -- calls -------------------------------------------------------------------------------------

    def _note_start(self, call: Call, args: tuple[object, ...]) -> None:
        try:
            self._step.note_start(call, args)
        except Exception as error:
            self._errors.give_up(error)

    def _note_end(self, call: Call, given: Given, result: object) -> None:
        try:
            if call.outer is None and call.parent is None:
                self._note_example(given)
                self._step.note_pass_end(has_failed=given is FAILED)
            self._step.note_end(call, given, result)
        except Exception as error:
            self._errors.give_up(error)

    def _note_example(self, given: Given) -> None:
        """Keep example arguments for the cost estimate, unless they cannot be copied."""
        shapes = tuple(shape_of(tensor) for tensor in tensors_in(given))
        if shapes not in self._examples and len(self._examples) < _MAX_EXAMPLES:
            is_own = what_is_shared(given) is None
            with without_tracing():
                self._examples[shapes] = (
                    copy_arguments(given, lambda each: own_copy(each, on_meta=True))
                    if is_own
                    else None
                )
            kind = "cuda" if is_on_cuda(self.model) else "cpu"
            self.autocast = (
                torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            )

    def example_of(self, watched: Observations) -> Given | None:
        """Return the arguments of the model in the steps of the table, without data."""
        calls = watched.usual.calls
        return self._examples.get(calls[0].input_shapes) if calls else None
