"""Snapshots of torch's CUDA allocator, as torch writes them, of programs that run on a CPU.

Allocations are those of a real program, their stacks are recorded and symbolized by the functions of
torch that record those of CUDA, and a replay of CUDA's allocator gives them addresses.
``python -m tests.analyses.snapshot_files`` writes the example of the docs, on the meta device.
"""

from __future__ import annotations

import pickle
import re
import runpy
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchscan.hardware.allocator import AllocatedBlock, CachingAllocator, OutOfMemory

#: frames of C++ in the thread that runs a backward pass on a GPU
AUTOGRAD_FRAMES = [
    {"name": name, "filename": "??", "line": 0}
    for name in (
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(…)",
        "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)",
        "torch::autograd::Node::operator()(std::vector<at::Tensor, …>&&)",
        "torch::autograd::Engine::evaluate_function(…)",
        "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    )
]
#: files of a dispatch mode and of what calls it
CALLERS = (__file__, "torch/utils/_stats.py", "torch/_dynamo/eval_frame.py", "torch/_compile.py")
#: frames of C++ around those of Python
CPP_FRAMES = [
    {"name": "at::_ops::empty_memory_format::call(…)", "filename": "??", "line": 0},
    {"name": "_PyEval_EvalFrameDefault", "filename": "/p/Python/ceval.c", "line": 4769},
]


class AddressedAllocator(CachingAllocator):
    """The replay of CUDA's allocator, with addresses."""

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity=capacity)
        self.events: list[dict[str, Any]] = []
        #: size of each segment by address
        self.segments: dict[int, int] = {}
        self._next_address = 0x7F00_0000_0000
        self._segment_of: dict[int, int] = {}
        self._current = 0

    def address_of(self, block: AllocatedBlock) -> int:
        """Return the address of a block: that of its segment, and what is before it."""
        offset, before = 0, block.before
        while before is not None:
            offset, before = offset + before.size, before.before
        return self._segment_of[block.number] + offset

    def blocks_by_segment(self, live: list[AllocatedBlock]) -> dict[int, list[AllocatedBlock]]:
        """Return the blocks of each segment, in order, of which these are in use."""
        blocks: dict[int, list[AllocatedBlock]] = {address: [] for address in self.segments}
        for block in sorted(
            [*live, *chain.from_iterable(self._free.values())], key=self.address_of
        ):
            blocks[self._segment_of[block.number]].append(block)
        return blocks

    def _new_segment(self, size: int, stream: int) -> AllocatedBlock:
        self._current = self._next_address
        block = super()._new_segment(size, stream)
        self._next_address += block.size + 2**21
        self._note("segment_alloc", self._current, block.size)
        self.segments[self._current] = block.size
        return block

    def _split(self, block: AllocatedBlock, size: int) -> None:
        self._current = self._segment_of[block.number]
        super()._split(block, size)

    def _block(self, size: int, is_small: bool, stream: int) -> AllocatedBlock:
        block = super()._block(size, is_small, stream)
        self._segment_of[block.number] = self._current
        return block

    def _release_free_segments(self) -> None:
        current = self._current
        for blocks in self._free.values():
            for block in blocks:
                if block.before is None and block.after is None:
                    address = self._segment_of[block.number]
                    self._note("segment_free", address, self.segments.pop(address))
        super()._release_free_segments()
        self._current = current

    def _note(self, action: str, address: int, size: int) -> None:
        self.events.append({"action": action, "addr": address, "size": size})


