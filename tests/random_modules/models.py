"""Whole random modules, each from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import tests.random_modules.layers
import tests.random_modules.tensors
import tests.random_modules.wrappers  # noqa: F401 - they enter the steps
from tests.random_modules.drawing import LARGEST, Draw, chain, run


@dataclass(frozen=True, slots=True)
class Case:
    """A random module and what it is called with."""

    seed: int
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "eval"


class Bomb(nn.Module):
    """Fails, after all that came before it."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("this module always fails")


class Model(nn.Module):
    """A body, with a second argument by keyword and one of several kinds of output."""

    def __init__(self, body: nn.Module, output: str) -> None:
        super().__init__()
        self.body = body
        self.output = output

    def forward(self, x: Tensor, *, bias: Tensor | None = None, scale: float = 1.0) -> Any:
        y = self.body(x)
        if scale != 1.0:
            y = y * scale
        if bias is not None:
            y = y + bias
        forms = {
            "tensor": y,
            "tuple": (y, y.sum()),
            "dict": {"out": y, "aux": [y.mean(0), None]},
            "nested": ({"y": (y,)}, 3),
        }
        return forms[self.output]


def random_module(seed: int) -> Case:
    """The module of a seed: always the same."""
    draw = Draw(seed)
    torch.manual_seed(seed)
    x = _input(draw)
    body, _ = chain(draw, run(nn.Identity(), x), draw.size(1, 8))
    layers: list[nn.Module] = [body, Bomb()] if draw.flag(0.04) else [body]
    model = Model(
        nn.Sequential(*layers), draw.one_of("tensor", "tensor", "tuple", "dict", "nested")
    )
    kwargs: dict[str, Any] = {"bias": torch.randn(())} if draw.flag(0.15) else {}
    kwargs |= {"scale": 0.5} if draw.flag(0.15) else {}
    return Case(seed, model, (x,), kwargs, draw.one_of("eval", "train"))


def _input(draw: Draw) -> Tensor:
    shape = [draw.size(1, 7) for _ in range(draw.size(2, 5))]
    while math.prod(shape) > LARGEST:
        shape[shape.index(max(shape))] //= 2
    x = torch.randn(shape)
    kind = draw.randrange(8)
    if kind == 0 and x.dim() == 4:
        return x.to(memory_format=torch.channels_last)
    if kind == 1:
        return x.transpose(0, -1)
    if kind == 2:
        return torch.randn([*shape, 2])[..., 0]
    if kind == 3:
        return x[:1].expand(*shape)
    return x
