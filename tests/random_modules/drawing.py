"""How a random module is put together: step by step, each drawn to fit the tensor that the steps before it make."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
#: a layer, or a function of one tensor
Layer = nn.Module | Callable[[Tensor], Tensor]

#: tensors between steps are cut down to so many elements
LARGEST = 500
#: how often a step is drawn that does not fit, before the chain is left as it is
TRIES = 12


class Draw(random.Random):
    """Choices, all of which follow from one seed."""

    #: how many more times steps may stand inside steps
    depth: int = 0

    def flag(self, share: float = 0.5) -> bool:
        return self.random() < share

    def one_of(self, *values: T) -> T:
        return values[self.randrange(len(values))]

    def size(self, low: int, high: int) -> int:
        return self.randint(low, high)

    def divisor(self, number: int) -> int:
        return self.one_of(*[each for each in range(1, number + 1) if number % each == 0])

    def dim(self, x: Tensor) -> int:
        return self.randrange(x.dim()) - self.one_of(0, x.dim())

    def dims(self, x: Tensor) -> list[int]:
        """Some dimensions, in any order."""
        return self.sample(range(x.dim()), self.randint(1, x.dim()))


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that people write: ``make`` returns a layer for such a tensor, or raises if there is none."""

    name: str
    #: numbers of dimensions that it takes; empty: any
    ranks: tuple[int, ...]
    make: Callable[[Draw, Tensor], Layer]


STEPS: dict[str, Step] = {}
#: steps around steps of their own
WRAPPERS: dict[str, Step] = {}


def step(
    *ranks: int,
) -> Callable[[Callable[[Draw, Tensor], Layer]], Callable[[Draw, Tensor], Layer]]:
    """Enter a step for tensors of so many dimensions."""
    return _entering(STEPS, ranks)


def wrapper(
    *ranks: int,
) -> Callable[[Callable[[Draw, Tensor], Layer]], Callable[[Draw, Tensor], Layer]]:
    """Enter a step that is made around others."""
    return _entering(WRAPPERS, ranks)


def _entering(steps: dict[str, Step], ranks: tuple[int, ...]) -> Callable[..., Any]:
    def enter(make: Callable[[Draw, Tensor], Layer]) -> Callable[[Draw, Tensor], Layer]:
        name = make.__name__.strip("_")
        assert name not in steps, name
        steps[name] = Step(name, ranks, make)
        return make

    return enter


class Does(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        super().__init__()
        self.function = function
        self.name = name

    def forward(self, x: Tensor) -> Any:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


class Chain(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def as_module(layer: Layer, name: str) -> nn.Module:
    return layer if isinstance(layer, nn.Module) else Does(layer, name)


# -- chains --------------------------------------------------------------------------------------------------------------


def chain(draw: Draw, x: Tensor, length: int, depth: int = 2) -> tuple[nn.Module, Tensor]:
    """So many steps from this tensor on, and what they make of it."""
    layers: list[nn.Module] = []
    for _ in range(length):
        added, x = _fitting(draw, x, depth)
        layers += added
    return (nn.Sequential(*layers) if draw.flag() else Chain(layers)), x


def _fitting(draw: Draw, x: Tensor, depth: int) -> tuple[list[nn.Module], Tensor]:
    """A step that takes this tensor, after a change of its shape where it needs one."""
    for _ in range(TRIES):
        chosen = draw.choice(list((WRAPPERS if depth and draw.flag(0.25) else STEPS).values()))
        draw.depth = depth - 1
        try:
            return _tried(draw, chosen, x)
        except Exception:  # noqa: S112 - it does not fit
            continue
    return [], x


def _tried(draw: Draw, chosen: Step, x: Tensor) -> tuple[list[nn.Module], Tensor]:
    layers = [*_shaped(draw, x, chosen.ranks)]
    for layer in layers:
        x = run(layer, x)
    layers.append(as_module(chosen.make(draw, x), chosen.name))
    x = run(layers[-1], x)
    if x.numel() > LARGEST:
        cut = max(1, x.shape[0] * LARGEST // x.numel())
        layers.append(Does(lambda x: x[:cut], "cut"))
        x = run(layers[-1], x)
    if x.numel() == 0 or x.numel() > 4 * LARGEST or x.dim() > 6 or x.dtype != torch.float32:
        raise ValueError(f"nothing to go on with: {x.dtype} {list(x.shape)}")
    return layers, x


def run(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer makes of a copy of this tensor; the layer stays as it is."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: Tensor = copy.deepcopy(layer)(x.detach().clone(memory_format=torch.preserve_format))
    if not isinstance(made, Tensor):
        raise TypeError(f"a step makes a tensor, not a {type(made).__name__}")
    return made


def _shaped(draw: Draw, x: Tensor, ranks: tuple[int, ...]) -> list[nn.Module]:
    """A layer that gives the tensor a number of dimensions that is asked for."""
    if not ranks or (x.dim() in ranks and min(x.shape) > 0):
        return []
    rank = draw.one_of(*ranks)
    shape = list(x.shape)
    while len(shape) > rank:
        at = draw.randrange(len(shape) - 1)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    while len(shape) < rank:
        at = max(range(len(shape)), key=shape.__getitem__)
        factor = min(
            each
            for each in range(1, shape[at] + 1)
            if shape[at] % each == 0 and each * each >= shape[at]
        )
        shape[at : at + 1] = [shape[at] // factor, factor]
    return [Does(lambda x: x.reshape(shape), "reshape")]
