"""Loss, learning rate and known gradient norm of each step, on their way to the worker."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchscan.observing.backward_watch import BackwardPass
from torchscan.observing.readable_tensors import is_plain
from torchscan.torch_versions import is_capturing_now
from torchscan.watching.schema import Phase

#: steps whose values may be on their way from a device, and seconds between two transfers
_MAX_PENDING, _PERIOD = 256, 0.25
Row = list[Any]
#: columns of a row
_PHASE, _STEP, _NUMBER, _TIME, _LOSS, _LEARNING_RATE, _GRADIENT_NORM = range(7)


class _Transfer:
    """Values that are copied from a device without waiting for it."""

    def __init__(self, rows: list[Row], places: list[tuple[int, int]], values: Tensor) -> None:
        self.rows = rows
        #: row and column of each value
        self._places = places
        self._values = torch.empty(len(places), pin_memory=True)
        self._values.copy_(values, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    @property
    def is_over(self) -> bool:
        """True if reading the values does not wait."""
        return bool(self._event.query())

    def read(self) -> None:
        """Put the values into the rows. This waits for the device."""
        self._event.synchronize()
        for (row, column), value in zip(self._places, self._values.tolist(), strict=True):
            self.rows[row][column] = value


class CurveLog:
    """Collects a row for each pass. Training never waits for a device."""

    def __init__(self, send_row: Callable[[Row], None]) -> None:
        self._send_row = send_row
        self._row: Row | None = None
        self._loss: Tensor | float | None = None
        self._gradient_norm: Tensor | None = None
        #: factor by which the loss was scaled, or None
        self._scale: Tensor | float | None = None
        #: rows with values that are still on a device: row, column and value
        self._rows: list[Row] = []
        self._values: list[tuple[int, int, Tensor]] = []
        self._transfers: deque[_Transfer] = deque()
        self._sent_at = 0.0

    def begin(self, phase: Phase, step: int, number: int) -> None:
        """Begin the row of another pass. The row before is complete."""
        self.end()
        self._row = [phase, step, number, time.time(), None, None, None]

    def relabel(self, phase: Phase, step: int, number: int) -> None:
        """Change the pass of the current row."""
        if self._row is not None:
            self._row[:_TIME] = [phase, step, number]

    def note_backward(self, backward: BackwardPass) -> None:
        """Add the loss that gradients are about to be computed of, if it can be read."""
        losses, scale = backward.scales.unscale(backward.tensors)
        if len(losses) != 1:
            return
        (loss,) = losses
        # reading a distributed tensor would communicate
        if loss.numel() == 1 and is_plain(loss):
            self._add_loss(loss)
            if scale is not None:
                # it is NaN if reading it would wait, and then follows from the losses
                scaled = backward.tensors[0]
                is_known = not math.isnan(scale)
                self._scale = scale if is_known else scaled.detach() / loss.detach()

    def note_result(self, result: object) -> None:
        """Add the loss in the result of a model, if it has one."""
        loss = getattr(result, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1 and is_plain(loss):
            self._add_loss(loss)

    def _add_loss(self, loss: Tensor) -> None:
        """Add the loss of a backward pass: a step with several has their sum."""
        if self._row is None:
            return
        # a copy, as the program may go on to write to the loss
        value = loss.detach().clone() if loss.is_cuda else loss.item()
        self._loss = value if self._loss is None else self._loss + value

    def set_evaluation_loss(self, loss: float) -> bool:
        """Set the loss of the evaluation pass that was last, or return False if there was none."""
        if self._row is None or self._row[_PHASE] != "eval":
            return False
        self._loss = loss
        return True

    def note_learning_rate(self, rate: object) -> None:
        """Set the learning rate of the current pass, unless reading it would wait."""
        if self._row is None:
            return
        if isinstance(rate, Tensor):
            is_known = rate.numel() == 1 and rate.is_cpu and is_plain(rate)
        else:
            is_known = isinstance(rate, int | float)
        if is_known:
            self._row[_LEARNING_RATE] = float(rate)  # type: ignore[arg-type]

    def note_gradient_norm(self, norm: Tensor) -> None:
        """Set the gradient norm of the current pass."""
        self._gradient_norm = norm if self._scale is None else norm / self._scale

    def end(self) -> None:
        """End the current pass."""
        row, self._row = self._row, None
        self._scale = None
        loss, self._loss = self._loss, None
        norm, self._gradient_norm = self._gradient_norm, None
        if row is None:
            return
        is_complete = True
        if loss is not None:
            is_complete = self._set(row, _LOSS, loss)
        if norm is not None:
            is_complete = self._set(row, _GRADIENT_NORM, norm) and is_complete
        if is_complete and not self._rows and not self._transfers:
            self._send_row(row)
            return
        self._rows.append(row)
        self._transfer()

    def _set(self, row: Row, column: int, value: Tensor | float) -> bool:
        """Set a value of a row that ends, or return False if it is still on a device."""
        if isinstance(value, Tensor) and value.is_cuda:
            self._values.append((len(self._rows), column, value))
            return False
        row[column] = float(value)
        return True

    def _transfer(self) -> None:
        """Start a transfer from the device now and then, and send the rows of those that ended."""
        if is_capturing_now():  # events may not be read then
            return
        while self._transfers and self._transfers[0].is_over:
            self._finish_transfer()
        now = time.monotonic()
        is_due = now - self._sent_at > _PERIOD or len(self._rows) >= _MAX_PENDING
        if is_due and self._values:
            self._start_transfer()
            self._sent_at = now

    def _start_transfer(self) -> None:
        places = [(row, column) for row, column, _ in self._values]
        device = self._values[0][2].device
        values = torch.stack([value.to(device, torch.float32) for *_, value in self._values])
        self._transfers.append(_Transfer(self._rows, places, values))
        self._rows, self._values = [], []

    def _finish_transfer(self) -> None:
        transfer = self._transfers.popleft()
        transfer.read()
        self._send_rows(transfer.rows)

    def _send_rows(self, rows: list[Row]) -> None:
        for row in rows:
            self._send_row(row)

    def close(self) -> None:
        """Send all rows, and wait for the device if values are still on it."""
        self.end()
        if self._values:
            self._start_transfer()
        while self._transfers:
            self._finish_transfer()
        self._send_rows(self._rows)
