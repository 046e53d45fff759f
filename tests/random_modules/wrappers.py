"""Steps around other steps, and modules with a state of their own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint as checkpointed

from tests.random_modules.drawing import Draw, Layer, chain, step, wrapper


def body(draw: Draw, x: Tensor) -> nn.Module:
    """A short chain that starts at this tensor."""
    depth = draw.depth
    module = chain(draw, x, draw.size(1, 3), depth)[0]
    draw.depth = depth
    return module


class Around(nn.Module):
    """Something around a body."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body


class Residual(Around):
    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x.clone())
        return x + y if y.shape == x.shape else y * x.mean()


class Twice(Around):
    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.body(y) if y.shape == x.shape else y + self.body(x)


class Loop(Around):
    def forward(self, x: Tensor) -> Tensor:
        parts = [self.body(part[None]) for part in x]
        return torch.cat(parts[: 1 + x.shape[0] % 3])


class Checkpoint(Around):
    def forward(self, x: Tensor) -> Tensor:
        return checkpointed(self.body, x, use_reentrant=False)


class Mapped(Around):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(self.body, randomness="different")(x)


class Swapped(Around):
    def forward(self, x: Tensor) -> Tensor:
        doubled = {name: parameter * 2 for name, parameter in self.body.named_parameters()}
        return torch.func.functional_call(self.body, doubled, (x,))


class Quiet(Around):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.body(x)
        return y * 1.5


class Scaled(Around):
    count: Tensor
    mean: Tensor

    def __init__(self, body: nn.Module) -> None:
        super().__init__(body)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(1))
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x) * self.scale
        self.count.add_(1)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * y.mean())
        self.history.append(y.detach())
        self.last = y
        return y + self.mean


class Named(nn.Module):
    """Branches by name, with a dict between them."""

    def __init__(self, branches: dict[str, nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, x: Tensor) -> Tensor:
        results = {name: branch(x.clone()) for name, branch in self.branches.items()}
        return torch.cat([result.flatten() for result in results.values()])


class Caller(Around):
    """Calls its body by keyword, by ``forward``, and with hooks."""

    def __init__(self, body: nn.Module, way: str) -> None:
        super().__init__(body)
        self.way = way
        if way == "hook":
            body.register_forward_hook(lambda module, args, output: output * 2)
            body.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        if way == "backward hook":
            body.register_full_backward_hook(lambda module, before, after: None)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "forward":
            return self.body.forward(x)
        if self.way == "tensor hook" and x.requires_grad:
            x = x * 1
            x.register_hook(lambda gradient: gradient * 2)
        return self.body(x)


@wrapper()
def residual(draw: Draw, x: Tensor) -> Layer:
    return Residual(body(draw, x))


@wrapper()
def twice(draw: Draw, x: Tensor) -> Layer:
    return Twice(body(draw, x))


@wrapper()
def loop(draw: Draw, x: Tensor) -> Layer:
    return Loop(body(draw, x[:1]))


@wrapper()
def checkpoint(draw: Draw, x: Tensor) -> Layer:
    return Checkpoint(body(draw, x))


@wrapper(2, 3, 4)
def mapped(draw: Draw, x: Tensor) -> Layer:
    return Mapped(body(draw, x[0]))


@wrapper()
def swapped(draw: Draw, x: Tensor) -> Layer:
    return Swapped(body(draw, x))


@wrapper()
def quiet(draw: Draw, x: Tensor) -> Layer:
    return Quiet(body(draw, x))


@wrapper()
def scaled(draw: Draw, x: Tensor) -> Layer:
    return Scaled(body(draw, x))


@wrapper()
def named(draw: Draw, x: Tensor) -> Layer:
    return Named({name: body(draw, x) for name in ("left", "right")})


@wrapper()
def called(draw: Draw, x: Tensor) -> Layer:
    return Caller(body(draw, x), draw.one_of("forward", "hook", "backward hook", "tensor hook"))


@wrapper()
def nested(draw: Draw, x: Tensor) -> Layer:
    return nn.Sequential(nn.Sequential(nn.Sequential(body(draw, x))))


# -- modules with something of their own ---------------------------------------------------------------------------------


class Tied(nn.Module):
    """There and back with one weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.there = nn.Linear(size, 4)
        self.back = nn.Linear(4, size, bias=False)
        self.back.weight = nn.Parameter(torch.randn(size, 4))
        self.again = nn.Linear(4, size)
        self.again.weight = self.back.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.there(x)
        return self.back(y) + self.again(y) + F.linear(y, self.there.weight.t())


@step(2, 3)
def tied(draw: Draw, x: Tensor) -> Layer:
    return Tied(x.shape[-1])


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@step(2, 3)
def parametrized(draw: Draw, x: Tensor) -> Layer:
    size = x.shape[-1]
    square: nn.Module = nn.Linear(size, size)
    kind = draw.randrange(5)
    if kind == 0:
        return parametrize.register_parametrization(square, "weight", Symmetric())
    if kind == 1:
        return parametrizations.weight_norm(square)
    if kind == 2:
        return parametrizations.spectral_norm(square)
    if kind == 3:
        return parametrizations.orthogonal(square)
    return nn.utils.spectral_norm(square)


@step(4)
def normalised_convolution(draw: Draw, x: Tensor) -> Layer:
    layer = nn.Conv2d(x.shape[1], 3, draw.size(1, 3), padding=1)
    normalised: Any = draw.one_of(parametrizations.weight_norm, parametrizations.spectral_norm)
    return normalised(layer)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor + x.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * (ctx.factor + x.cos()), None


@step()
def custom_function(draw: Draw, x: Tensor) -> Layer:
    return lambda x: Doubling.apply(x, 2.0)


class Raw(nn.Module):
    """Parameters used directly, in lists and dicts."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(size) for _ in range(2)])
        self.named = nn.ParameterDict({"shift": torch.randn(1), "unused": torch.randn(2)})
        self.frozen = nn.Parameter(torch.randn(size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x * weight
        return x + self.named["shift"] + self.frozen


@step()
def raw_parameters(draw: Draw, x: Tensor) -> Layer:
    return Raw(x.shape[-1])


class Remembered(nn.Module):
    """Keeps a table from one call to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.shape[0] != x.shape[-1]:
            self.table = torch.arange(x.shape[-1], device=x.device).float().cos()
        return x + self.table


@step()
def remembered(draw: Draw, x: Tensor) -> Layer:
    return Remembered()


@step()
def gradient_inside(draw: Draw, x: Tensor) -> Layer:
    function: Any = draw.one_of(torch.func.grad, torch.func.vjp, torch.func.jvp)

    def energy(x: Tensor) -> Tensor:
        return x.tanh().square().sum()

    if function is torch.func.grad:
        return lambda x: torch.func.grad(energy)(x)
    if function is torch.func.vjp:
        return lambda x: torch.func.vjp(energy, x)[1](torch.ones(()))[0]
    return lambda x: torch.func.jvp(energy, (x,), (x,))[1] + x


@step()
def mapped_function(draw: Draw, x: Tensor) -> Layer:
    return draw.one_of(
        lambda x: torch.vmap(torch.sin)(x),
        lambda x: torch.vmap(lambda row: row * row.sum())(x),
        lambda x: torch.vmap(lambda row: row.flip(0) + 1, in_dims=-1, out_dims=-1)(x),
    )
