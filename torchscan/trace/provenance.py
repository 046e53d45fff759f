"""Facts about a pass: its inputs, the way it ran, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from torchscan.notes import Note


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input tensor of the pass."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Processes(NamedTuple):
    """The ranks among which a model is sharded, and which of them this is."""

    rank: int
    #: the size of each dimension by its name
    mesh: Mapping[str, int]
    #: placement of each parameter along the dimensions of its mesh, by the parameter's path:
    #: ``"dp: Shard(dim=0), tp: Replicate()"``
    placements: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Facts about a pass: the way it ran and what was assumed."""

    execution: Literal["abstract", "real"]
    #: reasons for the kind of execution
    reasons: tuple[Note, ...]
    mode: Literal["eval", "train", "same"]
    #: True if gradients were computed after the forward pass
    backward: bool
    #: batch size of inputs made from ``input_shape``, or None if complete arguments were given
    batch_size: int | None
    inputs: tuple[InputRecord, ...]
    assumptions: tuple[Note, ...]
    #: paths of modules that ran in other threads, which a trace does not follow
    unrecorded_modules: tuple[str, ...]
    #: weights that cannot be read; if there are any, parameters and their memory are lower bounds
    unreadable_weights: tuple[Note, ...]
    torchscan_version: str
    torch_version: str
    #: rank and placements of a sharded model, or None
    processes: Processes | None = None
