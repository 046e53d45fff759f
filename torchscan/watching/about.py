"""Metadata of a watched run: its model, devices and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torchscan._version import __version__
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import tensors_of, type_name_of
from torchscan.torch_versions import compiled_from

#: of the types that autocast computes in
_SHORT_NAMES = {"bfloat16": "bf16", "float16": "fp16"}


def about_of(model: nn.Module, log: Sequence[str]) -> dict[str, Any]:
    """Return the name and the size of a model, what is recorded, and the versions."""
    whole = compiled_from(model) or model
    fingerprint = fingerprint_of(whole)
    parameters = nn.Module.parameters(whole)
    sizes = [each.numel() for each in parameters if not nn.parameter.is_lazy(each)]
    return {
        "model": type_name_of(whole),
        "parameters": sum(sizes),
        "fingerprint": fingerprint,
        "log": list(log),
        "torchscan": __version__,
        "torch": torch.__version__,
    }


def fingerprint_of(model: nn.Module) -> str | None:
    """Return a hash of the names and shapes of parameters, or None if some are still lazy."""
    model = compiled_from(model) or model
    parameters = list(model.named_parameters())
    if any(nn.parameter.is_lazy(each) for _, each in parameters):
        return None
    shapes = [(name, tuple(each.shape)) for name, each in parameters]
    text = repr(shapes).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def inputs_of(model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the shape of the first input, the precision and the device."""
    shapes = (list(each.shape) for each in tensors_in(args))
    shape = next(shapes, None)
    device, dtype = torch.device("cpu"), torch.float32
    tensor = next(tensors_of(model), None)
    if tensor is not None:
        device, dtype = tensor.device, tensor.dtype
    precision = str(dtype).removeprefix("torch.")
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
        narrow = str(dtype).removeprefix("torch.")
        short = _SHORT_NAMES.get(narrow, narrow)
        precision = f"{short}-mixed"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = device.type.upper()
    return {"batch": shape, "precision": precision, "device": name}
