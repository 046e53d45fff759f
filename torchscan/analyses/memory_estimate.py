"""Peak memory of a pass, and whether a device has room for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torchscan.analyses.memory_timeline import KINDS, Block, LayerMemory, MemoryKind, MemoryTimeline, Moment
from torchscan.analyses.remedies import NOBODY, Asker, Remedies
from torchscan.garbage import collected_later
from torchscan.hardware.allocator import AllocatedBlock, CachingAllocator, OutOfMemory
from torchscan.hardware.devices import CONTEXT, Device
from torchscan.once import once
from torchscan.results import Result
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace
from torchscan.units import memory

_CONVOLUTIONS = frozenset({"aten.convolution", "aten.convolution_backward"})

#: where the search for the largest batch ends
LARGEST_BATCH = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a pass fits on a device. All numbers are bytes."""

    device: str
    #: what the device offers to programs
    capacity_bytes: int
    #: what the context, torch's kernels and the libraries take up
    context_bytes: int
    #: peak of torch's blocks: tensors, rounded up to 512 bytes, and workspaces of cuBLAS and cuDNN
    allocated_bytes: int
    #: peak of the segments that torch's allocator takes from the device for them (if they don't fit: would need at least)
    reserved_bytes: int
    fits: bool
    #: at most ``LARGEST_BATCH``; None unless it was asked for
    largest_batch_size: int | None = None

    @property
    def left_bytes(self) -> int:
        """Device memory left over. If negative, at least that much is missing."""
        return self.capacity_bytes - self.context_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate(Result):
    """The memory of one pass: an inference, or a whole training step."""

    #: peak memory of the pass: the most bytes that its tensors occupy at once
    peak_bytes: int
    #: path of the layer whose operator runs at the peak; "" is the model itself, or its optimizer
    peak_layer: str
    peak_operator: str
    peak_phase: Phase
    #: what the peak consists of
    by_kind: Mapping[MemoryKind, int]
    #: the peak of each phase
    peak_by_phase: Mapping[Phase, int]
    #: what is alive at each operator call
    timeline: tuple[Moment, ...]
    layers: tuple[LayerMemory, ...]
    batch_size: int | None
    assumptions: tuple[str, ...]
    verdict: Verdict | None = None
    asker: Asker = field(default=NOBODY, repr=False, compare=False)

    def remedies(self) -> Remedies:
        """What would make it smaller: each change estimated by itself, the best first."""
        return self.asker.remedies()

    def __repr__(self) -> str:
        """A short one: the timeline has thousands of entries."""
        where = f"{self.peak_operator} of {self.peak_layer or 'the model'} ({self.peak_phase})"
        return f"<MemoryEstimate: {memory(self.peak_bytes)} at {where}>"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data, with the timeline in columns."""
        return {
            **{name: getattr(self, name) for name in ("peak_bytes", "peak_layer", "peak_operator", "peak_phase")},
            "by_kind": dict(self.by_kind),
            "peak_by_phase": dict(self.peak_by_phase),
            "timeline": {
                **{name: [getattr(each, name) for each in self.timeline] for name in ("operator", "layer", "phase")},
                **{kind: [each.bytes_by_kind[place] for each in self.timeline] for place, kind in enumerate(KINDS)},
            },
            "layers": [asdict(layer) for layer in self.layers],
            "batch_size": self.batch_size,
            "assumptions": list(self.assumptions),
            "verdict": None if self.verdict is None else {**asdict(self.verdict), "left_bytes": self.verdict.left_bytes},
        }


@collected_later()
def estimate_of(trace: Trace, timeline: MemoryTimeline, verdict: Verdict | None = None) -> MemoryEstimate:
    """The estimate for a record."""
    moments, totals = timeline.moments, timeline.totals
    peak = moments[totals.index(max(totals))] if moments else _before_everything(timeline)
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
    )


def _before_everything(timeline: MemoryTimeline) -> Moment:
    sizes = tuple(sum(block.size for block in timeline.blocks if block.kind == kind) for kind in KINDS)
    return Moment("nothing", "", "forward", sizes)


class Placement:
    """A pass on a device: its blocks of memory, requested from torch's allocator in the order of the pass."""

    def __init__(self, trace: Trace, timeline: MemoryTimeline, device: Device) -> None:
        self._trace = trace
        self._timeline = timeline
        self._device = device

    @once
    def needed(self) -> tuple[int, ...]:
        """Bytes of tensors and workspaces at each moment, before rounding."""
        fixed = self._device.cublas_workspace_bytes * self._threads
        totals = zip(self._timeline.totals, self._trace.ops, strict=True)
        return tuple([total + fixed + _convolution_workspace(op) for total, op in totals])

    @once
    def fits(self) -> bool:
        """Whether the device has room."""
        return isinstance(self._on_device, CachingAllocator)

    def verdict(self) -> Verdict:
        """The numbers of the estimate."""
        on_device = self._on_device
        used = on_device if isinstance(on_device, CachingAllocator) else self._replay(None)
        needed = max(used.peak_allocated, on_device.demand) if isinstance(on_device, OutOfMemory) else used.peak_reserved
        return Verdict(
            device=self._device.name,
            capacity_bytes=self._device.memory_bytes,
            context_bytes=CONTEXT,
            allocated_bytes=used.peak_allocated,
            reserved_bytes=needed,
            fits=self.fits,
        )

    @once
    def _on_device(self) -> CachingAllocator | OutOfMemory:
        try:
            return self._replay(self._device.room_bytes)
        except OutOfMemory as error:
            return error

    @property
    def _threads(self) -> int:
        """The number of threads that use cuBLAS; autograd has its own."""
        return 2 if self._trace.provenance.backward else 1

    def _replay(self, capacity: int | None) -> CachingAllocator:
        allocator = CachingAllocator(capacity=capacity)
        begins, ends = _by_moment(self._timeline.blocks, len(self._trace.ops))
        held: dict[int, AllocatedBlock | None] = {}
        for _ in range(self._threads):
            allocator.allocate(self._device.cublas_workspace_bytes)
        for moment, op in enumerate(self._trace.ops):
            for block in ends[moment]:
                allocator.free(held.pop(block, None))
            for block in begins[moment]:
                held[block] = allocator.allocate(self._timeline.blocks[block].size)
            allocator.free(allocator.allocate(_convolution_workspace(op)))
        return allocator


def _by_moment(blocks: Sequence[Block], moments: int) -> tuple[list[list[int]], list[list[int]]]:
    """For each moment, the blocks that begin and those that have ended."""
    begins: list[list[int]] = [[] for _ in range(moments + 2)]
    ends: list[list[int]] = [[] for _ in range(moments + 2)]
    for number, block in enumerate(blocks):
        begins[block.first].append(number)
        ends[block.end].append(number)
    return begins, ends


def _convolution_workspace(op: OpCall) -> int:
    """CuDNN computes channels-last. If the input has another layout, it copies all operands and the result."""
    signature = op.signature
    if signature.operator not in _CONVOLUTIONS or 1 in signature.inputs[0].stride[1:2]:
        return 0
    return sum(spec.stored_bytes for spec in (*signature.inputs, *signature.outputs))
