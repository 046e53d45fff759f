"""Search for equal layers of a model, by their attributes."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

#: of each kind so many are run, and compared in each pass: every other one may differ where a pass is long, or every fourth
_RUN = 4
#: the one of these that stands in for the others: equal layers come before and after it
_MIDDLE = _RUN - 2
#: values of a buffer that are compared
_MAX_VALUES = 64
_PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, type)
#: what each module has besides its own attributes
_MODULE = frozenset(vars(nn.Module()))
_HOOKS = frozenset(name for name in _MODULE if name.endswith("_hooks"))


@dataclass(frozen=True, slots=True)
class Fold:
    """A list of layers of which some are left out."""

    path: str
    #: the indices of equal layers, of which the first are run and the others left out
    equal: Sequence[Sequence[int]]

    @property
    def left_out(self) -> dict[int, int]:
        """The layers that are left out: their indices, with that of an equal layer that runs."""
        return {index: each[_MIDDLE] for each in self.equal for index in each[_RUN:]}

    @property
    def stands_in(self) -> dict[str, str]:
        """The paths of layers that are left out, with that of the layer that runs."""
        return {
            f"{self.path}.{index}": f"{self.path}.{other}" for index, other in self.left_out.items()
        }

    @property
    def run(self) -> list[list[str]]:
        """The paths of equal layers that are run."""
        return [[f"{self.path}.{index}" for index in each[:_RUN]] for each in self.equal]


def folds_of(module: nn.Module) -> list[Fold]:
    """Return the groups of equal layers in the outermost module lists."""
    found = (
        (path, [each for each in equal if len(each) > _RUN]) for path, equal in equal_layers(module)
    )
    return [Fold(path, equal) for path, equal in found if equal]


def equal_layers(module: nn.Module, *, more_than: int = _RUN) -> list[tuple[str, list[list[int]]]]:
    """Return the indices of the layers of each kind, with the paths of the outermost lists.

    Lists with so few layers as ``more_than`` do not count.
    """
    return [
        (path, _equal(each, _listed(module, len(each))))
        for path, each in outermost_lists(module, more_than=more_than)
    ]


def _listed(module: nn.Module, layers: int) -> list[Hashable]:
    """Return the entries of a model's configs for each layer, for example the attention type.

    Lists count that have as many entries as there are layers.
    """
    configs = {
        id(config): config
        for each in module.modules()
        if (config := vars(each).get("config")) is not None
    }
    values = (
        value for each in configs.values() for value in getattr(each, "__dict__", {}).values()
    )
    lists = [
        list(map(repr, each))
        for each in values
        if type(each) in (list, tuple) and len(each) == layers
    ]
    return list(zip(*lists, strict=True)) or [()] * layers


def outermost_lists(
    module: nn.Module, path: str = "", *, more_than: int = _RUN
) -> Iterator[tuple[str, nn.ModuleList]]:
    """Yield the outermost module lists with more layers than ``more_than``, with their paths."""
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if type(child) is nn.ModuleList and len(child) > more_than:
            yield inner, child
        else:
            yield from outermost_lists(child, inner, more_than=more_than)


def _equal(layers: nn.ModuleList, listed: list[Hashable]) -> list[list[int]]:
    equal: dict[Hashable, list[int]] = defaultdict(list)
    indices = _indices(layers)
    for index, layer in enumerate(layers):
        equal[_kind(layer, index, indices), listed[index]].append(index)
    return list(equal.values())


def _indices(layers: nn.ModuleList) -> frozenset[tuple[str, str]]:
    """The attributes in which layers know their own index, each with the path of its module: those of the first two tell."""
    known = [
        {
            (path, name)
            for path, each in layer.named_modules()
            for name, value in vars(each).items()
            if _is(value, index)
        }
        for index, layer in zip(range(2), layers, strict=False)
    ]
    return frozenset(set.intersection(*known)) if known else frozenset()


def _is(value: object, index: int) -> bool:
    return type(value) is int and value == index


def _kind(layer: nn.Module, index: int, indices: frozenset[tuple[str, str]]) -> Hashable:
    """All that it is, but for where it stands: it may know its own index."""
    modules = layer.named_modules()
    return tuple(
        (path, type(each), _attributes(each, index, path, indices), _tensors(each))
        for path, each in modules
    )


def _attributes(
    module: nn.Module, index: int, path: str, indices: frozenset[tuple[str, str]]
) -> Hashable:
    own = tuple(
        (name, _INDEX if (path, name) in indices and _is(value, index) else _plain(value, index))
        for name, value in vars(module).items()
        if name not in _MODULE
    )
    hooks = tuple(
        (name, id(hook))
        for name in sorted(_HOOKS)
        for hook in (vars(module).get(name) or {}).values()
    )
    return (*own, module.training, hooks)


def _plain(value: Any, index: int) -> Hashable:
    """Return a key that is equal for equal values: the value itself, or the identity of an object.

    A number inside a container may be the layer's index.
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    if type(value) in (tuple, list):
        return type(value), tuple(
            _INDEX if _is(each, index) else _plain(each, index) for each in value
        )
    if type(value) is dict:
        return dict, tuple((str(name), _plain(each, index)) for name, each in value.items())
    if type(value) is functools.partial:
        return functools.partial, _plain((value.func, value.args, value.keywords), index)
    return id(value)


_INDEX = object()


def _tensors(module: nn.Module) -> Hashable:
    held = (*module._parameters.items(), *module._buffers.items())
    return tuple((name, None if each is None else _layout(each)) for name, each in held)


def _layout(tensor: Tensor) -> Hashable:
    has_values = (
        not tensor.is_floating_point() and not tensor.is_meta and tensor.numel() <= _MAX_VALUES
    )
    values = repr(tensor.tolist()) if has_values else ""
    return (
        type(tensor),
        tuple(tensor.shape),
        tensor.dtype,
        tensor.device,
        tensor.stride(),
        tensor.requires_grad,
        values,
    )
