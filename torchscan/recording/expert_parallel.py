"""Expert parallelism in training: each rank has some experts, and tokens travel to them and back.

Each pick of a token is a row that an all-to-all sends to the rank of its expert. It returns by
another. Gradients travel the other way. Picks are taken as balanced: each rank gets as many rows
as it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, InputError
from torchscan.recording.engine_plan import divisible_experts
from torchscan.recording.engine_sharding import first_part
from torchscan.recording.expert_rows import own_picks
from torchscan.torch_versions import exchange_rows

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def divide_experts(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Leave each rank of "ep" some experts, in place, and return the modules that hold them."""
    size = mesh.size()
    divided = []
    for _, module, experts in divisible_experts(model):
        if experts.number % size:
            raise InputError(
                f"{experts.number} experts cannot be divided among ep {size}: choose an ep that "
                "divides them"
            )
        for name, tensor in list(module._parameters.items()):
            if tensor is not None and tensor.shape[0] == experts.number:
                module._parameters[name] = first_part(tensor, 0, size)
        called: Any = module
        called.num_experts = experts.number // size
        called.forward = _TokenExchange(module.forward, mesh, experts.number // size)
        divided.append(module)
    if not divided:
        raise InputError(
            Argument("mesh"),
            f" has a dimension ep, and {type(model).__name__} has no experts to divide: leave it "
            "out",
        )
    return divided


class _TokenExchange:
    """The call of a rank's experts on the rows that all ranks have picked them for."""

    def __init__(self, forward: Callable[..., Tensor], mesh: DeviceMesh, choices: int) -> None:
        self._forward = forward
        self._group = mesh.get_group()
        self._choices = choices

    def __call__(self, states: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
        """Return the sum over the experts that each token picked."""
        tokens, number = picks.shape
        # rows in the order of their experts; which row comes where costs the same
        order = torch.arange(tokens * number, device=states.device) // number
        rows = exchange_rows(states.index_select(0, order), self._group)
        own = own_picks(picks.reshape(-1, 1), self._choices, 1)
        output = self._forward(rows, own, torch.ones_like(own, dtype=states.dtype))
        back = exchange_rows(output, self._group)
        weighted = back.view(tokens, number, -1) * weights.unsqueeze(-1)
        return weighted.sum(1).to(states.dtype)
