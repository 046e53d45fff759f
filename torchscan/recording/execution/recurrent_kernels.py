"""Recurrent layers as the kernels of a device compute them.

One kernel computes all steps of a layer, or all layers. On tensors without data torch goes step by
step, as it does with packed sequences on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchscan.torch_versions import aten, has_no_data, without_tracing

#: torch's functions, with cuDNN's numbers for them
RECURRENT: Mapping[Callable[..., Any], int] = {
    torch.rnn_relu: 0,
    torch.rnn_tanh: 1,
    torch.lstm: 2,
    torch.gru: 3,
}


class _RecurrentCall(NamedTuple):
    """The arguments of a recurrent function."""

    source: Tensor
    state: Any
    weights: Sequence[Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool
    #: of packed sequences, how many take part in each step
    batch_sizes: Sequence[int] = ()

    @property
    def directions(self) -> tuple[bool, ...]:
        """The directions of a layer: True for backwards."""
        return (False, True) if self.bidirectional else (False,)

    def weights_by_layer(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield for each layer and direction the weights of input and state, and the biases."""
        return zip(*[iter(self.weights)] * (4 if self.has_biases else 2), strict=True)

    def dropped(self, output: Tensor, layer: int) -> Tensor:
        """Return the input of the next layer, after dropout."""
        between = self.dropout and self.train and layer < self.layers - 1
        return torch.dropout(output, self.dropout, self.train) if between else output


def _call_of(
    source: Tensor, rest: Sequence[Any], kwargs: Mapping[str, Any], *, takes_packed: bool
) -> _RecurrentCall | None:
    """Return the call, given as torch's own layers do, or None for other arguments.

    Sequences lie side by side in one tensor, or are packed into rows and come with batch sizes.
    """
    if not has_no_data(source) or len(rest) != 8 or kwargs:
        return None
    first, *others = rest
    if not isinstance(first, Tensor) or first.is_floating_point():
        return _RecurrentCall(source, *rest)
    if not takes_packed:
        return None
    with without_tracing():
        batch_sizes = first.tolist()
    return _RecurrentCall(*(source, *others, False, batch_sizes))


# -- on a CPU ------------------------------------------------------------------------------------


def recurrent_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function to call on a CPU.

    It is oneDNN's kernel for an LSTM of single precision. Other layers multiply the inputs of all
    steps at once, and then go step by step.
    """

    def run(source: Tensor, *rest: Any, **kwargs: Any) -> Any:
        call = _call_of(source, rest, kwargs, takes_packed=False)
        if call is None:
            return function(source, *rest, **kwargs)
        if function is not torch.lstm:
            return _step_by_step(call, _CELLS[function])
        is_projected = call.state[0].shape != call.state[1].shape
        if is_projected or source.dtype is not torch.float32:
            return function(source, *rest)
        return _by_onednn(call)

    return run


def _by_onednn(call: _RecurrentCall) -> tuple[Tensor, Tensor, Tensor]:
    """Run one kernel per layer and direction."""
    per_layer = call.weights_by_layer()
    first_hidden, first_cell = call.state
    hidden_size = first_hidden.shape[-1]
    # This reference holds the source to the end.
    source = call.source.transpose(0, 1) if call.batch_first else call.source
    source = source.contiguous()
    current = source
    places = iter(range(len(call.directions) * call.layers))
    last: list[tuple[Tensor, Tensor]] = []
    # Each is held until the next layer's takes its place.
    outputs: list[Any] = [None for _ in call.directions]
    for layer in range(call.layers):
        for backwards in call.directions:
            place, own = next(places), next(per_layer)
            start = (first_hidden.select(0, place), first_cell.select(0, place))
            biases = own[2:] or _zeros_for(*own)
            sizes: tuple[Any, ...] = (backwards, [], 2, hidden_size, call.layers, call.has_biases)
            options = (call.bidirectional, call.batch_first, torch.is_grad_enabled())
            output, *final, _ = aten.mkldnn_rnn_layer(
                current, *own[:2], *biases, *start, *sizes, *options
            )
            outputs[backwards] = output
            del output
            last.append((final[0], final[1]))
        current = call.dropped(torch.cat(outputs, -1) if call.bidirectional else outputs[0], layer)
    hidden, cell = (torch.stack(each) for each in zip(*last, strict=True))
    return current.transpose(0, 1) if call.batch_first else current, hidden, cell


def _zeros_for(of_input: Tensor, of_state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the zeros that torch passes to oneDNN in place of biases.

    They are as large as the weights, and those for the state come first.
    """
    for_state, for_input = (
        torch.zeros(each.shape, dtype=each.dtype, device=each.device)
        for each in (of_state, of_input)
    )
    return for_input, for_state


