"""The best steps of a mesh search, recorded on their meshes instead of derived."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.analyses.mesh_search import MeshChoice
from torchscan.errors import TorchscanError
from torchscan.ranks.mesh_choices import RankedStep, RecordedChoices
from torchscan.ranks.mesh_question import MeshQuestion
from torchscan.ranks.mesh_refusals import Refusals

#: number of best choices that are recorded on their mesh
_NUM_RECORDED = 3
#: memory, as a share of the device's, up to which a fast step that seems not to fit is recorded
_CLOSE = 1.1
#: steps that seem not to fit and are recorded, at most
_NUM_CLOSE = 2
#: factor by which all layers need at most more memory than few layers suggest
_ROOM = 1.15
#: steps that are recorded, at most
_MAX_RECORDED = 6


class BestSteps:
    """Records the best steps of a search."""

    def __init__(
        self,
        question: MeshQuestion,
        recorded: RecordedChoices,
        refusals: Refusals,
        *,
        compares_given: bool,
    ) -> None:
        self._question = question
        self._recorded = recorded
        self._refusals = refusals
        self._compares_given = compares_given

    def record(self, ranked: list[RankedStep]) -> list[RankedStep]:
        """Return the steps, with the best three recorded, and also fast steps that nearly fit.

        A recorded step may turn out slower or larger than derived. Then the next one is recorded.
        """
        for each in self._nearly_fitting(ranked):
            self._replace(ranked, each)
        while True:
            ranked.sort(key=sort_key)
            can_record = self._recorded.can_record
            best = [each for each in ranked if can_record(each.step)][:_NUM_RECORDED]
            left = next((each for each in best if self._is_left(each)), None)
            is_enough = sum(each.choice.is_recorded for each in ranked) >= _MAX_RECORDED
            if left is None or is_enough:
                return ranked
            self._replace(ranked, left)

    def _nearly_fitting(self, ranked: Sequence[RankedStep]) -> list[RankedStep]:
        limit = _CLOSE * self._question.device.memory_bytes
        times = [each.choice.time_estimate for each in ranked if each.choice.fits]
        best = min(times, default=math.inf)
        close: list[RankedStep] = []
        for each in ranked:
            choice = each.choice
            if choice.fits or choice.needed_bytes > limit or not self._is_left(each):
                continue
            if not times or choice.time_estimate < best:
                close.append(each)
        return sorted(close, key=lambda each: each.choice.time_estimate)[:_NUM_CLOSE]

    def _is_left(self, ranked: RankedStep) -> bool:
        return not ranked.choice.is_recorded and self._recorded.can_record(ranked.step)

    def _replace(self, ranked: list[RankedStep], one: RankedStep) -> None:
        """Replace a step by its recorded version, or leave it out if it cannot be recorded."""
        ranked.remove(one)
        try:
            ranked.append(RankedStep(one.step, self._recorded.record(one.step, one.choice)))
        except TorchscanError as error:
            self._refusals.add(one.step.layout, error)

    def complete(self, ranked: list[RankedStep]) -> list[RankedStep]:
        """Return the steps, with the best step estimated with the memory of all layers.

        Few layers leave smaller gaps between blocks than all of them, so a step may turn out not to
        fit. Then the next one is the best. All layers are recorded only if none can be repeated.
        """
        ranked.sort(key=sort_key)
        while self.needs_all_layers(ranked[0].choice):
            step, choice = ranked[0]
            ranked[0] = RankedStep(step, self._recorded.record_all_layers(step, choice))
            ranked.sort(key=sort_key)
        return ranked

    def needs_all_layers(self, choice: MeshChoice) -> bool:
        """Return whether to record all layers: meshes are given, or the GPU is nearly full."""
        close = choice.needed_bytes * _ROOM > self._question.device.memory_bytes
        is_useful = close or self._compares_given
        return is_useful and choice.fits and choice.is_recorded and not choice.is_replayed


def sort_key(ranked: RankedStep) -> tuple[bool, float]:
    """Return the key that sorts fitting steps first, then the fastest."""
    return ranked.sort_key
