"""Measurements of this machine's device: bandwidth, products in each format, context size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from torchscan.hardware.device_files import known_entry
from torchscan.hardware.process_memory import cuda_overhead
from torchscan.hardware.this_machine import cpu_name
from torchscan.torch_versions import products_in_tf32

_MIB, _GIB = 2**20, 2**30
#: seconds spent on each measurement
_LONG_ENOUGH = 0.5
#: name -> type of the operands, and whether single precision may be reduced to TF32
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
    if not torch.cuda.is_available():
        device = torch.device("cpu")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        formats = [name for name, (_, is_shortened) in _FORMATS.items() if not is_shortened]
        return cpu_name(), {**_measure_rates(device, memory, formats), "vendor": "CPU"}

    device = torch.device("cuda")
    memory = int(torch.cuda.get_device_properties(0).total_memory)
    entry = _measure_rates(device, memory, _native_formats())
    properties = torch.cuda.get_device_properties(device)
    known = known_entry(properties.name)
    entry["dense_tflops"] = {**known.get("dense_tflops", {}), **entry["dense_tflops"]}
    entry["vendor"] = "AMD" if torch.version.hip else "NVIDIA"
    entry["multiprocessors"] = properties.multi_processor_count
    entry["capability"] = properties.major + properties.minor / 10
    entry["boost_mhz"] = properties.clock_rate / 1000
    if properties.L2_cache_size:
        entry["l2_mb"] = properties.L2_cache_size / _MIB
    entry |= _measure_context(device)
    known.pop("source", None)
    known.pop("gddr_ecc", None)
    return properties.name, known | entry


def _measure_rates(device: torch.device, memory: int, formats: Sequence[str]) -> dict[str, Any]:
    """Return the values of an entry that all devices have."""
    bandwidth = _measure_copies(device)
    rates: dict[str, float] = {}
    for name in formats:
        dtype, is_shortened = _FORMATS[name]
        rates[name] = round(_measure_products(device, dtype, is_shortened) / 1e12, 4)
    measured = ", ".join(("bandwidth", *formats))
    return {
        "memory_gb": round(memory / _GIB, 2),
        "bandwidth_gbs": round(bandwidth / 1e9, 1),
        "dense_tflops": rates,
        "note": f"measured with torch {torch.__version__}: {measured}",
        "is_measured": True,
    }


def _measure_context(device: torch.device) -> dict[str, float]:
    """Return the MiB that this process holds besides tensors, or nothing if NVML hides them.

    Products and convolutions run first, so that their libraries are loaded.
    """
    images = torch.ones(8, 8, 16, 16, device=device, requires_grad=True)
    weights = torch.ones(8, 8, 16, 16, device=device, requires_grad=True)
    F.conv2d(images, weights).sum().backward()
    (images.flatten(1) @ weights.flatten(1).T).sum().backward()
    _finish(device)
    held = cuda_overhead().cuda
    return {"cuda_context_mb": round(held)} if held else {}


def _native_formats() -> list[str]:
    """Return the formats that a GPU computes in natively; others may only be accepted."""
    major, _ = torch.cuda.get_device_capability()
    formats = list(_FORMATS)
    if major < 8:
        formats.remove("tf32")
        formats.remove("bf16")
    return formats


def _measure_copies(device: torch.device) -> float:
    """Return the bytes per second read and written, for a tensor too large for any cache."""
    size = 256 * _MIB
    if device.type == "cuda":
        size = 1024 * _MIB
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    shortest = _min_seconds(lambda: target.copy_(source), device)
    return 2 * size / shortest


def _measure_products(device: torch.device, dtype: torch.dtype, is_shortened: bool) -> float:
    """Return the operations per second for square matrices that fill the device."""
    size = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device)  # the global one stays as it is
    first = torch.rand(size, size, device=device, generator=generator).to(dtype)
    second = torch.rand(size, size, device=device, generator=generator).to(dtype)
    with torch.inference_mode(), products_in_tf32(is_shortened):
        shortest = _min_seconds(lambda: first @ second, device)
    return 2 * size**3 / shortest


def _min_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the shortest run. The first runs load kernels and raise clocks."""
    run()
    best = float("inf")
    end = time.perf_counter() + _LONG_ENOUGH
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
