"""Recurrent layers as one operator. Each weight matrix meets each time step of each sample once.

MACs = rows · Σ numel(weight matrices), with rows = batch · time, or the rows of a packed sequence.

Other FLOPs per unit and row: the sum of the input's and the state's part of each gate, its activation, the update of the state:
LSTM 4 + (3·4 + 2·6) + (2 products + 1 sum + 1 product) = 32 · GRU 3 + (2·4 + 6) + (1 product + 3 to interpolate) = 21 ·
tanh cell 1 + 6 = 7 · relu cell 1 + 1 = 2. Dropout between layers, in training, 2 per element.
"""

from __future__ import annotations

import torch

from torchscan.ops.registry import Formula, Operator, Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten


def _layers(gates: int, per_unit: int, *, packed: bool) -> Formula:
    def recurrent(
        input: TensorSpec,
        *args: object,
        out: tuple[TensorSpec, ...],
    ) -> Work:
        """See the module's text."""
        _state, weights, _has_biases, num_layers, dropout, train, bidirectional = args[packed : packed + 7]
        assert isinstance(weights, tuple)  # noqa: S101 - for the type checker
        assert isinstance(num_layers, int)  # noqa: S101
        rows = input.shape[0] if packed or len(input.shape) == 2 else input.shape[0] * input.shape[1]
        matrices = [spec for spec in weights if len(spec.shape) == 2]
        cells = num_layers * (2 if bidirectional else 1)
        per_cell = len(weights) // cells
        units = sum(weights[index * per_cell].shape[0] // gates for index in range(cells))
        flops = rows * units * per_unit
        if train and dropout:
            flops += 2 * out[0].numel * (num_layers - 1)
        return Work(macs=rows * sum(spec.numel for spec in matrices), other_flops=flops)

    return recurrent


def _declare(gates: int, per_unit: int, by_input: Operator, by_data: Operator) -> None:
    cost_of(by_input)(_layers(gates, per_unit, packed=False))
    cost_of(by_data)(_layers(gates, per_unit, packed=True))


_declare(4, 32, aten.lstm.input, aten.lstm.data)
_declare(3, 21, aten.gru.input, aten.gru.data)
_declare(1, 7, aten.rnn_tanh.input, aten.rnn_tanh.data)
_declare(1, 2, aten.rnn_relu.input, aten.rnn_relu.data)
