"""Weights in objects that hold them in a kernel's own format, as quantized layers do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.containers import (
    ATOMS,
    LARGEST_CONTAINER,
    MAX_OBJECTS,
    plain_items,
    plain_len,
)

_CONTAINERS = (list, tuple, dict)
_HOLDERS = (torch.ScriptObject, *_CONTAINERS)

#: equal for two objects with the same weights
Fingerprint = tuple[str, ...]
#: number of values of a weight that a fingerprint has at most
_MAX_VALUES = 1000


def packed_objects(named: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, torch.ScriptObject]]:
    """Yield objects with packed weights in nested lists, tuples and dicts, and their positions."""
    waiting = deque(_select_holders(named))
    seen = set[int]()
    while waiting and len(seen) < MAX_OBJECTS:
        name, value = waiting.popleft()
        kind = type(value)
        # A ScriptModule has its parameters where all modules have them. Only the type is read: a
        # proxy may raise an error when it is asked for its class.
        if issubclass(kind, torch.ScriptObject) and not issubclass(kind, torch.ScriptModule):
            yield name, value
            continue
        if not issubclass(kind, _CONTAINERS):
            continue
        if plain_len(value) > LARGEST_CONTAINER or id(value) in seen:
            continue

        seen.add(id(value))
        items: Iterable[tuple[Any, Any]]
        if issubclass(kind, dict):
            items = dict.items(value)
        else:
            items = enumerate(plain_items(value))
        waiting.extend((f"{name}[{key!r}]", item) for key, item in _select_holders(items))


def _select_holders(named: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the values that are packed objects, or that may contain some."""
    return [
        (name, value)
        for name, value in named
        if type(value) not in ATOMS and issubclass(type(value), _HOLDERS)
    ]


def packed_tensors(packed: torch.ScriptObject) -> list[Tensor] | None:
    """Return the weights in an object, each once, or None if it does not give access to them."""
    weights = {}
    try:
        for tensor in _unpacked(packed):
            if tensor.is_quantized or tensor.is_floating_point() or tensor.is_complex():
                weights[tensor._cdata] = tensor
    except (RuntimeError, TypeError, AttributeError):  # classes of such objects raise any of these
        return None
    return list(weights.values())


def fingerprint_of(weights: Sequence[Tensor] | None) -> Fingerprint | None:
    """Return values that identify packed weights, because torch passes a new object each time.

    They are the type, the shape and some elements, which no two trained layers have in common.
    """
    if weights is None:
        return None
    texts = []
    for tensor in weights:
        elements = tensor.int_repr() if tensor.is_quantized else tensor
        step = elements.numel() // _MAX_VALUES + 1
        values = elements.flatten()[::step].tolist()
        texts.append(f"{tensor.dtype} {list(tensor.shape)} {values}")
    return tuple(texts)


def _unpacked(value: object) -> list[Tensor]:
    """Return the tensors in a packed object, or in what it returns."""
    if isinstance(value, torch.ScriptObject):
        if not hasattr(value, "unpack"):
            return _unpacked(value.__getstate__())
        tensors = _unpacked(value.unpack())
        # The weight comes first. If it is not quantized, it is packed in half precision, although
        # it is unpacked in single precision.
        if tensors and tensors[0].dtype == torch.float32:
            tensors[0] = tensors[0].half()
        return tensors
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _unpacked(item)]
    return [value] if isinstance(value, Tensor) else []
