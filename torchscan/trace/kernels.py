"""Kernels that exist for some devices only.

Where tensors have no data, torch takes attention and recurrent layers apart into what no fused kernel does, with score matrices
that nobody ever writes. So the call goes to the kernel that the target device would choose; torch's own gradient belongs to it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchscan.trace.shape_rules import runs_in_one_kernel

_attention = torch._C._nn.scaled_dot_product_attention
_HALF = (torch.float16, torch.bfloat16)
_CUDNN_MODES = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.lstm: 2, torch.gru: 3}

aten = torch.ops.aten


class Kernels:
    """The kernels of one kind of device, "cpu" or "cuda"."""

    def __init__(self, target: str) -> None:
        self._target = target

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What to call instead of a function of torch's: itself, as a rule."""
        if function is _attention:
            return self.attention
        if function is torch.lstm and self._target == "cpu":
            return _lstm_on_cpu
        if function in _CUDNN_MODES and self._target == "cuda":
            return _with_cudnn(function)
        return function

    def attention(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Attention, in one kernel if there is one for these arguments."""
        options = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
        fused = None
        if query.is_meta:
            fused = (_attention_on_cpu if self._target == "cpu" else _attention_on_cuda)(query, key, value, **options)
        return _attention(query, key, value, *args, **kwargs) if fused is None else fused


def _attention_on_cpu(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    if not runs_in_one_kernel(query, key, value, **options):
        return None
    mask = _added_to_scores(options.get("attn_mask"), query)
    causal, scale = options.get("is_causal", False), options.get("scale")
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)[0]


def _attention_on_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Flash attention takes 16 bits and no mask, the memory-efficient one any type and a mask, but no grouped queries."""
    alike = query.dim() == key.dim() == value.dim() == 4 and 0 not in (*query.shape, *key.shape)
    if not alike or query.shape[-1] != key.shape[-1]:
        return None
    is_flash = query.dtype in _HALF and attn_mask is None and query.shape[-1] == value.shape[-1] <= 256
    if is_flash and query.shape[-1] % 8 == 0:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if enable_gqa and query.shape[1] != key.shape[1]:
        return None
    mask = _added_to_scores(attn_mask, query)
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    for_gradient = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, for_gradient, dropout_p, is_causal, scale=scale
    )[0]


def _added_to_scores(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask of booleans becomes one of zeros and −∞."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    added = torch.zeros_like(mask, dtype=query.dtype, device=query.device)
    return added.masked_fill_(mask.logical_not().to(query.device), float("-inf"))


# -- recurrent layers ----------------------------------------------------------------------------------------------------


def _lstm_on_cpu(source: Tensor, *rest: Any, **kwargs: Any) -> Any:
    """One kernel per layer and direction (oneDNN), for single precision without projections."""
    is_plain = _is_padded(source, rest, kwargs) and source.dtype is torch.float32
    if not is_plain or rest[0][0].shape != rest[0][1].shape:
        return torch.lstm(source, *rest, **kwargs)
    return _lstm_by_layers(source, *rest)


def _is_padded(source: Tensor, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Sequences side by side in one tensor, given as torch's own layers do; packed ones come with their batch sizes."""
    is_packed = bool(rest) and isinstance(rest[0], Tensor) and not rest[0].is_floating_point()
    return source.is_meta and len(rest) == 8 and not kwargs and not is_packed


def _lstm_by_layers(
    source: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    directions = (False, True) if bidirectional else (False,)
    per_layer = iter(zip(*[iter(weights)] * (4 if has_biases else 2), strict=True))
    hidden_size = state[0].shape[-1]
    source = (source.transpose(0, 1) if batch_first else source).contiguous()  # which is held to the end
    current = source
    places = iter(range(len(directions) * layers))
    last: list[tuple[Tensor, Tensor]] = []
    outputs: list[Any] = [None for _ in directions]  # held until the next layer's take their place
    for layer in range(layers):
        for backwards in directions:
            place = next(places)
            own = next(per_layer)
            biases = own[2:] or tuple(current.new_zeros(own[0].shape[0]) for _ in range(2))
            start = (state[0].select(0, place), state[1].select(0, place))
            options: tuple[Any, ...] = (
                backwards,
                [],
                2,
                hidden_size,
                layers,
                has_biases,
                bidirectional,
                batch_first,
                torch.is_grad_enabled(),
            )
            output, *final, _ = aten.mkldnn_rnn_layer(current, *own[:2], *biases, *start, *options)
            outputs[backwards] = output
            del output
            last.append((final[0], final[1]))
        current = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            current = torch.dropout(current, dropout, train)
    hidden, cell = (torch.stack(each) for each in zip(*last, strict=True))
    return current.transpose(0, 1) if batch_first else current, hidden, cell


def _with_cudnn(function: Callable[..., Any]) -> Callable[..., Any]:
    """One kernel for all layers; packed sequences are left as they are."""

    def run(source: Tensor, *rest: Any, **kwargs: Any) -> Any:
        if not _is_padded(source, rest, kwargs):
            return function(source, *rest, **kwargs)
        state, weights, has_biases, layers, dropout, train, bidirectional, batch_first = rest
        hidden, cell = state if function is torch.lstm else (state, None)
        size = (hidden if cell is None else cell).shape[-1]
        projected = 0 if hidden.shape[-1] == size else hidden.shape[-1]
        per_layer = (4 if has_biases else 2) + bool(projected)
        sizes = (_CUDNN_MODES[function], size, projected, layers)
        options: tuple[Any, ...] = (batch_first, dropout, train, bidirectional, [], None)
        made = aten._cudnn_rnn(source, weights, per_layer, None, hidden, cell, *sizes, *options)
        return made[:2] if cell is None else made[:3]

    return run


# -- functions of torch's own --------------------------------------------------------------------------------------------

_ASK_FOR_OVERRIDES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@contextlib.contextmanager
def functions_let_through() -> Iterator[None]:
    """Functions of torch's that are written in Python do not ask for overrides, in this thread: what they call does."""
    thread = threading.get_ident()
    before = {name: getattr(F, name) for name in _ASK_FOR_OVERRIDES}

    def elsewhere(ask: Callable[..., bool]) -> Callable[..., bool]:
        return lambda *values: threading.get_ident() != thread and ask(*values)

    try:
        for name, ask in before.items():
            setattr(F, name, elsewhere(ask))
        yield
    finally:
        for name, ask in before.items():
            setattr(F, name, ask)
