"""Everything of a model, and of the process, that somebody could look at: to compare before and after."""

from __future__ import annotations

import pickle
import random
import signal
import sys
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks


def observables(model: nn.Module) -> dict[str, Any]:
    """Attribute by attribute, tensor by tensor, with values where there are any."""
    return {
        "modules": {path: _module(each) for path, each in model.named_modules()},
        "process": process_state(),
    }


def process_state() -> dict[str, Any]:
    """Random generators, global hooks, global flags."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": pickle.dumps(np.random.get_state()),  # as text it takes 10 ms
        "python": random.getstate(),
        "hooks": [
            len(table)
            for name, table in sorted(vars(hooks).items())
            if name.startswith("_global") and table is not None
        ],
        "has_hooks": getattr(hooks, "_has_any_global_hook", bool)(),
        "flags": flags(),
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "functions": [
            vars(each).get("has_torch_function")
            for each in (nn.functional, torch.functional, torch._tensor)
        ],
        "signals": signal.getsignal(signal.SIGINT),
    }


def flags() -> tuple[Any, ...]:
    """What torch and Python have one of, for all code of this thread."""
    return (
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_cache_enabled(),
        autocast_contexts(),
        torch.get_num_threads(),
        sys.getswitchinterval(),
        sys.getrecursionlimit(),
    )


def autocast_contexts() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _module(module: nn.Module) -> dict[str, Any]:
    return {"class": type(module)} | {name: _value(value) for name, value in vars(module).items()}


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, dict):
        return [(name, _value(item)) for name, item in value.items()]
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    return id(value) if isinstance(value, nn.Module) else (id(value), repr(value))


def _tensor(tensor: Tensor) -> tuple[Any, ...]:
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        return (id(tensor), type(tensor))
    values = (
        None
        if tensor.is_meta
        else zlib.crc32(
            tensor.detach()
            .clone(memory_format=torch.contiguous_format)
            .view(-1)
            .view(torch.uint8)
            .numpy()
            .tobytes()
        )
    )
    where = None if tensor.is_meta else tensor.data_ptr()
    what = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
    grad = None if tensor.grad is None else _tensor(tensor.grad)
    version = None if tensor.is_inference() else tensor._version
    return (
        id(tensor),
        type(tensor),
        version,
        what,
        where,
        values,
        grad,
        list(vars(tensor).items()),
    )
