"""Follows values that are not finite through one step, to whoever made the first of them.

Everything is fine until something is not, and modules end before those that called them. So the first call that returns such a
value made it, by an operator of its own; and where a call is given one that nobody has returned, whoever called it made it. In
the backward pass the same holds for the nodes of the graph.

Infinities are made on purpose, to mask: a call that makes nothing else is suspected, and cleared if its own operator was told
to make them. Until then, what comes later is second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.recording.bookkeeping.containers import named_tensors, tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call, CallTree, Given
from torchscan.runtime.findings import Bad, NonFinite, Phase, Range
from torchscan.runtime.finiteness import FINE, KnownTensors, Look, is_readable, look_at, range_of, version_of
from torchscan.runtime.replay import Operator, find_operator
from torchscan.torch_versions import current_node

#: modules whose results are finite if what they are given is
_MAKES_NONE = frozenset(
    {
        *(nn.Identity, nn.Flatten, nn.Unflatten, nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Hardsigmoid),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    }
)
#: nodes whose gradients are finite if what they are given is: they move values about, or leave them out
_MOVES = frozenset(
    f"{name}Backward{number}"
    for name in (
        *("Relu", "View", "UnsafeView", "Transpose", "T", "Permute", "ReshapeAlias", "Select", "Slice", "Split", "Unsqueeze"),
        *("Squeeze", "Cat", "Stack", "Clone", "Alias", "AsStrided", "Unbind", "Neg", "MaxPool2DWithIndices", "Chunk"),
    )
    for number in (0, 1)
)
Gradients = Sequence[Tensor | None]
#: told of the first producer of a step, when it is certain
Listener = Callable[[NonFinite], None]
#: nodes with gradients of parameters: sums of products with what they are given, which are not finite if that is not
_REVEALS = frozenset({"ConvolutionBackward0", "AddmmBackward0", "NativeBatchNormBackward0", "NativeLayerNormBackward0"})
#: more calls than this are not repeated
_MOST_REPLAYS = 16


class Source(NamedTuple):
    """Which node makes a gradient."""

    owner: Call | None
    name: str


class _Input(NamedTuple):
    tensor: Tensor
    version: int


@dataclass(slots=True)
class _Suspicion:
    """Something that is not finite, of which it is not certain yet what made it."""

    order: int
    look: Look
    numel: int


@dataclass(slots=True)
class _Open:
    """A call that goes on: what it was given, and what it is suspected of."""

    args: tuple[Any, ...]
    inputs: list[_Input]
    is_fine: bool = False
    suspicions: list[_Suspicion] = field(default_factory=list)


class Memory:
    """What is known from earlier steps."""

    def __init__(self) -> None:
        #: paths of modules that make infinities on purpose
        self.masking: set[str] = set()
        #: what makes NaN (or infinities alone) in a module, by path
        self.operators: dict[tuple[str, bool], Operator] = {}
        self.replays = 0
        #: parameters and buffers that have been told of
        self.known_bad: set[str] = set()
        #: whether values are to be looked at where they are made, also where that means to wait for a device
        self.is_alarmed = False
        #: whether infinities were seen that were none's fault
        self.has_masks = False


class Values(ABC):
    """Looks at the values of one step."""

    def __init__(self, step: int, memory: Memory, listener: Listener) -> None:
        self._step = step
        self._memory = memory
        self._listener = listener
        self._known = KnownTensors()
        #: what was found
        self.first: NonFinite | None = None
        #: of results, gradients of what was given, and gradients of results, by index of a call
        self.outputs: dict[int, Look] = {}
        self.gradients_in: dict[int, Look] = {}
        self.gradients_out: dict[int, Look] = {}

    @abstractmethod
    def note_start(self, call: Call, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
        """A call has started, with these tensors in its positional arguments."""

    @abstractmethod
    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor], *, has_failed: bool) -> None:
        """A call has ended with these tensors, or was left by an exception."""

    @abstractmethod
    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """The gradients of the model's result, which come from what was made of it."""

    @abstractmethod
    def note_node(
        self, owner: Call | None, made: Gradients, given: Gradients, unseen: Collection[int], source: Source | None
    ) -> None:
        """A node has run, and made gradients of what it was given.

        Those numbered in ``unseen`` show in what takes them; so does what this one was given by ``source``, if by any.
        """

    @abstractmethod
    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:
        """The step is over: whoever wrote to parameters and buffers has done so. In one that follows, parameters are read."""

    @property
    def is_known(self) -> bool:
        """Whether everything that was looked at can be told without waiting."""
        return True

    def settle(self) -> None:  # noqa: B027 - who looks at once has nothing to do
        """Tell what was found, and has not been told."""


