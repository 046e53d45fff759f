"""Calls of modules outside of other calls: of models, their parts and loss modules.

What a call is given is kept until its gradients have been used, so that it can be repeated if
something is not finite. Results of other calls are referred to weakly: keeping them would keep
activations. So is what calls without a graph are given.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.root_call import ModuleSteps, RootCall
from torchscan.inspecting.training_thread import TrainingThread
from torchscan.observing.backward_watch import BackwardPass
from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.recording.call_threads import is_in_backward_pass
from torchscan.recording.running_modules import is_open, is_running

#: calls that are remembered at once
MAX_CALLS = 32
#: further calls whose nodes are known to be a model's
_MAX_DROPPED = 1024
#: roots that are known at once, if most of them are gone
_MAX_ROOTS = 256


class RootCalls:
    """The calls that a second look may need, all in one thread."""

    def __init__(self, thread: TrainingThread) -> None:
        self.thread = thread
        self.recent: list[RootCall] = []
        self._steps: dict[int, ModuleSteps] = {}
        #: roots from which on those that are gone are dropped
        self._max_roots = _MAX_ROOTS
        #: by thread
        self._open: dict[int, tuple[RootCall, int]] = {}
        self._lock = threading.Lock()
        #: the first and last node of calls that were dropped before their gradients were used
        self._dropped: deque[tuple[int, int]] = deque(maxlen=_MAX_DROPPED)

    def is_inside_trained(self, module: nn.Module) -> bool:
        """Return whether a call of another module with parameters goes on in the checked thread.

        torch does not report the end of a call that was interrupted. So the stack is searched for
        it when a module is called that the open one does not have.
        """
        thread = threading.get_ident()
        opened = self._open.get(thread)
        if opened is None or thread != self.thread.number:
            return False
        call, _ = opened
        if not call.is_trained:
            return False
        root = call.module()
        if root is module:
            return False
        if id(module) in call.steps.module_ids:
            return True
        if root is not None and is_running(root):
            return True
        self.forget_open()
        return False

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> RootCall | None:
        """Record a call and return it, or return None if it is inside another one."""
        thread = threading.get_ident()
        opened = self._open.get(thread)
        if opened is not None:
            call, depth = opened
            if call.module() is not module:
                return None
            if is_open(module):
                self._open[thread] = call, depth + 1
                return None
            self.forget_open()  # it was interrupted
        if is_in_backward_pass():  # a checkpoint runs it again
            return None
        call = RootCall(module, self.steps_of(module), args)
        call.steps.thread = thread
        self._open[thread] = call, 1
        return call

    def end(self, module: nn.Module, kwargs: dict[str, Any], result: object) -> RootCall | None:
        """Return the root's call that ends here, or None."""
        thread = threading.get_ident()
        opened = self._open.get(thread)
        if opened is None:
            return None
        call, depth = opened
        if call.module() is not module:
            return None
        if depth > 1:
            self._open[thread] = call, depth - 1
            return None
        del self._open[thread]
        call.close(kwargs, result)
        with self._lock:
            self._keep(call)
        return call

    def _keep(self, call: RootCall) -> None:
        module = call.module()
        known = [each for each in self.recent if each.thread == call.thread]
        self.recent = [
            each for each in known if each.awaits_gradient or each.module() is not module
        ]
        self.recent.append(call)
        for each in self.recent[:-MAX_CALLS]:
            if each.steps.has_parameters:
                self._dropped.append((each.first_node, each.last_node))
        del self.recent[:-MAX_CALLS]

    def release(self) -> None:
        """Release calls whose gradients have been used."""
        with self._lock:
            self.recent = [each for each in self.recent if each.awaits_gradient]
            self._dropped.clear()

    def await_gradient(self) -> bool:
        """Return whether a backward pass can still reach a call."""
        return any(each.awaits_gradient for each in self.recent)

    def is_open(self) -> bool:
        """Return whether a call goes on in this thread."""
        return threading.get_ident() in self._open

    def open_call(self) -> RootCall | None:
        """Return the call that goes on in this thread, or None."""
        call, _ = self._open.get(threading.get_ident(), (None, 0))
        return call

    def open_modules(self) -> list[nn.Module]:
        """Return the modules whose calls go on, in whichever thread."""
        modules = [call.module() for call, _ in self._open.values()]
        return [each for each in modules if each is not None]

    def find_by_node(self, number: int) -> RootCall | None:
        """Return the call that made the node with this number, or None if no call did."""
        return next((call for call in self.recent if call.made_node(number)), None)

    def note_backward(self, numbers: Collection[int], backward: BackwardPass) -> None:
        """Note a backward pass whose graph has reached these nodes."""
        for steps in self._steps_with(numbers):
            steps.note_backward(backward)

    def note_inner_backward(self, backward: BackwardPass) -> None:
        """Note a backward pass within another one, as of a checkpoint."""
        for call in self.recent:
            if call.is_reached:
                call.steps.note_backward(backward)

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has stepped."""
        for steps in self.modules():
            steps.note_optimizer(optimizer)

    def _steps_with(self, numbers: Iterable[int]) -> list[ModuleSteps]:
        """Return the roots whose calls made the nodes with these numbers."""
        calls = map(self.find_by_node, numbers)
        return list(dict.fromkeys([call.steps for call in calls if call is not None]))

    def note_checked(self, numbers: Iterable[int]) -> None:
        """Note that a loss is checked whose graph has reached these nodes."""
        for steps in self._steps_with(numbers):
            steps.last_checked = steps.begun

    def is_inside_model(self, number: int) -> bool:
        """Return whether the node with this number was made by a module with parameters."""
        if any(call.made_node(number) for call in self.recent if call.steps.has_parameters):
            return True
        return any(first <= number < last for first, last in self._dropped)

    def forget_open(self) -> None:
        """Forget a call in this thread whose end torch did not report."""
        self._open.pop(threading.get_ident(), None)

    def steps_of(self, module: nn.Module) -> ModuleSteps:
        """Return the steps of a module."""
        known = self._steps.get(id(module))
        if known is None or known.module() is not module:
            if len(self._steps) >= self._max_roots:
                # Some programs make other modules in each step, which are gone after it.
                for identity, steps in list(self._steps.items()):
                    if steps.begun <= 1 and steps.module() is None:
                        del self._steps[identity]
                self._max_roots = max(_MAX_ROOTS, 2 * len(self._steps))
            known = self._steps[id(module)] = ModuleSteps(module)
        return known

    def modules(self) -> Iterator[ModuleSteps]:
        """Yield the roots with parameters that the thread has called, with their steps."""
        for each in list(self._steps.values()):
            if (
                each.thread == self.thread.number
                and each.has_parameters
                and each.module() is not None
            ):
                yield each

    def trained(self) -> list[ModuleSteps]:
        """Return the roots that have trained and are part of no other, alive or gone.

        Those that are gone have trained for several steps.
        """
        alive = [module for each in self._steps.values() if (module := each.module()) is not None]
        inside = {id(part) for module in alive for _, part in list(modules_of(module))[1:]}
        known = [each for each in self._steps.values() if each.has_parameters and each.begun]
        several = [each for each in known if each.begun > 1 and id(each.module()) not in inside]
        return several or known[:1]

    def find_main(
        self, module: nn.Module | None, trained: Iterable[ModuleSteps]
    ) -> ModuleSteps | None:
        """Return the steps of a module or, if it has begun none, the most of the trained roots."""
        main = None if module is None else self.steps_of(module)
        if main is None or not main.begun:
            return max(trained, key=lambda steps: steps.begun, default=None)
        return main
