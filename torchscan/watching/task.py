"""Data that a worker is given when it starts. No module of torch is imported for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchscan.watching.schema import Announced

if TYPE_CHECKING:
    from torch import Tensor

    from torchscan.watching.sinks.sink import Sink

    Statistic = Callable[[Tensor], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """The file to write, and the session to write for."""

    path: Path
    #: the process that trains
    parent: int
    session: str
    #: series that an earlier worker of the session was told of
    announced: Sequence[Announced] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Code of the user, whose modules may take long to import."""

    sinks: Sequence[Sink] = ()
    custom: Mapping[str, Statistic] = field(default_factory=dict)
