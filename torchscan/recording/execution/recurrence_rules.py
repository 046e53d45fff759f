"""Shapes of recurrent layers: of a whole layer in one operator, and of the kernels of libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import FLOATS, Rule, meta_empty, meta_like
from torchscan.torch_versions import BLOCKS_OF_WIDE_STATES, OpOverload, aten

Shapes = list[tuple[int, ...]]


def _recurrent(
    gates: int,
    source: Tensor,
    state: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    _dropout: float,
    _train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...] | None:
    """Return the results of layers of recurrence.

    torch's own function takes each step, and imports a computer algebra system for it.
    """
    if source.dtype not in FLOATS or source.dim() != 3 or 0 in source.shape:
        return None
    steps, batch, width = source.shape
    if batch_first:
        steps, batch = batch, steps
    states = [state] if isinstance(state, Tensor) else state
    directions = 2 if bidirectional else 1
    rows = (layers * directions, batch)
    if any(each.shape[:-1] != rows for each in states):
        return None

    # The visible state may be projected to another size.
    shown = states[0].shape[-1]
    size = states[-1].shape[-1]
    first = _shapes_of_recurrence(gates, size, shown, width, has_biases)
    later = _shapes_of_recurrence(gates, size, shown, directions * shown, has_biases)
    expected = first * directions + later * directions * (layers - 1)
    if list(map(attrgetter("shape"), weights)) != expected:
        return None
    if set(map(attrgetter("dtype"), (*states, *weights))) != {source.dtype}:
        return None

    result = meta_empty((steps, batch, directions * shown), source)
    if batch_first:
        result = result.transpose(0, 1)
    return result, *map(meta_empty, map(attrgetter("shape"), states), states)


def _shapes_of_recurrence(
    gates: int, size: int, shown: int, width: int, has_biases: bool
) -> Shapes:
    """Return the shapes of the weights of one layer in one direction."""
    rows = gates * size
    shapes: Shapes = [(rows, width), (rows, shown)]
    if has_biases:
        shapes += [(rows,), (rows,)]
    if shown != size:
        shapes.append((shown, size))
    return shapes


# -- kernels -------------------------------------------------------------------------------------


def _lstm_layer(
    source: Tensor,
    weight: Tensor,
    _hidden_weight: Tensor,
    _b1: Tensor,
    _b2: Tensor,
    hidden: Tensor,
    cell: Tensor,
    *rest: Any,
) -> tuple[Tensor | None, ...]:
    """Return the results of one layer of oneDNN's.

    torch does not tell how much memory it keeps for its gradient.
    """
    steps, batch, width = source.shape
    size, train = rest[3], rest[-1]
    result = meta_empty((steps, batch, size), source)
    num_bytes = _lstm_workspace(steps, batch, width, size)
    workspace = torch.empty(num_bytes, dtype=torch.uint8, device="meta") if train else None
    return result, meta_like(hidden), meta_like(cell), workspace


def _lstm_layer_backward(source: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return a gradient for each operand.

    That is one for each of the two biases, too, to which torch's own shape function gives one in
    common.
    """
    of_input, of_state, *_biases = rest[:4]
    hidden, cell = rest[4:6]
    bias = of_input.shape[:1]  # also where zeros as large as the weights stand for biases
    weights = (of_input.shape, of_state.shape, bias, bias)
    shapes = (source.shape, *weights, hidden.shape, cell.shape)
    return tuple(torch.empty(shape, dtype=torch.float32, device="meta") for shape in shapes)


def _lstm_workspace(steps: int, batch: int, width: int, size: int) -> int:
    """Return the bytes of oneDNN's workspace for rows of single precision.

    It has seven blocks of whole pages, nine in older versions: the gates (steps rows), three or
    five of states as wide as the wider of input and state (2·(steps+1) rows), two of states
    (2·(steps+1) rows) and one of outputs (steps rows). Rows are padded to 64 bytes, and away from
    multiples of 1 KiB.
    """

    def pages(rows: int, columns: int) -> int:
        num_bytes = rows * batch * columns * 4
        num_pages = -(-num_bytes // 4096)
        return num_pages * 4096

    def padded(columns: int) -> int:
        columns = -(-columns // 16) * 16
        return columns + 16 if columns % 256 == 0 else columns

    rows_of_states = 2 * (steps + 1)
    gates = pages(steps, padded(4 * size))
    wide_states = pages(rows_of_states, padded(max(width, size)))
    states = pages(rows_of_states, size)
    outputs = pages(steps, padded(size))
    return gates + BLOCKS_OF_WIDE_STATES * wide_states + 2 * states + outputs


def _cudnn_rnn(
    source: Tensor,
    weights: list[Tensor],
    _: int,
    buffer: Tensor | None,
    hidden: Tensor,
    cell: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """Return the results of cuDNN's recurrent layers.

    The memory that cuDNN keeps for the gradient is not documented. It is assumed to be all gates,
    the cell and the output of every step.
    """
    mode, size, projected, layers, _batch_first, _dropout, train, bidirectional, *_rest = rest
    directions = 2 if bidirectional else 1
    rows = source.shape[:-1]  # one dimension of them if they are packed
    result = source.new_empty(*rows, (projected or size) * directions)

    kept = 0
    if train:
        gates = (1, 1, 4, 3)[mode]
        kept = math.prod(rows) * size * layers * directions * (gates + 2)
    reserve = torch.empty(kept * source.element_size(), dtype=torch.uint8, device="meta")
    none = source.new_empty(0)
    cells = none if cell is None else meta_like(cell)
    return result, meta_like(hidden), cells, reserve, none if buffer is None else buffer


def _cudnn_rnn_backward(
    source: Tensor,
    weights: list[Tensor],
    _: int,
    _buffer: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    *_rest: Any,
) -> tuple[Any, ...]:
    cells = source.new_empty(0) if cell is None else meta_like(cell)
    return meta_like(source), meta_like(hidden), cells, [meta_like(each) for each in weights]


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_LAYER_RULES: Mapping[OpOverload, Rule] = {
    getattr(aten, name).input: partial(_recurrent, gates) for name, gates in _GATES.items()
}

RECURRENCE_RULES: Mapping[OpOverload, Rule] = {
    **_LAYER_RULES,
    aten.mkldnn_rnn_layer.default: _lstm_layer,
    aten.mkldnn_rnn_layer_backward.default: _lstm_layer_backward,
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
}
