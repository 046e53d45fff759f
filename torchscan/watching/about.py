"""Metadata of a watched run: its model, devices and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torchscan._version import __version__
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.torch_versions import compiled_from


def about_of(model: nn.Module, log: Sequence[str]) -> dict[str, Any]:
    """Its name and size, what is looked at, and what by."""
    whole = compiled_from(model) or model
    return {
        "model": type_name_of(whole),
        "parameters": sum(
            each.numel() for each in nn.Module.parameters(whole) if not nn.parameter.is_lazy(each)
        ),
        "fingerprint": fingerprint_of(whole),
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
    return hashlib.sha256(
        repr([(name, tuple(each.shape)) for name, each in parameters]).encode()
    ).hexdigest()[:16]
