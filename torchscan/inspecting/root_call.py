"""A call outside of other calls, with what is needed to repeat it, and the steps of its module."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
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
from torchscan.recording.module_calls import Given
from torchscan.torch_versions import is_capturing, next_node

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
        uses_cuda = torch.cuda.is_initialized() and not is_capturing()
        self.cuda_random_state = torch.cuda.get_rng_state() if uses_cuda else None
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

    @property
    def may_spoil_loss(self) -> bool:
        """True if the call may be the source of a non-finite loss.

        Nodes of a loss module are in the graph, which is searched anyway.
        """
        if self.has_graph and not self.steps.has_parameters:
            return False
        return self.has_graph or not self.has_grad or bool(self.outputs)

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


def _autocast_now() -> tuple[str, torch.dtype] | None:
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            return kind, torch.get_autocast_dtype(kind)
    return None
