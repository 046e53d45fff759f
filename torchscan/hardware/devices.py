"""Accelerators by name: how much memory they have for a process, and what a process has to pay before its first tensor."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch

from torchscan.errors import InputError

_MIB, _GIB = 2**20, 2**30

#: of the memory on the data sheet, what a driver leaves to programs; less where GDDR memory corrects errors
USABLE, USABLE_WITH_GDDR_ECC = 0.985, 0.92
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
    """The accelerator of that name, in any case, also in part where that is clear ("H200", "4090"); "cuda": the one at hand."""
    if name.lower() == "cuda" or name.lower().startswith("cuda:"):
        return _at_hand(name)
    known = _known()
    matches = [full for full in known if name.lower() == full.lower()] or [full for full in known if _is_part(name, full)]
    if len({known[full].memory for full in matches}) == 1:
        return known[matches[0]]
    near = matches or difflib.get_close_matches(name, known, 3, 0.3)
    problem = "can be several devices" if matches else "is not known"
    raise InputError(f"device {name!r} {problem}: give one of {', '.join(near or known)}")


def _is_part(name: str, full: str) -> bool:
    """Word by word: "A100 80GB" is part of "NVIDIA A100-SXM4-80GB"; "A10" is not."""
    words = full.lower().replace("-", " ").split()
    return all(word in words for word in name.lower().replace("-", " ").split())


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
