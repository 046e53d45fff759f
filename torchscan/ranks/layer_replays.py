"""Reserved memory of all layers, from recorded passes of four and five of them.

What torch's allocator reserves depends on the order of all requests, so the requests of a middle
layer are repeated in front of the allocator. The pass of five layers checks this: its memory must
be that of the pass of four with one layer repeated.
"""

from __future__ import annotations

from torchscan.analyses.few_layers import Short
from torchscan.analyses.memory_estimate import MemoryEstimate, Verdict
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.analyses.repeated_layers import UnequalLayersError
from torchscan.hardware.device_specs import Device
from torchscan.recording.folding.shortened import EqualLayers


class LayerReplay:
    """The requests of a step in which a layer can be repeated."""

    def __init__(self, base: Short, longer: Short, kind: EqualLayers, *, compiled: bool) -> None:
        """``kind``: the layers of which ``longer`` has one more than ``base``."""
        self._base = base
        self._longer = longer
        self._compiled = compiled
        own = {f"{kind.path}.{index}" for index in kind.indices}
        self._layers = [path for path, former in base.paths.items() if former in own]
        self._missing = kind.number - len(self._layers)

    def overhead_on(self, device: Device) -> int | None:
        """Return what :func:`overhead_of` returns for all layers, or None if none can be repeated.

        Layers differ, or the pass of five has another memory than the repeated one of four.
        """
        trace = self._base.rank.trace
        timeline = MemoryTimeline(trace, compiled=self._compiled)
        placement = Placement(trace, timeline, device)
        try:
            longer = placement.repeating(self._layers, 1)
            whole = placement.repeating(self._layers, self._missing)
        except UnequalLayersError:
            return None
        recorded = self._longer.rank.memory
        verdict = _verdict_of(recorded)
        if (longer.peak_bytes, longer.reserved_bytes) != (
            recorded.peak_bytes,
            verdict.reserved_bytes,
        ):
            return None
        return max(0, whole.reserved_bytes - whole.peak_bytes) + verdict.cuda_context_bytes


def overhead_of(short: Short) -> int:
    """Return the bytes needed besides tensors: gaps, which grow with layers, and the context."""
    memory = short.rank.memory
    verdict = _verdict_of(memory)
    return max(0, verdict.reserved_bytes - memory.peak_bytes) + verdict.cuda_context_bytes


def _verdict_of(memory: MemoryEstimate) -> Verdict:
    assert memory.verdict is not None  # noqa: S101 - there is a device
    return memory.verdict
