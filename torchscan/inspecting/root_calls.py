"""Calls of modules outside of other calls: models, parts that a script calls one by one, loss modules.

What a call is given is kept until its gradients have been used, so that it can be repeated if something is not finite. Results
of other calls are referred to weakly: keeping them would keep activations. So is what calls without a graph are given.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.finiteness import version_of
from torchscan.notes import Note
from torchscan.observing.backward_watch import BackwardPass
from torchscan.observing.model_steps import ModelParameters, ModelSteps
from torchscan.observing.steps import StepCounter
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.recording.call_threads import is_in_backward_pass
from torchscan.recording.call_tree import Given, is_open, is_running
from torchscan.torch_versions import is_capturing, next_node

#: calls that are remembered at once
MAX_CALLS = 32
#: further calls whose nodes are known to be a model's
_MAX_DROPPED = 1024
#: roots that are known at once, if most of them are gone
_MAX_ROOTS = 256
#: bytes of one gradient of a result that are kept for a second look
_MAX_GRADIENT_BYTES = 2**26
#: bytes of one call's inputs that are kept
_MAX_INPUT_BYTES = 2**30


class _Weak:
    """An argument that is the result of something else, or of a call without a graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)


class _NotKept:
    """An argument that is not kept, and the reason for that."""

    def __init__(self, reason: Note) -> None:
        self.reason = reason


