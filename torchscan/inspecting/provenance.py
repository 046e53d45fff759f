"""On what a run was measured, and by what: other machines and versions take other times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from torchscan._version import __version__
from torchscan.hardware.device_specs import cpu_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProvenance:
    """On what a run was measured, and by what."""

    #: processor or GPU of the model; if there are several, all of them
    device: str
    #: threads of the host for one operator
    threads: int
    torch_version: str
    torchscan_version: str


def provenance_of(model: nn.Module) -> RunProvenance:
    """Return the provenance of a run of this model on this machine."""
    return RunProvenance(
        device=", ".join(dict.fromkeys(map(name_of_device, _devices_of(model)))) or cpu_name(),
        threads=torch.get_num_threads(),
        torch_version=str(torch.__version__),
        torchscan_version=__version__,
    )


def _devices_of(model: nn.Module) -> Iterator[torch.device]:
    return iter({tensor.device: None for tensor in chain(model.parameters(), model.buffers())})


def name_of_device(device: torch.device) -> str:
    """The card, or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else device.type
