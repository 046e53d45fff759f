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

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from torchscan.inspecting.findings import NonFinite, Range, ranges_of
from torchscan.inspecting.finiteness import FINE, NonFiniteCount, version_of
from torchscan.inspecting.first_finding import FirstFinding
from torchscan.inspecting.intended_infinities import IntendedInfinities
from torchscan.inspecting.open_values import (
    CallInput,
    OpenValues,
    Suspicion,
    named_arguments,
    signs_of,
)
from torchscan.inspecting.replay import find_operator
from torchscan.inspecting.replayed_operator import Operator
from torchscan.inspecting.values import Listener, Memory, makes_none
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.module_calls import FAILED, Call, Given

_WRITTEN = Note.of("input-written")
#: more calls than this are not repeated
_MAX_REPLAYS = 16


class ForwardSearch(FirstFinding):
    """The search in the forward pass."""

    def __init__(self, step: int, memory: Memory, listener: Listener) -> None:
        super().__init__(step, memory, listener)
        self._open: dict[int, OpenValues] = {}
        self._intended = IntendedInfinities(memory)
        #: calls that were given infinities or have returned some
        self._touched: set[int] = set()
        #: True if the model's result is not finite
        self._reaches_result = False

    def note_start(self, call: Call, given: Given, tensors: Sequence[Tensor]) -> None:
        """Note that a call has started."""
        inputs = []
        for tensor in tensors:
            if is_readable(tensor):
                look = FINE if self.first is not None else self._look_at_given(call, tensor)
                inputs.append(CallInput(tensor, version_of(tensor), look))
        buffers = call.module._buffers
        own: Sequence[tuple[str, Tensor, int]] = ()
        if buffers:
            known = ((name, each) for name, each in buffers.items() if each is not None)
            own = [(name, each, version_of(each)) for name, each in known]
        self._open[call.index] = OpenValues(given, inputs, own)

    def note_end(
        self, call: Call, given: Given, tensors: Sequence[Tensor], missed: Sequence[Tensor]
    ) -> None:
        """Note that a call has ended, or was left by an exception."""
        mine = self._open.pop(call.index, None)
        results = list(filter(is_readable, tensors))
        if mine is None:  # its start was not noticed: something there has raised
            return
        if given is FAILED:
            given = mine.given
        before = self._look_before(call, mine, missed)
        look, own = self._look_at_results(call, results, before)
        if look is FINE and before is FINE and not mine.suspicions:  # most calls
            if self.first is not None:
                self._report()
            return
        self._settle_call(call, mine, given, look, own, before)
        if look is not FINE and call.parent is None:
            self._note_result(results)
        self._report()

    def _settle_call(
        self,
        call: Call,
        mine: OpenValues,
        given: Given,
        look: NonFiniteCount,
        own: Sequence[Tensor],
        before: NonFiniteCount,
    ) -> None:
        """Settle what a call is suspected of, unless it was given values that are not finite."""
        if look.inf or before.inf:
            self._touched.add(call.index)
        if look is not FINE and own and self.first is None and look.is_worse_than(before):
            self._suspect(mine, look, own)
        for suspicion in mine.suspicions:
            if suspicion.look.is_worse_than(before):
                self._settle(call, mine, given, suspicion)

    def _note_result(self, results: Sequence[Tensor]) -> None:
        """Note that the model's result is not finite, unless its infinities are intended."""
        for tensor in results:
            if self._intended.has(tensor):
                continue
            if self._known.check_values(tensor) is not FINE:
                break
        else:
            return
        self._reaches_result = True
        if not any(each.requires_grad for each in results):
            # Otherwise it depends on what the loss makes of it.
            self._believe()

    def _look_before(
        self, call: Call, mine: OpenValues, missed: Sequence[Tensor]
    ) -> NonFiniteCount:
        """Return the counts of a call's inputs at its start, as far as torch records writes."""
        before = FINE
        for each in mine.inputs:
            if each.look is not FINE:
                before += each.look
        if missed and self.first is None:
            # Not checked at the start. A submodule that received them may have checked them since.
            for tensor in filter(is_readable, missed):
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
            order = self._next()
            found = self._to_finding(call, "input", look, tensor.numel(), Operator(), given)
            self._find(order, found)

    def _suspect(self, mine: OpenValues, look: NonFiniteCount, tensors: Sequence[Tensor]) -> None:
        suspicion = Suspicion.of(self._next(), look, tensors)
        mine.suspicions.append(suspicion)

    def _settle(self, call: Call, mine: OpenValues, given: Given, suspicion: Suspicion) -> None:
        """Settle a suspicion once the call is over: a replay shows what its operators do."""
        operator = self._find_maker(call, mine, given, suspicion)
        if operator is None:
            return
        inputs = ranges_of(named_arguments(*given))
        if operator.name is None and any(each.nan for each in inputs):
            operator = replace(operator, unsure=_WRITTEN)
        if suspicion.look.nan:
            self._find_nan(call, mine, suspicion, operator, inputs)
            return
        found = self._describe(call, mine, suspicion, operator, inputs)
        if operator.name is not None or all(each.look is FINE for each in mine.inputs):
            if operator.is_log:
                self._intended.add(suspicion.tensors)
            self._doubt(suspicion.order, found)

    def _find_nan(
        self,
        call: Call,
        mine: OpenValues,
        suspicion: Suspicion,
        operator: Operator,
        inputs: tuple[Range, ...],
    ) -> None:
        """Record a NaN, or the infinity in the model's data that it comes from."""
        was_given_infinities = any(each.inf for each in inputs)
        if was_given_infinities and self._intended.mask is not None:
            operator = replace(operator, mask=self._intended.mask)
        found = self._describe(call, mine, suspicion, operator, inputs)
        if was_given_infinities and operator.mask is None:
            found = self._find_infinite_input(call, mine) or found
        is_computed = operator.name is not None and operator.nan_operator is None
        believes = was_given_infinities or not is_computed
        self._find(suspicion.order, found, believes=believes)

    def _find_maker(
        self, call: Call, mine: OpenValues, given: Given, suspicion: Suspicion
    ) -> Operator | None:
        """Return the operator that produced the values, or None if a mask or an earlier one did."""
        look = suspicion.look
        if self.first is not None and self._place < suspicion.order:
            return None
        intended = self._intended
        if not look.nan and intended.is_usual(call, suspicion):
            intended.note_mask(call, Operator(), suspicion)
            return None
        operator = self._operator(call, mine, given, nan=bool(look.nan))
        if operator.is_on_purpose:
            self._memory.replays -= 1
            intended.note_usual_mask(call, operator, suspicion)
            return None
        if operator.name is None and suspicion.signs == "-":
            # Most likely a mask: what wrote it was not seen.
            intended.note_mask(call, operator, suspicion)
            return None
        return operator

    def _describe(
        self,
        call: Call,
        mine: OpenValues,
        suspicion: Suspicion,
        operator: Operator,
        inputs: tuple[Range, ...],
    ) -> NonFinite:
        """Return the finding about a call, without buffers that it has written itself."""
        look, numel = suspicion.look, suspicion.numel
        found = self._to_finding(call, "forward", look, numel, operator, inputs)
        if operator.inside is not None:
            return found
        written = mine.find_written_buffers(call.module)
        weights = tuple(each for each in found.weights if each.name not in written)
        return replace(found, weights=weights)

    def _find_infinite_input(self, call: Call, mine: OpenValues) -> NonFinite | None:
        """Return a finding about Inf in the model's data, or None. -Inf alone may be a mask."""
        root = call.outermost
        outermost = self._open.get(root.index, mine)
        for tensor, _, look in outermost.inputs:
            if look.inf and not tensor.requires_grad and "+" in signs_of([tensor]):
                given = ranges_of([("input", tensor)])
                return self._to_finding(root, "input", look, tensor.numel(), Operator(), given)
        return None

    def _operator(self, call: Call, mine: OpenValues, given: Given, *, nan: bool) -> Operator:
        if any(each.is_written_to for each in mine.inputs):
            return Operator(unknown=Note.of("writes-to-input"))
        if self._memory.replays == _MAX_REPLAYS:
            return Operator(unknown=Note.of("repeat-limit", limit=_MAX_REPLAYS))
        self._memory.replays += 1
        return find_operator(call.module, given, nan=nan)

    def _report(self) -> None:
        """Report the finding once it is certain: nothing that may have come before is open."""
        if self.first is None or self._is_reported:
            return
        if any(each.suspicions for each in self._open.values()):
            return
        super()._report()