class StepValues(Values):
    """Looks at once, where the values are still there."""

    def __init__(self, step: int, tree: CallTree, memory: Memory, listener: Listener) -> None:
        super().__init__(step, memory, listener)
        self._tree = tree
        self._open: dict[int, _Open] = {}
        self._order = 0
        #: the place of the first in the order of all that was suspected
        self._place = 0
        self._is_told = False
        self._doubtful: Callable[[], None] | None = None

    # -- the forward pass ----------------------------------------------------------------------------------------------

    def note_start(self, call: Call, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
        """A call has started."""
        inputs = _readable(tensors)
        mine = self._open[call.index] = _Open(args, [_Input(each, version_of(each)) for each in inputs])
        if self.first is None:
            mine.is_fine = self._suspect_caller(call, inputs)

    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor], *, has_failed: bool) -> None:
        """A call has ended, or was left by an exception."""
        mine, results = self._open.pop(call.index, None), _readable(tensors)
        if mine is None:  # its start was not noticed: something there has raised
            return
        args, kwargs = (mine.args, {}) if has_failed else given
        before = FINE if mine.is_fine and not kwargs else self._worst_input(call, mine, kwargs)
        look = self._look_at_results(call, results, before)
        if look is not FINE and self.first is None and _is_worse(look, before):
            self._suspect(mine, look, results)
        for suspicion in mine.suspicions:
            self._settle(call, mine, (args, kwargs), suspicion)
        self._tell()

    def _worst_input(self, call: Call, mine: _Open, kwargs: dict[str, Any]) -> Look:
        """What the call was given, as it was then: what was written to since is as it was known."""
        by_name = _readable(tensors_in(kwargs))
        if self.first is None:
            self._suspect_caller(call, by_name)
        then = (self._known.at(each.tensor, each.version) for each in mine.inputs)
        return sum(then, self._known.look_at_all(by_name))

    def _look_at_results(self, call: Call, results: Sequence[Tensor], before: Look) -> Look:
        if before.is_fine and makes_none(call.module):
            for each in results:
                self._known.note(each, FINE)
            return FINE
        look = self._known.look_at_all(results)
        if look is not FINE:
            self.outputs[call.index] = look
        return look

    def _suspect_caller(self, call: Call, given: Sequence[Tensor]) -> bool:
        """Whoever called this made what is not finite among what it gave, unless that is known. Whether all is fine."""
        looks = [known for each in given if (known := self._known.get(each)) is not None]
        if len(looks) == len(given):
            return all(each is FINE for each in looks)
        for tensor in given:
            if self._known.get(tensor) is None and not (look := self._known.look_at(tensor)).is_fine:
                caller = None if call.parent is None else self._open.get(call.parent.index)
                if caller is not None:
                    self._suspect(caller, look, [tensor])
                elif look.nan and call.parent is None:
                    self._find(call, "input", self._next(), look, tensor.numel(), Operator(), (_range("it", tensor),))
        return self._known.look_at_all(given) is FINE

    def _suspect(self, mine: _Open, look: Look, tensors: Sequence[Tensor]) -> None:
        mine.suspicions.append(_Suspicion(self._next(), look, _size(tensors)))

    def _settle(self, call: Call, mine: _Open, given: Given, suspicion: _Suspicion) -> None:
        """The call that is suspected is over: what its operators do can be seen in a replay."""
        if self.first is not None and self._place < suspicion.order:
            return
        masks = not suspicion.look.nan
        if masks and call.path in self._memory.masking:
            return
        operator = self._operator(call, mine, given, nan=not masks)
        inputs = _ranges(_given(*given))
        find = partial(self._find, call, "forward", suspicion.order, suspicion.look, suspicion.numel, operator, inputs)
        if masks and operator.is_on_purpose:
            self._memory.masking.add(call.path)
        elif masks and operator.name is None:
            self._doubt(mine, find)
        else:
            find()

    def _doubt(self, mine: _Open, find: Callable[[], None]) -> None:
        """Infinities that nobody was seen to make, of what was finite: the first producer, if anything comes of them."""
        if mine.is_fine and self.first is not None:
            find()
        elif mine.is_fine and self._doubtful is None:
            self._doubtful = find

    def _operator(self, call: Call, mine: _Open, given: Given, *, nan: bool) -> Operator:
        if any(each.version != version_of(each.tensor) for each in mine.inputs):
            return Operator(unknown="it writes to what it is given")
        known = self._memory.operators.get((call.path, nan))
        if known is None or known.name is None:
            if self._memory.replays == _MOST_REPLAYS:
                return Operator(unknown=f"{_MOST_REPLAYS} calls have been repeated, and no more are")
            self._memory.replays += 1
            known = self._memory.operators[call.path, nan] = find_operator(call.module, given, nan=nan)
        return known

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """The gradients of the model's result, which come from what was made of it."""
        look = self._look_at_all(gradients)
        if not look.is_fine:
            self._count(self.gradients_out, _chain(owner), look)
            if self.first is None and owner is not None:
                self._find(owner.outermost, "loss", self._next(), look, _size(gradients), Operator())
                self._tell()

    def note_node(
        self, owner: Call | None, made: Gradients, given: Gradients, unseen: Collection[int], source: Source | None
    ) -> None:
        """A node has run, and made gradients of what it was given."""
        seen = made if not unseen or self.first is not None else [each for n, each in enumerate(made) if n not in unseen]
        if self._look_at_all(seen) is FINE:
            return
        node, look = current_node(), self._look_at_all(made)
        self._count_edges(owner, node, made)
        if self.first is None and owner is not None:
            before = self._look_at_all(given)
            if source is not None and source.owner is not None and before is not FINE:
                self._find_source(source, owner, given, before)
            else:
                name = node.name() if before is FINE else "the sum of gradients that meet"
                inputs = _ranges(_named("gradient", given))
                self._find(owner, "backward", self._next(), look, _size(made), Operator(name=name), inputs)
            self._tell()

    def _find_source(self, source: Source, taker: Call, made: Gradients, look: Look) -> None:
        """What this node was given shows that the one before it made it: that one was given nothing of the kind."""
        if source.owner is not None:
            self._find(source.owner, "backward", self._next(), look, _size(made), Operator(name=source.name))
            self._count_crossing(source.owner, taker, look)

    def _count_edges(self, owner: Call | None, node: Node, made: Gradients) -> None:
        for (following, _), gradient in zip(node.next_functions, made, strict=False):
            if gradient is not None and following is not None and not hasattr(following, "variable"):
                self._count_crossing(owner, self._tree.owner_of(following), self._known.look_at(gradient))

    def _look_at_all(self, gradients: Gradients) -> Look:
        return self._known.look_at_all([each for each in gradients if each is not None and is_readable(each)])

    def _count_crossing(self, source: Call | None, target: Call | None, look: Look) -> None:
        """A gradient leaves all calls that it was in and is not any more, and enters others."""
        left, entered = _chain(source), _chain(target)
        self._count(self.gradients_in, left - entered, look)
        self._count(self.gradients_out, entered - left, look)

    def _count(self, where: dict[int, Look], calls: Iterable[int], look: Look) -> None:
        for call in calls:
            where[call] = where.get(call, FINE) + look

    # -- after the step ------------------------------------------------------------------------------------------------

    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:
        """Look at buffers, and at parameters after the last step: what spoils those before shows in the next one's results."""
        for path, module in modules:
            bad = [
                each
                for each in _bad_in(module, but_parameters=is_followed)
                if f"{path}.{each.name}" not in self._memory.known_bad
            ]
            self._memory.known_bad.update(f"{path}.{each.name}" for each in bad)
            if bad and self.first is None:
                self._place, self.first = self._next(), _update(self._step, path, module, bad)
        self._tell()
        if self._memory.is_alarmed and self.first is None:  # what alarmed was a mask, or is gone
            self._memory.is_alarmed, self._memory.has_masks = False, True

    # -- what was found ------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._order += 1
        return self._order

    def _find(
        self,
        call: Call,
        phase: Phase,
        order: int,
        look: Look,
        numel: int,
        operator: Operator,
        inputs: tuple[Range, ...] = (),
    ) -> None:
        if self._doubtful is not None:
            doubtful, self._doubtful = self._doubtful, None
            doubtful()
            return
        weights = tuple(_bad_below(call.module)) if phase in ("forward", "backward") else ()
        self._memory.known_bad.update(f"{call.path}.{each.name}" for each in weights)
        self._place = order
        self.first = NonFinite(
            step=self._step,
            phase=phase,
            path=call.path,
            type_name=type_name_of(call.module),
            invocation=call.invocation,
            nan=look.nan,
            inf=look.inf,
            numel=numel,
            operator=operator.name,
            then=operator.then,
            line=operator.line,
            unknown=operator.unknown,
            inputs=inputs,
            weights=weights,
        )

    def _tell(self) -> None:
        """Once it is certain: nothing that may have come before it is open."""
        if self.first is None or self._is_told or any(each.suspicions for each in self._open.values()):
            return
        self._is_told = True
        self._listener(self.first)


