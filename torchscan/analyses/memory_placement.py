"""A pass on a device: its blocks, requested from torch's allocator as a training loop does.

The first step creates the state of an optimizer, in memory that activations have left. The second
step finds it there, and needs room around it. Both are replayed from one trace.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.analyses.memory_estimate import Verdict
from torchscan.analyses.memory_streams import streams_of
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.analyses.optimizer_states import moments_of_state
from torchscan.analyses.repeated_layers import repeat_layers
from torchscan.analyses.step_replay import ReplayedBlock, StepReplay
from torchscan.hardware.allocator import CachingAllocator, OutOfMemory
from torchscan.hardware.device_specs import Device
from torchscan.once import once
from torchscan.ops.communication import group_of
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: shares by which what torch reserves may be less or more, where no workspaces are in doubt: of a
#: pass without a backward pass, of a training step, and of one among several ranks, in which FSDP1
#: releases blocks late, when other streams have used them
INFERENCE_MARGIN = (0.02, 0.02)
TRAINING_MARGIN = (0.04, 0.04)
SHARDED_MARGIN = (0.04, 0.08)

#: memory of NCCL for one group of ranks: each of 24 channels (as on NVLink) receives into buffers
#: of 0.5, 4.7 and 4 MiB for its three protocols, and 35 MiB are for what it keeps besides
NCCL_BYTES = 256 * 2**20
#: shares of it from where connections are made when they are first needed to where trees of ranks
#: and the switch have buffers, too
NCCL_RANGE = (0.5, 4.0)

_CONVOLUTIONS = frozenset({"aten.convolution", "aten.convolution_backward"})


class Placement:
    """A recorded pass on a device: what it needs, and whether there is room."""

    def __init__(self, trace: Trace, timeline: MemoryTimeline, device: Device) -> None:
        self._trace = trace
        self._timeline = timeline
        self._device = device

    @property
    def compiled(self) -> bool:
        """True if it is the pass of a compiled model."""
        return self._timeline.compiled

    @once
    def required_bytes(self) -> tuple[int, ...]:
        """Bytes of tensors and cuBLAS's workspaces at each moment, before rounding."""
        fixed = self._device.cublas_workspace_bytes * self._threads
        return tuple([total + fixed for total in self._timeline.totals])

    @once
    def fits(self) -> bool:
        """True if the pass fits on the device."""
        return isinstance(self._on_device, CachingAllocator)

    @property
    def excess_bytes(self) -> int:
        """Bytes in segments beyond what the device has; below 0: bytes that stay free."""
        on_device = self._on_device
        if isinstance(on_device, OutOfMemory):
            return on_device.demand - self._room_bytes
        return on_device.peak_reserved - self._room_bytes

    @once
    def excess_within_margin(self) -> int:
        """Bytes beyond what the device has if context and workspaces take the most.

        A pass for which it is at most 0 fits in any case.
        """
        _, context = self._context_range
        reserved = self._most_reserved(self._with_workspaces.peak_reserved)
        return reserved - (self._device.memory_bytes - context)

    @once
    def _num_groups(self) -> int:
        """The number of groups of ranks that communicate in the pass."""
        groups = (group_of(op.signature) for op in self._trace.ops)
        return len({group.ranks for group in groups if group is not None and group.size > 1})

    @property
    def _nccl_bytes(self) -> int:
        """The buffers of NCCL for all groups of ranks."""
        return NCCL_BYTES * self._num_groups

    @property
    def _context_bytes(self) -> int:
        return self._device.cuda_context_bytes + self._nccl_bytes

    @property
    def _context_range(self) -> tuple[int, int]:
        shortest, longest = (round(share * self._nccl_bytes) for share in NCCL_RANGE)
        least, most = self._device.cuda_context_range
        return least + shortest, most + longest

    @property
    def _room_bytes(self) -> int:
        return self._device.memory_bytes - self._context_bytes

    def _fits_beside(self, context: int) -> bool:
        room, on_device = self._device.memory_bytes - context, self._on_device
        if isinstance(on_device, CachingAllocator) and on_device.peak_reserved <= room:
            return True
        return isinstance(self._tried(room), CachingAllocator)

    def verdict(self) -> Verdict:
        """Return the values of the estimate."""
        on_device = self._on_device
        used = on_device if isinstance(on_device, CachingAllocator) else self._with_workspaces
        least, most = self._context_range
        is_close = least < most and self._fits_beside(least) and not self._fits_beside(most)
        return Verdict(
            device=self._device.name,
            capacity_bytes=self._device.memory_bytes,
            cuda_context_bytes=self._context_bytes,
            cuda_context_range=(least, most),
            allocated_bytes=used.peak_allocated,
            reserved_bytes=self.reserved_bytes,
            reserved_range=self._range_around(self.reserved_bytes),
            fits=self.fits,
            is_close=is_close,
        )

    @property
    def reserved_bytes(self) -> int:
        """Bytes in segments at the peak; a lower bound if they do not fit."""
        on_device = self._on_device
        if isinstance(on_device, OutOfMemory):
            return max(self._with_workspaces.peak_allocated, on_device.demand)
        return on_device.peak_reserved

    @property
    def peak_bytes(self) -> int:
        """Bytes of tensors at the peak, before rounding."""
        return self.replay.peak_bytes

    def repeating(self, layers: Sequence[str], times: int) -> Placement:
        """Return the placement of a pass with so many more layers like the third of ``layers``.

        Raise an UnequalLayersError if the layers differ.
        """
        longer = Placement(self._trace, self._timeline, self._device)
        longer.replay = repeat_layers(self.replay, self._trace, layers, times)
        return longer

    def _range_around(self, reserved: int) -> tuple[int, int]:
        """Return the range from no workspaces of cuDNN to twice as much, and the margins beyond.

        It is at least what tensors take and, if they fit, at most what the device has.
        """
        less, _ = self._margin
        bare, usual = self._without_workspaces, self._with_workspaces.peak_reserved
        least = max(bare.peak_allocated, round((1 - less) * bare.peak_reserved))
        most = self._most_reserved(usual)
        if self.fits:
            most = min(most, self._room_bytes)
        return min(least, reserved), max(most, reserved)

    def _most_reserved(self, usual: int) -> int:
        _, more = self._margin
        bare = self._without_workspaces.peak_reserved
        return round((1 + more) * (usual + max(0, usual - bare)))

    @property
    def _margin(self) -> tuple[float, float]:
        if not self._trace.provenance.backward:
            return INFERENCE_MARGIN
        return SHARDED_MARGIN if self._num_groups else TRAINING_MARGIN

    @once
    def _with_workspaces(self) -> CachingAllocator:
        return self._replay(None)

    @once
    def _without_workspaces(self) -> CachingAllocator:
        if not self.replay.workspaces:
            return self._with_workspaces
        return self._replay(None, workspaces=False)

    @once
    def _on_device(self) -> CachingAllocator | OutOfMemory:
        return self._tried(self._room_bytes)

    def _tried(self, room: int) -> CachingAllocator | OutOfMemory:
        if self._with_workspaces.peak_reserved <= room:  # the limit would change nothing
            return self._with_workspaces
        try:
            return self._replay(room)
        except OutOfMemory as error:
            return error

    @property
    def _threads(self) -> int:
        """The number of threads that use cuBLAS; autograd has its own."""
        return 2 if self._trace.provenance.backward else 1

    def _replay(self, capacity: int | None, *, workspaces: bool = True) -> CachingAllocator:
        *_, allocator = self.replay.run(capacity, workspaces=workspaces)
        return allocator

    @once
    def replay(self) -> StepReplay:
        """The requests of a training loop to the allocator."""
        streams, created = streams_of(self._trace), moments_of_state(self._trace)
        blocks: list[ReplayedBlock] = []
        pairs = zip(self._trace.storages, self._timeline.blocks, strict=True)
        for number, (storage, block) in enumerate(pairs):
            # Memory of the model or the optimizer's state is the same in the next step.
            stays = storage.born is None and storage.kind not in ("input", "cache")
            replayed = ReplayedBlock(
                block.size,
                block.first,
                block.end,
                stream=streams.get(number, 0),
                stays=stays,
                created=created.get(number),
            )
            blocks.append(replayed)
        workspaces: dict[int, int] = {}
        for moment, op in enumerate(self._trace.ops):
            size = _convolution_workspace(op)
            if size:
                workspaces[moment] = size
        return StepReplay(
            blocks=blocks,
            num_moments=len(self._trace.ops),
            fixed=[self._device.cublas_workspace_bytes] * self._threads,
            workspaces=workspaces,
        )


def _convolution_workspace(op: OpCall) -> int:
    """Return the bytes of copies that cuDNN makes of operands and result for channels-last.

    It makes none if the input has that layout. Kernels for groups, depthwise ones among them, take
    any layout as it is.
    """
    signature = op.signature
    if signature.operator not in _CONVOLUTIONS or signature.arguments["groups"] > 1:
        return 0
    if 1 in signature.inputs[0].stride[1:2]:
        return 0
    return sum(spec.stored_bytes for spec in (*signature.inputs, *signature.outputs))
