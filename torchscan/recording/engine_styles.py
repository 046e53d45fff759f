"""Styles by which an inference engine divides parameters and modules among devices.

A style has the name that transformers uses. It says along which dimension a parameter is divided,
and how its module communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.torch_versions import gather_columns

Forward = Callable[..., Any]


class ShardGroup(NamedTuple):
    """The devices that share a module."""

    group: Any
    size: int

    def sum(self, output: Any) -> Any:
        """Sum a tensor, or the first of several, over the devices."""
        tensor = output[0] if isinstance(output, tuple) else output
        torch.distributed.all_reduce(tensor, group=self.group)
        return output

    def part(self, size: int) -> int:
        """Return the part of a dimension that the first device has."""
        return -(-size // self.size)


#: returns what replaces the forward pass of a module
Wrapper = Callable[[Any, ShardGroup], Forward]


def _summed(module: Any, place: ShardGroup) -> Forward:
    forward: Forward = module.forward
    return lambda *args, **kwargs: place.sum(forward(*args, **kwargs))


def _gathered(module: Any, place: ShardGroup) -> Forward:
    """Gather columns, of which the last device may have fewer."""
    forward: Forward = module.forward
    number = getattr(module, "out_features", None) or getattr(module, "embedding_dim", None)

    def gather(*args: Any, **kwargs: Any) -> Tensor:
        return gather_columns(forward(*args, **kwargs), place.group)[..., :number]

    return gather


def _split_and_summed(module: Any, place: ShardGroup) -> Forward:
    forward: Forward = module.forward

    def split(states: Tensor) -> Any:
        own = place.part(states.shape[-1])
        return place.sum(forward(states.narrow(-1, 0, own)))

    return split


def _looked_up(module: Any, place: ShardGroup) -> Forward:
    """Look up the tokens in this device's part of the vocabulary, zeros for the others."""
    forward: Forward = module.forward

    def look_up(tokens: Tensor) -> Any:
        is_elsewhere = tokens >= module.weight.shape[0]
        rows = forward(tokens.masked_fill(is_elsewhere, 0))
        return place.sum(rows.masked_fill(is_elsewhere.unsqueeze(-1), 0.0))

    if getattr(module, "padding_idx", None) is not None:
        module.padding_idx = None  # it may lie in another part, and only matters for gradients
    return look_up


def _normed_with_keys(module: Any, place: ShardGroup) -> Forward:
    """Norm queries over the heads of all devices; sums of squares of keys travel along."""

    def norm(states: Tensor) -> Tensor:
        wide = states.to(torch.float32)
        mean = wide.pow(2).mean(-1, keepdim=True)
        both = place.sum(torch.cat([mean, mean], -1))
        return _scaled(module, wide, both[..., :1] / place.size).to(states.dtype)

    return norm


def _normed_with_queries(module: Any, _place: ShardGroup) -> Forward:
    """Norm keys over the heads of all devices, whose sums came with those of the queries."""

    def norm(states: Tensor) -> Tensor:
        wide = states.to(torch.float32)
        mean = wide.pow(2).mean(-1, keepdim=True)
        return _scaled(module, wide, mean).to(states.dtype)

    return norm


def _scaled(module: Any, states: Tensor, mean: Tensor) -> Tensor:
    epsilon: Any = getattr(module, "variance_epsilon", None) or getattr(module, "eps", 0.0)
    scaled: Tensor = states * torch.rsqrt(mean + epsilon) * module.weight
    return scaled


class Style(NamedTuple):
    """The dimension along which parameters are divided, and what a module does besides."""

    dim: int | None = None
    #: True if tensors of one dimension stay whole
    keeps_vectors: bool = False
    #: matrices that lie one after the other along this dimension, such as a gate and what it gates
    packed: int = 1
    wrap: Wrapper | None = None

    def dim_of(self, tensor: Tensor) -> int | None:
        """Return the dimension along which a parameter is divided, or None."""
        if self.dim is None or tensor.dim() > 1:
            return self.dim
        if self.keeps_vectors:
            return None
        return 0


_COLUMNS = Style(-2)
_ROWS = Style(-1, keeps_vectors=True)
_WHOLE = Style()
#: by their names in transformers
STYLES: Mapping[str, Style] = {
    "colwise": _COLUMNS,
    "packed_colwise": _COLUMNS._replace(packed=2),
    "colwise_gather_output": _COLUMNS._replace(wrap=_gathered),
    "colwise_rep": _COLUMNS._replace(wrap=_gathered),
    "rowwise": _ROWS._replace(wrap=_summed),
    "packed_rowwise": _ROWS._replace(packed=2),
    "rowwise_split_input": _ROWS._replace(wrap=_split_and_summed),
    "rowwise_rep": _ROWS._replace(wrap=_split_and_summed),
    "embedding_rowwise": Style(0, wrap=_looked_up),
    "embedding_colwise": Style(1, wrap=_gathered),
    "moe_tp_experts": Style(wrap=_summed),
    "all_reduce": Style(wrap=_summed),
    "q_norm_over_heads": Style(0, wrap=_normed_with_keys),
    "k_norm_over_heads": Style(0, wrap=_normed_with_queries),
    "replicate": _WHOLE,
    "replicated_with_grad_allreduce": _WHOLE,
    "mla_kv_a_proj": _WHOLE,
    "local_params": _WHOLE,
    "own_heads": _WHOLE,
}