class SnapshotRecorder(TorchDispatchMode):
    """Records the allocations of what runs in its context as those of a GPU."""

    def __init__(
        self,
        *,
        capacity: int | None = None,
        stacks: Literal["python", "all"] | None = "all",
        device_bytes: int = 0,
    ) -> None:
        super().__init__()
        self.allocator = AddressedAllocator(capacity)
        self._stacks = stacks
        self._device_bytes = device_bytes
        #: by identity of a storage
        self._live: dict[int, tuple[StorageWeakRef, AllocatedBlock, int, Any]] = {}
        self._tracebacks: list[tuple[dict[str, Any], Any]] = []
        #: frames of tracebacks by their identity
        self._symbolized: dict[int, list[dict[str, Any]]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.free()
        result = func(*args, **(kwargs or {}))
        self.free()
        given = {_key(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _key(tensor) not in given:
                self.allocate(tensor)
        return result

    def allocate(self, tensor: Tensor) -> None:
        """Note the storage of a tensor, unless it is known."""
        key, size = _key(tensor), tensor.untyped_storage().nbytes()
        if key in self._live or not size:
            return
        trace = self._trace()
        num_events = len(self.allocator.events)
        try:
            block = self.allocator.allocate(size)
        except OutOfMemory:
            self._note({"action": "oom", "device_free": self._device_free(), "size": size}, trace)
            raise torch.OutOfMemoryError("CUDA out of memory.") from None
        finally:
            for event in self.allocator.events[num_events:]:
                self._note(event, trace)
        assert block is not None
        address = self.allocator.address_of(block)
        event = {"action": "alloc", "addr": address, "size": size}
        self._note(event, trace)
        reference = StorageWeakRef(tensor.untyped_storage())
        self._live[key] = (reference, block, size, trace)

    def free(self) -> None:
        """Note the storages that were freed."""
        for key, (reference, block, size, _) in list(self._live.items()):
            if reference.expired():
                del self._live[key]
                address = self.allocator.address_of(block)
                for action in ("free_requested", "free_completed"):
                    event = {"action": action, "addr": address, "size": size}
                    self.allocator.events.append(event)
                    self._note(event, self._trace())
                self.allocator.free(block)

    def snapshot(self) -> dict[str, Any]:
        """Return what ``torch.cuda.memory._snapshot()`` returns."""
        self.free()
        self._symbolize()
        live = {id(block): (size, trace) for _, block, size, trace in self._live.values()}
        in_use = [block for _, block, _, _ in self._live.values()]
        segments = []
        for address, members in self.allocator.blocks_by_segment(in_use).items():
            position = address
            blocks: list[dict[str, Any]] = []
            for block in members:
                requested, trace = live.get(id(block), (0, None))
                state = "active_allocated" if id(block) in live else "inactive"
                blocks.append(
                    {
                        "address": position,
                        "size": block.size,
                        "requested_size": requested,
                        "state": state,
                        "frames": self._frames_of(trace),
                    }
                )
                position += block.size
            active = sum(each["size"] for each in blocks if each["state"] == "active_allocated")
            segments.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": self.allocator.segments[address],
                    "allocated_size": active,
                    "active_size": active,
                    "requested_size": sum(each["requested_size"] for each in blocks),
                    "stream": 0,
                    "segment_type": "small" if members[0].is_small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": blocks,
                }
            )
        for event, trace in self._tracebacks:
            if trace is not None:
                event["frames"] = self._frames_of(trace)
        events = [event for event, _ in self._tracebacks]
        return {
            "segments": segments,
            "device_traces": [events],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": -1,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": False,
                "roundup_power2_divisions": {"1": 0, "2": 0},
            },
            "external_annotations": [],
        }

    def dump(self, path: Path) -> Path:
        """Write the snapshot as ``torch.cuda.memory._dump_snapshot`` does, and return its path."""
        with path.open("wb") as file:
            pickle.dump(self.snapshot(), file)
        return path

    def _device_free(self) -> int:
        return max(0, self._device_bytes - self.allocator.reserved)

    def _note(self, event: dict[str, Any], trace: Any) -> None:
        event |= {
            "stream": 0,
            "time_us": 1_750_000_000_000_000 + len(self._tracebacks),
            "compile_context": "N/A",
            "user_metadata": "",
            "pool_id": (0, 0),
        }
        self._tracebacks.append((event, trace))

    def _trace(self) -> Any:
        if self._stacks is None:
            return None
        is_backward = torch._C._current_graph_task_id() != -1
        traceback = torch._C._profiler.gather_traceback(python=True, script=False, cpp=False)
        return traceback, is_backward

    def _symbolize(self) -> None:
        traces = [trace for _, trace in self._tracebacks if trace is not None]
        new = [traceback for traceback, _ in traces if id(traceback) not in self._symbolized]
        frames = torch._C._profiler.symbolize_tracebacks(new)
        self._symbolized |= zip(map(id, new), frames, strict=True)

    def _frames_of(self, trace: Any) -> list[dict[str, Any]]:
        """Return a stack, as a GPU's backward thread would have it if it is of a backward pass."""
        if trace is None:
            return []
        traceback, is_backward = trace
        frames = self._symbolized[id(traceback)]
        frames = list(frames)
        while frames and frames[0]["filename"].endswith(CALLERS):
            del frames[0]
        if is_backward:
            names = [each["name"] for each in frames]
            frames = frames[: names.index("_engine_run_backward")]
        if self._stacks == "python":
            return list(frames)
        if is_backward:
            return [*AUTOGRAD_FRAMES[:2], *frames, *AUTOGRAD_FRAMES[2:]]
        return [CPP_FRAMES[0], *frames, CPP_FRAMES[1]]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def write_example(folder: Path) -> None:
    """Write ``oom.pickle``: a step of ``gpt.py`` on a GPU with 24 GiB, for which it is too large."""
    program = runpy.run_path(str(folder / "gpt.py"))
    usable = int(24 * 2**30 * 0.975) - 512 * 2**20
    recorder = SnapshotRecorder(capacity=usable, stacks="python", device_bytes=usable)
    try:
        with recorder, torch.device("meta"):
            program["train"](program["GPT"](), batch_size=68, steps=1, device="meta")
    except torch.OutOfMemoryError:
        content = recorder.snapshot()
    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    shared: dict[str, Any] = {}  # as torch shares equal frames and stacks
    for owner in [*content["device_traces"][0], *blocks]:
        frames = []
        for frame in owner.get("frames", []):
            file = re.search(r"(?:site-packages/torch/.*|gpt.py)$", frame["filename"])
            if file is not None:
                moved = {**frame, "filename": f"/train/{file[0]}"}
                frames.append(shared.setdefault(str(moved), moved))
        owner["frames"] = shared.setdefault(str(frames), frames)
    (folder / "oom.pickle").write_bytes(pickle.dumps(content))


if __name__ == "__main__":
    write_example(Path(__file__).parents[2] / "docs" / "examples")
