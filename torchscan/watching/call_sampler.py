"""Samples the inputs and outputs of calls, in the training process.

Torch waits for it at each module. So what does not depend on the tensors is known from
:mod:`torchscan.watching.call_sites`, and the usual case makes few calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchscan.torch_versions import next_node
from torchscan.watching.activation_bounds import unit_dim_of
from torchscan.watching.call_sites import CallSite
from torchscan.watching.contributions import BegunCall, sources_of
from torchscan.watching.gradient_sampler import GradientSampler
from torchscan.watching.sampling_context import SamplingContext
from torchscan.watching.series_rows import SeriesRows

#: rows of a step; a model that is called without end, and without gradients, has more
MAX_ROWS = 20_000


class CallSampler:
    """Collector of the inputs and outputs of the calls of one step. It awaits their gradients."""

    def __init__(
        self, context: SamplingContext, series_rows: SeriesRows, gradients: GradientSampler
    ) -> None:
        self._rows, self._numbers = context.rows, context.numbers
        self._series_rows, self._gradients = series_rows, gradients
        kinds = context.kinds
        self._takes_inputs = "input" in kinds
        self._takes_input_grads = "input_grad" in kinds
        self._takes_outputs = "output" in kinds
        self._takes_output_grads = "output_grad" in kinds
        #: True if a call's inputs, or its outputs, are needed at all
        self.needs_inputs = self._takes_inputs or self._takes_input_grads
        self.needs_outputs = self._takes_outputs or self._takes_output_grads
        #: True during a call that belongs to another pass
        self.is_aside = False
        #: what is known of open calls, by their number, if gradients of inputs are sampled
        self.begun: dict[int, BegunCall] = {}
        #: the layout of the tensors that modules pass on, once it is known
        self._is_channels_first: bool | None = None

    def begin(self, site: CallSite, tensors: Sequence[Tensor], num_open: int) -> None:
        """Sample the inputs of a call, the innermost of ``num_open`` open calls."""
        if self.is_aside or len(self._rows.numels) >= MAX_ROWS:
            return
        if self._takes_inputs:
            self._sample_inputs(site, tensors)
        if self._takes_input_grads:
            self.begun[num_open] = BegunCall(next_node(), sources_of(site, tensors))

    def add_inputs(
        self, site: CallSite, tensors: Sequence[Tensor], first: int, begun: BegunCall | None
    ) -> None:
        """Sample further inputs of a call, which are known only at its end.

        ``first`` is the index of the first of them among the inputs of the call.
        """
        if self._takes_inputs:
            self._sample_inputs(site, tensors, first)
        if begun is not None:
            begun.add_sources(sources_of(site, tensors, first))

    def _sample_inputs(self, site: CallSite, tensors: Sequence[Tensor], first: int = 0) -> None:
        numbers = site.inputs
        for index, tensor in enumerate(tensors, first):
            row = self._series_rows.row_of(tensor, None)
            if row is not None:
                known = index < len(numbers)
                number = numbers[index] if known else site.number("input", numbers, index)
                if self._numbers.wholes:
                    self._series_rows.keep(number, row, tensor)
                else:
                    self._series_rows.rows_by_series[number] = row

    def sample_outputs(self, site: CallSite, outputs: Sequence[Tensor]) -> None:
        """Sample the outputs of a call, and await their gradients."""
        if site.has_channels_first is not None:
            self._is_channels_first = site.has_channels_first
        unit_dim = None
        if site.can_die and outputs:
            unit_dim = unit_dim_of(outputs[0], self._is_channels_first)
        for index, tensor in enumerate(outputs):
            row = self._series_rows.row_of(tensor, unit_dim)
            if row is None:
                continue
            if self._takes_outputs:
                numbers = site.outputs
                known = index < len(numbers)
                number = numbers[index] if known else site.number("output", numbers, index)
                if self._numbers.wholes:
                    self._series_rows.keep(number, row, tensor)
                else:
                    self._series_rows.rows_by_series[number] = row
            if not self._takes_output_grads:
                continue
            node: Any = tensor.grad_fn
            if node is None:
                continue
            numbers = site.output_grads
            known = index < len(numbers)
            number = numbers[index] if known else site.number("output_grad", numbers, index)
            self._gradients.await_gradient(row, number, node, tensor.output_nr)
