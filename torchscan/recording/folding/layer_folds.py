"""Search for equal layers of a model, by their attributes."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.tensor_layouts import has_strides, is_plain, shape_of

#: number of layers of each kind that are run, and compared in each pass: every other one may differ
#: where a pass is long, or every fourth
_RUN = 4
#: the one of these that stands in for the others: equal layers come before and after it
_MIDDLE = _RUN - 2
#: values of a buffer that are compared
_MAX_VALUES = 64
#: types of values that can be equal without being the same object
_PLAIN = (int, float, str, bytes, complex, torch.device)
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
        name = self._path_of
        return {name(index): name(other) for index, other in self.left_out.items()}

    @property
    def run(self) -> list[list[str]]:
        """The paths of equal layers that are run."""
        return [list(map(self._path_of, indices[:_RUN])) for indices in self.equal]

    def _path_of(self, index: int) -> str:
        return f"{self.path}.{index}"


def folds_of(module: nn.Module) -> list[Fold]:
    """Return the groups of equal layers in the outermost module lists."""
    folds = []
    for path, groups in equal_layers(module):
        equal = [each for each in groups if len(each) > _RUN]
        if equal:
            folds.append(Fold(path, equal))
    return folds


def equal_layers(module: nn.Module, *, more_than: int = _RUN) -> list[tuple[str, list[list[int]]]]:
    """Return the indices of the layers of each kind, with the paths of the outermost lists.

    Lists with so few layers as ``more_than`` do not count.
    """
    groups = []
    for path, layers in outermost_lists(module, more_than=more_than):
        listed = _listed(module, len(layers))
        indices = _find_indices(layers)
        equal: dict[Hashable, list[int]] = defaultdict(list)
        for index, layer in enumerate(layers):
            equal[_kind(layer, index, indices), listed[index]].append(index)
        groups.append((path, list(equal.values())))
    return groups


def _listed(module: nn.Module, layers: int) -> list[Hashable]:
    """Return the entries of a model's configs for each layer, for example the attention type.

    Lists count that have as many entries as there are layers.
    """
    lists = []
    for config in configs_of(module):
        for value in getattr(config, "__dict__", {}).values():
            if type(value) in (list, tuple) and len(value) == layers:
                entries = list(map(repr, value))
                lists.append(entries)
    return list(zip(*lists, strict=True)) or [()] * layers


def configs_of(module: nn.Module) -> list[Any]:
    """Return the configs of a model's modules, each once."""
    configs: dict[int, Any] = {}
    for each in module.modules():
        config = vars(each).get("config")
        if config is not None:
            configs[id(config)] = config
    return list(configs.values())


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


def _find_indices(layers: nn.ModuleList) -> set[tuple[str, str]]:
    """Return the attributes in which layers know their own index, each with the path of its module.

    The first two layers tell.
    """
    known: list[set[tuple[str, str]]] = []
    for index, layer in zip(range(2), layers, strict=False):
        attributes = set()
        for path, module in layer.named_modules():
            for name, value in vars(module).items():
                if _is(value, index):
                    attributes.add((path, name))
        known.append(attributes)
    return set.intersection(*known) if known else set()


def _is(value: object, index: int) -> bool:
    return type(value) is int and value == index


def _kind(layer: nn.Module, index: int, indices: Collection[tuple[str, str]]) -> Hashable:
    """Return a key of all that a layer is, but for its place: it may know its own index."""
    key = []
    for path, module in layer.named_modules():
        attributes = _attributes(module, index, path, indices)
        tensors = []
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            tensors.append((name, None if tensor is None else _layout(tensor)))
        key.append((path, type(module), attributes, tuple(tensors)))
    return tuple(key)


def _attributes(
    module: nn.Module, index: int, path: str, indices: Collection[tuple[str, str]]
) -> Hashable:
    own: list[Hashable] = []
    for name, value in vars(module).items():
        if name not in _MODULE:
            is_index = (path, name) in indices and _is(value, index)
            own.append((name, _INDEX if is_index else _plain(value, index)))
    hooks: list[Hashable] = []
    for name in sorted(_HOOKS):
        registered = vars(module).get(name) or {}
        hooks += [(name, id(hook)) for hook in registered.values()]
    return (*own, module.training, tuple(hooks))


def _plain(value: Any, index: int) -> Hashable:
    """Return a key that is equal for equal values: the value itself, or the identity of an object.

    A number inside a container may be the layer's index.
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    if type(value) in (tuple, list):
        keys: list[Hashable] = []
        for each in value:
            if _is(each, index):
                keys.append(_INDEX)
            else:
                keys.append(_plain(each, index))
        return type(value), tuple(keys)
    if type(value) is dict:
        return dict, tuple((str(name), _plain(each, index)) for name, each in value.items())
    if type(value) is functools.partial:
        return functools.partial, _plain((value.func, value.args, value.keywords), index)
    return id(value)


_INDEX = object()


def _layout(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tensors of equal layers: integers have equal values."""
    has_values = not tensor.is_floating_point() and not tensor.is_meta
    values: Hashable = ""
    if has_values and not is_plain(tensor):
        values = id(tensor)
    elif has_values and tensor.numel() <= _MAX_VALUES:
        values = repr(tensor.tolist())
    return (
        type(tensor),
        shape_of(tensor),
        tensor.dtype,
        tensor.device,
        tensor.stride() if has_strides(tensor) else tensor.layout,
        tensor.requires_grad,
        values,
    )