def _step_by_step(call: _RecurrentCall, cell: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    per_layer = call.weights_by_layer()
    current = call.source.transpose(0, 1) if call.batch_first else call.source
    starts = iter(call.state.unbind(0))
    last: list[Tensor] = []
    for layer in range(call.layers):
        current, final = _one_layer(call, current, starts, per_layer, cell)
        current = call.dropped(current, layer)
        last += final
    del final
    hidden = torch.stack(last)
    del last
    return current.transpose_(0, 1) if call.batch_first else current, hidden


def _one_layer(
    call: _RecurrentCall,
    source: Tensor,
    starts: Iterator[Tensor],
    weights: Iterator[tuple[Tensor, ...]],
    cell: Callable[..., Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """Run one layer. The outputs of a direction are kept until the other one ends, as in torch."""
    outputs, last, by_step = [], [], []
    for backwards in call.directions:
        of_input, of_state, *biases = next(weights)
        bias_of_input, bias_of_state = biases or (None, None)
        products = F.linear(source, of_input, bias_of_input)
        steps = products.unbind(0)
        hidden, results = next(starts), []
        for step in reversed(steps) if backwards else steps:
            hidden = cell(step, hidden, of_state, bias_of_state)
            results.append(hidden)
        outputs.append(torch.stack(results[::-1] if backwards else results))
        by_step.append(results)
        last.append(hidden)
    return torch.cat(outputs, -1) if call.bidirectional else outputs[0], last


def tanh_cell(step: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the next hidden state."""
    return F.linear(hidden, weight, bias).add_(step).tanh()


def relu_cell(step: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the next hidden state."""
    return F.linear(hidden, weight, bias).add_(step).relu()


def gru_cell(step: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the next hidden state."""
    from_input = step.unsafe_chunk(3, 1)
    from_state = F.linear(hidden, weight, bias).unsafe_chunk(3, 1)
    reset = from_state[0].add_(from_input[0]).sigmoid_()
    update = from_state[1].add_(from_input[1]).sigmoid_()
    new = from_input[2].add(from_state[2].mul_(reset)).tanh_()
    return (hidden - new).mul_(update).add_(new)


_CELLS: Mapping[Callable[..., Any], Callable[..., Tensor]] = {
    torch.rnn_relu: relu_cell,
    torch.rnn_tanh: tanh_cell,
    torch.gru: gru_cell,
}


# -- on a GPU ------------------------------------------------------------------------------------


def recurrent_on_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function to call on a GPU: cuDNN's kernel for all layers."""

    def run(source: Tensor, *rest: Any, **kwargs: Any) -> Any:
        call = _call_of(source, rest, kwargs, takes_packed=True)
        if call is None:
            return function(source, *rest, **kwargs)
        hidden, cell = call.state if function is torch.lstm else (call.state, None)
        size = (hidden if cell is None else cell).shape[-1]
        projected = 0 if hidden.shape[-1] == size else hidden.shape[-1]
        per_layer = (4 if call.has_biases else 2) + bool(projected)
        sizes = (RECURRENT[function], size, projected, call.layers)
        options: tuple[Any, ...] = (
            call.batch_first,
            call.dropout,
            call.train,
            call.bidirectional,
            call.batch_sizes,
            None,
        )
        results = aten._cudnn_rnn(
            source, call.weights, per_layer, None, hidden, cell, *sizes, *options
        )
        return results[:2] if cell is None else results[:3]

    return run
