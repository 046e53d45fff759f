"""Models whose tensors have no data and pretend to be on the CPU."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, InputError
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.patches import overridden
from torchscan.torch_versions import WithoutData, making_fakes

#: what torch raises where a tensor without data is asked for values
ASKING_FOR_DATA = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "tolist() is not supported for tensor subclasses",
)
#: what training scripts do and a plan does not
ON_NO_DEVICE = (
    "; a plan has no device and provides the mesh: leave out .cuda(), device_ids and other meshes"
)


def build_without_data(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that a function builds, with tensors without data."""
    if not callable(build):
        raise InputError(
            Argument("module"),
            f" is a {type(build).__name__}: give the model, or a function that returns it",
        )
    try:
        with making_fakes(), overridden(nn.Module, "_apply", _converting):
            model = build()
    except Exception as error:
        if type(error).__name__ not in ASKING_FOR_DATA:
            line = first_line(error)
            advice = ON_NO_DEVICE if "CUDA" in line.upper() else ""
            raise InputError(f"module() failed: {line}{advice}") from error
        raise InputError(
            f"module() reads values, and a plan has none ({error}): build the model before, and "
            "give that"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"module() returned a {type(model).__name__}: return the model")
    if any(each.device.type == "meta" for each in tensors_of(model)):
        return copy_without_data(model, None)
    return model


def _converting(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return ``nn.Module._apply`` for tensors without data, which torch cannot swap.

    ``model.bfloat16()`` for example replaces them by new ones.
    """
    thread = threading.get_ident()

    def convert(
        module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> nn.Module:
        if threading.get_ident() != thread:
            return apply(module, change, recurse)
        made: dict[int, Tensor] = {}
        for each in module.modules() if recurse else [module]:
            for tensors in (each._parameters, each._buffers):
                tensors |= {
                    name: _changed(tensor, change, made)
                    for name, tensor in tensors.items()
                    if tensor is not None
                }
        return module

    return convert


def _changed(tensor: Tensor, change: Callable[[Tensor], Tensor], made: dict[int, Tensor]) -> Tensor:
    """Return a changed tensor; one that is shared stays shared."""
    if id(tensor) not in made:
        with torch.no_grad():
            changed = change(tensor)
        if isinstance(tensor, nn.Parameter):
            changed = nn.Parameter(changed, tensor.requires_grad)
        made[id(tensor)] = changed
    return made[id(tensor)]


def copy_without_data(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Return a copy whose tensors have no data and pretend to be on the CPU.

    Integers keep their values, because the control flow of a pass may depend on them.
    """
    made = WithoutData(making_fakes())
    kept: dict[int, Any] = {}
    for tensor in tensors_of(module):
        if tensor.is_meta or tensor.is_floating_point():
            kept[id(tensor)] = _pretender(tensor, made, dtype)
    try:
        return copy.deepcopy(module, kept)
    except Exception as error:
        raise InputError(
            f"{type(module).__name__} cannot be copied ({error}): give a function that builds it"
        ) from error


def _pretender(tensor: Tensor, made: WithoutData, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or not tensor.is_floating_point():
        dtype = tensor.dtype
    pretender = made.tensor(tensor.shape, tensor.stride(), dtype, torch.device("cpu"))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(pretender, requires_grad=tensor.requires_grad)
    return pretender


def first_line(error: Exception) -> str:
    """Return the class and the first line of an error."""
    line, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {line}"
