"""The first non-finite values of a step, which may still be doubtful while it runs."""

from __future__ import annotations

from torchscan.inspecting.findings import NonFinite, Phase, Range
from torchscan.inspecting.finiteness import NonFiniteCount
from torchscan.inspecting.replayed_operator import Operator
from torchscan.inspecting.values import Listener, Memory, Values, bad_below
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.module_calls import Call


class FirstFinding(Values):
    """The search for what comes first, in the order in which it was suspected."""

    def __init__(self, step: int, memory: Memory, listener: Listener) -> None:
        super().__init__(step, memory, listener)
        self._order = 0
        #: the place of the first in the order of all that was suspected
        self._place = 0
        self._is_reported = False
        #: computed infinities of which nothing has come yet, with their place
        self._doubtful: tuple[int, NonFinite] | None = None
        #: True if what was found takes infinities, so that what made those is the first
        self._comes_of_infinities = False

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
        weights = tuple(bad_below(module)) if phase in ("forward", "backward") else ()
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
        """Record the finding as the first, unless it follows from an earlier, doubtful one."""
        if self.first is None or order < self._place:
            self._place, self.first = order, found
        if believes:
            self._comes_of_infinities = True
            self._believe()

    def _doubt(self, order: int, found: NonFinite) -> None:
        """Keep a finding of infinities, which may be intended: it counts if they have effects."""
        if self._doubtful is None or order < self._doubtful[0]:
            self._doubtful = order, found
        if self._comes_of_infinities:
            # They are of the caller, whose end comes after that of the call that it has spoiled.
            self._believe()

    def _believe(self) -> None:
        """Record what was doubted as found, because it has had effects."""
        if self._doubtful is not None:
            doubtful, self._doubtful = self._doubtful, None
            self._find(*doubtful)

    def _report(self) -> None:
        """Report the finding. Call it only when no earlier call is still open."""
        if self.first is None or self._is_reported:
            return
        self._is_reported = self._memory.has_found = True
        self._listener(self.first)
