"""Samples the parameters before and after a step, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchscan.watching.row_groups import RowGroup
from torchscan.watching.sampling_context import SamplingContext
from torchscan.watching.series_rows import SeriesRows


class ParameterSampler:
    """Collector of the parameters of one step."""

    def __init__(self, context: SamplingContext, series_rows: SeriesRows) -> None:
        self._rows, self._series_rows = context.rows, series_rows
        self._sites, self._memory = context.sites, context.memory
        #: L2 norm of all gradients that were sampled, on the device, or None
        self.gradient_norm: Tensor | None = None
        self._before: Sequence[int | None] = []
        self._after: Sequence[int | None] = []
        self._after_group: RowGroup | None = None

    def sample_before(self, number: int) -> None:
        """Sample the parameters before the step with this number, unless they are known.

        They may be known from the end of the last step.
        """
        parameters = self._sites.parameter_tensors
        group = self._memory.take(number, parameters) if parameters else None
        if group is not None:
            self._before = self._rows.add_group(group)
        elif parameters:
            self._before, _ = self._rows.add_all(parameters)

    def sample_after(self) -> None:
        """Sample the parameters after the step, if they were sampled before it."""
        if self._before:
            self._after, self._after_group = self._rows.add_all(self._sites.parameter_tensors)

    def sample_gradients(self) -> None:
        """Sample the gradients of parameters: they may be scaled, clipped or cleared next."""
        numbers: list[int] = []
        gradients: list[Tensor] = []
        every = self._sites.parameter_numbers("param_grad")
        for number, tensor in zip(every, self._sites.parameter_tensors, strict=True):
            # functional_call puts tensors that are not leaves in the place of parameters
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None:
                numbers.append(number)
                gradients.append(gradient)
        rows, group = self._rows.add_all(gradients)
        self.gradient_norm = self._rows.statistics.note_norms(group, rows, gradients)
        self._series_rows.keep_all(numbers, gradients, rows)

    def finish(self, number: int) -> list[int]:
        """Return the rows of each parameter before and after the step, as one list of pairs.

        The parameters are sampled now if no optimizer has stepped. ``number`` is that of the step.
        """
        if not self._before:
            return []
        if self._after_group is None:
            self.sample_after()
        parameters = self._sites.parameter_tensors
        numbers = self._sites.parameter_numbers("param")
        self._series_rows.keep_all(numbers, parameters, self._after)
        if self._after_group is not None:
            self._memory.keep(number, parameters, self._after_group)
        pairs: list[int] = []
        for old, new in zip(self._before, self._after, strict=False):
            if old is not None and new is not None:
                pairs += (old, new)
        return pairs