def _update(step: int, path: str, module: nn.Module, bad: Sequence[Bad]) -> NonFinite:
    return NonFinite(
        step=step,
        phase="update",
        path=path,
        type_name=type_name_of(module),
        invocation=0,
        nan=sum(each.nan for each in bad),
        inf=sum(each.inf for each in bad),
        numel=sum(each.numel for each in bad),
        weights=tuple(bad),
    )


def makes_none(module: nn.Module) -> bool:
    """Whether what this module returns is finite if what it is given is."""
    return type(module) in _MAKES_NONE and not module._forward_hooks


def reveals(node: Node) -> bool:
    """Whether what this node is given shows in the gradients of parameters that it makes."""
    return node.name() in _REVEALS and any(hasattr(each, "variable") for each, _ in node.next_functions)


def moves(node: Node) -> bool:
    """Whether this node's gradients are finite if what it is given is."""
    return node.name() in _MOVES


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in [*((f"input {index}", each) for index, each in enumerate(args)), *kwargs.items()]:
        yield from ((path, each) for path, each in named_tensors(value, name) if is_readable(each))


def _readable(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each for each in tensors if is_readable(each)]


def _size(tensors: Iterable[Tensor | None]) -> int:
    return sum(each.numel() for each in tensors if each is not None)


def _named(name: str, tensors: Gradients) -> Iterator[tuple[str, Tensor]]:
    for index, each in enumerate(tensors):
        if each is not None and is_readable(each):
            yield (name if len(tensors) == 1 else f"{name} {index}"), each


