"""Clipping of gradients by the norm of all of them, with the collectives of sharded ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from torchscan.torch_versions import groups_of_shards, sum_over


def clip_gradients(parts: Sequence[Tensor], parameters: Iterable[Tensor], *, is_gpu: bool) -> None:
    """Clip the norm of all gradients as ``clip_grad_norm_`` does.

    Of sharded gradients, torch sums the squared norms of all ranks: a scalar for each dimension of
    their mesh along which any of them is divided.

    Args:
        parts: this rank's parts of the parameters, which hold its parts of the gradients.
        parameters: the parameters, which are DTensors if they are sharded, with such gradients.
        is_gpu: use kernels that take many tensors at once, as torch does by default on a GPU.
    """
    gradients = [each.grad for each in parts if each.grad is not None]
    norm = get_total_norm(gradients, foreach=is_gpu)
    sharded = map(attrgetter("grad"), parameters)
    for group in groups_of_shards(sharded):
        total = sum_over(norm**2, group)
        norm = total**0.5
    clip_grads_with_norm_(parts, 1.0, norm, foreach=is_gpu)
