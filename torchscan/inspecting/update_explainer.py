"""Explanations of parameters and buffers that are not finite around an optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

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
    """Reports of what the optimizer was given, and of what it made."""

    def __init__(self, tensors: TrainedTensors, log: FindingLog) -> None:
        self._tensors = tensors
        self._log = log

    def explain_written(
        self, optimizer: Optimizer, written: Sequence[tuple[Tensor, Tensor]], state: BackwardState
    ) -> None:
        """Report gradients that were finite after the backward pass, and are not before the optimizer's step."""
        bad = [(each, gradient) for each, gradient in written if not check_values(gradient).is_fine]
        steps = self._tensors.find_root([each for each, _ in bad])
        if self._log.begin_finding(steps):
            found = self._describe_gradients(optimizer, bad, state)
            self._log.report_step(found, self._tensors.find_root([bad[0][0]]))
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
        spoilt = [
            (each, each.grad)
            for each in bad
            if each.grad is not None and not check_values(each.grad).is_fine
        ]
        if spoilt:  # written to in a way that leaves the version as it was, as through .data
            found = self._describe_gradients(optimizer, spoilt, state)
        else:
            pairs = [(each, each) for each in bad]
            name = _name_step(optimizer)
            found = self._log.describe_tensors(
                "optimizer", pairs, operator=name, line=place_of_user()
            )
            found = replace(found, cause=_find_bad_option(optimizer))
        self._log.report_step(found, steps)

    def _describe_gradients(
        self,
        optimizer: Optimizer,
        bad: Sequence[tuple[Tensor, Tensor]],
        state: BackwardState,
    ) -> NonFinite:
        """Return a finding about gradients that are not finite before the optimizer's step."""
        name, line = _name_step(optimizer), place_of_user()
        found = self._log.describe_tensors("gradient", bad, operator=name, line=line)
        if state.has_finite_gradients:
            return replace(found, cause=Note.of("written-after-backward", line=state.line))
        return replace(found, cause=_NOT_STORED)

    def explain_buffers(self, bad: Sequence[Tensor], state: BackwardState) -> None:
        """Report buffers that are NaN after the optimizer's step."""
        if not bad:
            return
        steps = self._tensors.find_root(bad)
        is_news = state.has_finite_gradients is not False and self._log.begin_finding(steps)
        self._tensors.note_bad(bad)
        if is_news:
            cause = WRITTEN_SINCE_UPDATE if self._tensors.has_seen_finite else None
            found = self._log.describe_tensors(
                "update", [(each, each) for each in bad], cause=cause
            )
            self._log.report_step(found, steps)


def _name_step(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__name__}.step()"


def _find_bad_option(optimizer: Optimizer) -> Note | None:
    """Return a note about an option of the optimizer that is not finite, or None if all are."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if (
                name != "params"
                and isinstance(value, float | Tensor)
                and not math.isfinite(float(value))
            ):
                return Note.of("option-not-finite", name=name, value=str(float(value)))
    return None
