"""Loops of torch's control flow, as Python runs them.

These are ``while_loop``, ``scan``, ``map`` and ``associative_scan`` with pointwise combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.errors import Give, NeedsValuesError, RecordError
from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.execution.assumed import AssumedValues
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import arranged_like, leaves_in, scan_in_pairs, without_modes
from torchscan.user_warnings import warn_user

#: a loop with more iterations than this counts as endless if generated values decide its end
_MAX_ITERATIONS = 1000
#: a loop with more iterations than this is slow to record, or endless
_MANY_ITERATIONS = 10_000
_GIVE_ITERATIONS = Give("loop_iterations", 10)


class EndlessLoopError(RecordError):
    """A loop has not ended on values that the pass has generated."""


class OpenLoopError(NeedsValuesError):
    """A loop cannot end, because its condition depends on data."""


class Loops:
    """The loops of a pass."""

    def __init__(
        self, values: AssumedValues, num_iterations: int | None, assume: Callable[[Note], None]
    ) -> None:
        self._values = values
        #: of loops whose end depends on data, or None
        self._num_iterations = num_iterations
        self._assume = assume

    def run_while(
        self,
        condition: Callable[..., Any],
        body: Callable[..., Any],
        carried: Sequence[Any],
        additional: Sequence[Any],
    ) -> tuple[Any, ...]:
        """Return what the last iteration of a ``while_loop`` carries."""
        values = tuple(carried)
        num_iterations = 0
        while self._goes_on(condition(*values, *additional), num_iterations):
            values = body(*values, *additional)
            num_iterations += 1
        return values

    def _goes_on(self, condition: Any, num_iterations: int) -> bool:
        """Return whether a loop goes on after this number of iterations."""
        if not is_recording():  # another thread
            return bool(condition)
        is_tensor = isinstance(condition, Tensor)
        is_certain = not is_tensor or self._values.is_certain(condition)
        if num_iterations == _MANY_ITERATIONS:
            _warn_of_many_iterations(is_certain=is_certain)
        if is_certain:
            return bool(condition)
        if self._num_iterations is not None:
            self._assume(Note.of("given-iterations", iterations=self._num_iterations))
            return num_iterations < self._num_iterations
        if num_iterations == _MAX_ITERATIONS:
            raise EndlessLoopError(
                "a while_loop whose end depends on data has not ended after "
                f"{_MAX_ITERATIONS:,} iterations: give ",
                _GIVE_ITERATIONS,
                ", for example",
            )
        self._values.read_by_loop(condition)
        try:
            return bool(condition)
        except NeedsValuesError as error:
            raise OpenLoopError(
                "the number of iterations of a while_loop depends on data",
                advice=(_GIVE_ITERATIONS, ", for example"),
            ) from error

    def scan_pointwise(
        self, combine: Callable[..., Any], rows: Sequence[Tensor], additional_inputs: Sequence[Any]
    ) -> Any:
        """Return the partial results of ``associative_scan`` with pointwise combinations.

        A kernel that scans n rows combines at least n - 1 pairs. As many are recorded: each row
        with the next one, all by one call.
        """
        if not is_recording():  # another thread, which needs the values
            nothing = [each[:0] for each in rows]
            example = combine(*nothing, *nothing, *additional_inputs)
            return arranged_like(example, scan_in_pairs(combine, rows, additional_inputs))
        self._assume(Note.of("fewest-combinations"))
        before = [each[:-1] for each in rows]
        after = [each[1:] for each in rows]
        combined = combine(*before, *after, *additional_inputs)
        results = []
        for each, others in zip(rows, tensors_in(combined), strict=True):
            results.append(torch.cat([each[:1], others]))
        if not any(each.is_meta for each in results):
            with without_modes(), torch.no_grad():
                scanned = scan_in_pairs(combine, rows, additional_inputs)
                for result, values in zip(results, scanned, strict=True):
                    result.data.copy_(values)  # not noticed by autograd
        return arranged_like(combined, results)


def _warn_of_many_iterations(*, is_certain: bool) -> None:
    slow = (
        f"a while_loop has not ended after {_MANY_ITERATIONS:,} iterations, each of which is "
        "recorded: "
    )
    if is_certain:  # no number of iterations would be used
        warn_user(f"{slow}if your inputs decide its end, interrupt it and give others")
        return
    warn_user(f"{slow}interrupt it and give ", _GIVE_ITERATIONS, ", for example")


def run_scan(
    combine: Callable[..., Any],
    init: Sequence[Tensor],
    rows: Sequence[Tensor],
    additional_inputs: Sequence[Any],
) -> tuple[Any, ...]:
    """Return what ``scan`` carries at its end, and its outputs, stacked."""
    carried = list(init)
    outputs = []
    for index in range(rows[0].shape[0]):
        row = [each.select(0, index) for each in rows]
        results = list(combine(*carried, *row, *additional_inputs))
        carried, output = results[: len(init)], results[len(init) :]
        outputs.append(output)
    return (*carried, *map(_stacked, zip(*outputs, strict=True)))


def run_map(
    function: Callable[..., Any], rows: Sequence[Tensor], additional_inputs: Sequence[Any]
) -> Any:
    """Return the results of a function for each row, stacked, in the containers it returns."""
    outputs = []
    for index in range(rows[0].shape[0]):
        row = [each.select(0, index) for each in rows]
        outputs.append(function(*row, *additional_inputs))
    leaves = map(leaves_in, outputs)
    return arranged_like(outputs[0], [_stacked(each) for each in zip(*leaves, strict=True)])


def _stacked(values: Sequence[Any]) -> Any:
    return torch.stack(list(values)) if isinstance(values[0], Tensor) else None
