"""Tensor parallelism of 8-bit layers whose collectives carry 8 bits, as torchao's styles have it.

Activations between products are divided by sequence. The input of a module is cast before it is
all-gathered, once for all of its layers, and so is the gradient of a layer whose output is reduced
and scattered. Autograd gets a tensor without memory in place of what was gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.training.float8 import HANDED_OVER, Float8Linear
from torchscan.recording.training.float8_casts import TENSORWISE, Quantized, quantize
from torchscan.torch_versions import call_of, local_part, sharded_from


def gather_input_in_8_bits(module: nn.Module, mesh: Any) -> None:
    """Have the input of a module, of which each rank has a part of the sequences, gathered.

    Its layers take it in 8 bits, with one scale for all.
    """

    def gather(states: Any) -> Tensor:
        from torch.distributed.tensor import DTensor, Shard

        if not isinstance(states, DTensor):
            states = sharded_from(states, mesh, [Shard(1)])
        quantized = _gathered(quantize(states, TENSORWISE.inputs, -1))
        stand_for = call_of(_GatheredInput)
        stand_in = stand_for(states)
        setattr(stand_in, HANDED_OVER, quantized)
        return stand_in  # type: ignore[no-any-return]

    def before(
        _module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (gather(args[0]), *args[1:]), dict(named)
        name = "hidden_states" if "hidden_states" in named else next(iter(named))
        return args, {**named, name: gather(named[name])}

    module.register_forward_pre_hook(before, with_kwargs=True)


def scatter_output_in_parts(layer: Float8Linear, *, is_local: bool) -> None:
    """Have the partial sums of a layer reduced and scattered, and its gradient gathered in 8 bits.

    With ``is_local``, the output is this rank's tensor in place of a DTensor.
    """

    def after(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        scatter = call_of(_ScatteredOutput)
        parts = scatter(output, layer)
        return parts.to_local() if is_local else parts

    layer.register_forward_hook(after)


def _gathered(parts: Quantized) -> Quantized:
    """Return what all ranks have, as rows."""
    from torch.distributed.tensor import Replicate

    sharded: Any = parts.values
    values = sharded.redistribute(placements=[Replicate()])
    return Quantized(values.reshape(-1, values.shape[-1]), parts.scale)


def _stand_in(states: Any) -> Tensor:
    """Return a tensor that is as large as what all ranks have, and takes no memory."""
    from torch.distributed.tensor import Replicate

    whole = local_part(states).new_empty(()).expand(states.shape)
    return sharded_from(whole, states.device_mesh, [Replicate()])


class _GatheredInput(torch.autograd.Function):
    """Stands for the gathered input; its gradient is reduced and scattered in 16 bits."""

    @staticmethod
    def forward(_ctx: Any, states: Tensor) -> Tensor:
        """Return a tensor without memory."""
        return _stand_in(states)

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        """Return this rank's part of the gradient."""
        from torch.distributed.tensor import Shard

        return gradients[0].redistribute(placements=[Shard(1)])


class _ScatteredOutput(torch.autograd.Function):
    """Reduces and scatters an output in 16 bits, and gathers its gradient in 8."""

    @staticmethod
    def forward(ctx: Any, output: Any, layer: Float8Linear) -> Tensor:
        """Return this rank's part of the sequences."""
        from torch.distributed.tensor import Shard

        ctx.layer = layer
        parts: Tensor = output.redistribute(placements=[Shard(1)])
        return parts

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        """Hand the layer its gradient, and return a tensor without memory."""
        (gradient,) = gradients
        ctx.layer.gradient = _gathered(quantize(gradient, TENSORWISE.gradient, -1))
        return _stand_in(gradient), None
