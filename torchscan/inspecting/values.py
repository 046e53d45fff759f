"""Checks of a step's values, at once or after the step, and values that need no check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.inspecting.findings import Bad, NonFinite
from torchscan.inspecting.finiteness import KnownTensors, NonFiniteCount, check_values
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.call_tree import Call, Given

#: modules whose results are finite if what they are given is
_MAKES_NONE = frozenset(
    {
        *(
            nn.Identity,
            nn.Flatten,
            nn.Unflatten,
            nn.ReLU,
            nn.ReLU6,
            nn.Hardtanh,
            nn.Sigmoid,
            nn.Tanh,
            nn.Hardsigmoid,
        ),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    }
)
#: nodes whose gradients are finite if what they are given is, and only then: they move values about
_MOVES = frozenset(
    f"{name}Backward{number}"
    for name in (
        *(
            "View",
            "UnsafeView",
            "Transpose",
            "T",
            "Permute",
            "ReshapeAlias",
            "Select",
            "Slice",
            "Split",
            "Unsqueeze",
        ),
        *("Squeeze", "Cat", "Stack", "Clone", "Alias", "Unbind", "Neg", "Chunk"),
    )
    for number in (0, 1)
)
#: the same for nodes that leave values out, so that what they are given need not be finite if their gradients are
_MASKS = frozenset({"ReluBackward0", "ReluBackward1", "ThresholdBackward0"})
Gradients = Sequence[Tensor | None]
#: told of the first producer of a step, when it is certain
Listener = Callable[[NonFinite], None]
#: nodes with gradients of parameters: sums of products with what they are given, which are not finite if that is not
_REVEALS = frozenset(
    {
        "ConvolutionBackward0",
        "AddmmBackward0",
        "NativeBatchNormBackward0",
        "NativeLayerNormBackward0",
    }
)


class Source(NamedTuple):
    """The node that produces a gradient."""

    owner: Call | None
    name: str
    #: whose nodes move the gradient on before it is seen
    through: tuple[Call | None, ...] = ()


class Leaf(NamedTuple):
    """A parameter, by the module that has it."""

    path: str
    type_name: str
    name: str


class Memory:
    """Knowledge from earlier steps."""

    def __init__(self) -> None:
        #: how often modules have written infinities on purpose, by their paths and the signs of the infinities
        self.masking: Counter[tuple[str, str]] = Counter()
        self.replays = 0
        #: parameters and buffers that have been told of
        self.reported: set[str] = set()
        #: whether values are to be looked at where they are made, also where that means to wait for a device
        self.is_alarmed = False
        #: parameters whose gradients are not finite, and stay so while they are added to
        self.spoilt: set[Leaf] = set()
        #: whether anything was found
        self.has_found = False
        #: modules whose results were written to by others, who may not be waited for
        self.written_to: set[str] = set()
        #: whether infinities were seen that were none's fault
        self.has_masks = False


class Values(ABC):
    """Looks at the values of one step."""

    #: whether it is told when a backward pass is over
    awaits_end_of_backward = False

    def __init__(self, step: int, memory: Memory, listener: Listener) -> None:
        self._step = step
        self._memory = memory
        self._listener = listener
        self._known = KnownTensors()
        #: what was found
        self.first: NonFinite | None = None
        #: True if everything that is not finite is in the counts below
        self.is_counted = True
        #: of results, gradients of what was given, and gradients of results, by index of a call
        self.outputs: dict[int, NonFiniteCount] = {}
        self.gradients_in: dict[int, NonFiniteCount] = {}
        self.gradients_out: dict[int, NonFiniteCount] = {}

    def tell_as(self, label: Callable[[NonFinite], NonFinite]) -> None:
        """Label findings before they are reported: by then the kind of the step is known."""
        listener = self._listener
        self._listener = lambda found: listener(label(found))

    @abstractmethod
    def note_start(self, call: Call, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
        """A call has started, with these tensors in its positional arguments."""

    @abstractmethod
    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:
        """A call has ended with these tensors, or was left by an exception."""

    @abstractmethod
    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """The gradients of the model's result, which come from what was made of it."""

    @abstractmethod
    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,
        unseen: Collection[int],
        source: Source | None,
    ) -> None:
        """A node has run, and made gradients of what it was given.

        Those numbered in ``unseen`` show in what takes them; so does what this one was given by ``source``, if by any.
        """

    def note_moved(self, owner: Call | None, made: Gradients, given: Gradients) -> None:  # noqa: B027 - most look at none
        """Note that a node has run whose gradients are finite if its inputs are."""

    @abstractmethod
    def note_stored(self, leaf: Leaf, variable: Tensor, given: Gradients) -> None:
        """A gradient was added to that of a parameter."""

    @abstractmethod
    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:
        """Check parameters and buffers after the step, when their writers have finished.

        If another step follows, parameters are read there.
        """

    @property
    def sees_all(self) -> bool:
        """True if every gradient is checked, because this step or an earlier one has a finding."""
        return self.first is not None or self._memory.has_found

    def let_go(self) -> None:  # noqa: B027 - most keep none
        """Memory is read next: keep none that its owner does not."""

    def note_end_of_backward(self) -> None:  # noqa: B027 - most do not await it
        """A backward pass is over."""

    @property
    def is_known(self) -> bool:
        """True if all results can be read without waiting."""
        return True

    def settle(self) -> None:  # noqa: B027 - who looks at once has nothing to do
        """Tell what was found, and has not been told."""


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
    is_changed = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return type(module) in _MAKES_NONE and not is_changed


def reveals(node: Node) -> bool:
    """Return whether non-finite inputs of a node show in the gradients of parameters."""
    return node.name() in _REVEALS and any(
        hasattr(each, "variable") for each, _ in node.next_functions
    )


def moves(node: Node) -> bool:
    """Return whether this node's gradients are finite if and only if its inputs are."""
    return node.name() in _MOVES


def makes_none_backward(node: Node) -> bool:
    """Return whether this node's gradients are finite if its inputs are."""
    return moves(node) or node.name() in _MASKS


def bad_in(module: nn.Module, *, but_parameters: bool = False) -> Iterator[Bad]:
    """Its own parameters and buffers that are not finite."""
    for name, tensor in [
        *(() if but_parameters else module._parameters.items()),
        *module._buffers.items(),
    ]:
        if (
            tensor is not None
            and is_readable(tensor)
            and not (look := check_values(tensor)).is_fine
        ):
            yield Bad(name, look.nan, look.inf, tensor.numel())
