"""Device checks of a model: its tensors report its own device, although they are meta tensors.

A branch that compares devices, or asks for one, is then the branch that is taken on data. torch's
own code gets the true answer, which decides how a meta tensor is copied or shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.places import is_of_user

_PROPERTIES: Any = Tensor
_GETTERS: Mapping[Any, Callable[[torch.device], object]] = {
    _PROPERTIES.device.__get__: lambda device: device,
    _PROPERTIES.is_meta.__get__: lambda _: False,
    _PROPERTIES.is_cpu.__get__: lambda device: device.type == "cpu",
    _PROPERTIES.is_cuda.__get__: lambda device: device.type == "cuda",
}

#: by which a tensor is asked where it is
ASKING_WHERE = frozenset(_GETTERS)


def answer_device_query(func: Callable[..., Any], home: torch.device | None) -> object:
    """The answer, if a line of the user's, two calls up, asks a tensor where it is, and the model has a device; else None."""
    if home is None or func not in _GETTERS or not is_of_user(sys._getframe(2)):
        return None
    return _GETTERS[func](home)
