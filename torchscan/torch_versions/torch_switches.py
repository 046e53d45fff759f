"""Defaults and switches of the process, which are read, set and restored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

_C: Any = torch._C

#: returns the order in which the kernels of attention are tried
attention_order: Callable[[], list[int]] = _C._get_sdp_priority_order
#: sets the order that was read
set_attention_order: Callable[[list[int]], None] = _C._set_sdp_priority_order


def unoptimized_scripts() -> contextlib.AbstractContextManager[None]:
    """Return a context in which the executor of TorchScript runs operators as they are written.

    Fused operators would be hidden from the recorder. Fusing fails on proxy tensors in the legacy
    executor, which some packages switch on.
    """
    jit: Any = torch.jit
    context: contextlib.AbstractContextManager[None] = jit.optimized_execution(False)
    return context


def default_device() -> torch.device | None:
    """Return the device that was given to ``torch.set_default_device`` in this thread."""
    state = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    context: Any = getattr(state, "device_context", None)
    return None if context is None else context.device


def set_default_device(device: torch.device | None) -> None:
    """Set the default device that was read.

    After None, torch 2.6 fails when it is asked, unless the state is as if it had never been set.
    """
    torch.set_default_device(device)
    if device is None:
        state = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
        getattr(state, "__dict__", {}).pop("device_context", None)


def print_options() -> Any:
    """Return torch's options for printing tensors. They can be assigned to."""
    return torch._tensor_str.PRINT_OPTS


def anomaly_flags() -> tuple[bool, bool]:
    """Return whether anomaly mode records the lines of operators, and whether it checks for NaN."""
    return torch._C.is_anomaly_enabled(), torch._C.is_anomaly_check_nan_enabled()


def set_anomaly_flags(is_on: bool, checks_nan: bool) -> None:
    """Set autograd's own flags, past the functions that users call."""
    torch._C.set_anomaly_enabled(is_on, checks_nan)


#: True if "tf32" is set by name; older versions have a flag, and newer ones refuse a mixture
_HAS_PRECISIONS = hasattr(torch.backends.cudnn, "conv")


@contextlib.contextmanager
def products_in_tf32(wanted: bool) -> Iterator[None]:
    """Compute products of single precision in TF32 inside the context, or not in TF32."""
    matmul: Any = torch.backends.cuda.matmul
    name: str = "allow_tf32"
    value: str | bool = wanted
    if _HAS_PRECISIONS:
        name = "fp32_precision"
        value = "tf32" if wanted else "ieee"
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def shortened_to_tf32() -> frozenset[Literal["products", "convolutions", "recurrent"]]:
    """Return the kinds of operators that may use TF32 for single precision, by torch's switches."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    shortened: dict[Literal["products", "convolutions", "recurrent"], bool]
    if not _HAS_PRECISIONS:
        shortened = {
            "products": matmul.allow_tf32,
            "convolutions": cudnn.allow_tf32,
            "recurrent": cudnn.allow_tf32,
        }
    else:
        shortened = {
            "products": matmul.fp32_precision == "tf32",
            "convolutions": cudnn.conv.fp32_precision == "tf32",
            "recurrent": cudnn.rnn.fp32_precision == "tf32",
        }
    return frozenset(name for name, is_shortened in shortened.items() if is_shortened)
