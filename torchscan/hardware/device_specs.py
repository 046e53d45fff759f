"""Devices by name: what they have and how fast they are, from data sheets or measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeGuard

from torchscan.errors import Argument, InputError, PythonOnly
from torchscan.hardware.device import Device as Device
from torchscan.hardware.device_catalog import known_devices, register
from torchscan.hardware.device_entries import USABLE, to_device
from torchscan.hardware.device_names import has_words, is_part, most_similar
from torchscan.hardware.this_machine import (
    apple_device,
    at_hand,
    cpu_name,
    cuda_device,
    measured_cpu,
)
from torchscan.wrong_arguments import explain_wrong_types

_GIB = 2**30
#: names in the error about an ambiguous one
_MAX_PROPOSED = 5


@explain_wrong_types
def device_named(name: str | None, *, is_timed: bool = False) -> Device:
    """Return the device with this name. Case does not matter, and an unambiguous part is enough.

    ``is_timed``: times are asked for, so that advice leaves out devices of which only the memory is
    known.

    - "H200" and "RTX 4090" are parts of a name. "H100" and "A100" are the SXM cards with 80 GB,
      because they are short names in the catalog. "V100" is ambiguous.
    - "cuda" is this machine's GPU, "mps" that of a Mac, "24 GiB" a GPU with that much memory.
    - None is this machine's GPU, or else its CPU, if it was measured.
    """
    if name is None:
        return at_hand()
    if is_torch_device(name):
        name = str(name)
    if not isinstance(name, str):
        raise InputError.of_value(
            "device", name, "give its name ('NVIDIA H200'), its memory ('24 GiB') or 'cuda'"
        )
    lower = name.lower()
    if lower == "auto":  # the word of the command line
        return at_hand()
    if re.fullmatch(r"cuda(:\d+)?", lower):
        return cuda_device(lower)
    if re.fullmatch(r"mps(:0)?", lower):
        return apple_device()
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?gi?b", lower)
    if size and float(size[1]) == 0:
        raise InputError.of_value("device", name, "give its memory, such as '24 GiB'")
    if size:
        return Device(
            name=name,
            memory_bytes=int(float(size[1]) * _GIB * USABLE),
            data_sheet_memory_gib=float(size[1]),
            capability=8.0,
        )
    if _CPU.fullmatch(lower):
        return measured_cpu()
    return _device_of_catalog(name, is_timed=is_timed)


def _device_of_catalog(name: str, *, is_timed: bool) -> Device:
    """Return the known device of this name, alias or unambiguous part of a name."""
    known = known_devices()
    matches = _find_names(name, known) or _find_partial_names(name, known)
    if len(matches) == 1:
        return known[matches[0]]

    likely = [full for full in known if has_words(name, full)]
    if not likely and name.lower() not in _KINDS:
        likely = most_similar(name, known)
    proposed = likely[:_MAX_PROPOSED] or ["NVIDIA H200"]
    advice = f"a name like {', '.join(proposed)}"
    if matches:
        number = "several"
        if len(likely) > _MAX_PROPOSED:
            number = str(len(likely))
            advice += " (`torchscan devices` lists all)"
        problem = f" is {name!r}, which matches {number} devices: give "
        raise InputError(Argument("device"), problem, advice)
    memory = "" if is_timed else ", or its memory, such as '24 GiB'"
    own = PythonOnly(", or register it with register_device(...)")
    raise InputError(
        Argument("device"),
        f" is {name!r}, which is not known: give ",
        (advice, f" (`torchscan devices` lists all){memory}", own),
    )


def _find_names(name: str, known: Mapping[str, Device]) -> list[str]:
    """Return the devices of this name, or else with this alias."""
    lower = name.lower()
    equal = [full for full in known if full.lower() == lower]
    if equal:
        return equal
    return [full for full, device in known.items() if lower in map(str.lower, device.aliases)]


def _find_partial_names(name: str, known: Mapping[str, Device]) -> list[str]:
    """Return the devices whose name contains this one.

    Of several, only those remain whose short name is among the words, if there are any.
    """
    matches = [full for full in known if is_part(name, full)]
    if len(matches) < 2:
        return matches
    meant = [full for full in matches if has_words(known[full].short_name, name)]
    return meant or matches


#: the CPU of this machine, as torch names it
_CPU = re.compile(r"cpu(:\d+)?")
#: kinds of devices, which are not names of devices
_KINDS = ("gpu", "xpu", "hip", "hpu", "npu", "xla")


def is_torch_device(device: object) -> bool:
    """Return whether the value is a ``torch.device``; torch need not be imported."""
    return type(device).__module__ == "torch" and type(device).__name__ == "device"


def can_estimate_for(device: object) -> TypeGuard[str]:
    """Return whether that names a device: not None, and not a CPU that was not measured.

    In other tools ``device="cpu"`` names the place where the model runs. Here it asks for no
    estimate.
    """
    if device is None:
        return False
    return not _CPU.fullmatch(str(device).lower()) or cpu_name() in known_devices()


@explain_wrong_types
def register_device(
    name: str,
    *,
    memory_gb: float,
    bandwidth_gbs: float,
    dense_tflops: Mapping[str, float],
    capability: float | None = None,
    multiprocessors: int | None = None,
    boost_mhz: float | None = None,
    l2_mb: float | None = None,
    link_gbs: float | None = None,
    power_w: float | None = None,
    arch: str | None = None,
    memory_type: str | None = None,
    cuda_context_mb: float | None = None,
) -> Device:
    """Make a device known to this process; the user's device file makes it known to all.

    Args:
        name: as ``torch.cuda.get_device_name()`` returns it. Replaces any device of that name.
        memory_gb: memory, in 2^30 bytes.
        bandwidth_gbs: memory bandwidth, in 10^9 bytes per second.
        dense_tflops: peak rates in 10^12 operations per second, without sparsity:
            ``{"fp32": 35.6, "fp16": 71.2}``.
        capability: CUDA's compute capability, such as 8.6.
        multiprocessors: their number, which determines how much of the device small kernels use.
        boost_mhz: boost clock, in MHz.
        l2_mb: size of the second-level cache, in 2^20 bytes.
        link_gbs: NVLink and the like, in both directions, in 10^9 bytes per second.
        power_w: power limit of the board, in watts.
        arch: "Ada", "Hopper", …: decides how much power an operation takes.
        memory_type: "GDDR7" gives less of its bandwidth to kernels than other memory.
        cuda_context_mb: what a process holds for its context, kernels and libraries, in 2^20 bytes.

    """
    if not isinstance(name, str) or not name:
        raise InputError.of_value("name", name, "give the name of the device, a string")
    given = {
        "memory_gb": memory_gb,
        "bandwidth_gbs": bandwidth_gbs,
        "dense_tflops": dense_tflops,
        "capability": capability,
        "multiprocessors": multiprocessors,
        "boost_mhz": boost_mhz,
        "l2_mb": l2_mb,
        "link_gbs": link_gbs,
        "power_w": power_w,
        "arch": arch,
        "memory_type": memory_type,
        "cuda_context_mb": cuda_context_mb,
    }
    entry = {key: value for key, value in given.items() if value is not None}
    device = to_device(name, entry, "register_device")
    register(device)
    return device
