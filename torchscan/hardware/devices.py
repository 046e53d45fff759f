"""Accelerators by name: how much memory they have for a process, and what a process has to pay before its first tensor."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch

from torchscan.errors import InputError

_MIB, _GIB = 2**20, 2**30

#: of the memory on the data sheet, what a driver leaves to programs; less where GDDR memory corrects errors
USABLE, USABLE_WITH_GDDR_ECC = 0.975, 0.92
#: what a process holds for its context, torch's kernels and the libraries, once they are loaded
CONTEXT = 512 * _MIB
#: what cuBLAS works in, once for the forward and once for the backward pass: torch's defaults, before Hopper and since
CUBLAS_WORKSPACE, CUBLAS_WORKSPACE_HOPPER = 8320 * 1024, 32 * _MIB


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    #: bytes that programs can use
    memory: int
    #: compute capability: 9.0
    capability: float

    @property
    def room(self) -> int:
        """Bytes for tensors and workspaces."""
        return self.memory - CONTEXT

    @property
    def cublas_workspace(self) -> int:
        """Bytes that cuBLAS works in, for each thread that calls it."""
        return CUBLAS_WORKSPACE_HOPPER if self.capability >= 9 else CUBLAS_WORKSPACE


def device_named(name: str) -> Device:
    """The accelerator of that name, in any case, also in part where that is clear ("H200", "RTX 4090").

    "cuda" is the one at hand; "24 GiB" some card with as much memory.
    """
    if not isinstance(name, str):
        raise InputError(f"device is {name!r}: give its name, 'NVIDIA H200', say, its memory, '24 GiB', or 'cuda'")
    if re.fullmatch(r"cuda(:\d+)?", name.lower()):
        return _at_hand(name.lower())
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?gi?b", name.lower())
    if size:
        return Device(name, int(float(size[1]) * _GIB * USABLE), 8.0)
    known = _known()
    matches = [full for full in known if name.lower() == full.lower()] or [full for full in known if _is_part(name, full)]
    if len(matches) == 1:
        return known[matches[0]]
    near = matches or difflib.get_close_matches(name, known, 3, 0.3)
    problem = "can be several devices" if matches else "is not known"
    raise InputError(
        f"device {name!r} {problem}: give a name like {', '.join(near or ['NVIDIA H200'])}, or its memory, '24 GiB'"
    )


#: words that tell one model from another, so that they are not left out
_DISTINGUISHING = {"ti", "super", "max", "nvl", "s", "g"}


def _is_part(name: str, full: str) -> bool:
    """Word by word: "A100 80GB SXM" is part of "NVIDIA A100-SXM4-80GB"; "A10" is not, nor "GTX 1650" of a "GTX 1650 Ti"."""
    given, words = _words(name), _words(full)
    return given <= words and not (words - given) & _DISTINGUISHING


def _words(name: str) -> set[str]:
    """Letters and numbers apart: "RTX4090" is "rtx", "4090"."""
    return set(re.findall(r"[a-z]+|[0-9]+", name.lower()))


@cache
def _known() -> dict[str, Device]:
    entries = json.loads(resources.files("torchscan.hardware").joinpath("devices.json").read_text())["devices"]
    return {
        name: Device(
            name,
            int(entry["memory"] * _GIB * (USABLE_WITH_GDDR_ECC if entry.get("gddr_ecc") else USABLE)),
            entry["capability"],
        )
        for name, entry in entries.items()
    }


def _at_hand(name: str) -> Device:
    if not torch.cuda.is_available():
        raise InputError(f"device is {name!r}, and there is no CUDA device here: give the name of one, 'NVIDIA H200', say")
    properties = torch.cuda.get_device_properties(name)
    return Device(properties.name, properties.total_memory, properties.major + properties.minor / 10)
