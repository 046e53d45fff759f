"""Operands of composite operators, which compare the devices of their tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.bookkeeping.tensor_layouts import meta_tensor
from torchscan.recording.bookkeeping.tensors import TensorTable


def on_one_device(
    args: Sequence[Any], kwargs: Mapping[str, Any], table: TensorTable
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return operands that are all on one device.

    Beside a meta tensor, other floating-point tensors give up their values.
    """
    if not torch.is_inference_mode_enabled():
        return args, kwargs
    are_meta = {tensor.is_meta for tensor in tensors_in((args, kwargs))}
    if len(are_meta) < 2:
        return args, kwargs

    def without_values(tensor: Tensor) -> Tensor:
        if tensor.is_meta or not tensor.is_floating_point():
            return tensor
        substitute = meta_tensor(table.find(tensor).spec)
        table.enter_substitute(substitute, tensor)
        return substitute

    changed: tuple[Sequence[Any], Mapping[str, Any]] = copy_arguments(
        (args, kwargs), without_values
    )
    return changed
