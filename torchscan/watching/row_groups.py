"""Groups of tensors whose values are sampled together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.torch_versions import (
    count_dispatch_modes,
    count_function_modes,
    set_grad_enabled,
    without_dispatch,
    without_torch_function,
)


class BareOperators:
    """A context in which operators run without gradients and without modes of the user's.

    Context managers of torch that are written in Python take several times as long.
    """

    def __enter__(self) -> None:
        self._had_gradients = torch.is_grad_enabled()
        self._contexts: tuple[Any, ...] = ()
        if count_dispatch_modes() or count_function_modes():
            self._contexts = without_dispatch(), without_torch_function()
            for context in self._contexts:
                context.__enter__()
        set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        set_grad_enabled(self._had_gradients)
        for context in reversed(self._contexts):
            context.__exit__(*error)


class RowGroup(NamedTuple):
    """Rows of several tensors, which can be added to another step again."""

    #: values of one row or of several adjacent rows
    pieces: Sequence[Tensor]
    numels: Sequence[int]
    #: for each tensor the index of its row in the group, or None if it cannot be read
    indices: Sequence[int | None]
    #: all values of those tensors that were joined, or None
    joined: Tensor | None = None
    #: indices of joined tensors of which not all values are sampled, and of tensors not joined
    wide: Sequence[int] = ()
    others: Sequence[int] = ()


class NumberedTensors(NamedTuple):
    """Tensors with their rows."""

    rows: list[int]
    tensors: list[Tensor]

    def add(self, row: int | None, tensor: Tensor) -> None:
        """Add a tensor, if it has a row."""
        if row is not None:
            self.rows.append(row)
            self.tensors.append(tensor)
