"""Follows the calls of a model through real steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from torchscan.errors import InputError
from torchscan.garbage import collect_young
from torchscan.recording.bookkeeping.containers import copy_arguments
from torchscan.recording.bookkeeping.inventory import is_on_cuda, modules_of
from torchscan.recording.bookkeeping.tensors import own_copy
from torchscan.recording.call_tree import Begun, Call, CallTree, Given, with_autograd_threads
from torchscan.recording.undo import is_recording
from torchscan.runtime.checks import Check, Checked, StepChecks
from torchscan.runtime.compiling import Compilation, CompileWatch
from torchscan.runtime.deferred import DeferredValues
from torchscan.runtime.facts import InspectedCall, StepFacts
from torchscan.runtime.findings import NonFinite
from torchscan.runtime.memory import MemoryWatch
from torchscan.runtime.nodes import HeldLeaves
from torchscan.runtime.step import Step
from torchscan.runtime.timeline import Timeline
from torchscan.runtime.timing import EventPool, StepTimes
from torchscan.runtime.values import Listener, Memory, StepValues, Values
from torchscan.torch_versions import has_compiled_parts

#: as many are kept, and fewer and fewer of the earlier ones
_MOST_STEPS = 1024


class Inspector:
    """Follows the calls of one model while it is started. It puts nothing on the model."""

    def __init__(
        self,
        model: nn.Module,
        listener: Listener,
        checks: Sequence[Check] = (),
        alarmed: Callable[[Checked], None] = lambda _: None,
        *,
        at_step: Callable[[int], object] | None = None,
        warm_up: int = 0,
    ) -> None:
        """``at_step`` is told when a step begins, after how many others."""
        self._at_step = at_step
        #: with the modules, whose identity others could have after them
        self._paths = {id(module): (path, module) for path, module in modules_of(model)}
        self.model = model
        self._tree = CallTree(self._path_of, with_autograd_threads())
        self._steps: list[StepFacts] = []
        self._warm_up = warm_up
        #: steps that are over
        self.number = 0
        self.checked: list[Checked] = []
        #: the first producers in the first steps that have any, and how many have
        self.nonfinite: list[NonFinite] = []
        self.nonfinite_steps = 0
        #: steps that the device has not finished yet
        self._closed: deque[Step] = deque()
        self._listener = listener
        self._checks = checks
        self._alarmed = alarmed
        self._parameters: dict[str, Tensor] = dict(model.named_parameters()) if checks else {}
        self._found = Memory()
        self._memory = MemoryWatch(model)
        self._pool = EventPool()
        #: what the model was called with first, without data
        self.example: Given | None = None
        #: the type that products are computed in, if it was called under autocast
        self.autocast: torch.dtype | None = None
        #: the last step that is over
        self._last: Step | None = None
        self._is_started = False
        self._has_compiled_parts = False
        self._optimizer_hooks: tuple[RemovableHandle, ...] = ()
        #: what was compiled meanwhile
        self.compilation: Compilation | None = None

    def start(self, under_way: Begun | None = None) -> None:
        """Follow what the model does from now on, with the call that is ``under_way`` where one of its hooks starts this."""
        if self._is_started:
            raise InputError("this inspection has been started: finish it first")
        self._is_started = True
        self._compiler = CompileWatch(self._tree.pause, self._tree.go_on)
        self._leaves = HeldLeaves(self._paths.values())
        self._begin()
        self._optimizer_hooks = (
            register_optimizer_step_pre_hook(lambda *_: self._step.note_optimizer(is_start=True)),
            register_optimizer_step_post_hook(lambda *_: self._step.note_optimizer(is_start=False)),
        )
        self._tree.start(self._note_end, at_start=self._note_start, at_root=self._begin_pass)
        self._keep_off_compiler()
        if under_way is not None:
            self._tree.join(*under_way)

    def finish(self) -> None:
        """Follow it no longer."""
        if not self._is_started:
            return
        self._is_started = False
        self._tree.stop()
        self._compiler.close()
        for hook in self._optimizer_hooks:
            hook.remove()
        try:
            self._close_step(is_followed=False)
        finally:  # whoever is told may raise
            self._settle(waits=True)
            self.compilation = self._compiler.compiled(self._paths.values())
            self._leaves.close()
            self._paths.clear()
            self._parameters = {}

    @property
    def steps(self) -> Sequence[StepFacts]:
        """What was seen of each step; of thousands, of some."""
        return self._steps

    @property
    def calls(self) -> tuple[InspectedCall, ...]:
        """Those of the last step."""
        return () if self._last is None else self._last.calls()

    @property
    def timeline(self) -> Timeline:
        """When what ran in the last step."""
        return Timeline() if self._last is None else self._last.timeline()

    @property
    def looking(self) -> int:
        """Nanoseconds that were spent on looking in the current step."""
        return self._step.looking

    def _path_of(self, module: nn.Module) -> str | None:
        if is_recording():  # a pass of torchscan's own, of the same model
            return None
        known = self._paths.get(id(module))
        return None if known is None else known[0]

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._tree.reset()
        on_cuda = is_on_cuda(self.model)
        times = StepTimes(self._pool if on_cuda else None)
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        checks = StepChecks(self._number, self._checks, names, self._alarmed)
        self._step = Step(self._tree, self._leaves, times, self._values(on_cuda), self._memory, checks)

    @property
    def _number(self) -> int:
        """How many steps were before."""
        return self.number + len(self._closed)

    def _values(self, on_cuda: bool) -> Values:
        """On a device everything is looked at after the step, until something is found."""
        number = self._number
        if on_cuda and not self._found.is_alarmed:
            return DeferredValues(number, self._found, self._listener)
        return StepValues(number, self._tree, self._found, self._listener)

    def _begin_pass(self) -> None:
        """A forward pass begins. It is in the step of the one before if that one's gradients are still to come."""
        if self._tree.calls and self._step.is_complete:
            self._close_step(is_followed=True)
            if self._at_step is not None:
                self._at_step(self._number)
            if not self._is_started:  # enough has been seen
                return
        self._keep_off_compiler()
        self._step.begin_pass()

    def _keep_off_compiler(self) -> None:
        self._compiler.listen()
        if not self._has_compiled_parts and has_compiled_parts(self.model):
            self._has_compiled_parts = True
            self._tree.keep_compiler_out()
            self._compiler.ignore_hooks()

    def _close_step(self, *, is_followed: bool) -> None:
        step, calls = self._step, self._tree.calls
        if calls:
            self._closed.append(step)
            try:
                step.close(calls, self._paths.values(), self._parameters, is_followed=is_followed)
                self._settle(waits=False)
            finally:  # whoever is told may raise
                self._begin()
                collect_young()

    def _settle(self, *, waits: bool) -> None:
        while self._closed and (waits or self._closed[0].is_known):
            step = self._closed.popleft()
            try:
                step.settle()
            finally:  # whoever is told may raise
                self._keep(step)

    def _keep(self, step: Step) -> None:
        self._steps.append(step.facts(self.number, self._steps[-1] if self._steps else None))
        self._last = step
        self.number += 1
        self.checked += step.checked
        if step.nonfinite is not None:
            self.nonfinite_steps += 1
            self.nonfinite += [step.nonfinite] if len(self.nonfinite) < _MOST_STEPS else []
        if len(self._steps) > _MOST_STEPS:
            del self._steps[self._warm_up : -1 : 2]

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _note_start(self, call: Call, args: tuple[object, ...]) -> None:
        self._step.note_start(call, args)

    def _note_end(self, call: Call, given: Given, result: object) -> None:
        if self.example is None and call.outer is None and call.parent is None:
            self.example = copy_arguments(given, lambda tensor: own_copy(tensor, on_meta=True))
            kind = "cuda" if is_on_cuda(self.model) else "cpu"
            self.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        self._step.note_end(call, given, result)
