"""Explanations of a loss that is not finite: by a call of a model, by its input, or by what the script computes after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from torchscan.inspecting.finding_log import FindingLog, describe_values
from torchscan.inspecting.findings import NonFinite, ranges_of
from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.inspecting.loss_graph import LossGraph, operator_of
from torchscan.inspecting.root_calls import MAX_CALLS, RootCall, RootCalls
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


class LossExplainer:
    """The search for what made a loss NaN or infinite."""

    def __init__(self, calls: RootCalls, log: FindingLog, names: RootNames) -> None:
        self._calls = calls
        self._log = log
        self._names = names

    def explain(self, graph: LossGraph, look: NonFiniteCount, losses: Sequence[Tensor]) -> None:
        """Report the call, or the operator between models and loss, that made the loss non-finite."""
        calls = [call for call in self._calls.recent if _is_suspect(call)]
        steps = self._log.find_steps()
        if not self._log.begin_finding(steps):
            return
        unknown: list[tuple[RootCall, Note]] = []
        for call in calls:
            if self._explain_by_input(call):
                return
            reason = self._explain_by_output(call, look)
            if reason is True:
                return
            if isinstance(reason, Note):
                unknown.append((call, reason))

        found = self._describe_graph(graph, look, losses)
        if found.cause == _CONSTANT:
            found = _doubt_constant(found, calls, is_unknown=bool(unknown))
        if unknown and found.unknown == _NOTHING_SAVED:
            call, reason = unknown[-1]
            found = describe_values(
                "forward",
                look,
                0,
                type_name=call.steps.type_name,
                unknown=reason,
                unsure=_RESULT_GONE,
            )
            self._log.report(found, call)
        else:
            self._log.report_step(found, steps)

    def _explain_by_input(self, call: RootCall) -> bool:
        """Report what made an input of a call NaN; return whether one is.

        It is either computed by the script or has no graph.
        """
        arguments = call.given()
        inputs = () if isinstance(arguments, Note) else filter(is_readable, tensors_in(arguments))
        given = next((each for each in inputs if check_values(each).nan), None)
        if given is None:
            return False
        look = check_values(given)
        before = LossGraph([given], self._calls.is_inside_model)
        if before.nodes:
            self._log.report_step(self._describe_graph(before, look, [given]), call.steps)
            return True
        if before.reached and not any(map(self._calls.find_by_node, before.reached)):
            found = describe_values(
                "forward",
                look,
                given.numel(),
                type_name=call.steps.type_name,
                unknown=_CALL_NOT_KEPT,
            )
            self._log.report(found, call)
            return True
        found = describe_values(
            "input",
            look,
            given.numel(),
            type_name=call.steps.type_name,
            inputs=ranges_of([("input", given)]),
        )
        self._log.report(found, call)
        return True

    def _explain_by_output(self, call: RootCall, look: NonFiniteCount) -> bool | Note:
        """Report what made an output of a call non-finite; return whether anything did.

        Return the reason for not knowing it if outputs are gone and the call cannot be repeated.
        """
        outputs = _alive_outputs(call)
        looks = [check_values(each) for each in outputs]
        if look.nan:  # an infinity does not explain a NaN
            is_fine = not any(each.nan for each in looks)
        else:
            is_fine = all(each.is_fine for each in looks)
        if outputs and is_fine and len(outputs) == len(call.outputs):
            return False
        found = self._log.repeat_call(call)
        if isinstance(found, NonFinite):
            self._log.report(found, call)
            return True
        if outputs and not is_fine:
            self._report_outputs(call, outputs, found)
            return True
        return found or False

    def _report_outputs(self, call: RootCall, outputs: Sequence[Tensor], why: Note | None) -> None:
        """Report that outputs are not finite, and why the operator is not known."""
        look = sum(map(check_values, outputs), FINE)
        found = describe_values(
            "forward",
            look,
            sum(each.numel() for each in outputs),
            type_name=call.steps.type_name,
            unknown=_REPEAT_FINITE if why is None else why,
        )
        self._log.report(found, call)

    def _describe_graph(
        self, graph: LossGraph, look: NonFiniteCount, losses: Sequence[Tensor]
    ) -> NonFinite:
        """Return a finding about what the script computes between models and loss."""
        num_values = sum(each.numel() for each in losses)
        index = graph.source(nan=bool(look.nan))
        if index is None:
            return describe_values(
                "loss", look, num_values, line=graph.line(-1), unknown=_NOTHING_SAVED
            )
        module_call = self._calls.find_by_node(graph.number(index))
        repeated = None if module_call is None else self._log.repeat_call(module_call)
        if module_call is not None and isinstance(repeated, NonFinite):
            return replace(repeated, root=self._names.find_name(module_call.module()))
        made = graph.first_look(index)
        later = graph.becomes_nan(index) if look.nan and not made.nan else None
        return describe_values(
            "loss",
            look if made.is_fine else made,
            graph.size(index) or num_values,
            type_name="" if module_call is None else module_call.steps.type_name,
            operator=operator_of(graph.names[index]),
            nan_operator=None if later is None else operator_of(graph.names[later]),
            line=graph.line(index),
            cause=_CONSTANT if graph.has_bad_constant(index) else None,
            inputs=ranges_of(graph.operands(index)),
        )


def _is_suspect(call: RootCall) -> bool:
    """Return whether a call may be to blame. The nodes of a loss module are in the graph, so the graph is asked."""
    if call.has_graph and not call.steps.has_parameters:
        return False
    return call.has_graph or not call.has_grad or bool(call.outputs)


def _doubt_constant(found: NonFinite, calls: Sequence[RootCall], *, is_unknown: bool) -> NonFinite:
    """Return a finding that blames an operand, with the doubt that is left about models."""
    if is_unknown:
        return replace(found, cause=None)
    if all(len(_alive_outputs(call)) == len(call.outputs) for call in calls):
        return found
    return replace(found, unsure=_RESULT_GONE_REPEAT_FINITE)


def _alive_outputs(call: RootCall) -> list[Tensor]:
    """Return what a call has returned, unless it is gone."""
    outputs = []
    for reference in call.outputs:
        output = reference()
        if output is not None and is_readable(output):
            outputs.append(output)
    return outputs
