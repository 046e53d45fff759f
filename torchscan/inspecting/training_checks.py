"""The checks of one training step: the loss, the gradients, and the parameters after the optimizer.

Each is one sum of many tensors, as far as possible. A check that fails is explained in
``explainers``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.backward_state import BackwardState
from torchscan.inspecting.device_checks import DeviceChecks
from torchscan.inspecting.explainers import LossExplainer
from torchscan.inspecting.finding_log import FindingLog
from torchscan.inspecting.finiteness import FINE, MAX_JOINED, WIDE_TYPES, check_values, is_on_device
from torchscan.inspecting.gradient_explainer import GradientExplainer
from torchscan.inspecting.loss_graph import LossGraph
from torchscan.inspecting.root_calls import RootCalls
from torchscan.inspecting.root_names import InspectionLink, RootNames
from torchscan.inspecting.trained_tensors import TrainedTensors, updated_rows_of
from torchscan.inspecting.update_explainer import UpdateExplainer, name_step
from torchscan.observing.backward_watch import BackwardPass
from torchscan.observing.model_steps import parameters_of
from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.recording.places import place_of_user
from torchscan.torch_versions import join_values, norms_of, without_tracing


class TrainingChecks:
    """The checks around a backward pass and an optimizer's step."""

    def __init__(
        self,
        calls: RootCalls,
        tensors: TrainedTensors,
        names: RootNames,
        log: FindingLog,
        link: InspectionLink,
    ) -> None:
        self._calls = calls
        self._tensors = tensors
        self._link = link
        self._loss_explainer = LossExplainer(calls, log, names)
        self._gradient_explainer = GradientExplainer(calls, tensors, log)
        self._update_explainer = UpdateExplainer(tensors, log)
        self.on_device = DeviceChecks(tensors, names, log)
        #: steps that a GradScaler has skipped
        self.skipped: list[int] = []
        self._state = BackwardState()

    @property
    def is_scaled(self) -> bool:
        """True while a backward pass goes on whose loss a GradScaler has scaled."""
        return self._state.scale is not None

    def _is_deferred(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether values of a device are read later, so that nothing waits for it.

        After a step in which something was found, they are read at once: the step is lost anyway,
        and only then is the operator known.
        """
        return not self.on_device.has_alarm and any(map(is_on_device, tensors))

    # -- around the backward pass ------------------------------------------------------------------

    def check_loss(self, backward: BackwardPass) -> LossGraph | None:
        """Check what a backward pass starts at, and the gradients that it starts from.

        Return the graph between that and the models, or None if the pass trains none of them.
        """
        tensors = [each for each in backward.tensors if isinstance(each, Tensor)]
        given = [each for each in backward.gradients if isinstance(each, Tensor)]
        self.on_device.read(waits=False)
        self._state.scale = None
        graph = LossGraph(tensors, self._calls.is_inside_model)
        if not self._tensors.is_reached_by(graph):
            return None
        self._calls.note_checked(graph.reached)
        self._calls.note_backward(graph.reached, backward)
        if backward.is_stored or self._state.has_finite_gradients is False:
            self._state.has_finite_gradients = None
        self._state.line = place_of_user()
        losses, self._state.scale = backward.scales.unscale(tensors)
        if self._is_deferred(losses):
            self.on_device.send("loss", [(None, each) for each in losses], is_scaled=self.is_scaled)
        elif self._has_bad_start(graph, losses, given):
            self._state.has_finite_gradients = False
            return graph
        graph.follow()
        return graph

    def _has_bad_start(
        self, graph: LossGraph, losses: Sequence[Tensor], given: Sequence[Tensor]
    ) -> bool:
        """Return whether losses or given gradients are not finite, and report them."""
        look = sum(map(check_values, filter(is_readable, losses)), FINE)
        if not look.is_fine:
            self._loss_explainer.explain(graph, look, losses)
            return True
        look = sum(map(check_values, filter(is_readable, given)), FINE)
        if not look.is_fine and not self.is_scaled:
            self._gradient_explainer.report_given(given, self._state.line)
            return True
        return False

    def check_gradients(self, graph: LossGraph) -> None:
        """Check the gradients that a backward pass has stored."""
        state = self._state
        pairs = [
            (each, each.grad) for each in self._tensors.list_parameters() if each.grad is not None
        ]
        if state.has_finite_gradients is False:  # nor is the loss finite
            state.note_spoiled(pairs)
            return
        state.note_stored(pairs)
        if self._is_deferred(gradient for _, gradient in pairs):
            self.on_device.send("backward", pairs, is_scaled=self.is_scaled)
            return

        checked = []
        unchecked = []
        for parameter, gradient in pairs:
            if self._tensors.is_reported(parameter) or state.is_spoiled(gradient):
                continue
            checked.append((parameter, gradient))
            # The inspection may have found it to be finite.
            if not self._link.has_checked(parameter, gradient):
                unchecked.append(gradient)
        state.has_finite_gradients = _are_finite(unchecked)
        if state.has_finite_gradients:
            # What an earlier pass has left was reported then, and the optimizer will read it.
            state.has_finite_gradients = not state.has_spoiled(pairs)
            return
        state.note_spoiled(checked)
        if state.scale is None:
            self._gradient_explainer.explain(graph)
        else:
            self._gradient_explainer.explain_overflow(graph)

    # -- around the optimizer's step ---------------------------------------------------------------

    def check_unread(self, optimizer: Optimizer) -> None:
        """Check gradients that were written to since they were last read."""
        state = self._state
        if state.has_finite_gradients is False:  # it has been reported, or a scaler skips the step
            return
        unread = state.find_unread(parameters_of(optimizer))
        state.note_read(unread)
        unread = [
            (each, gradient) for each, gradient in unread if not self._tensors.is_reported(each)
        ]
        if self._is_deferred(gradient for _, gradient in unread):
            self.on_device.send("gradient", unread, is_scaled=self.is_scaled)
        elif not _are_finite([gradient for _, gradient in unread]):
            self._update_explainer.explain_written(optimizer, unread, state)

    def is_trained_by(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer updates parameters that are checked."""
        return self._tensors.is_trained_by(optimizer)

    def check_update(self, optimizer: Optimizer) -> None:
        """Check the parameters that an optimizer has updated, and buffers."""
        self._calls.note_optimizer(optimizer)
        parameters, parameter_masks = self._split_masks(parameters_of(optimizer))
        buffers, buffer_masks = self._split_masks(self._tensors.iter_buffers())
        masks = parameter_masks + buffer_masks
        if self._is_deferred(parameters):
            is_scaled = self.is_scaled
            pairs = [(each, updated_rows_of(each)) for each in parameters]
            operator = name_step(optimizer)
            self.on_device.send("optimizer", pairs, is_scaled=is_scaled, operator=operator)
            pairs = [(each, each) for each in buffers + masks]
            self.on_device.send("update", pairs, is_scaled=is_scaled)
        else:
            self._check_parameters(optimizer, parameters, buffers, masks)
            self.on_device.note_checked_step()
        self._tensors.note_update(optimizer)
        self._calls.release()

    def _split_masks(self, tensors: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return unreported tensors: without infinities from the start, and with them."""
        usual: list[Tensor] = []
        masks: list[Tensor] = []
        for tensor in tensors:
            if not self._tensors.is_reported(tensor):
                (masks if self._tensors.is_mask(tensor) else usual).append(tensor)
        return usual, masks

    def _check_parameters(
        self,
        optimizer: Optimizer,
        parameters: list[Tensor],
        buffers: list[Tensor],
        masks: list[Tensor],
    ) -> None:
        explainer, state = self._update_explainer, self._state
        if not _are_finite(list(map(updated_rows_of, parameters))):
            bad = [each for each in parameters if not check_values(each).is_fine]
            explainer.explain_update(optimizer, bad, state)
        if not _are_finite(buffers):  # infinities may be a mask that was made anew
            explainer.explain_buffers([each for each in buffers if check_values(each).nan], state)
        explainer.explain_buffers(
            [each for each in masks if self._tensors.has_new_nan(each)], state
        )
        self._tensors.has_seen_finite = True

    def note_scaler_step(self, optimizer: Optimizer, *, has_stepped: bool) -> None:
        """Count a step that a GradScaler has skipped; a fused optimizer skips in ``step()``."""
        is_fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        if has_stepped and not (is_fused and self._state.has_finite_gradients is False):
            return
        main = self._tensors.find_root(parameters_of(optimizer))
        self.skipped.append(
            self._tensors.num_updates_by(optimizer) if main is None else max(main.begun - 1, 0)
        )
        scale = self._state.scale
        if self._state.has_finite_gradients is False and scale is not None and math.isfinite(scale):
            self._gradient_explainer.explain_skipped(scale)
        self._calls.release()


def _are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all values are finite, by few sums where that is possible."""
    plain, others = [], []
    for tensor in tensors:
        if is_plain(tensor):
            plain.append(tensor)
        elif is_readable(tensor):
            others.append(tensor)
    if (
        plain
        and not math.isfinite(_total_of(plain))
        and any(not check_values(each).is_fine for each in plain)
    ):
        return False
    return all(check_values(each).is_fine for each in others)


def _total_of(tensors: list[Tensor]) -> float:
    """Return a number that is not finite if any value is not. It may also overflow.

    A sum takes half the time of a norm, and one of many small tensors is joined. Sums of narrow
    types overflow, and norms of them rarely do.
    """
    small: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
    others: list[Tensor] = []
    totals: list[Tensor] = []
    for tensor in tensors:
        if tensor.dtype not in WIDE_TYPES or not tensor.is_cpu:
            others.append(tensor)
        elif tensor.numel() <= MAX_JOINED:
            small[tensor.dtype].append(tensor)
        else:
            totals.append(tensor)
    with without_tracing():
        totals += map(join_values, small.values())
        numbers = [each.sum() for each in totals]
        if others:
            numbers += norms_of(others, 2.0)
        return sum(float(each.item()) for each in numbers)
