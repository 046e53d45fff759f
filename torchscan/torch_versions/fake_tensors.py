"""Tensors that report a device and have no data."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchscan.torch_versions.sharded_tensors import is_sharded_type, local_part

_C: Any = torch._C

#: returns the active mode of torch's fake tensors, which runs after other modes, or None
fake_mode: Callable[[], Any] = partial(_C._get_dispatch_mode, _C._TorchDispatchModeKey.FAKE)


def is_fake_type(kind: type) -> bool:
    """Return whether tensors of this type are fake: they report a device and have no data."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and issubclass(kind, fake.FakeTensor)


def making_fakes() -> contextlib.AbstractContextManager[object]:
    """Return a context in which new tensors report their device and have no data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


class WithoutData:
    """Makes tensors that report a device and have no data."""

    def __init__(self, mode: Any) -> None:
        from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

        #: a context in which all new tensors are such
        self.mode: contextlib.AbstractContextManager[object] = mode
        self._make: Any = FakeTensor
        self._as_meta: Any = in_kernel_invocation_manager

    @classmethod
    def of(cls, tensor: Tensor) -> WithoutData | None:
        """Return the mode of a fake tensor, or of its local part, or None if it has data."""
        mode = getattr(local_part(tensor), "fake_mode", None)
        return None if mode is None else cls(mode)

    def tensor(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return a tensor with separate memory."""
        made: Tensor = self._make(
            self.mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device
        )
        return made

    def view(
        self, tensor: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int
    ) -> Tensor:
        """Return a tensor that shares the memory of another."""
        with self._as_meta(self.mode):
            view = tensor.as_strided(shape, stride, offset)
        made: Tensor = self._make(self.mode, view, tensor.device)
        return made


def has_no_data(tensor: Tensor) -> bool:
    """Return whether a tensor, or its local part, is nothing but a shape on some device."""
    return tensor.is_meta or WithoutData.of(tensor) is not None


def stands_for_itself(tensor: Tensor) -> bool:
    """Return whether no proxy can replace a tensor: it is sharded, or has a device and no data."""
    return is_sharded_type(type(tensor)) or is_fake_type(type(tensor))


def pinning_verbs() -> list[tuple[Any, str]]:
    """Return the place of the function that pins memory, which has no effect on fake tensors."""
    return [(Tensor, "pin_memory")]
