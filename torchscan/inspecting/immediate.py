"""Values of a step that are checked at once, while they are there, to find the first bad ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.inspecting.findings import Bad, NonFinite, ranges_of
from torchscan.inspecting.finiteness import FINE, MAX_JOINED, NonFiniteCount
from torchscan.inspecting.forward_search import ForwardSearch
from torchscan.inspecting.open_values import size_of
from torchscan.inspecting.replayed_operator import Operator
from torchscan.inspecting.values import Gradients, Leaf, Listener, Memory, Source, bad_in
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import CallTree
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import current_node

_MET = Note.of("seen-in-sum")
_SUM = Note.of("gradients-summed")


class ImmediateValues(ForwardSearch):
    """The check of all values where they are produced."""

    def __init__(self, step: int, tree: CallTree, memory: Memory, listener: Listener) -> None:
        super().__init__(step, memory, listener)
        self._tree = tree
        self._has_gradients = False

    # -- the backward pass -------------------------------------------------------------------------

    def note_loss(self, owner: Call | None, gradients: Gradients) -> None:
        """The gradients of the model's result, which come from what was made of it."""
        self._has_gradients = True
        look = self._check_all_values(gradients)
        if look is not FINE:
            self._count(self.gradients_out, _chain(owner), look)
            if self.first is None and owner is not None:
                root = owner.outermost
                found = self._to_finding(root, "loss", look, size_of(gradients), Operator())
                self._find(self._next(), found, believes=root.index in self._touched)
                self._report()

    def note_node(
        self,
        owner: Call | None,
        made: Gradients,
        given: Gradients,
        unseen: Collection[int],
        get_source: Callable[[], Source | None],
    ) -> None:
        """Note that a node has run, and made gradients of what it was given."""
        seen = made
        if unseen and not self.sees_all:  # those are checked later
            seen = [each for index, each in enumerate(made) if index not in unseen]
        if self._check_all_values(seen) is FINE:
            return
        node, look = current_node(), self._check_all_values(made)
        for (following, _), gradient in zip(node.next_functions, made, strict=False):
            if gradient is None or following is None or hasattr(following, "variable"):
                continue
            target = self._tree.owner_of(following)
            self._count_crossing(owner, target, self._known.check_values(gradient))
        if self.first is None and owner is not None:
            self._find_in_backward(owner, node, look, made, given, get_source)
            self._report()

    def _find_in_backward(
        self,
        owner: Call,
        node: Node,
        look: NonFiniteCount,
        made: Gradients,
        given: Gradients,
        get_source: Callable[[], Source | None],
    ) -> None:
        """Report a node as the source, or the one before it whose gradients were summed."""
        before, source = self._check_all_values(given), get_source()
        origin = name = None
        if before is FINE:
            name = node.name()
        elif source is not None and source.owner is not None and not self.sees_all:
            self._find_source(source, source.owner, owner, given, before)
            return
        else:
            origin = _SUM
        named = []
        for index, each in enumerate(given):
            if each is not None and is_readable(each):
                named.append(("gradient" if len(given) == 1 else f"gradient {index}", each))
        inputs = ranges_of(named)
        operator = Operator(name=name)
        found = self._to_finding(owner, "backward", look, size_of(made), operator, inputs)
        found = replace(found, origin=origin)
        self._find(self._next(), found, believes=self._takes_infinities(owner))

    def is_known_finite(self, tensor: Tensor) -> bool:
        """Return whether a tensor was checked, and nothing was written to it since."""
        return self._known.get(tensor) is FINE

    def note_moved(self, owner: Call | None, made: Gradients, given: Gradients) -> None:
        """Count gradients that are finite if a node's inputs are, once anything is not."""
        if self.sees_all:
            self.note_node(owner, made, given, (), lambda: None)

    def _find_source(
        self, source: Source, owner: Call, taker: Call, made: Gradients, look: NonFiniteCount
    ) -> None:
        """Report the node before this one as the source, unless its own input was non-finite."""
        operator = Operator(name=source.name, unsure=_MET)
        found = self._to_finding(owner, "backward", look, size_of(made), operator)
        self._find(self._next(), found, believes=self._takes_infinities(owner))
        path = [owner, *source.through, taker]
        for before, after in pairwise(path):
            self._count_crossing(before, after, look)

    def note_stored(self, leaf: Leaf, variable: Tensor, given: Gradients) -> None:
        """Note that a gradient was added to that of a parameter, by a node, a hook or a loss."""
        gradient = variable.grad
        if gradient is None or not is_readable(gradient):
            return
        if self._is_known(gradient, given):
            if gradient.numel() > MAX_JOINED:  # it takes less time to read a small one again
                self._known.note(gradient, FINE)
            return
        look, spoiled = self._known.check_values(gradient), self._memory.spoiled
        if look is FINE:
            spoiled.discard(leaf)
            return
        was_bad = leaf in spoiled
        spoiled.add(leaf)
        if self.first is not None or (was_bad and self._check_all_values(given) is FINE):
            return
        order = self._next()
        found = NonFinite(
            step=self._step,
            phase="backward",
            path=leaf.path,
            type_name=leaf.type_name,
            invocation=0,
            nan=look.nan,
            inf=look.inf,
            numel=gradient.numel(),
            origin=Note.of("gradient-accumulated", name=leaf.name),
        )
        self._find(order, found)
        self._report()

    def _takes_infinities(self, owner: Call) -> bool:
        """Return whether a call, or one directly in it, had infinities in the forward pass."""
        return owner.index in self._touched or not self._touched.isdisjoint(owner.children)

    def _is_known(self, gradient: Tensor, given: Gradients) -> bool:
        """Return whether a gradient is one that a node produced and that was checked."""
        (made,) = given if len(given) == 1 else (None,)
        if made is None or self._known.get(made) is not FINE:
            return False
        if gradient.layout is not torch.strided:
            return False
        return made.data_ptr() == gradient.data_ptr()

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
        """Count a gradient that leaves the calls of its source, and enters those of its target."""
        left, entered = _chain(source), _chain(target)
        self._count(self.gradients_in, left - entered, look)
        self._count(self.gradients_out, entered - left, look)

    def _count(
        self, where: dict[int, NonFiniteCount], calls: Iterable[int], look: NonFiniteCount
    ) -> None:
        for call in calls:
            known = where.get(call, FINE)
            # Several uses are of one gradient.
            where[call] = NonFiniteCount(max(known.nan, look.nan), max(known.inf, look.inf))

    # -- after the step ----------------------------------------------------------------------------

    def note_update(self, modules: Iterable[tuple[str, nn.Module]], *, is_followed: bool) -> None:
        """Check buffers and, after the last step, parameters.

        Parameters that an earlier step spoils show in the next one's results.
        """
        for path, module in modules:
            if is_followed and not module._buffers:  # most modules
                continue
            bad = list(bad_in(module, but_parameters=is_followed))
            if bad or self._memory.reported:
                self._note_bad(path, module, bad)
        if self._reaches_result and not self._has_gradients:
            # Nothing has come of it because nothing was trained.
            self._believe()
        self._report()
        if self._memory.is_alarmed and self.first is None:  # what alarmed was a mask, or is gone
            self._memory.is_alarmed, self._memory.has_masks = False, True

    def _note_bad(self, path: str, module: nn.Module, found: Sequence[Bad]) -> None:
        """Note which buffers and parameters of a module are not finite, and report new ones."""
        names = {f"{path}.{each.name}": each for each in found}
        new = [each for name, each in names.items() if name not in self._memory.reported]
        # A buffer of infinities is a mask that was made anew.
        bad = [each for each in new if each.nan or each.name not in module._buffers]
        buffers = {f"{path}.{name}" for name in module._buffers}
        self._memory.reported -= buffers - set(names)
        self._memory.reported.update(names)
        if bad and self.first is None:
            self._place, self.first = self._next(), _update(self._step, path, module, bad)


def _update(step: int, path: str, module: nn.Module, bad: Sequence[Bad]) -> NonFinite:
    num_nan = sum(each.nan for each in bad)
    num_inf = sum(each.inf for each in bad)
    numel = sum(each.numel for each in bad)
    return NonFinite(
        step=step,
        phase="update",
        path=path,
        type_name=type_name_of(module),
        invocation=0,
        nan=num_nan,
        inf=num_inf,
        numel=numel,
        weights=tuple(bad),
    )


def _chain(call: Call | None) -> set[int]:
    """Return the indices of a call, and of all calls that it is in."""
    chain = set()
    while call is not None:
        chain.add(call.index)
        call = call.parent
    return chain
