"""Search for the source of non-finite values within one step.

All values are finite until one is not, and modules end before their callers. So the first call that
returns such a value is the source, by an operator of its own. If a call gets one that no call
returned, its caller produced it. The same holds in the backward pass for the nodes of the graph.

Infinities are produced on purpose, as masks: a call that produces nothing else is suspected, and
cleared if they are written rather than computed. Computed ones are a finding only if they lead to a
NaN in a module that takes them, to a gradient, or to the model's result if no gradient comes back.
-Inf of a logarithm may be in the result: it belongs to a probability of 0.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.inspecting.findings import Bad, NonFinite, Phase, Range, ranges_of
from torchscan.inspecting.finiteness import (
    FINE,
    MAX_JOINED,
    NonFiniteCount,
    check_values,
    version_of,
)
from torchscan.inspecting.replay import Operator, find_operator, mask_note
from torchscan.inspecting.values import (
    Gradients,
    Leaf,
    Listener,
    Memory,
    Source,
    Values,
    bad_in,
    makes_none,
)
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.recording.bookkeeping.containers import named_tensors, tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import FAILED, Call, CallTree, Given
from torchscan.torch_versions import current_node, without_tracing

_MET = Note.of("seen-in-sum")
_WRITTEN = Note.of("input-written")
_SUM = Note.of("gradients-summed")
#: more calls than this are not repeated
_MAX_REPLAYS = 16
#: a module that has written infinities of these signs on purpose so often goes on to
_MAX_MASKS = 3


class _Input(NamedTuple):
    tensor: Tensor
    version: int
    look: NonFiniteCount

    @property
    def is_written_to(self) -> bool:
        """True if the tensor was written to since the call started."""
        version = version_of(self.tensor)
        return version != self.version or (version < 0 and check_values(self.tensor) != self.look)


@dataclass(slots=True, kw_only=True)
class _Suspicion:
    """Something that is not finite, of which it is not certain yet what made it."""

    order: int
    look: NonFiniteCount
    numel: int
    #: of infinities: "+", "-" or both
    signs: str
    #: which they are of, and which are not kept for this
    tensors: list[weakref.ref[Tensor]]


@dataclass(slots=True)
class _Open:
    """A call that goes on: what it was given, and what it is suspected of."""

    args: tuple[Any, ...]
    inputs: list[_Input]
    #: the module's own buffers, with their versions when the call started
    buffers: Sequence[tuple[str, Tensor, int]]
    suspicions: list[_Suspicion] = field(default_factory=list)


class ImmediateValues(Values):
    """Looks at once, where the values are still there."""

    def __init__(self, step: int, tree: CallTree, memory: Memory, listener: Listener) -> None:
        super().__init__(step, memory, listener)
        self._tree = tree
        self._open: dict[int, _Open] = {}
        self._order = 0
        #: the place of the first in the order of all that was suspected
        self._place = 0
        self._is_reported = False
        #: computed infinities of which nothing has come yet, with their place
        self._doubtful: tuple[int, NonFinite] | None = None
        #: results whose infinities are intended, or logarithms of 0, by identity
        self._excused: dict[int, weakref.ref[Tensor]] = {}
        #: calls that were given infinities or have returned some
        self._touched: set[int] = set()
        #: what wrote the last mask of this step
        self._mask: Note | None = None
        self._has_gradients = self._reaches_result = False
        #: True if what was found takes infinities, so that what made those is the first
        self._comes_of_infinities = False

    # -- the forward pass ----------------------------------------------------------------------------------------------

    def note_start(self, call: Call, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
        """A call has started."""
        given = []
        for tensor in tensors:
            if is_readable(tensor):
                look = FINE if self.first is not None else self._look_at_given(call, tensor)
                given.append(_Input(tensor, version_of(tensor), look))
        buffers = call.module._buffers
        own = _versions_of(buffers) if buffers else ()
        self._open[call.index] = _Open(args, given, own)

    def note_end(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:
        """A call has ended, or was left by an exception."""
        mine, results = self._open.pop(call.index, None), _readable(tensors)
        if mine is None:  # its start was not noticed: something there has raised
            return
        args, kwargs = (mine.args, {}) if given is FAILED else given
        before = self._look_before(call, mine, kwargs)
        look, own = self._look_at_results(call, results, before)
        if look is FINE and before is FINE and not mine.suspicions:  # most calls
            if self.first is not None:
                self._report()
            return
        if look.inf or before.inf:
            self._touched.add(call.index)
        if look is not FINE and own and self.first is None and _is_worse(look, before):
            self._suspect(mine, look, own)
        for suspicion in mine.suspicions:
            if _is_worse(suspicion.look, before):  # else it was given what is not finite
                self._settle(call, mine, (args, kwargs), suspicion)
        if look is not FINE and call.parent is None and not all(map(self._is_excused, results)):
            self._reaches_result = True
            if not any(
                each.requires_grad for each in results
            ):  # else it depends on what the loss makes of it
                self._believe()
        self._report()

    def _look_before(self, call: Call, mine: _Open, kwargs: dict[str, Any]) -> NonFiniteCount:
        """Return the counts of a call's inputs at its start, as far as torch records writes."""
        before = FINE
        for each in mine.inputs:
            if each.look is not FINE:
                before += each.look
        if kwargs and self.first is None:
            for tensor in _readable(
                tensors_in(kwargs)
            ):  # whose start was not seen: a module inside may have been given it
                look = self._known.check_values(tensor)
                if look is not FINE:
                    before += look
                    self._suspect_caller(call, tensor, look)
        return before

    def _look_at_results(
        self,
        call: Call,
        results: Sequence[Tensor],
        before: NonFiniteCount,
    ) -> tuple[NonFiniteCount, Sequence[Tensor]]:
        """Return the counts of all results, and the results that no call inside has returned."""
        if before is FINE and makes_none(call.module):
            for each in results:
                self._known.note(each, FINE)
            return FINE, ()
        own = [each for each in results if self._known.get(each) is None]
        look = self._known.check_all_values(results)
        if look is not FINE:
            self.outputs[call.index] = look
        return look, own

    def _look_at_given(self, call: Call, tensor: Tensor) -> NonFiniteCount:
        """Check an input. If no call returned it, the caller of this one produced it."""
        look = self._known.get(tensor)
        if look is None:
            look = self._known.check_values(tensor)
            if look is not FINE:
                self._suspect_caller(call, tensor, look)
        return look

    def _suspect_caller(self, call: Call, tensor: Tensor, look: NonFiniteCount) -> None:
        caller = None if call.parent is None else self._open.get(call.parent.index)
        if caller is not None:
            self._suspect(caller, look, [tensor])
        elif look.nan and call.parent is None:
            given = ranges_of([("input", tensor)])
            self._find(
                self._next(),
                self._to_finding(call, "input", look, tensor.numel(), Operator(), given),
            )

    def _suspect(self, mine: _Open, look: NonFiniteCount, tensors: Sequence[Tensor]) -> None:
        signs = _signs(tensors) if look.inf and not look.nan else ""
        mine.suspicions.append(
            _Suspicion(
                order=self._next(),
                look=look,
                numel=_size(tensors),
                signs=signs,
                tensors=[weakref.ref(each) for each in tensors],
            )
        )

    def _excuse(self, suspicion: _Suspicion) -> None:
        for each in suspicion.tensors:
            if (tensor := each()) is not None:
                self._excused[id(tensor)] = each

    def _is_excused(self, tensor: Tensor) -> bool:
        """Return whether a tensor is finite, or holds intended infinities."""
        excused = self._excused.get(id(tensor))
        return (excused is not None and excused() is tensor) or self._known.check_values(
            tensor
        ) is FINE

    def _settle(self, call: Call, mine: _Open, given: Given, suspicion: _Suspicion) -> None:
        """The call that is suspected is over: what its operators do can be seen in a replay."""
        look, order = suspicion.look, suspicion.order
        masks = call.path, suspicion.signs
        if self.first is not None and self._place < order:
            return
        if not look.nan and self._memory.masking[masks] >= _MAX_MASKS:
            self._note_mask(call, Operator(), suspicion)
            return
        operator = self._operator(call, mine, given, nan=bool(look.nan))
        if operator.is_on_purpose:
            self._memory.masking[masks] += 1
            self._memory.replays -= 1
            self._note_mask(call, operator, suspicion)
            return
        if (
            operator.name is None and suspicion.signs == "-"
        ):  # most likely a mask: what wrote it was not seen
            self._note_mask(call, operator, suspicion)
            return

        inputs = ranges_of(_named_arguments(*given))
        if operator.name is None and any(each.nan for each in inputs):
            operator = replace(operator, unsure=_WRITTEN)
        was_given_infinities = any(each.inf for each in inputs)
        if was_given_infinities and look.nan and self._mask is not None:
            operator = replace(operator, mask=self._mask)
        found = self._to_finding(call, "forward", look, suspicion.numel, operator, inputs)
        if operator.inside is None:
            written = _find_written(call.module, mine.buffers)
            found = replace(
                found, weights=tuple(each for each in found.weights if each.name not in written)
            )
        if look.nan:
            if was_given_infinities and operator.mask is None:
                found = self._find_infinite_input(call, mine) or found
            is_of_infinities = (
                was_given_infinities or operator.nan_operator is not None or operator.name is None
            )
            self._find(order, found, believes=is_of_infinities)
        elif operator.name is not None or all(each.look is FINE for each in mine.inputs):
            if operator.is_log:
                self._excuse(suspicion)
            self._doubt(order, found)

    def _find_infinite_input(self, call: Call, mine: _Open) -> NonFinite | None:
        """Return a finding about Inf in the data that the model was given, or None. -Inf alone may be a mask."""
        outermost = self._open.get(call.outermost.index, mine)
        for tensor, _, look in outermost.inputs:
            if look.inf and not tensor.requires_grad and "+" in _signs([tensor]):
                given = ranges_of([("input", tensor)])
                return self._to_finding(
                    call.outermost, "input", look, tensor.numel(), Operator(), given
                )
        return None

    def _note_mask(self, call: Call, operator: Operator, suspicion: _Suspicion) -> None:
        """Note that a call has written infinities on purpose."""
        self._excuse(suspicion)
        self._mask = mask_note(call.path, type_name_of(call.module), operator)

    def _operator(self, call: Call, mine: _Open, given: Given, *, nan: bool) -> Operator:
        if any(each.is_written_to for each in mine.inputs):
            return Operator(unknown=Note.of("writes-to-input"))
        if self._memory.replays == _MAX_REPLAYS:
            return Operator(unknown=Note.of("repeat-limit", limit=_MAX_REPLAYS))
        self._memory.replays += 1
        return find_operator(call.module, given, nan=nan)

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """The gradients of the model's result, which come from what was made of it."""
        self._has_gradients = True
        look = self._check_all_values(gradients)
        if look is not FINE:
            self._count(self.gradients_out, _chain(owner), look)
            if self.first is None and owner is not None:
                found = self._to_finding(
                    owner.outermost, "loss", look, _size(gradients), Operator()
                )
                self._find(self._next(), found, believes=owner.outermost.index in self._touched)
                self._report()

    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,
        unseen: Collection[int],
        get_source: Callable[[], Source | None],
    ) -> None:
        """A node has run, and made gradients of what it was given."""
        seen = self._leave_out(made, unseen) if unseen else made
        if self._check_all_values(seen) is FINE:
            return
        node, look = current_node(), self._check_all_values(made)
        self._count_edges(owner, node, made)
        if self.first is None and owner is not None:
            before, source = self._check_all_values(given), get_source()
            if (
                source is not None
                and source.owner is not None
                and before is not FINE
                and not self.sees_all
            ):
                self._find_source(source, source.owner, owner, given, before)
            else:
                name, origin = (node.name(), None) if before is FINE else (None, _SUM)
                inputs = ranges_of(_named("gradient", given))
                found = self._to_finding(
                    owner, "backward", look, _size(made), Operator(name=name), inputs
                )
                found = replace(found, origin=origin)
                self._find(self._next(), found, believes=self._takes_infinities(owner))
            self._report()

    def _leave_out(self, made: Gradients, unseen: Collection[int]) -> Gradients:
        """Return the gradients of a node without those that are checked later."""
        if self.sees_all:
            return made
        return [each for index, each in enumerate(made) if index not in unseen]

    def is_known_finite(self, tensor: Tensor) -> bool:
        """Return whether a tensor was checked, and nothing was written to it since."""
        return self._known.get(tensor) is FINE

    def note_moved(self, owner: Call | None, made: Gradients, given: Gradients) -> None:
        """Count the gradients of a node that are finite if its inputs are, once anything is not finite."""
        if self.sees_all:
            self.note_node(owner, made, given, (), lambda: None)

    def _find_source(
        self, source: Source, owner: Call, taker: Call, made: Gradients, look: NonFiniteCount
    ) -> None:
        """Report the node before this one as the source, unless its own input was non-finite."""
        operator = Operator(name=source.name, unsure=_MET)
        found = self._to_finding(owner, "backward", look, _size(made), operator)
        self._find(self._next(), found, believes=self._takes_infinities(owner))
        for before, after in pairwise([owner, *source.through, taker]):
            self._count_crossing(before, after, look)

    def note_stored(self, leaf: Leaf, variable: Tensor, given: Gradients) -> None:
        """A gradient was added to that of a parameter: what a node made, or what a hook or another loss did."""
        gradient = variable.grad
        if gradient is None or not is_readable(gradient):
            return
        if self._is_known(gradient, given):
            if gradient.numel() > MAX_JOINED:  # it takes less time to read a small one again
                self._known.note(gradient, FINE)
            return
        look, was_bad = self._known.check_values(gradient), leaf in self._memory.spoilt
        (self._memory.spoilt.discard if look is FINE else self._memory.spoilt.add)(leaf)
        if (
            look is not FINE
            and self.first is None
            and not (was_bad and self._check_all_values(given) is FINE)
        ):
            self._find(
                self._next(),
                NonFinite(
                    step=self._step,
                    phase="backward",
                    path=leaf.path,
                    type_name=leaf.type_name,
                    invocation=0,
                    nan=look.nan,
                    inf=look.inf,
                    numel=gradient.numel(),
                    origin=Note.of("gradient-accumulated", name=leaf.name),
                ),
            )
            self._report()

    def _takes_infinities(self, owner: Call) -> bool:
        """Return whether the call, or one directly in it, handled infinities in the forward pass."""
        return owner.index in self._touched or not self._touched.isdisjoint(owner.children)

    def _is_known(self, gradient: Tensor, given: Gradients) -> bool:
        """Return whether a gradient is one that a node produced and that was checked."""
        (made,) = given if len(given) == 1 else (None,)
        if (
            made is None
            or self._known.get(made) is not FINE
            or gradient.layout is not torch.strided
        ):
            return False
        return made.data_ptr() == gradient.data_ptr()

    def _count_edges(self, owner: Call | None, node: Node, made: Gradients) -> None:
        for (following, _), gradient in zip(node.next_functions, made, strict=False):
            if (
                gradient is not None
                and following is not None
                and not hasattr(following, "variable")
            ):
                self._count_crossing(
                    owner, self._tree.owner_of(following), self._known.check_values(gradient)
                )

    def _check_all_values(self, gradients: Gradients) -> NonFiniteCount:
        total = FINE
        for each in gradients:
            if each is not None and is_readable(each):
                counts = self._known.check_values(each)
                if counts is not FINE:
                    total += counts
        return total

    def _count_crossing(
        self, source: Call | None, target: Call | None, look: NonFiniteCount
    ) -> None:
        """A gradient leaves all calls that it was in and is not any more, and enters others."""
        left, entered = _chain(source), _chain(target)
        self._count(self.gradients_in, left - entered, look)
        self._count(self.gradients_out, entered - left, look)

    def _count(
        self, where: dict[int, NonFiniteCount], calls: Iterable[int], look: NonFiniteCount
    ) -> None:
        for call in calls:
            known = where.get(call, FINE)
            where[call] = NonFiniteCount(
                max(known.nan, look.nan), max(known.inf, look.inf)
            )  # several uses are of one gradient

    # -- after the step ------------------------------------------------------------------------------------------------

    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:
        """Look at buffers, and at parameters after the last step: what spoils those before shows in the next one's results."""
        for path, module in modules:
            if is_followed and not module._buffers:  # most modules
                continue
            names = {
                f"{path}.{each.name}": each for each in bad_in(module, but_parameters=is_followed)
            }
            new = [each for name, each in names.items() if name not in self._memory.reported]
            # a buffer of infinities is a mask that was made anew
            bad = [each for each in new if each.nan or each.name not in module._buffers]
            self._memory.reported -= {f"{path}.{name}" for name in module._buffers} - set(names)
            self._memory.reported.update(names)
            if bad and self.first is None:
                self._place, self.first = self._next(), _update(self._step, path, module, bad)
        if (
            self._reaches_result and not self._has_gradients
        ):  # nothing has come of it because nothing was trained
            self._believe()
        self._report()
        if self._memory.is_alarmed and self.first is None:  # what alarmed was a mask, or is gone
            self._memory.is_alarmed, self._memory.has_masks = False, True

    # -- what was found ------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._order += 1
        return self._order

    def _to_finding(
        self,
        call: Call,
        phase: Phase,
        look: NonFiniteCount,
        numel: int,
        operator: Operator,
        inputs: tuple[Range, ...] = (),
    ) -> NonFinite:
        path, module = call.path, call.module
        if operator.inside is not None:
            module = module.get_submodule(operator.inside)
            path = f"{path}.{operator.inside}" if path else operator.inside
        weights = tuple(_bad_below(module)) if phase in ("forward", "backward") else ()
        self._memory.reported.update(f"{path}.{each.name}" for each in weights)
        return NonFinite(
            step=self._step,
            phase=phase,
            path=path,
            type_name=type_name_of(module),
            invocation=call.invocation if operator.inside is None else 0,
            nan=look.nan,
            inf=look.inf,
            numel=numel,
            operator=operator.name,
            nan_operator=operator.nan_operator,
            mask=operator.mask,
            in_thread=operator.inside is not None,
            line=operator.line,
            unknown=operator.unknown,
            unsure=operator.unsure,
            inputs=inputs,
            weights=weights,
        )

    def _find(self, order: int, found: NonFinite, *, believes: bool = True) -> None:
        """Record the finding as the first, unless it follows from an earlier one that was only doubted."""
        if self.first is None or order < self._place:
            self._place, self.first = order, found
        if believes:
            self._comes_of_infinities = True
            self._believe()

    def _doubt(self, order: int, found: NonFinite) -> None:
        """Infinities alone may be as they should be: they are the first if anything comes of them."""
        if self._doubtful is None or order < self._doubtful[0]:
            self._doubtful = order, found
        if (
            self._comes_of_infinities
        ):  # of the caller, whose end comes after that of the call that it has spoilt
            self._believe()

    def _believe(self) -> None:
        """Something has come of what was doubted."""
        if self._doubtful is not None:
            doubtful, self._doubtful = self._doubtful, None
            self._find(*doubtful)

    def _report(self) -> None:
        """Once it is certain: nothing that may have come before it is open."""
        if (
            self.first is None
            or self._is_reported
            or any(each.suspicions for each in self._open.values())
        ):
            return
        self._is_reported = self._memory.has_found = True
        self._listener(self.first)


