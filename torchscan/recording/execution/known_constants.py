"""Numbers and lists that become tensors while a model runs on shapes alone.

Activations are on the meta device then, so ``torch.tensor([3, 4], device=x.device)`` makes a tensor there, which knows nothing
of its values. They are noted beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchscan.recording.bookkeeping.tensors import CONCRETE_FLOATS, CONCRETE_INTEGERS, TensorTable
from torchscan.recording.execution.whereabouts import ASKING_WHERE, answer_device_query
from torchscan.torch_versions import without_tracing

_MAKERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
_NOTICED = _MAKERS | ASKING_WHERE


class KnownConstants(TorchFunctionMode):
    """While entered, tensors that functions make of numbers keep their values, and all are where the model is: ``home``."""

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
        """Call the function, and take note of what it was given."""
        if func not in _NOTICED:
            return func(*args, **kwargs) if kwargs else func(*args)
        answer = answer_device_query(func, self._home)
        if answer is not None:
            return answer
        made = func(*args, **(kwargs or {}))
        note_values(made, func, args, kwargs or {}, self._table, largest_floats=CONCRETE_FLOATS)
        return made


def note_values(
    made: Any,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    table: TensorTable,
    *,
    largest_floats: int,
) -> None:
    """If ``func`` has made a meta tensor of integers, or of so many floating-point numbers, what they are."""
    if func not in _MAKERS or not made.is_meta:
        return
    data = kwargs["data"] if "data" in kwargs else args[-1]
    if isinstance(data, Tensor) or made.numel() > (
        largest_floats if made.is_floating_point() else CONCRETE_INTEGERS
    ):
        return
    with (
        without_tracing(),
        contextlib.suppress(RuntimeError, TypeError, ValueError),
    ):  # a list of tensors without values
        table.enter_constant_with(made, torch.tensor(data, dtype=made.dtype, device="cpu"))
