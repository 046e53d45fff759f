"""Recurrent layers and cells, as one operator.

Each weight matrix is multiplied once with each time step of each sample.

MACs = rows · Σ numel(weight matrices), with rows = batch · time, or the rows of a packed sequence.
The gradients take twice as many: per matrix and row, once for the gradient of the input and once
for that of the matrix.

Other FLOPs per unit and row: for each gate the sum of the input's and the state's part, and its
activation; then the update of the state: LSTM 4 + (3·4 + 2·6) + (2 products + 1 sum + 1 product) =
32 · GRU 3 + (2·4 + 6) + (1 product + 3 to interpolate) = 21 · tanh cell 1 + 6 = 7 · relu cell 1 + 1
= 2. Dropout between layers, in training, 2 per element.

Their derivatives: LSTM 4 gates (3 each), the state's tanh (3), 7 products and 2 sums = 24 · GRU 3
gates (3 each), 8 products and 3 sums = 20 · tanh 3 · relu 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchscan.ops.op_costs import Work
from torchscan.ops.operator_names import Operator
from torchscan.ops.per_element import Output, first_output
from torchscan.ops.registry import Formula, cost_of, window_of
from torchscan.ops.windows import WHOLE, Dim, EachOutput, Looks, UpTo, Windows, here, look
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@dataclass(frozen=True, slots=True)
class _Cell:
    """The gates of a cell, and other FLOPs per unit and row, forward and backward."""

    gates: int
    forward: int
    backward: int


_RELU, _TANH = _Cell(1, 2, 2), _Cell(1, 7, 3)
_LSTM, _GRU = _Cell(4, 32, 24), _Cell(3, 21, 20)
_BY_MODE = (_RELU, _TANH, _LSTM, _GRU)  # in the numbering of cuDNN's and MKL's kernels


def _layers(cell: _Cell, *, packed: bool) -> Formula:
    def recurrent(input: TensorSpec, *args: Any, out: Output) -> Work:
        """Return the cost that the docstring of the module has."""
        _state, weights, _has_biases, num_layers, dropout, train, bidirectional = args[
            packed : packed + 7
        ]
        cells = num_layers * (2 if bidirectional else 1)
        dropped = 0
        if train and dropout:
            dropped = 2 * first_output(out).numel * (num_layers - 1)
        return _work(cell, _rows(input), weights, cells, dropped)

    return recurrent


def _declare(cell: _Cell, by_input: Operator, by_data: Operator) -> None:
    cost_of(by_input)(_layers(cell, packed=False))
    cost_of(by_data)(_layers(cell, packed=True))


_declare(_LSTM, aten.lstm.input, aten.lstm.data)
_declare(_GRU, aten.gru.input, aten.gru.data)
_declare(_TANH, aten.rnn_tanh.input, aten.rnn_tanh.data)
_declare(_RELU, aten.rnn_relu.input, aten.rnn_relu.data)


@window_of(aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
def recurrent_window(
    input: TensorSpec, *_: object, bidirectional: bool, batch_first: bool, out: Output
) -> Windows:
    """Look at all channels of the sample, and at all steps or, in one direction, up to the own.

    States come after all steps.
    """
    steps, *states = out if isinstance(out, tuple) else (out,)
    batch = 0 if batch_first else 1
    dims: list[Dim] = [WHOLE, WHOLE, WHOLE]
    dims[batch] = here(batch)
    of_steps = list(dims)
    if not bidirectional:
        of_steps[1 - batch] = UpTo(1 - batch)
    looks = [(look(steps, *of_steps),)]
    dims[batch] = here(1)
    looks += [(look(state, *dims),) for state in states]
    return EachOutput(tuple(looks))


@window_of(aten.lstm_cell, aten.gru_cell, aten.rnn_tanh_cell, aten.rnn_relu_cell)
def cell_window(
    input: TensorSpec, *_: object, inputs: tuple[TensorSpec, ...], out: Output
) -> Looks:
    """Read all channels of the row, in the input and in the state."""
    result = first_output(out)
    matrices = [spec for spec in inputs if len(spec.shape) == 2]
    rows = [spec for spec in matrices if spec.shape[0] == result.shape[0]]
    num_states = len(out) if isinstance(out, tuple) else 1
    return (look(result, here(0), WHOLE),) * len(rows[: 1 + num_states])


def _declare_cell(cell: _Cell, operator: Operator) -> None:
    def single_step(
        input: TensorSpec,
        state: object,
        w_ih: TensorSpec,
        w_hh: TensorSpec,
        *_: object,
        out: Output,
    ) -> Work:
        """Return the cost of one step: rows = batch."""
        return _work(cell, _rows(input), (w_ih, w_hh), 1)

    cost_of(operator)(single_step)


_declare_cell(_LSTM, aten.lstm_cell)
_declare_cell(_GRU, aten.gru_cell)
_declare_cell(_TANH, aten.rnn_tanh_cell)
_declare_cell(_RELU, aten.rnn_relu_cell)


def _declare_gates(cell: _Cell, forward: Operator, backward: Operator) -> None:
    """Declare the rest of a step whose products are separate operators."""

    def gates(input_gates: TensorSpec, *_: object, out: Output) -> Work:
        return Work(other_flops=cell.forward * (input_gates.numel // cell.gates))

    def derivatives(grad: TensorSpec | None, *rest: TensorSpec | None, out: Output) -> Work:
        given = next(each for each in (grad, *rest) if each is not None)
        return Work(other_flops=cell.backward * given.numel)

    cost_of(forward)(gates)
    cost_of(backward)(derivatives)


_declare_gates(_LSTM, aten._thnn_fused_lstm_cell, aten._thnn_fused_lstm_cell_backward_impl)
_declare_gates(_GRU, aten._thnn_fused_gru_cell, aten._thnn_fused_gru_cell_backward)


@cost_of(aten._cudnn_rnn, aten.miopen_rnn)
def layers_of_cudnn(
    input: TensorSpec,
    weight: Sequence[TensorSpec],
    *_: object,
    mode: int,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    out: Output,
) -> Work:
    """Return the cost of all layers, on a GPU."""
    dropped = 0
    if train and dropout:
        dropped = 2 * first_output(out).numel * (num_layers - 1)
    return _work(
        _BY_MODE[mode], _rows(input), weight, num_layers * (2 if bidirectional else 1), dropped
    )


@cost_of(aten._cudnn_rnn_backward, aten.miopen_rnn_backward)
def layers_of_cudnn_backward(
    input: TensorSpec,
    weight: Sequence[TensorSpec],
    *_: object,
    mode: int,
    num_layers: int,
    bidirectional: bool,
    out: Output,
) -> Work:
    """Return the cost of the gradients of ``layers_of_cudnn``."""
    return _backward(_BY_MODE[mode], _rows(input), weight, num_layers * (2 if bidirectional else 1))


@cost_of(aten.mkldnn_rnn_layer)
def layer_of_mkldnn(
    input: TensorSpec,
    weight0: TensorSpec,
    weight1: TensorSpec,
    *_: object,
    mode: int,
    out: Output,
) -> Work:
    """Return the cost of one layer in one direction, on a CPU."""
    return _work(_BY_MODE[mode], _rows(input), (weight0, weight1), 1)


@cost_of(aten.mkldnn_rnn_layer_backward)
def layer_of_mkldnn_backward(
    input: TensorSpec,
    weight1: TensorSpec,
    weight2: TensorSpec,
    *_: object,
    mode: int,
    out: Output,
) -> Work:
    """Return the cost of the gradients of ``layer_of_mkldnn``."""
    return _backward(_BY_MODE[mode], _rows(input), (weight1, weight2), 1)


def _declare_quantized(cell: _Cell, operator: Operator) -> None:
    def quantized(
        input: TensorSpec, *args: Any, num_layers: int, bidirectional: bool, out: Output
    ) -> Work:
        """Return the cost of the layers with packed weights."""
        params = next(
            each
            for each in args
            if isinstance(each, tuple) and each and not isinstance(each[0], TensorSpec)
        )
        matrices = [spec for spec in _specs_in(params) if len(spec.shape) == 2]
        return _work(cell, _rows(input), matrices, num_layers * (2 if bidirectional else 1))

    cost_of(operator)(quantized)


_declare_quantized(_LSTM, "aten::quantized_lstm")
_declare_quantized(_GRU, "aten::quantized_gru")


def _rows(input: TensorSpec) -> int:
    return input.numel // max(input.shape[-1], 1)


def _work(
    cell: _Cell, rows: int, weights: Sequence[TensorSpec], cells: int, other_flops: int = 0
) -> Work:
    units = _units(cell, weights, cells)
    macs = rows * _products(weights)
    flops = rows * units * cell.forward + other_flops
    return Work(macs=macs, other_flops=flops)


def _backward(cell: _Cell, rows: int, weights: Sequence[TensorSpec], cells: int) -> Work:
    units = _units(cell, weights, cells)
    macs = 2 * rows * _products(weights)
    flops = rows * units * cell.backward
    return Work(macs=macs, other_flops=flops)


def _products(weights: Sequence[TensorSpec]) -> int:
    return sum(spec.numel for spec in weights if len(spec.shape) == 2)


def _units(cell: _Cell, weights: Sequence[TensorSpec], cells: int) -> int:
    """The first weight of each cell, in each layer and direction, has one row per gate and unit."""
    per_cell = len(weights) // cells
    return sum(weights[index * per_cell].shape[0] // cell.gates for index in range(cells))


def _specs_in(value: object) -> Iterator[TensorSpec]:
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _specs_in(item)