def _versions_of(
    buffers: Mapping[str, Tensor | None],
) -> Sequence[tuple[str, Tensor, int]]:
    return [(name, each, version_of(each)) for name, each in buffers.items() if each is not None]


def _find_written(module: nn.Module, buffers: Iterable[tuple[str, Tensor, int]]) -> set[str]:
    """Return the names of the buffers that the module's own forward has written to."""
    written = {name for name, each, version in buffers if version_of(each) != version}
    if (
        hasattr(module, "running_mean") and module.training
    ):  # its operator leaves versions as they are
        written |= {"running_mean", "running_var"}
    return written


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


def _named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in [
        *((f"input {index}", each) for index, each in enumerate(args)),
        *kwargs.items(),
    ]:
        yield from ((path, each) for path, each in named_tensors(value, name) if is_readable(each))


def _readable(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each for each in tensors if is_readable(each)]


def _signs(tensors: Iterable[Tensor]) -> str:
    """Return the signs of the infinities, "+", "-" or "+-", or "" if there are none to read."""
    real = [each for each in tensors if is_plain(each) and not each.is_complex()]
    with without_tracing():
        has_plus = any(bool(torch.isposinf(each).any()) for each in real)
        has_minus = any(bool(torch.isneginf(each).any()) for each in real)
    return f"{'+' if has_plus else ''}{'-' if has_minus else ''}"


def _size(tensors: Iterable[Tensor | None]) -> int:
    return sum(each.numel() for each in tensors if each is not None)


def _named(name: str, tensors: Gradients) -> Iterator[tuple[str, Tensor]]:
    for index, each in enumerate(tensors):
        if each is not None and is_readable(each):
            yield (name if len(tensors) == 1 else f"{name} {index}"), each


def _bad_below(module: nn.Module) -> Iterator[Bad]:
    for path, each in module.named_modules():
        for bad in bad_in(each):
            yield bad._replace(name=f"{path}.{bad.name}" if path else bad.name)


def _is_worse(look: NonFiniteCount, before: NonFiniteCount) -> bool:
    return bool(look.nan) and not before.nan if look.nan else bool(look.inf) and before.is_fine


def _chain(call: Call | None) -> set[int]:
    """It, and all that it is in."""
    chain = set()
    while call is not None:
        chain.add(call.index)
        call = call.parent
    return chain