class ModuleSteps:
    """The training steps of one module that the script calls."""

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.type_name = type(module).__name__
        self.parameters = ModelParameters(module)
        self._counter = StepCounter()
        self._steps = ModelSteps(module, self.parameters, self.parameters.find_again, self._counter)
        #: identities of the modules in it, as they were when it was called first
        self.module_ids = {id(each) for _, each in modules_of(module)}
        #: the name that the user's code has for it, if it is known
        self.variable: str | None = None
        #: True until its first call is noted
        self.is_new = True
        #: the value of ``begun`` when a loss was checked last
        self.last_checked = 0
        #: number of the thread that called it last
        self.thread = threading.get_ident()
        #: True once a backward pass has reached any of its calls
        self.is_trained = False

    @property
    def has_parameters(self) -> bool:
        """True if the module has parameters."""
        return bool(self.parameters.parameter_ids)

    @property
    def begun(self) -> int:
        """Number of steps that have begun."""
        return self._counter.next

    @property
    def num_checked(self) -> int:
        """Number of steps whose loss was checked, or that a backward pass has reached."""
        is_last_checked = self._counter.is_over or self.last_checked == self.begun
        return self.begun if is_last_checked else self.begun - 1

    def begin(self) -> int:
        """Return the step number of a call that begins now."""
        return self.begun if self._counter.is_over else self.begun - 1

    def note_graph(self, number: int) -> None:
        """Count a call whose result has a graph: a call that fails is not a step."""
        if number == self.begun:
            self._steps.begin("train", None)

    def note_backward(self, backward: BackwardPass) -> None:
        """Note a backward pass that reaches the module, and may train it."""
        if self._counter.is_over:
            return
        if self.parameters.has_unreachable_parameters:
            self._counter.note_backward()
        else:
            self._steps.note_backward(backward, lambda: None)

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Note the step of an optimizer, which may be that of another module."""
        if not self._counter.is_over and self._steps.has_optimizer(optimizer):
            self._counter.note_backward()


class RootCall:
    """One call, with what is needed to repeat it."""

    def __init__(self, module: nn.Module, steps: ModuleSteps, args: tuple[Any, ...]) -> None:
        self.module = weakref.ref(module)
        self.steps = steps
        self.step = steps.begin()
        self.thread = threading.get_ident()
        #: nanoseconds since 1970, or 0 if the module has no parameters
        self.began = 0
        self.has_grad = torch.is_grad_enabled()
        #: True if it is of a model that trains: calls inside it need no attention
        self.is_trained = self.has_grad and steps.has_parameters
        self.random_state = torch.get_rng_state()
        self.cuda_random_state = torch.cuda.get_rng_state() if _uses_cuda() else None
        self.autocast = _autocast_now()
        self.args = tuple(map(_kept, args))
        self.kwargs: dict[str, Any] = {}
        self.versions = [(weakref.ref(each), version_of(each)) for each in tensors_in(args)]
        #: numbers of the nodes that it makes: from the first up to the last, which is not its own
        self.first_node = self.last_node = next_node()
        self.outputs: list[weakref.ref[Tensor]] = []
        #: by index of the output; None: too large to keep
        self.gradients: dict[int, Tensor | None] = {}
        self.has_graph = self.is_reached = False
        self._graph: weakref.ref[Any] | None = None

    def close(self, kwargs: dict[str, Any], result: object) -> None:
        """Record the outputs of the call."""
        self.last_node = next_node()
        self.kwargs = {name: _kept(value) for name, value in kwargs.items()}
        self.versions += [(weakref.ref(each), version_of(each)) for each in tensors_in(kwargs)]
        outputs = tensors_in(result)
        self.outputs = [weakref.ref(each) for each in outputs]
        for index, each in enumerate(outputs):
            if each.grad_fn is not None:
                self.has_graph = True
                hook = _Gradient(self, index, each.output_nr)
                each.grad_fn.register_prehook(hook)
                self._graph = weakref.ref(hook)
        if self.has_graph:
            self.steps.note_graph(self.step)

    @property
    def awaits_gradient(self) -> bool:
        """True while a backward pass can still reach the call."""
        return (
            self.has_graph
            and not self.is_reached
            and self._graph is not None
            and self._graph() is not None
        )

    def made_node(self, number: int) -> bool:
        """Return whether the node with this number was created in the call."""
        return self.first_node <= number < self.last_node

    def given(self) -> Given | Note:
        """Return the arguments, or the reason why they are no longer there."""
        if any(
            (tensor := reference()) is not None and version_of(tensor) != version
            for reference, version in self.versions
        ):
            return Note.of("input-changed")
        values = [*self.args, *self.kwargs.values()]
        for value in values:
            if isinstance(value, _NotKept):
                return value.reason
        if any(isinstance(each, _Weak) and each.tensor() is None for each in values):
            return Note.of("input-gone")
        return tuple(map(_alive, self.args)), {
            name: _alive(value) for name, value in self.kwargs.items()
        }


class _Gradient:
    """A hook that notes the gradient of one output. It lives as long as the graph."""

    __slots__ = ("__weakref__", "_call", "_index", "_output_nr")

    def __init__(self, call: RootCall, index: int, output_nr: int) -> None:
        self._call = weakref.ref(call)
        self._index = index
        self._output_nr = output_nr

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        if is_compiling():  # compiled autograd traces hooks
            return
        call = self._call()
        if call is None:
            return
        call.is_reached = call.steps.is_trained = True
        gradient = gradients[self._output_nr] if self._output_nr < len(gradients) else None
        if gradient is not None:
            call.gradients[self._index] = (
                gradient if gradient.nbytes <= _MAX_GRADIENT_BYTES else None
            )


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
        """Return whether the node with this number was made in a call of a module with parameters."""
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
                self._drop_gone()
            known = self._steps[id(module)] = ModuleSteps(module)
        return known

    def _drop_gone(self) -> None:
        """Drop modules that are gone after a single step: some programs make others in each step."""
        for identity, steps in list(self._steps.items()):
            if steps.begun <= 1 and steps.module() is None:
                del self._steps[identity]
        self._max_roots = max(_MAX_ROOTS, 2 * len(self._steps))

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
        """Return the roots that have trained and are part of no other, also those that are gone after several steps."""
        alive = [module for each in self._steps.values() if (module := each.module()) is not None]
        inside = {id(part) for module in alive for _, part in list(modules_of(module))[1:]}
        known = [each for each in self._steps.values() if each.has_parameters and each.begun]
        several = [each for each in known if each.begun > 1 and id(each.module()) not in inside]
        return several or known[:1]


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            return _Weak(value)
        if value.nbytes <= _MAX_INPUT_BYTES:
            return value
        return _NotKept(Note.of("input-too-large"))
    if any(each.grad_fn is not None for each in tensors_in(value)):
        return _NotKept(Note.of("input-in-container"))
    return value


def _alive(value: Any) -> Any:
    return value.tensor() if isinstance(value, _Weak) else value


def _uses_cuda() -> bool:
    return torch.cuda.is_initialized() and not is_capturing()


def _autocast_now() -> tuple[str, torch.dtype] | None:
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            return kind, torch.get_autocast_dtype(kind)
    return None


class TrainingThread:
    """The thread whose training is checked, and the names of others that train."""

    def __init__(self, model: nn.Module | None) -> None:
        """``model`` is the only one whose training is checked; None: every one."""
        self._only = None if model is None else weakref.ref(model)
        self._thread: threading.Thread | None = None
        #: what ``threading.get_ident()`` returns in it
        self.number: int | None = None
        #: True once a model that is checked was called with gradients
        self._trains = False
        #: numbers of other threads in which such a model was called
        self._others: set[int] = set()
        #: names of other threads that ran backward passes of such a model
        self.unchecked: set[str] = set()
        #: by module: whether it trains with what is checked
        self._is_checked_by_module: weakref.WeakKeyDictionary[nn.Module, bool] = (
            weakref.WeakKeyDictionary()
        )

    def begin_call(self, module: nn.Module) -> bool:
        """Return whether a call of a module that begins in this thread is checked."""
        number = threading.get_ident()
        if number == self.number and self._trains:
            return True
        if number != self.number and is_in_backward_pass():  # a checkpoint runs it again
            return False
        trains = torch.is_grad_enabled() and self._is_checked(module)
        if number == self.number or self._is_free() or (trains and not self._trains):
            self._take(trains=trains)
            return True
        if trains:
            self._others.add(number)
        return False

    def is_here(self) -> bool:
        """Return whether this thread, which trains something, is the one, or works on its backward pass."""
        number = threading.get_ident()
        if number == self.number:
            return True
        if is_in_backward_pass():  # autograd has a thread for each device
            return self.number is not None and not self.unchecked
        if self._is_free():
            self._take(trains=self._only is None)
            return True
        return False

    def is_current(self) -> bool:
        """Return whether this thread is the one that is checked, without choosing it."""
        if threading.get_ident() == self.number:
            return True
        return is_in_backward_pass() and self.number is not None and not self.unchecked

    def note_unchecked(self) -> None:
        """Remember that this thread runs a backward pass that is not checked."""
        if threading.get_ident() in self._others:
            self.unchecked.add(threading.current_thread().name)

    def _is_free(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def _take(self, *, trains: bool) -> None:
        self._thread = threading.current_thread()
        self.number = threading.get_ident()
        self._others.discard(self.number)
        self._trains = trains

    def _is_checked(self, module: nn.Module) -> bool:
        known = self._is_checked_by_module.get(module)
        if known is None:
            only = None if self._only is None else self._only()
            has_parameters = any(True for _ in nn.Module.parameters(module))
            known = has_parameters and (only is None or is_same_or_part(module, only))
            self._is_checked_by_module[module] = known
        return known


def is_same_or_part(module: nn.Module, other: nn.Module) -> bool:
    """Return whether one of two modules is the other or a part of it."""
    if module is other:
        return True
    return any(each is other for _, each in modules_of(module)) or any(
        each is module for _, each in modules_of(other)
    )
