"""The devices of this machine."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchscan.errors import Argument, Give, InputError, PythonOnly
from torchscan.hardware.device import Device
from torchscan.hardware.device_catalog import known_devices
from torchscan.hardware.device_entries import USABLE

_GIB = 2**30


def at_hand() -> Device:
    """Return this machine's GPU, or else its CPU, if it was measured."""
    import torch  # here, so that listing devices needn't wait for it

    if torch.cuda.is_available():
        return cuda_device("cuda")
    if torch.backends.mps.is_available():
        return apple_device()
    cpu = cpu_name()
    known = known_devices()
    if cpu in known:
        return known[cpu]
    raise InputError(
        "this machine has no GPU for torch, and its CPU has not been measured: give ",
        Give("device", "NVIDIA H200"),
        ", for example, or run `torchscan devices --measure` first",
    )


def cpu_name() -> str:
    """Return the model name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {models[0] if models else 'of this machine'}"


def cuda_device(name: str) -> Device:
    """Return a CUDA device of this machine, by torch's name for it."""
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            Argument("device"),
            f" is {name!r}, and this machine has no CUDA device: give a name, such as 'NVIDIA "
            "H200'",
        )
    properties = torch.cuda.get_device_properties(name)
    return replace(
        _with_properties(properties),
        memory_bytes=properties.total_memory,
        capability=properties.major + properties.minor / 10,
        multiprocessors=properties.multi_processor_count,
    )


def apple_device() -> Device:
    """Return the GPU of this Mac, with the memory that this Mac has."""
    import torch

    chip = _sysctl("machdep.cpu.brand_string")
    if not chip.startswith("Apple "):
        raise InputError(
            Argument("device"),
            " is 'mps', and this machine is not a Mac with an Apple chip: give a name, such as "
            "'Apple M2 Max'",
        )
    known = known_devices().get(chip)
    if known is None:
        raise InputError(
            Argument("device"),
            f" is 'mps', and the rates of {chip} are not known: give a known device, such as "
            "'Apple M2 Max'",
            PythonOnly(", or register it with register_device(...)"),
        )
    size = int(_sysctl("hw.memsize"))
    has_mps = torch.backends.mps.is_available()
    usable = torch.mps.recommended_max_memory() if has_mps else int(size * USABLE)
    return replace(known, memory_bytes=usable, data_sheet_memory_gib=size / _GIB)


def _sysctl(name: str) -> str:
    """Return what macOS says about this machine, or "" on other systems."""
    try:
        said = subprocess.run(  # noqa: S603
            ["sysctl", "-n", name],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return said.stdout.strip()


def _with_properties(properties: Any) -> Device:
    """Return the known device that torch describes.

    Several have the same name, as all Jetson Orin do: then it is the most similar.
    """

    def difference(device: Device) -> tuple[int, int]:
        multiprocessors = properties.multi_processor_count - (device.multiprocessors or 0)
        return abs(multiprocessors), abs(properties.total_memory - device.memory_bytes)

    # Older drivers leave out the vendor.
    bare = properties.name.removeprefix("NVIDIA ")
    called: list[Device] = []
    for device in known_devices().values():
        names = [each.removeprefix("NVIDIA ") for each in (device.name, *device.aliases)]
        if bare in names:
            called.append(device)
    unknown = Device(name=properties.name, memory_bytes=0)
    return min(called, key=difference, default=unknown)


def measured_cpu() -> Device:
    """Return this machine's CPU, which must have been measured."""
    measured = known_devices().get(cpu_name())
    if measured is None:
        raise InputError(
            Argument("device"),
            " is 'cpu', and this CPU has not been measured: give a GPU, such as 'NVIDIA H200', "
            "leave it out, or run `torchscan devices --measure` first",
        )
    return measured
