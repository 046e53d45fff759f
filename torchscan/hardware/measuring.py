"""Measurements of this machine's device: bandwidth, matrix products per format, and context size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from torchscan.hardware.device_specs import cpu_name, known_entry
from torchscan.hardware.process_memory import cuda_overhead
from torchscan.torch_versions import products_in_tf32

_MIB, _GIB = 2**20, 2**30
#: seconds spent on each measurement
_LONG_ENOUGH = 0.5
#: name -> type of the operands, whether single precision may be reduced to TF32
_FORMATS: dict[str, tuple[torch.dtype, bool]] = {
    "fp64": (torch.float64, False),
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
}


def measure() -> tuple[str, dict[str, Any]]:
    """Return the name of this machine's device and its entry for a device file.

    Each rate is the best of many runs.
    """
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if on_cuda else "cpu")
    formats = _formats()
    entry: dict[str, Any] = {
        "memory_gb": round(_memory(on_cuda) / _GIB, 2),
        "bandwidth_gbs": round(_copies(device) / 1e9, 1),
        "dense_tflops": {
            name: round(_products(device, *_FORMATS[name]) / 1e12, 4) for name in formats
        },
        "note": f"measured with torch {torch.__version__}: {', '.join(('bandwidth', *formats))}",
        "is_measured": True,
    }
    if not on_cuda:
        return cpu_name(), {**entry, "vendor": "CPU"}
    properties = torch.cuda.get_device_properties(device)
    known = known_entry(properties.name)
    entry["dense_tflops"] = {**known.get("dense_tflops", {}), **entry["dense_tflops"]}
    entry |= {
        "vendor": "AMD" if torch.version.hip else "NVIDIA",
        "multiprocessors": properties.multi_processor_count,
    }
    entry |= {
        "capability": properties.major + properties.minor / 10,
        "boost_mhz": properties.clock_rate / 1000,
    }
    entry |= {"l2_mb": properties.L2_cache_size / _MIB} if properties.L2_cache_size else {}
    entry |= _context(device)
    return properties.name, {
        key: value for key, value in known.items() if key not in ("source", "gddr_ecc")
    } | entry


def _context(device: torch.device) -> dict[str, float]:
    """Return the MiB that this process holds besides tensors, or nothing if NVML hides them.

    Products and convolutions run first, so that their libraries are loaded.
    """
    images, weights = (
        torch.ones(8, 8, 16, 16, device=device, requires_grad=True) for _ in range(2)
    )
    F.conv2d(images, weights).sum().backward()
    (images.flatten(1) @ weights.flatten(1).T).sum().backward()
    _finish(device)
    held = cuda_overhead().cuda
    return {"cuda_context_mb": round(held)} if held else {}


def _formats() -> list[str]:
    """Return the formats that the device computes in natively; others may only be accepted."""
    if not torch.cuda.is_available():
        return [name for name, (_, shortened) in _FORMATS.items() if not shortened]
    recent = torch.cuda.get_device_capability()[0] >= 8
    return [name for name in _FORMATS if recent or name not in ("tf32", "bf16")]


def _memory(on_cuda: bool) -> int:
    if on_cuda:
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _copies(device: torch.device) -> float:
    """Bytes per second read and written, for a tensor too large for any cache."""
    size = (1024 if device.type == "cuda" else 256) * _MIB
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source), device)


def _products(device: torch.device, dtype: torch.dtype, shortened: bool) -> float:
    """Operations per second, for square matrices that fill the device."""
    size = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)
    first, second = (
        torch.rand(size, size, device=device, generator=generator).to(dtype) for _ in range(2)
    )
    with torch.inference_mode(), products_in_tf32(shortened):
        return 2 * size**3 / _best(lambda: first @ second, device)


def _best(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the shortest run. The first runs load kernels and raise clocks."""
    run()
    best, end = float("inf"), time.perf_counter() + _LONG_ENOUGH
    while time.perf_counter() < end:
        _finish(device)
        start = time.perf_counter()
        run()
        _finish(device)
        best = min(best, time.perf_counter() - start)
    return best


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
