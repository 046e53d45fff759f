"""Current streams, captures and the allocator of CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_C: Any = torch._C

#: returns torch's address of a device's stream; builds without CUDA have no such function
_raw_cuda_stream: Callable[[int], int] = getattr(_C, "_cuda_getCurrentRawStream", int)
_cuda_device: Callable[[], int] = getattr(_C, "_cuda_getDevice", int)
#: streams by the number of their device and torch's address
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}
#: returns whether work on CUDA is captured, to run later; nothing may be timed then
is_capturing: Callable[[], bool] = getattr(_C, "_cuda_isCurrentStreamCapturing", bool)


def is_capturing_now() -> bool:
    """Return whether CUDA is in use and work is being captured, to run later."""
    return torch.cuda.is_initialized() and is_capturing()


def current_stream(device: int | None = None) -> torch.cuda.Stream:
    """Return the current stream of a device, or of the current device.

    It takes a tenth of the time in which torch creates an object for the stream.
    """
    device = _cuda_device() if device is None else device
    key = device, _raw_cuda_stream(device)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = torch.cuda.current_stream(device)
    return stream


def allocator_snapshot() -> dict[str, Any] | None:
    """Return the snapshot of CUDA's allocator, or None without CUDA or with another allocator."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        content: dict[str, Any] = torch.cuda.memory._snapshot()
    except RuntimeError:  # cudaMallocAsync has none
        return None
    return content


def device_switches() -> list[tuple[Any, str]]:
    """Return the functions that ``torch.cuda.device`` switches devices by, if there is no device.

    They take the index of a device, and return that of the one before.
    """
    if torch.cuda.is_available() or not hasattr(torch.cuda, "_exchange_device"):
        return []
    return [(torch.cuda, "_exchange_device")]
