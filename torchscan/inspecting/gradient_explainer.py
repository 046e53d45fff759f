"""Explanation of gradients that are not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from torchscan.inspecting.finding_log import FindingLog, describe_values
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.inspecting.loss_graph import LossGraph
from torchscan.inspecting.root_call import ModuleSteps, RootCall
from torchscan.inspecting.root_calls import RootCalls
from torchscan.inspecting.trained_tensors import TrainedTensors
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable

_TOO_LARGE = Note.of("gradient-too-large")


class GradientExplainer:
    """The search, on the way back from the loss, for what made the first gradient non-finite."""

    def __init__(self, calls: RootCalls, tensors: TrainedTensors, log: FindingLog) -> None:
        self._calls = calls
        self._tensors = tensors
        self._log = log

    def explain(self, graph: LossGraph | None) -> None:
        """Report what made the first gradient of an unscaled loss non-finite."""
        steps = self._log.find_steps()
        if not self._log.begin_finding(steps):
            return
        source = None if graph is None else graph.find_gradient_source()
        if graph is not None and source is not None:
            self._report_node(graph, source, steps)
            return
        reached = self._find_reached()
        for call, found in self._repeat_calls(reached):
            if isinstance(found, NonFinite):
                self._log.report(found, call)
                return
            if len(reached) == 1:
                self._report_gradients(call, found)
                return
        self._report_gradients(reached[0] if reached else None, None)

    def report_given(self, given: Sequence[Tensor], line: str | None) -> None:
        """Report a gradient that the script has given to a backward pass."""
        steps = self._log.find_steps()
        if self._log.begin_finding(steps):
            readable = list(filter(is_readable, given))
            counts = sum(map(check_values, readable), FINE)
            num_values = sum(each.numel() for each in readable)
            found = describe_values("loss", counts, num_values, line=line, is_user_gradient=True)
            self._log.report_step(found, steps)

    def explain_overflow(self, graph: LossGraph) -> None:
        """Report what makes NaN of finite gradients in a scaled loss.

        An overflow makes infinities.
        """
        source = graph.find_gradient_source()
        if source is None:
            return
        _, counts = source
        if counts.nan:
            steps = self._log.find_steps()
            if self._log.begin_finding(steps, is_scaled=True):
                self._report_node(graph, source, steps)

    def explain_skipped(self, scale: float) -> None:
        """Report a call whose gradients are not finite even without the scale of a skipped step."""
        if scale == 1.0:
            self.explain(None)
            return
        steps = self._log.find_steps()
        for call, found in self._repeat_calls(self._find_reached(), scale):
            if isinstance(found, NonFinite):
                if self._log.begin_finding(steps, is_scaled=True):
                    self._log.report(found, call)
                return

    def _find_reached(self) -> list[RootCall]:
        return [call for call in self._calls.recent if call.is_reached and call.gradients]

    def _repeat_calls(
        self, reached: Sequence[RootCall], scale: float = 1.0
    ) -> Iterator[tuple[RootCall, NonFinite | Note | None]]:
        """Yield the calls with finite gradients, from the last, with what a second look finds."""
        for call in reversed(reached):
            gradients = {index: each for index, each in call.gradients.items() if each is not None}
            if not all(check_values(each).is_fine for each in gradients.values()):
                continue
            if len(gradients) < len(call.gradients):
                yield call, _TOO_LARGE
                continue
            if scale != 1.0:
                gradients = {index: each / scale for index, each in gradients.items()}
            yield call, self._log.repeat_call(call, gradients)

    def _report_node(
        self, graph: LossGraph, source: tuple[int, NonFiniteCount], steps: ModuleSteps | None
    ) -> None:
        """Report a node between models and loss whose gradient is not finite."""
        index, counts = source
        loss_call = self._calls.find_by_node(graph.number(index))
        found = describe_values(
            "loss",
            counts,
            0,
            type_name="" if loss_call is None else loss_call.steps.type_name,
            operator=graph.names[index],
            line=graph.line(index),
        )
        self._log.report_step(found, steps)

    def _report_gradients(self, call: RootCall | None, reason: Note | None) -> None:
        """Report parameters with non-finite gradients, whose operator is unknown for a reason."""
        bad = []
        for parameter in self._tensors.list_parameters():
            gradient = parameter.grad
            if gradient is None or self._tensors.is_reported(parameter):
                continue
            if not check_values(gradient).is_fine:
                bad.append((parameter, gradient))
        found = self._log.describe_tensors("backward", bad)
        if reason is None:
            name = found.weights[0].name if found.weights else "a parameter"
            origin = Note.of("gradient-hook-or-sum", name=name)
            found = replace(found, origin=origin, weights=())
        else:
            found = replace(found, unknown=reason, weights=())
        if call is None:
            self._log.report_step(found, None)
        else:
            self._log.report(found, call)
