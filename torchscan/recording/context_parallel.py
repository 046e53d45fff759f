"""Context parallelism of a language model, by torch's ring attention.

Each rank has a part of every sequence: for balance, one piece from the front and one from the back.
Keys and values are all-gathered; in the backward pass, their gradients travel around the ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchscan.errors import InputError
from torchscan.recording.pretended_group import until_end

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: the dimension of a sequence in inputs, and in attention
_DIM = 1
#: dimensions of embedded tokens; masks and images have more
_MAX_DIMS = 3


def divide_context(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give a model a part of each sequence, and run its attention over all of them, in place.

    The attention stays divided until the simulated group ends, because the backward pass needs it.
    """
    from torch.distributed.tensor.experimental import context_parallel

    size = mesh.size()
    # the context takes buffers to divide; inputs are divided when the model is called
    buffer = torch.zeros(1, 2 * size)
    until_end(context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[_DIM]))
    called: Any = model
    forward = model.forward

    def part_of(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() <= _DIM:
            return value
        if value.dim() > _MAX_DIMS:
            raise InputError(
                f"an input has {value.dim()} dimensions, and context parallelism divides sequences "
                "of tokens without a mask: leave it out"
            )
        length = value.shape[_DIM]
        if length % (2 * size):
            raise InputError(
                f"sequences of {length:,} tokens cannot be divided among cp {size}: give a "
                f"multiple of {2 * size}"
            )
        return value.narrow(_DIM, 0, length // size)

    def run(*args: Any, **kwargs: Any) -> Any:
        own = [part_of(each) for each in args]
        return forward(*own, **{name: part_of(each) for name, each in kwargs.items()})

    called.forward = run
