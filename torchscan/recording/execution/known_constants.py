"""Functions that a model calls on tensors while it runs on shapes alone.

Activations are on the meta device then, so ``torch.tensor([3, 4], device=x.device)`` creates a
tensor there, without values: they are noted beside it. A branch that compares devices, or asks for
one, gets the model's own device, so that it is the branch that is taken on data. torch's own code
gets the true answer, which decides how a meta tensor is copied or shown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchscan.recording.bookkeeping.tensor_layouts import CONCRETE_FLOATS, CONCRETE_INTEGERS
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.places import is_of_user
from torchscan.torch_versions import requires_gpu, without_tracing

_MAKERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
_PROPERTIES: Any = Tensor
#: the answers that a tensor on a device gives, by the functions that ask
_DEVICE_ANSWERS: Mapping[Any, Callable[[torch.device], object]] = {
    _PROPERTIES.device.__get__: lambda device: device,
    _PROPERTIES.is_meta.__get__: lambda _: False,
    _PROPERTIES.is_cpu.__get__: lambda device: device.type == "cpu",
    _PROPERTIES.is_cuda.__get__: lambda device: device.type == "cuda",
}
_GPU = torch.device("cuda")
_NOTICED = _MAKERS | _DEVICE_ANSWERS.keys()


class KnownConstants(TorchFunctionMode):
    """Context in which tensors made of numbers keep their values.

    All tensors report the model's device there, which is ``home``.
    """

    def __init__(self, table: TensorTable, home: torch.device | None) -> None:
        super().__init__()
        self._table = table
        self._home = home

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, and note the values that it was given."""
        if func not in _NOTICED:
            return func(*args, **kwargs) if kwargs else func(*args)
        answer = answer_device_query(func, self._home)
        if answer is not None:
            return answer
        made = func(*args, **(kwargs or {}))
        note_values(made, func, args, kwargs or {}, self._table, largest_floats=CONCRETE_FLOATS)
        return made


def answer_device_query(func: Callable[..., Any], home: torch.device | None) -> object:
    """Return the answer if a line of the user's, two calls up, asks for a tensor's device.

    A line of torch that requires a GPU gets one. The answer is None if another line asks, or the
    model has no device.
    """
    if func not in _DEVICE_ANSWERS:
        return None
    asking = sys._getframe(2)
    if requires_gpu(asking):
        return _DEVICE_ANSWERS[func](_GPU)
    if home is None or not is_of_user(asking):
        return None
    return _DEVICE_ANSWERS[func](home)


def note_values(
    made: Any,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    table: TensorTable,
    *,
    largest_floats: int,
) -> None:
    """Note the values if ``func`` has made a meta tensor of few numbers.

    There may be as many integers as keep their values, and ``largest_floats`` others.
    """
    if func not in _MAKERS or not made.is_meta:
        return
    data = kwargs["data"] if "data" in kwargs else args[-1]
    largest = largest_floats if made.is_floating_point() else CONCRETE_INTEGERS
    if isinstance(data, Tensor) or made.numel() > largest:
        return
    # a list of tensors has no values
    with without_tracing(), contextlib.suppress(RuntimeError, TypeError, ValueError):
        table.enter_constant_with(made, torch.tensor(data, dtype=made.dtype, device="cpu"))
