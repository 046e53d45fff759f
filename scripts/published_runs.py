"""Published training steps, and their stored traces."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchscan import Scan
from torchscan.analyses.roofline import Fabric, Rates
from torchscan.analyses.roofline.analysis import roofline_of
from torchscan.hardware.device_specs import Device
from torchscan.parallel import plan
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was published of a run, memory in bytes; None if a value was not published."""

    #: ``max_memory_allocated``
    allocated: int | None = None
    #: ``max_memory_reserved``
    reserved: int | None = None
    #: growth of what nvidia-smi shows: reserved, with the context and NCCL's buffers
    in_use: int | None = None
    ran_out: bool = False
    #: tokens of one GPU
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A published run, and its step."""

    source: str
    #: "one GPU", "FSDP", "compiled", "LoRA", …
    kind: str
    name: str
    device: Device
    measured: Measured
    record: Callable[[], Trace]
    compiled: bool = False
    cards: int = 1
    #: tokens of one GPU in a step
    tokens: int = 0

    def trace(self, folder: Path, *, makes: bool = True) -> Trace | None:
        """Return the trace of the step; it is stored in the folder, because recording is slow.

        None if it is missing and not to be made.
        """
        label = hashlib.sha256(f"{self.source} {self.kind} {self.name}".encode()).hexdigest()[:12]
        file = folder / f"{label}.pickle.gz"
        if file.exists():
            with gzip.open(file, "rb") as stored:
                found: Trace = pickle.load(stored)  # noqa: S301 - it was written below
            return found
        if not makes:
            return None
        trace = self.record()
        folder.mkdir(parents=True, exist_ok=True)
        with gzip.open(file, "wb", compresslevel=1) as stored:
            pickle.dump(trace, stored)
        return trace

    def seconds(self, trace: Trace) -> float:
        """Return the estimated time of the step."""
        fabric = Fabric(device=self.device) if self.cards > 1 else None
        roofline = roofline_of(
            trace, Rates(self.device, "cuda-12"), compiled=self.compiled, fabric=fabric
        )
        return roofline.time_estimate


def record_on_one(model: Any, **step: Any) -> Trace:
    """Return the trace of a training step on one GPU."""
    return Scan(model, training=True, optimizer="AdamW", progress=False, **step).steps


def record_on_mesh(
    model: Any, cards: int, apply: Callable[[Any, Any], object], **step: Any
) -> Trace:
    """Return the trace of one rank's training step."""
    made = plan(
        model,
        mesh={"dp": cards},
        apply=apply,
        training=True,
        optimizer="AdamW",
        progress=False,
        **step,
    )
    return made.ranks[0].trace


def number_of(text: str) -> int | None:
    """Return a number of a table, or None if it has none."""
    return round(float(text)) if text else None
