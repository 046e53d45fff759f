"""Checks of a step's values: what both kinds have in common, and the kind that runs on a device.

``immediate.py`` checks values where they are produced. On a device, the host would have to wait for
each of them, so they are checked after the step. The first that is not finite, in the order of
their production, names the module. Its operator is not known any more, so the next steps are
checked where values are produced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.inspecting.findings import Bad, NonFinite
from torchscan.inspecting.finiteness import KnownTensors, NonFiniteCount, check_values
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.module_calls import Call, Given
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
        self.spoiled: set[Leaf] = set()
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
    def note_start(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:
        """Note that a call starts, with these tensors in its arguments.

        Keyword arguments may be missing if the module had none before.
        """

    @abstractmethod
    def note_end(
        self, call: Call, given: Given, tensors: Sequence[Tensor], missed: Sequence[Tensor]
    ) -> None:
        """Note that a call has returned these tensors, or was left by an exception.

        ``missed``: tensors of keyword arguments that were not known at its start.
        """

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


def bad_below(module: nn.Module) -> Iterator[Bad]:
    """Yield the parameters and buffers that are not finite, of a module and all modules in it."""
    for path, each in module.named_modules():
        for bad in bad_in(each):
            yield bad._replace(name=f"{path}.{bad.name}" if path else bad.name)
