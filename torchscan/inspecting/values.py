"""Checks of a step's values: what both kinds have in common, and the kind that runs on a device.

``immediate.py`` checks values where they are produced. On a device, the host would have to wait for
each of them, so they are checked after the step. The first that is not finite, in the order of
their production, names the module. Its operator is not known any more, so the next steps are
checked where values are produced.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.inspecting.call_memory import MemoryWatch
from torchscan.inspecting.findings import Bad, NonFinite, Phase
from torchscan.inspecting.finiteness import (
    FINE,
    KnownTensors,
    NonFiniteCount,
    Peak,
    Peaks,
    check_values,
)
from torchscan.inspecting.timing import StepTimes
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call, Given
from torchscan.torch_versions import LEAF_NODE

Gradients = Sequence[Tensor | None]
#: called with the source of a step, when it is certain
Listener = Callable[[NonFinite], None]

#: modules whose results are finite if their inputs are
_MAKES_NONE = frozenset(
    {
        *(nn.Identity, nn.Flatten, nn.Unflatten, nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Sigmoid),
        *(nn.Tanh, nn.Hardsigmoid, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    }
)
_MOVING = (
    *("View", "UnsafeView", "Transpose", "T", "Permute", "ReshapeAlias", "Select", "Slice"),
    *("Split", "Unsqueeze", "Squeeze", "Cat", "Stack", "Clone", "Alias", "Unbind", "Neg", "Chunk"),
)
#: nodes that move values: their gradients are finite if and only if their inputs are
_MOVES = frozenset(f"{name}Backward{number}" for name in _MOVING for number in (0, 1))
#: nodes that also leave values out, so that finite gradients do not mean that their inputs are
_MASKS = frozenset({"ReluBackward0", "ReluBackward1", "ThresholdBackward0"})
#: nodes with gradients of parameters: sums of products with their inputs, not finite if those are
#: not
_REVEALS = frozenset(
    {
        *("ConvolutionBackward0", "AddmmBackward0"),
        *("NativeBatchNormBackward0", "NativeLayerNormBackward0"),
    }
)
_LATER = Note.of("checked-after-step")
_MASK = Note.of("maybe-mask")
_LATE = Note.of("written-before-check")
_KEYWORD = Note.of("keyword-input")


class Source(NamedTuple):
    """The node that produces a gradient."""

    owner: Call | None
    name: str
    #: calls whose nodes move the gradient on before it is checked
    through: tuple[Call | None, ...] = ()


class Leaf(NamedTuple):
    """A parameter, by the module that has it."""

    path: str
    type_name: str
    name: str


class Memory:
    """Knowledge from earlier steps."""

    def __init__(self) -> None:
        #: number of intended infinities, by the module's path and the signs of the infinities
        self.masking: Counter[tuple[str, str]] = Counter()
        self.replays = 0
        #: parameters and buffers that were reported
        self.reported: set[str] = set()
        #: True if values are checked where they are produced, even if that waits for a device
        self.is_alarmed = False
        #: parameters whose gradients are not finite, and stay so while others are added to them
        self.spoilt: set[Leaf] = set()
        #: True if anything was found
        self.has_found = False
        #: paths of modules whose results were written to before their check
        self.written_to: set[str] = set()
        #: True if intended infinities were seen
        self.has_masks = False


class Values(ABC):
    """The check of the values of one step."""

    #: True if :meth:`note_end_of_backward` is to be called
    awaits_end_of_backward = False

    def __init__(self, step: int, memory: Memory, listener: Listener) -> None:
        self._step = step
        self._memory = memory
        self._listener = listener
        self._known = KnownTensors()
        #: the source of the step, or None
        self.first: NonFinite | None = None
        #: True if everything that is not finite is in the counts below
        self.is_counted = True
        #: counts of results, of gradients of inputs and of results, by index of a call
        self.outputs: dict[int, NonFiniteCount] = {}
        self.gradients_in: dict[int, NonFiniteCount] = {}
        self.gradients_out: dict[int, NonFiniteCount] = {}

    def tell_as(self, label: Callable[[NonFinite], NonFinite]) -> None:
        """Label findings before they are reported: by then the kind of the step is known."""
        listener = self._listener
        self._listener = lambda found: listener(label(found))

    @abstractmethod
    def note_start(self, call: Call, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
        """Note that a call starts, with these tensors in its positional arguments."""

    @abstractmethod
    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:
        """Note that a call has returned these tensors, or was left by an exception."""

    @abstractmethod
    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """Note the gradients of the model's result, which come from the loss."""

    @abstractmethod
    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,
        unseen: Collection[int],
        get_source: Callable[[], Source | None],
    ) -> None:
        """Note the gradients that a node has produced.

        Gradients with the indices ``unseen`` are checked by the nodes that take them. If
        ``get_source`` returns a node, it has produced the input of this one, which is checked
        here.
        """

    def note_moved(  # noqa: B027 - optional
        self, owner: Call | None, made: Gradients, given: Gradients
    ) -> None:
        """Note that a node has run whose gradients are finite if its inputs are."""

    @abstractmethod
    def note_stored(self, leaf: Leaf, variable: Tensor, given: Gradients) -> None:
        """Note that a gradient was added to that of a parameter."""

    @abstractmethod
    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:
        """Check parameters and buffers after the step, when their writers have finished.

        If another step follows, parameters are read there.
        """

    @property
    def sees_all(self) -> bool:
        """True if every gradient is checked, because this step or an earlier one has a finding."""
        return self.first is not None or self._memory.has_found

    def is_known_finite(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Return whether a tensor was checked, and nothing was written to it since."""
        return False

    def let_go(self) -> None:  # noqa: B027 - optional
        """Release all tensors that wait for a check: the memory of calls is read next."""

    def note_end_of_backward(self) -> None:  # noqa: B027 - optional
        """Note that a backward pass is over."""

    @property
    def is_known(self) -> bool:
        """True if all results can be read without waiting."""
        return True

    def settle(self) -> None:  # noqa: B027 - optional
        """Report what was found and has not been reported."""


# -- values that need no check -------------------------------------------------------------------


def masks_in(modules: Iterable[tuple[str, nn.Module]]) -> set[str]:
    """Return buffers and frozen parameters that hold infinities from the start, which are masks."""
    masks = set()
    for path, module in modules:
        for each in bad_in(module, but_parameters=False):
            parameter = module._parameters.get(each.name)
            is_trained = parameter is not None and parameter.requires_grad
            if not each.nan and not is_trained:
                masks.add(f"{path}.{each.name}")
    return masks


def makes_none(module: nn.Module) -> bool:
    """Return whether a module returns finite values for finite inputs."""
    if type(module) not in _MAKES_NONE:
        return False
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def reveals(name: str, following: Iterable[Node | None]) -> bool:
    """Return whether non-finite inputs of a node show in the gradients of parameters.

    ``following`` are the nodes that take its gradients.
    """
    return name in _REVEALS and any(type(each) is LEAF_NODE for each in following)


def moves(name: str) -> bool:
    """Return whether gradients of a node of this name are finite if and only if its inputs are."""
    return name in _MOVES


def makes_none_backward(name: str) -> bool:
    """Return whether gradients of a node of this name are finite if its inputs are."""
    return name in _MOVES or name in _MASKS


def bad_in(module: nn.Module, *, but_parameters: bool = False) -> Iterator[Bad]:
    """Yield the module's own parameters and buffers that are not finite."""
    parameters = {} if but_parameters else module._parameters
    for name, tensor in [*parameters.items(), *module._buffers.items()]:
        if tensor is None or not is_readable(tensor):
            continue
        counts = check_values(tensor)
        if not counts.is_fine:
            yield Bad(name, counts.nan, counts.inf, tensor.numel())


# -- checks after the step -----------------------------------------------------------------------


class _Place(NamedTuple):
    """The module that has produced a value."""

    phase: Phase
    path: str
    type_name: str
    invocation: int
    unsure: Note | None = None

    @classmethod
    def of(cls, phase: Phase, call: Call) -> _Place:
        return cls(phase, call.path, type_name_of(call.module), call.invocation)

    @classmethod
    def of_input(cls, call: Call) -> _Place:
        """Return the place of a call's input: its caller, or the model's caller, produced it."""
        return cls.of("input", call) if call.parent is None else cls.of("forward", call.parent)


class DeferredValues(Values):
    """The check of a step's values after the step."""

    awaits_end_of_backward = True

    def __init__(
        self,
        step: int,
        memory: Memory,
        listener: Listener,
        *,
        device: torch.device,
        allocated: MemoryWatch,
        times: StepTimes,
    ) -> None:
        """Create the checks of a step. Values do not wait while ``allocated`` reads memory."""
        super().__init__(step, memory, listener)
        self._peaks: Peaks[_Place] = Peaks(device, times.as_overhead)
        self._allocated = allocated

    def note_start(
        self,
        call: Call,
        args: tuple[Any, ...],  # noqa: ARG002
        tensors: Sequence[Tensor],
    ) -> None:
        """Check the inputs of a call that no module returned: its caller produced them."""
        for tensor in tensors:
            self._add(_Place.of_input(call), tensor)

    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:
        """Check the outputs of a call, and its keyword arguments, which are not known before."""
        args, kwargs = given
        for tensor in tensors_in(kwargs) if kwargs else ():
            self._add(_Place.of_input(call)._replace(unsure=_KEYWORD), tensor)
        for tensor in tensors:
            if not makes_none(call.module):
                self._add(_Place.of("forward", call), tensor)
                continue
            self._known.note(tensor, FINE)
            if any(tensor is each for each in args):
                self._peaks.note_harmless(tensor)
        if call.parent is None:  # the model's caller may write to them
            self._peaks.compute()

    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """Check the gradients that come from the loss."""
        self._add_gradients("loss", None if owner is None else owner.outermost, gradients)

    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,  # noqa: ARG002
        unseen: Collection[int],  # noqa: ARG002
        get_source: Callable[[], Source | None],  # noqa: ARG002
    ) -> None:
        """Check the gradients that a node produced."""
        self._add_gradients("backward", owner, made)

    def note_stored(
        self,
        leaf: Leaf,
        variable: Tensor,
        given: Gradients,  # noqa: ARG002
    ) -> None:
        """Check the gradient that was accumulated."""
        if variable.grad is not None:
            self._add(_Place("backward", leaf.path, leaf.type_name, 0), variable.grad)

    def note_end_of_backward(self) -> None:
        """Compute the peaks of gradients, which may be scaled, clipped or set to zero next."""
        self._peaks.compute()

    def note_update(
        self,
        modules: Iterable[tuple[str, nn.Module]],
        *,
        is_followed: bool,  # noqa: ARG002
    ) -> None:
        """Check parameters and buffers, and send all peaks to the host."""
        for path, module in modules:
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and f"{path}.{name}" not in self._memory.reported:
                    self._add(_Place("update", path, type_name_of(module), 0), tensor)
        self._peaks.send()

    @property
    def is_known(self) -> bool:
        """True if the peaks have arrived on the host."""
        return self._peaks.has_arrived

    def settle(self) -> None:
        """Read the peaks, and report the first that is not finite."""
        peaks = self._peaks.read()
        self._memory.written_to |= {peak.label.path for peak in peaks if peak.is_late}
        suspects = [peak for peak in peaks if not math.isfinite(peak.value)]
        self.is_counted = not suspects
        if self._memory.has_masks:
            suspects = [peak for peak in suspects if not _may_be_mask(peak)]
        self._memory.is_alarmed |= bool(suspects)
        if not all(map(_may_be_mask, suspects)):
            self._report(suspects[0])

    def let_go(self) -> None:
        """Compute the peaks of all tensors, which are then released."""
        self._peaks.compute()

    def _report(self, peak: Peak[_Place]) -> None:
        nan = int(math.isnan(peak.value))
        doubt = peak.label.unsure
        if _may_be_mask(peak):
            doubt = _MASK
        elif peak.is_late:
            doubt = _LATE
        place = peak.label._replace(unsure=doubt)
        self.first = NonFinite(
            step=self._step, **place._asdict(), nan=nan, inf=1 - nan, numel=0, unknown=_LATER
        )
        self._listener(self.first)

    def _add_gradients(self, phase: Phase, owner: Call | None, gradients: Gradients) -> None:
        for gradient in gradients:
            if gradient is not None and owner is not None:
                self._add(_Place.of(phase, owner), gradient)

    def _add(self, place: _Place, tensor: Tensor) -> None:
        if not is_readable(tensor) or self._known.get(tensor) is not None:
            return
        self._known.note(tensor, FINE)
        waits = not self._allocated.is_reading and place.path not in self._memory.written_to
        self._peaks.add(place, tensor, waits=waits)


def _may_be_mask(peak: Peak[_Place]) -> bool:
    """Return whether a peak may be a mask: the next step sees where its infinities are created."""
    return math.isinf(peak.value) and peak.label.phase in ("forward", "input")
