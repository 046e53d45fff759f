"""Ways to checkpoint a training step: results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torchscan.analyses.roofline import ErrorMargin
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result
from torchscan.units import duration, memory


class SavedResult(NamedTuple):
    """Calls in each layer whose results are saved."""

    #: the operator with its overload: "aten.mm.default"
    operator: str
    #: the modules that call it, within their layer; "" is the layer itself
    modules: tuple[str, ...]
    #: shapes of the tensors that it is called with
    shapes: tuple[tuple[int, ...], ...]
    #: bytes of the results of all layers, from the forward to the backward pass
    size: int
    #: seconds of the device to compute them again
    seconds: float

    @property
    def operator_name(self) -> str:
        """The operator without namespace and overload: "mm"."""
        return self.operator.split(".")[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChoice:
    """A training step with one choice of what the backward pass computes again."""

    #: value of the argument ``checkpoint``: a bool, a number, "selective", a list of operators, or
    #: a policy
    checkpoint: Any
    #: number of layers that are checkpointed
    num_checkpointed: int
    #: results that checkpointed layers save, or () if they save none; None for "selective"
    saved: tuple[SavedResult, ...] | None
    #: largest number of bytes of tensors at once
    peak_bytes: int
    #: bytes that torch's allocator reserves
    reserved_bytes: int
    #: True if the step fits on the device, and in ``max_memory``
    fits: bool
    #: expected time, in seconds
    time_estimate: float
    #: FLOPs of what is computed again
    recomputed_flops: int
    #: the same, as a share of the step without checkpoints
    recomputed_share: float
    #: True if the step was recorded, False if it was derived from that with all layers checkpointed
    is_recorded: bool
    #: True if no other choice needs less memory and no more time
    is_on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCurve(Result):
    """The memory and time of a training step over ways to checkpoint it, the fastest first."""

    device: str
    #: device, precision and batch size
    question: str
    #: number of layers that can be checkpointed
    num_layers: int
    #: the most bytes that the allocator may reserve, as requested, or None
    max_memory: int | None
    #: the most bytes that it can reserve on the device, and may by ``max_memory``
    limit: int
    choices: tuple[CheckpointChoice, ...]
    error_margin: ErrorMargin
    assumptions: tuple[Note, ...]

    def __iter__(self) -> Iterator[CheckpointChoice]:
        return iter(self.choices)

    def __len__(self) -> int:
        return len(self.choices)

    @property
    def front(self) -> tuple[CheckpointChoice, ...]:
        """The choices on the Pareto front of memory and time, the fastest first."""
        return tuple([each for each in self.choices if each.is_on_front])

    @property
    def fastest(self) -> CheckpointChoice | None:
        """The fastest choice that fits, or None if there is none."""
        return next((each for each in self.choices if each.fits), None)

    @property
    def baseline(self) -> CheckpointChoice:
        """The step without checkpoints."""
        (found,) = [each for each in self.choices if each.checkpoint is False]
        return found

    def __repr__(self) -> str:
        """A short one: the fastest that fits."""
        fastest = self.fastest
        if fastest is None:
            return f"<CheckpointCurve: {len(self)} choices, of which none fits>"
        needs = f"{memory(fastest.reserved_bytes)} and {duration(fastest.time_estimate)}"
        return f"<CheckpointCurve: {len(self)} choices, the fastest that fits takes {needs}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold; of a policy, ``saved`` says what it saves."""
        names = [each.name for each in fields(CheckpointChoice) if each.name != "checkpoint"]
        choices = []
        for each in self.choices:
            values = {name: to_plain(getattr(each, name)) for name in names}
            choices.append({"checkpoint": plain_checkpoint(each.checkpoint), **values})
        return {
            "device": self.device,
            "question": self.question,
            "num_layers": self.num_layers,
            "max_memory": self.max_memory,
            "limit": self.limit,
            "choices": choices,
            "assumptions": to_plain(self.assumptions),
        }


def plain_checkpoint(checkpoint: Any) -> Any:
    """Return a bool, number or name as it is, the names of operators, or "policy"."""
    if isinstance(checkpoint, bool | int | str):
        return checkpoint
    return list(map(str, checkpoint)) if isinstance(checkpoint, list) else "policy"