def _ranges(named: Iterable[tuple[str, Tensor]]) -> tuple[Range, ...]:
    return tuple(_range(name, each) for name, each in named)


def _range(name: str, tensor: Tensor) -> Range:
    look, (least, most) = look_at(tensor), range_of(tensor) or (None, None)
    return Range(name, least, most, look.nan, look.inf)


def _bad_in(module: nn.Module, *, but_parameters: bool = False) -> Iterator[Bad]:
    """Its own parameters and buffers that are not finite."""
    for name, tensor in [*(() if but_parameters else module._parameters.items()), *module._buffers.items()]:
        if tensor is not None and is_readable(tensor) and not (look := look_at(tensor)).is_fine:
            yield Bad(name, look.nan, look.inf, tensor.numel())


def _bad_below(module: nn.Module) -> Iterator[Bad]:
    for path, each in module.named_modules():
        for bad in _bad_in(each):
            yield bad._replace(name=f"{path}.{bad.name}" if path else bad.name)


def _is_worse(look: Look, before: Look) -> bool:
    return bool(look.nan) and not before.nan if look.nan else bool(look.inf) and before.is_fine


def _chain(call: Call | None) -> set[int]:
    """It, and all that it is in."""
    chain = set()
    while call is not None:
        chain.add(call.index)
        call = call.parent
    return chain
