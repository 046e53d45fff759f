"""Results of a search for meshes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

from torchscan.analyses.memory_blocks import MemoryKind
from torchscan.analyses.mesh_layout import format_mesh
from torchscan.analyses.model_products import FlopsConvention
from torchscan.analyses.pipeline_schedule import Schedule
from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.escapes import printable
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshChoice:
    """A training step on one mesh. Bytes and times are those of one device."""

    #: size of each mesh dimension, by name
    mesh: Mapping[str, int]
    #: kind of sharding along "dp", "cp" and "ep", or None for a user's own
    sharding: str | None
    #: layers that are recomputed in the backward pass: True for all, n for every n-th one,
    #: "selective", or "policy" for a policy or list of operators
    checkpoint: bool | int | str
    #: sequences of a micro batch, and number of micro batches in a step of each copy of the model
    batch_size: int
    num_microbatches: int
    #: schedule of the pipeline, or None without one
    schedule: Schedule | None
    #: stages that each rank of the pipeline has
    stages_per_rank: int
    #: parameters that one device holds
    local_params: int
    #: largest number of bytes of tensors at once
    peak_bytes: int
    #: bytes at the peak, by kind
    by_kind: Mapping[MemoryKind, int]
    #: bytes that torch's allocator reserves, with the context
    needed_bytes: int
    #: True if ``needed_bytes`` fit on the device
    fits: bool
    #: True if passes on this mesh were recorded; otherwise, values are derived from passes on one
    #: rank
    is_recorded: bool
    #: True if ``needed_bytes`` follows from the requests of all layers to the allocator
    is_replayed: bool
    #: seconds, needed bytes and sent bytes as derived, before passes on this mesh were recorded, or
    #: None if they were not recorded
    derived_time: float | None
    derived_bytes: int | None
    derived_sent_bytes: int | None
    #: bytes that one device sends in a step, at least
    sent_bytes: int
    #: seconds of a step
    time_estimate: float
    #: seconds of a step in which computation waits for links
    waiting: float
    #: seconds of a step in which a rank waits for other pipeline stages, the mean of all ranks
    bubble: float
    #: seconds of a step in which checkpointed layers are recomputed, or None if not derived
    recomputing: float | None
    #: tokens of all devices per second
    tokens_per_second: float
    #: model FLOPs utilization: the model's products, without recomputation, as a share of the peak
    #: of all devices
    mfu: float

    @property
    def computing(self) -> float:
        """Seconds of a step in which a rank computes or copies, without recomputation."""
        return self.time_estimate - self.waiting - self.bubble - (self.recomputing or 0.0)


#: the parts of a step's time
StepPart = Literal["computing", "recomputing", "waiting", "bubble"]
_STEP_PARTS: tuple[StepPart, ...] = get_args(StepPart)


class MeshLoss(NamedTuple):
    """The reason why a step is slower than the best."""

    #: share of the best step's time by which it is slower
    share: float
    #: part of the time that grows most, and by how many seconds
    part: StepPart
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSearch(Result):
    """Training steps on several meshes: those that fit first, sorted by time."""

    device: str
    num_gpus: int
    #: tokens of a sequence
    length: int
    #: sequences of all devices in a step
    sequences: int
    precision: str
    optimizer: str
    #: rank of the adapters that are trained, or None if the complete model is trained
    lora: int | None
    #: torchao's recipe of linear layers in 8 bits, or None
    float8: str | None
    compiled: bool
    #: "dense": MFU counts all scores of attention; "computed": those that a causal mask leaves
    flops: FlopsConvention
    #: error margin of the times
    error_margin: ErrorMargin | None
    params: int
    choices: tuple[MeshChoice, ...]
    #: meshes that were left out, with the reason
    refused: Mapping[str, Note]
    #: number of steps that were compared: meshes, checkpoints, micro batches and schedules
    num_steps: int
    #: number of recorded passes
    num_traces: int
    assumptions: tuple[Note, ...]

    @property
    def best(self) -> MeshChoice | None:
        """The fastest step that fits."""
        return next((each for each in self.choices if each.fits), None)

    def loss(self, choice: MeshChoice) -> MeshLoss | None:
        """Return the reason why a choice is slower than the best, or None for the best itself."""
        best = self.best
        if best is None or choice is best:
            return None
        growth = {
            part: (getattr(choice, part) or 0.0) - (getattr(best, part) or 0.0)
            for part in _STEP_PARTS
        }
        part = max(_STEP_PARTS, key=growth.__getitem__)
        return MeshLoss(choice.time_estimate / best.time_estimate - 1, part, growth[part])

    @property
    def fastest_too_large(self) -> MeshChoice | None:
        """The fastest step that does not fit, if it is faster than the best."""
        found = next((each for each in self.choices if not each.fits), None)
        is_faster = found is not None and (
            self.best is None or found.time_estimate < self.best.time_estimate
        )
        return found if is_faster else None

    def __repr__(self) -> str:
        """A short one."""
        found = (
            "none fits" if self.best is None else f"best {printable(format_mesh(self.best.mesh))}"
        )
        return (
            f"<MeshSearch for {self.num_gpus} {self.device}: {len(self.choices)} meshes, {found}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        names = (
            "device",
            "num_gpus",
            "length",
            "sequences",
            "precision",
            "optimizer",
            "lora",
            "flops",
            "params",
            "num_steps",
            "num_traces",
        )
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        plain["error_margin"] = None if self.error_margin is None else self.error_margin.share
        choices: list[dict[str, Any]] = []
        for choice in self.choices:
            values: dict[str, Any] = {
                each.name: getattr(choice, each.name) for each in fields(choice)
            }
            values["mesh"] = dict(choice.mesh)
            values["by_kind"] = dict(choice.by_kind)
            choices.append(values)
        return {
            **plain,
            "choices": choices,
            "refused": to_plain(self.refused),
            "assumptions": to_plain(self.assumptions),
        }
