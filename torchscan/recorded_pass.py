"""A decomposed pass, from which the estimates of memory and time are read."""

from __future__ import annotations

from torchscan.analyses.last_batch import last_batch
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.hardware.device_specs import Device
from torchscan.notes import Note
from torchscan.question import KernelDevice
from torchscan.recording.request import PassRequest
from torchscan.trace.trace import Trace


class RecordedPass:
    """A decomposed pass, with its memory over time."""

    def __init__(self, recorded: Trace, request: PassRequest, *, compiled: bool) -> None:
        #: the trace of all batches of a step
        self.recorded = recorded
        self.request = request
        #: the trace of the last batch
        self.trace = last_batch(recorded)
        self.timeline = MemoryTimeline(self.trace, compiled=compiled)
        self._placements: dict[tuple[str, int], Placement] = {}

    def on(self, device: Device) -> Placement:
        """Return the blocks of memory, placed on a device in the order of all batches."""
        key = device.name, device.memory_bytes
        if key not in self._placements:
            timeline = self.timeline
            if self.recorded is not self.trace:
                timeline = MemoryTimeline(self.recorded, compiled=self.timeline.compiled)
            self._placements[key] = Placement(self.recorded, timeline, device)
        return self._placements[key]


def kernels_of(device: Device) -> KernelDevice:
    """Return the kind of kernels that a device runs."""
    return KernelDevice("cpu" if device.vendor == "CPU" else "cuda", device.has_flash)


def find_overflow(step: RecordedPass, device: Device) -> list[Note]:
    """Return a warning if a pass needs more memory than the device has, or else none."""
    if device.has_allocator:
        verdict = step.on(device).verdict()
        needed = verdict.reserved_bytes + verdict.cuda_context_bytes
        fits = verdict.fits
    else:
        needed = max((moment.total for moment in step.timeline.moments), default=0)
        fits = needed <= device.memory_bytes
    if fits:
        return []
    available = device.memory_bytes
    return [Note.of("device-too-small", device=device.name, needed=needed, available=available)]
