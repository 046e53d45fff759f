"""The device of a run, and the expected time of a step on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from torchscan._version import __version__
from torchscan.analyses.roofline import Roofline
from torchscan.hardware.this_machine import cpu_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected time of a step by the roofline of its device."""

    device: str
    #: seconds of the forward pass
    forward: float
    #: seconds of the backward pass
    backward: float
    #: error margin, as a share
    error_share: float
    #: operations of the step's products, two per multiply-accumulate
    operations: int
    #: seconds that these products take at the device's dense peaks
    at_peak: float
    #: dense peaks of their formats, in FLOP/s
    peaks: dict[str, float]

    @classmethod
    def of(cls, roofline: Roofline) -> Expected:
        """Return the expected time of a complete step."""
        macs: Counter[str] = Counter()
        for load in roofline.operators:
            macs[load.precision] += load.macs
        formats = [name for name, number in macs.items() if number]
        peaks = {name: roofline.peak_flops[name] for name in formats if name in roofline.peak_flops}
        at_peak = sum(2 * macs[name] / peak for name, peak in peaks.items())
        times = roofline.time_by_phase
        return cls(
            device=roofline.device,
            forward=times.get("forward", 0.0),
            backward=times.get("backward", 0.0),
            error_share=roofline.error_margin.share,
            operations=2 * macs.total(),
            at_peak=at_peak,
            peaks=peaks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProvenance:
    """The device and the versions that a run was measured with."""

    #: processor or GPU of the model; if there are several, all of them
    device: str
    #: threads of the host for one operator
    threads: int
    torch_version: str
    torchscan_version: str

    @classmethod
    def of(cls, model: nn.Module) -> RunProvenance:
        """Return the provenance of a run of this model on this machine."""
        tensors = chain(model.parameters(), model.buffers())
        devices = dict.fromkeys(tensor.device for tensor in tensors)
        names = dict.fromkeys(map(name_of_device, devices))
        device = ", ".join(names) or cpu_name()
        return cls(
            device=device,
            threads=torch.get_num_threads(),
            torch_version=str(torch.__version__),
            torchscan_version=__version__,
        )


def name_of_device(device: torch.device) -> str:
    """Return the name of the GPU or processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else device.type
