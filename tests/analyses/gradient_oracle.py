"""What a unit sees, by back-propagation: where the gradient of its output with respect to the input is not zero.

A copy of the model is made transparent first: all weights positive and summing up to one over what they are multiplied with, so
that no path is cancelled and nothing overflows; normalisations and activations taken out, maxima replaced by means; float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

_TAKEN_OUT = (
    *(
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
    ),
    *(
        nn.ReLU,
        nn.ReLU6,
        nn.GELU,
        nn.SiLU,
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.Sigmoid,
        nn.Dropout,
        nn.LeakyReLU,
    ),
)
_MEANS: dict[type[nn.Module], Callable[..., nn.Module]] = {
    nn.MaxPool1d: nn.AvgPool1d,
    nn.MaxPool2d: nn.AvgPool2d,
    nn.MaxPool3d: nn.AvgPool3d,
}


def transparent(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy through which gradients show every path."""
    model = copy.deepcopy(model).double().eval()
    for module in model.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, _TAKEN_OUT) or type(child).__name__ == "LayerNorm2d":
                setattr(module, name, nn.Identity())
            elif type(child) in _MEANS:
                setattr(module, name, _mean_of(child))
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
        fan_in = (
            max(parameter.numel() // max(parameter.shape[0], 1), 1) if parameter.dim() > 1 else 1
        )
        parameter.data = drawn / fan_in
    return model


def _mean_of(pool: nn.Module) -> nn.Module:
    mean = _MEANS[type(pool)](pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode)
    assert pool.dilation == 1  # a mean has none
    return mean


def outputs_of(
    model: nn.Module, inputs: Sequence[Tensor], paths: Iterable[str]
) -> dict[str, Tensor]:
    """The outputs of some layers ("" for the model)."""
    found: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(path).register_forward_hook(
            lambda _m, _a, out, path=path: found.__setitem__(path, out)
        )
        for path in paths
    ]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def seen_by(
    output: Tensor, dim: int, unit: int, inputs: Sequence[Tensor]
) -> list[dict[int, tuple[int, int] | None]]:
    """Of each input, along each dimension but the batch, the first and the last place that a unit's gradient reaches.

    The unit is a place along one dimension of the output, with all that there is along the others.
    """
    gradients = torch.autograd.grad(
        output.select(dim, unit).sum(), inputs, retain_graph=True, allow_unused=True
    )
    return [_box(gradient, each.dim()) for gradient, each in zip(gradients, inputs, strict=True)]


def _box(gradient: Tensor | None, rank: int) -> dict[int, tuple[int, int] | None]:
    if gradient is None:
        return dict.fromkeys(range(1, rank))
    assert bool(torch.isfinite(gradient).all())
    box: dict[int, tuple[int, int] | None] = {}
    for dim in range(1, rank):
        others = tuple(other for other in range(rank) if other != dim)
        places = gradient.ne(0).any(dim=others).nonzero().flatten().tolist()
        box[dim] = (places[0], places[-1]) if places else None
    return box


def new_inputs(shapes: Iterable[Sequence[int]]) -> list[Tensor]:
    """Positive numbers of these shapes, with a batch of one."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.rand(1, *shape, generator=generator, dtype=torch.float64) + 0.5).requires_grad_()
        for shape in shapes
    ]
