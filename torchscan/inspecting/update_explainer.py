"""Explanation of parameters that an optimizer's step made non-finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.backward_state import BackwardState
from torchscan.inspecting.finding_log import WRITTEN_SINCE_UPDATE, FindingLog
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.finiteness import check_values
from torchscan.inspecting.trained_tensors import TrainedTensors
from torchscan.notes import Note
from torchscan.recording.places import place_of_user

_NOT_STORED = Note.of("not-stored-by-backward")


class UpdateExplainer:
    """Reports about the gradients that an optimizer reads, and the parameters that it writes."""

    def __init__(self, tensors: TrainedTensors, log: FindingLog) -> None:
        self._tensors = tensors
        self._log = log

    def explain_written(
        self, optimizer: Optimizer, written: Sequence[tuple[Tensor, Tensor]], state: BackwardState
    ) -> None:
        """Report gradients that became non-finite between the backward pass and the update."""
        bad = [(each, gradient) for each, gradient in written if not check_values(gradient).is_fine]
        steps = self._tensors.find_root([each for each, _ in bad])
        if self._log.begin_finding(steps):
            found = self._describe_gradients(optimizer, bad, state)
            first, _ = bad[0]
            self._log.report_step(found, self._tensors.find_root([first]))
        state.has_finite_gradients = False

    def explain_update(
        self, optimizer: Optimizer, bad: Sequence[Tensor], state: BackwardState
    ) -> None:
        """Report parameters that are not finite after the optimizer's step."""
        steps = self._tensors.find_root(bad)
        is_news = state.has_finite_gradients is not False and self._log.begin_finding(steps)
        self._tensors.note_bad(bad)
        if not is_news:
            return
        spoiled = []
        for parameter in bad:
            gradient = parameter.grad
            if gradient is not None and not check_values(gradient).is_fine:
                spoiled.append((parameter, gradient))
        if spoiled:  # written to in a way that leaves the version as it was, as through .data
            found = self._describe_gradients(optimizer, spoiled, state)
        else:
            found = self._log.describe_tensors(
                "optimizer",
                [(each, each) for each in bad],
                operator=name_step(optimizer),
                line=place_of_user(),
                cause=_find_bad_option(optimizer),
            )
        self._log.report_step(found, steps)

    def _describe_gradients(
        self,
        optimizer: Optimizer,
        bad: Sequence[tuple[Tensor, Tensor]],
        state: BackwardState,
    ) -> NonFinite:
        """Return a finding about gradients that are not finite before the optimizer's step."""
        name, line = name_step(optimizer), place_of_user()
        cause = _NOT_STORED
        if state.has_finite_gradients:
            cause = Note.of("written-after-backward", line=state.line)
        return self._log.describe_tensors("gradient", bad, operator=name, line=line, cause=cause)

    def explain_buffers(self, bad: Sequence[Tensor], state: BackwardState) -> None:
        """Report buffers that are NaN after the optimizer's step."""
        if not bad:
            return
        steps = self._tensors.find_root(bad)
        is_news = state.has_finite_gradients is not False and self._log.begin_finding(steps)
        self._tensors.note_bad(bad)
        if is_news:
            cause = WRITTEN_SINCE_UPDATE if self._tensors.has_seen_finite else None
            pairs = [(each, each) for each in bad]
            self._log.report_step(self._log.describe_tensors("update", pairs, cause=cause), steps)


def name_step(optimizer: Optimizer) -> str:
    """Return how a finding names the update of an optimizer."""
    return f"{type(optimizer).__name__}.step()"


def _find_bad_option(optimizer: Optimizer) -> Note | None:
    """Return a note about an option of the optimizer that is not finite, or None if all are."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name == "params" or not isinstance(value, float | Tensor):
                continue
            if not math.isfinite(float(value)):
                return Note.of("option-not-finite", name=name, value=str(float(value)))
    return None
