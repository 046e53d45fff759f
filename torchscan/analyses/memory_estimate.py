"""What a pass peaks at, and whether a device has room for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torchscan.analyses.memory_timeline import KINDS, Block, LayerMemory, MemoryKind, MemoryTimeline, Moment
from torchscan.hardware.allocator import AllocatedBlock, CachingAllocator, OutOfMemory
from torchscan.hardware.devices import CONTEXT, Device
from torchscan.results import Result
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace
from torchscan.units import memory

_CONVOLUTIONS = frozenset({"aten.convolution", "aten.convolution_backward"})

#: where the search for the largest batch ends
LARGEST_BATCH = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a pass fits on a device. All figures in bytes."""

    device: str
    #: what the device has for programs
    capacity_bytes: int
    #: what the context, torch's kernels and the libraries take of that
    context_bytes: int
    #: the most in torch's blocks: tensors, rounded up to 512 bytes, and what cuBLAS and cuDNN work in
    allocated_bytes: int
    #: the most in the segments that torch's allocator takes from the device for them, or would at least have to take
    reserved_bytes: int
    fits: bool
    #: up to ``LARGEST_BATCH``; None unless it was asked for
    largest_batch_size: int | None = None

    @property
    def left_bytes(self) -> int:
        """What is left of the device's memory; if negative, it is short by at least that much."""
        return self.capacity_bytes - self.context_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate(Result):
    """The memory of one pass: an inference, or a whole training step."""

    #: the most that the tensors of the pass occupy at once, in bytes
    peak_bytes: int
    #: path of the layer whose operator runs then; "" is the model itself, or its optimizer
    peak_layer: str
    peak_operator: str
    peak_phase: Phase
    #: what these bytes hold
    by_kind: Mapping[MemoryKind, int]
    #: the most in each phase
    peak_by_phase: Mapping[Phase, int]
    #: what is alive at each operator call
    timeline: tuple[Moment, ...]
    layers: tuple[LayerMemory, ...]
    batch_size: int | None
    assumptions: tuple[str, ...]
    verdict: Verdict | None = None

    def __repr__(self) -> str:
        """Short: the timeline has thousands of entries."""
        where = f"{self.peak_operator} of {self.peak_layer or 'the model'} ({self.peak_phase})"
        return f"<MemoryEstimate: {memory(self.peak_bytes)} at {where}>"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data; the timeline in columns."""
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


def estimate_of(trace: Trace, timeline: MemoryTimeline, verdict: Verdict | None = None) -> MemoryEstimate:
    """The estimate that a record gives."""
    moments = timeline.moments
    peak = max(moments, key=lambda moment: moment.total, default=_before_everything(timeline))
    by_phase: dict[Phase, int] = {}
    for moment in moments:
        by_phase[moment.phase] = max(by_phase.get(moment.phase, 0), moment.total)
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
    """A pass on a device: its blocks of memory, handed to torch's allocator in the order in which they are needed."""

    def __init__(self, trace: Trace, timeline: MemoryTimeline, device: Device) -> None:
        self._trace = trace
        self._timeline = timeline
        self._device = device

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """At each moment the bytes of tensors and workspaces, without what rounding adds."""
        fixed = self._device.cublas_workspace_bytes * self._threads
        totals = zip(self._timeline.moments, self._trace.ops, strict=True)
        return tuple(moment.total + fixed + _convolution_workspace(op) for moment, op in totals)

    @cached_property
    def fits(self) -> bool:
        """Whether the device has room."""
        return isinstance(self._on_device, CachingAllocator)

    def verdict(self) -> Verdict:
        """The figures."""
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

    @cached_property
    def _on_device(self) -> CachingAllocator | OutOfMemory:
        try:
            return self._replay(self._device.room_bytes)
        except OutOfMemory as error:
            return error

    @property
    def _threads(self) -> int:
        """How many work with cuBLAS: autograd has one of its own."""
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
    """For each moment the blocks that begin, and those that have ended."""
    begins: list[list[int]] = [[] for _ in range(moments + 2)]
    ends: list[list[int]] = [[] for _ in range(moments + 2)]
    for number, block in enumerate(blocks):
        begins[block.first].append(number)
        ends[block.end].append(number)
    return begins, ends


def _convolution_workspace(op: OpCall) -> int:
    """CuDNN computes channels-last: where the input is not, it works in copies of all operands and of the result."""
    signature = op.signature
    if signature.operator not in _CONVOLUTIONS or 1 in signature.inputs[0].stride[1:2]:
        return 0
    return sum(spec.stored_bytes for spec in (*signature.inputs, *signature.outputs))
