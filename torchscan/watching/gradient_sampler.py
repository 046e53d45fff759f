"""Samples gradients while autograd computes them, in the training process.

Torch waits for each hook of this file: what is the same for all nodes takes one hook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any
from weakref import ref

from torch import Tensor

from torchscan.torch_versions import (
    NO_BACKWARD_PASS,
    at_end_of_backward_pass,
    backward_pass,
    current_node,
)
from torchscan.watching.contributions import BegunCall, Contribution, edges_of_call
from torchscan.watching.held_tensors import MAX_HELD
from torchscan.watching.parameter_sampler import ParameterSampler
from torchscan.watching.sampling_context import SamplingContext
from torchscan.watching.sampling_guard import SamplingGuard, guarded, is_transformed
from torchscan.watching.series_rows import SeriesRows


class _Use:
    """A hook without effect, which lives as long as the node that it was put on."""

    def note(self, *_: object) -> None:
        """Do nothing."""


class GradientSampler:
    """Collector of the gradients of one step."""

    def __init__(
        self,
        context: SamplingContext,
        series_rows: SeriesRows,
        guard: SamplingGuard,
        *,
        parameters: ParameterSampler | None,
        note_begin: Callable[[], None],
    ) -> None:
        """``parameters`` is None if their gradients are not sampled.

        ``note_begin`` is called when the first gradient of a backward pass arrives.
        """
        self.guard = guard
        self._rows, self._series_rows = context.rows, series_rows
        self._sample_norms = context.sample_norms
        self._parameters, self._note_begin = parameters, note_begin
        #: series of the gradients of sampled tensors, by the row of the tensor; most have one
        self._series_by_row: dict[int, int | list[int]] = {}
        #: rows of tensors by the number of the node that produced them and the index of the
        #: result, if one hook serves them all
        self._rows_by_result: dict[tuple[int, int], int] = {}
        self._hook = context.gradient_hook
        self._hook.call(self.note_gradient)
        #: the backward pass whose end is awaited
        self._awaited = NO_BACKWARD_PASS

    def forget(self) -> None:
        """Sample no more, at the end of the step."""
        self._hook.forget()
        self._rows_by_result.clear()
        self._series_by_row.clear()

    # -- tensors ---------------------------------------------------------------------------------

    def await_gradient(self, row: int, number: int, node: Any, output_nr: int) -> None:
        """Wait for the gradient of a tensor, which several modules may take or return."""
        series = self._series_by_row.get(row)
        if series is None:
            self._series_by_row[row] = number
            result = node._sequence_nr(), output_nr
            if result in self._rows_by_result:
                self._hook.put_other_on(node, output_nr, partial(self._note_gradient, row))
            else:
                self._rows_by_result[result] = row
                self._hook.put_on(node, output_nr)
        elif isinstance(series, int):
            self._series_by_row[row] = [series, number]
        else:
            series.append(number)

    def note_gradient(self, output_nr: int, gradient: Tensor | None) -> None:
        """Sample the gradient of a result of the current node."""
        node = current_node()
        if node is None:
            return
        row = self._rows_by_result.get((node._sequence_nr(), output_nr))
        if row is not None:
            self._note_gradient(row, gradient)

    def _note_gradient(self, row: int, gradient: Tensor | None) -> None:
        """Sample the gradient of a tensor that was sampled, for all series that wait for it."""
        guard = self.guard
        if guard.is_over or is_transformed():
            return
        start = perf_counter_ns()
        try:
            if self._awaited != backward_pass():
                self._await_end()
            found = None if gradient is None else self._rows.add(gradient, max_held=MAX_HELD)
            if gradient is not None and found is not None:
                if self._sample_norms:
                    self._rows.statistics.note_sample_norm(found, gradient)
                series = self._series_by_row[row]
                for number in (series,) if isinstance(series, int) else series:
                    self._series_rows.keep(number, found, gradient)
        except Exception as error:
            guard.fail(error)
        guard.took += perf_counter_ns() - start

    # -- inputs of calls -------------------------------------------------------------------------

    def await_contributions(self, begun: BegunCall, outputs: Sequence[Tensor]) -> None:
        """Wait for the gradients that the operators of a call compute for its inputs."""
        edges_by_number = edges_of_call(begun, outputs) or {}
        for number, edges in edges_by_number.items():
            contribution = Contribution(len(edges))
            note = partial(self._note_contribution, contribution, number)
            for node, index in edges:
                node.register_hook(partial(note, index))

    @guarded
    def _note_contribution(
        self,
        contribution: Contribution,
        number: int,
        index: int,
        gradients: tuple[Tensor | None, ...],
        _: object,
    ) -> None:
        """Sample the gradient that an operator of a call has computed for an input."""
        self._await_end()
        gradient = gradients[index] if index < len(gradients) else None
        if gradient is None:
            return
        if contribution.row is not None and contribution.backward_pass == backward_pass():
            self._rows.add_to(contribution.row, number, gradient)
            return

        is_only = contribution.num_edges == 1
        contribution.backward_pass = backward_pass()
        contribution.row = self._rows.add(gradient)
        if contribution.row is None:
            return
        if self._sample_norms and is_only:
            self._rows.statistics.note_sample_norm(contribution.row, gradient)
        self._series_rows.keep(number, contribution.row, gradient)

    # -- attached tensors ------------------------------------------------------------------------

    def await_whole_gradient(self, number: int, tensor: Tensor, alias: Tensor) -> None:
        """Record the gradient of the tensor itself if its alias is not used.

        A hook lives as long as its node, and the node as long as something uses its result.
        """
        use = _Use()
        alias_node: Any = alias.grad_fn
        alias_node.register_prehook(use.note)
        note = partial(self._note_whole, ref(use), number)
        self._hook.put_other_on(tensor.grad_fn, tensor.output_nr, note)

    @guarded
    def _note_whole(self, use: ref[_Use], number: int, gradient: Tensor | None) -> None:
        is_known = number in self._series_rows.rows_by_series
        if use() is not None or is_known or gradient is None:
            return
        self._await_end()
        row = self._rows.add(gradient)
        if row is not None:
            self._series_rows.keep(number, row, gradient)

    # -- backward passes -------------------------------------------------------------------------

    @guarded
    def note_backward(self, *_: object) -> None:
        """Note that gradients reach the output of the model."""
        self._await_end()

    def _await_end(self) -> None:
        if self._awaited != backward_pass():
            self._awaited = backward_pass()
            self._note_begin()
            # behind the callbacks of others, such as those that reduce gradients over ranks
            at_end_of_backward_pass(lambda: at_end_of_backward_pass(self._finish_pass))

    @guarded
    def _finish_pass(self) -> None:
        self._awaited = NO_BACKWARD_PASS
        self._rows.flush()
        if self._parameters is not None:
            self._parameters.sample_gradients()
