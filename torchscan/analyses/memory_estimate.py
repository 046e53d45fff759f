"""Peak memory of a pass, and the verdict whether it fits on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torchscan.analyses.checkpoint_curve import CheckpointCurve
from torchscan.analyses.memory_blocks import KINDS, MemoryKind
from torchscan.analyses.memory_timeline import LayerMemory, MemoryTimeline, Moment
from torchscan.analyses.suggestions_result import NOBODY, Asker, Suggestions
from torchscan.escapes import printable
from torchscan.garbage import collected_later
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result
from torchscan.trace.events import Phase
from torchscan.trace.trace import Trace
from torchscan.units import memory

#: where the search for the largest batch ends, and that for the longest sequence
LARGEST_BATCH = 2**24
OUTPUT_DROPPED = Note.of("output-dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict whether a pass fits on a device. All numbers are bytes."""

    device: str
    #: bytes that the device offers to programs
    capacity_bytes: int
    #: bytes assumed for the CUDA context, torch's kernels and the libraries
    cuda_context_bytes: int
    #: smallest and largest expected context; the same value twice if it was measured or given
    cuda_context_range: tuple[int, int]
    #: peak bytes of torch's blocks: tensors, rounded up to 512 bytes, and workspaces of cuBLAS and
    #: cuDNN
    allocated_bytes: int
    #: peak bytes of the segments that torch's allocator reserves for these blocks; a lower bound if
    #: they do not fit
    reserved_bytes: int
    #: smallest and largest expected value, because cuDNN's workspaces are not known exactly and
    #: segments fill differently
    reserved_range: tuple[int, int]
    fits: bool
    #: True if the size of the context decides: the pass fits with the smallest one, but not with
    #: the largest
    is_close: bool
    #: largest batch that fits, at most ``LARGEST_BATCH``, or None unless it was requested
    largest_batch_size: int | None = None
    #: largest batch that fits even at the upper ends of the ranges, or None unless it was requested
    safe_batch_size: int | None = None
    #: longest sequence that fits, at most the model's positions, else ``LARGEST_BATCH``, or None
    #: unless it was requested
    longest_sequence: int | None = None
    #: longest sequence that fits even at the upper ends of the ranges, or None unless it was
    #: requested
    safe_sequence: int | None = None

    @property
    def left_bytes(self) -> int:
        """Device memory left over. If negative, at least that much is missing."""
        return self.capacity_bytes - self.cuda_context_bytes - self.reserved_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        ranges = {
            "cuda_context_range": list(self.cuda_context_range),
            "reserved_range": list(self.reserved_range),
        }
        return {**asdict(self), **ranges, "left_bytes": self.left_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate(Result):
    """The memory of one pass: an inference, or a whole training step."""

    #: peak memory of the pass: the largest number of bytes that its tensors occupy at once
    peak_bytes: int
    #: path of the layer whose operator runs at the peak; "" is the model itself, or its optimizer
    peak_layer: str
    peak_operator: str
    peak_phase: Phase
    #: bytes at the peak, by kind
    by_kind: Mapping[MemoryKind, int]
    #: peak of each phase
    peak_by_phase: Mapping[Phase, int]
    #: live memory at each operator call
    timeline: tuple[Moment, ...]
    layers: tuple[LayerMemory, ...]
    batch_size: int | None
    assumptions: tuple[Note, ...]
    verdict: Verdict | None = None
    #: weights that cannot be read; if there are any, the peak is a lower bound
    unreadable_weights: tuple[Note, ...] = ()
    _asker: Asker[Suggestions] = field(default=NOBODY, repr=False, compare=False)
    _curve_asker: Asker[CheckpointCurve] = field(default=NOBODY, repr=False, compare=False)

    def suggestions(self) -> Suggestions:
        """Return changes that save memory, each estimated separately, the best first."""
        return self._asker.answers()

    def checkpointing(self, max_memory: int | str | None = None) -> CheckpointCurve:
        """Return the memory and time of the training step over ways to checkpoint its layers.

        Args:
            max_memory: the most memory that torch may reserve: bytes, or a text such as "20 GiB";
                by default what the device has.
        """
        return self._curve_asker.answers(max_memory)

    def __repr__(self) -> str:
        """Return a short text: the timeline has thousands of entries."""
        where = f"{self.peak_operator} of {self.peak_layer or 'the model'} ({self.peak_phase})"
        return f"<MemoryEstimate: {memory(self.peak_bytes)} at {printable(where)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold, with the timeline in columns."""
        names = ("peak_bytes", "peak_layer", "peak_operator", "peak_phase")
        plain = {name: getattr(self, name) for name in names}
        columns: dict[str, list[Any]] = {}
        for name in ("operator", "layer", "phase"):
            columns[name] = [getattr(each, name) for each in self.timeline]
        for place, kind in enumerate(KINDS):
            columns[kind] = [each.bytes_by_kind[place] for each in self.timeline]
        layers = [asdict(layer) for layer in self.layers]
        return {
            **plain,
            "by_kind": dict(self.by_kind),
            "peak_by_phase": dict(self.peak_by_phase),
            "timeline": columns,
            "layers": layers,
            "batch_size": self.batch_size,
            "assumptions": to_plain(self.assumptions),
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
        }


@collected_later()
def estimate_of(
    trace: Trace, timeline: MemoryTimeline, verdict: Verdict | None = None
) -> MemoryEstimate:
    """Return the estimate for a trace."""
    moments, totals = timeline.moments, timeline.totals
    if moments:
        peak = moments[totals.index(max(totals))]
    else:
        # No operator ran: only what was there before is alive.
        bytes_by_kind = dict.fromkeys(KINDS, 0)
        for block in timeline.blocks:
            bytes_by_kind[block.kind] += block.size
        peak = Moment("nothing", "", "forward", tuple(bytes_by_kind.values()))
    by_phase: dict[Phase, int] = {}
    for moment, total in zip(moments, totals, strict=True):
        if total >= by_phase.get(moment.phase, 0):
            by_phase[moment.phase] = total
    return MemoryEstimate(
        peak_bytes=peak.total,
        peak_layer=peak.layer,
        peak_operator=peak.operator,
        peak_phase=peak.phase,
        by_kind=peak.by_kind,
        peak_by_phase=by_phase,
        timeline=moments,
        layers=timeline.layers,
        batch_size=trace.provenance.batch_size,
        assumptions=trace.provenance.assumptions,
        verdict=verdict,
        unreadable_weights=trace.provenance.unreadable_weights,
    )
