"""Explanations of checks that have failed: what made a loss, gradient or parameter non-finite.

The guard's checks only show that a value is not finite. The explainers find the call of a module or
the operator of the script that produced it, if necessary by repeating a call on a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.finding_log import (
    WRITTEN_SINCE_UPDATE,
    FindingLog,
    describe_values,
)
from torchscan.inspecting.findings import NonFinite, Phase, ranges_of
from torchscan.inspecting.finiteness import (
    FINE,
    NonFiniteCount,
    check_values,
)
from torchscan.inspecting.loss_graph import LossGraph, operator_of
from torchscan.inspecting.root_calls import MAX_CALLS, ModuleSteps, RootCall, RootCalls
from torchscan.inspecting.root_names import RootNames
from torchscan.inspecting.trained_tensors import BackwardState, TrainedTensors
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.places import place_of_user

_REPEAT_FINITE = Note.of("repeat-finite")
_RESULT_GONE = Note.of("result-gone")
_CALL_NOT_KEPT = Note.of("call-not-kept", limit=MAX_CALLS)
_CONSTANT = Note.of("constant-operand")
_RESULT_GONE_REPEAT_FINITE = Note.of("result-gone-repeat-finite")
_NOTHING_SAVED = Note.of("nothing-saved")
_TOO_LARGE = Note.of("gradient-too-large")
_NOT_STORED = Note.of("not-stored-by-backward")


# -- losses --------------------------------------------------------------------------------------


class LossExplainer:
    """The search for what made a loss non-finite: a call, its input, or the script after it."""

    def __init__(self, calls: RootCalls, log: FindingLog, names: RootNames) -> None:
        self._calls = calls
        self._log = log
        self._names = names

    def explain(self, graph: LossGraph, counts: NonFiniteCount, losses: Sequence[Tensor]) -> None:
        """Report the call, or the operator of the script, that made the loss non-finite."""
        suspects = [call for call in self._calls.recent if _is_suspect(call)]
        steps = self._log.find_steps()
        if not self._log.begin_finding(steps):
            return
        unknown: list[tuple[RootCall, Note]] = []
        for call in suspects:
            if self._explain_by_input(call):
                return
            reason = self._explain_by_output(call, counts)
            if reason is True:
                return
            if isinstance(reason, Note):
                unknown.append((call, reason))

        found = self._describe_graph(graph, counts, losses)
        found = _doubt_constant(found, suspects, is_unknown=bool(unknown))
        if not unknown or found.unknown != _NOTHING_SAVED:
            self._log.report_step(found, steps)
            return
        call, reason = unknown[-1]
        found = _describe_call("forward", counts, 0, call, unknown=reason, unsure=_RESULT_GONE)
        self._log.report(found, call)

    def _explain_by_input(self, call: RootCall) -> bool:
        """Report what made an input of a call NaN; return whether one is.

        It is either computed by the script or has no graph.
        """
        arguments = call.given()
        inputs = [] if isinstance(arguments, Note) else tensors_in(arguments)
        for given in filter(is_readable, inputs):
            counts = check_values(given)
            if counts.nan:
                self._report_input(call, given, counts)
                return True
        return False

    def _report_input(self, call: RootCall, given: Tensor, counts: NonFiniteCount) -> None:
        before = LossGraph([given], self._calls.is_inside_model)
        if before.nodes:
            self._log.report_step(self._describe_graph(before, counts, [given]), call.steps)
            return
        if before.reached and not any(map(self._calls.find_by_node, before.reached)):
            found = _describe_call("forward", counts, given.numel(), call, unknown=_CALL_NOT_KEPT)
        else:
            inputs = ranges_of([("input", given)])
            found = _describe_call("input", counts, given.numel(), call, inputs=inputs)
        self._log.report(found, call)

    def _explain_by_output(self, call: RootCall, counts: NonFiniteCount) -> bool | Note:
        """Report what made an output of a call non-finite; return whether anything did.

        Return the reason for not knowing it if outputs are gone and the call cannot be repeated.
        """
        outputs = _alive_outputs(call)
        checked = [check_values(each) for each in outputs]
        is_bad = _can_explain(counts, checked)
        if outputs and not is_bad and len(outputs) == len(call.outputs):
            return False

        found = self._log.repeat_call(call)
        if not isinstance(found, NonFinite):
            if not is_bad:
                return found or False
            num_values = sum(each.numel() for each in outputs)
            total = sum(checked, FINE)
            reason = found or _REPEAT_FINITE
            found = _describe_call("forward", total, num_values, call, unknown=reason)
        self._log.report(found, call)
        return True

    def _describe_graph(
        self, graph: LossGraph, counts: NonFiniteCount, losses: Sequence[Tensor]
    ) -> NonFinite:
        """Return a finding about what the script computes between models and loss."""
        num_values = sum(each.numel() for each in losses)
        index = graph.find_source(nan=bool(counts.nan))
        if index is None:
            return describe_values(
                "loss", counts, num_values, line=graph.line(-1), unknown=_NOTHING_SAVED
            )
        loss_call = self._calls.find_by_node(graph.number(index))
        type_name = ""
        if loss_call is not None:
            type_name = loss_call.steps.type_name
            repeated = self._log.repeat_call(loss_call)
            if isinstance(repeated, NonFinite):
                return replace(repeated, root=self._names.find_name(loss_call.module()))

        result = graph.check_result(index)
        nan_operator = None
        if counts.nan and not result.nan:
            nan_index = graph.find_nan_after(index)
            if nan_index is not None:
                nan_operator = operator_of(graph.names[nan_index])
        return describe_values(
            "loss",
            counts if result.is_fine else result,
            graph.size(index) or num_values,
            type_name=type_name,
            operator=operator_of(graph.names[index]),
            nan_operator=nan_operator,
            line=graph.line(index),
            cause=_CONSTANT if graph.has_bad_constant(index) else None,
            inputs=ranges_of(graph.operands(index)),
        )


def _describe_call(
    phase: Phase, counts: NonFiniteCount, num_values: int, call: RootCall, **more: object
) -> NonFinite:
    """Return a finding about values of a call whose operator is not known."""
    return describe_values(phase, counts, num_values, type_name=call.steps.type_name, **more)


def _is_suspect(call: RootCall) -> bool:
    """Return whether a call may be the source.

    Nodes of a loss module are in the graph, which is searched anyway.
    """
    if call.has_graph and not call.steps.has_parameters:
        return False
    return call.has_graph or not call.has_grad or bool(call.outputs)


def _can_explain(counts: NonFiniteCount, outputs: Sequence[NonFiniteCount]) -> bool:
    """Return whether the counts of outputs explain those of a loss."""
    if counts.nan:  # an infinity does not explain a NaN
        return any(each.nan for each in outputs)
    return not all(each.is_fine for each in outputs)


def _doubt_constant(found: NonFinite, calls: Sequence[RootCall], *, is_unknown: bool) -> NonFinite:
    """Return a finding with the doubt that models leave, if it blames an operand."""
    if found.cause != _CONSTANT:
        return found
    if is_unknown:
        return replace(found, cause=None)
    is_gone = any(len(_alive_outputs(call)) < len(call.outputs) for call in calls)
    return replace(found, unsure=_RESULT_GONE_REPEAT_FINITE) if is_gone else found


def _alive_outputs(call: RootCall) -> list[Tensor]:
    """Return the outputs of a call that still exist and can be read."""
    outputs = [reference() for reference in call.outputs]
    return [each for each in outputs if each is not None and is_readable(each)]


# -- gradients -----------------------------------------------------------------------------------


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


# -- parameters ----------------------------------------------------------------------------------


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
        spoilt = []
        for parameter in bad:
            gradient = parameter.grad
            if gradient is not None and not check_values(gradient).is_fine:
                spoilt.append((parameter, gradient))
        if spoilt:  # written to in a way that leaves the version as it was, as through .data
            found = self._describe_gradients(optimizer, spoilt, state)
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
