"""Numbers and lists that become tensors while a model runs on shapes alone.

Activations are on the meta device then, so ``torch.tensor([3, 4], device=x.device)`` asks for a tensor there, which would
forget its values. It gets one on the CPU, where all known integers are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.tensors import CONCRETE_INTEGERS
from torchscan.recording.patches import overridden

#: functions of the data; the method is one of a tensor, whose device it takes, and of the data
_FUNCTIONS, _METHOD = ("tensor", "as_tensor", "asarray"), "new_tensor"


@contextlib.contextmanager
def constants_keep_values(largest_floats: int) -> Iterator[None]:
    """In this thread integers keep their values, and up to so many floating-point numbers."""
    thread = threading.get_ident()

    def keeping(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            is_asked = threading.get_ident() == thread and _asks_for_meta(*args, **kwargs)
            known = make(*args, **{**kwargs, "device": "cpu"}) if is_asked else None
            return known if known is not None and _is_small(known, largest_floats) else make(*args, **kwargs)

        return made

    with contextlib.ExitStack() as stack:
        for owner, name in (*((torch, name) for name in _FUNCTIONS), (Tensor, _METHOD)):
            stack.enter_context(overridden(owner, name, keeping))
        yield


def _asks_for_meta(*args: Any, device: Any = None, **kwargs: Any) -> bool:
    """Whether numbers or lists, not a tensor, are to become a tensor without values."""
    *others, data = args or (kwargs.get("data"),)
    if device is None and others:
        device = others[0].device
    return device is not None and torch.device(device).type == "meta" and not isinstance(data, Tensor)


def _is_small(tensor: Tensor, largest_floats: int) -> bool:
    return tensor.numel() <= (largest_floats if tensor.is_floating_point() else CONCRETE_INTEGERS)
