"""Explanations of checks that have failed: what made a loss, gradient or parameter non-finite.

The guard's checks only show that a value is not finite. The explainers find the call of a module or
the operator of the script that produced it, if necessary by repeating a call on a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from torchscan.inspecting.finding_log import FindingLog, describe_values
from torchscan.inspecting.findings import NonFinite, Phase, ranges_of
from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.inspecting.graph_nodes import operator_of
from torchscan.inspecting.loss_graph import LossGraph
from torchscan.inspecting.root_call import RootCall
from torchscan.inspecting.root_calls import MAX_CALLS, RootCalls
from torchscan.inspecting.root_names import RootNames
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_readable
from torchscan.recording.bookkeeping.containers import tensors_in

_REPEAT_FINITE = Note.of("repeat-finite")
_RESULT_GONE = Note.of("result-gone")
_CALL_NOT_KEPT = Note.of("call-not-kept", limit=MAX_CALLS)
_CONSTANT = Note.of("constant-operand")
_RESULT_GONE_REPEAT_FINITE = Note.of("result-gone-repeat-finite")
_NOTHING_SAVED = Note.of("nothing-saved")


# -- losses --------------------------------------------------------------------------------------


class LossExplainer:
    """The search for what made a loss non-finite: a call, its input, or the script after it."""

    def __init__(self, calls: RootCalls, log: FindingLog, names: RootNames) -> None:
        self._calls = calls
        self._log = log
        self._names = names

    def explain(self, graph: LossGraph, counts: NonFiniteCount, losses: Sequence[Tensor]) -> None:
        """Report the call, or the operator of the script, that made the loss non-finite."""
        suspects = [call for call in self._calls.recent if call.may_spoil_loss]
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
        is_bad = counts.can_come_from(checked)
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
        cause = _CONSTANT if graph.has_bad_constant(index) else None
        return describe_values(
            "loss",
            counts if result.is_fine else result,
            graph.size(index) or num_values,
            type_name=type_name,
            operator=operator_of(graph.names[index]),
            nan_operator=nan_operator,
            line=graph.line(index),
            cause=cause,
            inputs=ranges_of(graph.operands(index)),
        )


def _describe_call(
    phase: Phase, counts: NonFiniteCount, num_values: int, call: RootCall, **more: object
) -> NonFinite:
    """Return a finding about values of a call whose operator is not known."""
    return describe_values(phase, counts, num_values, type_name=call.steps.type_name, **more)


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
