"""Memory of each call: parameters, gradients, inputs, outputs and tensors that autograd saved.

Bytes are those of memory blocks, each counted once. They are the same in each step, so they are
read in the first one, which warms up, because reading takes time. On CUDA, the allocator's counts
before and after each call, and its peak, are read as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.inspecting.storage_blocks import Blocks, blocks_of, bytes_in, tensors_saved_by
from torchscan.recording.bookkeeping.inventory import device_of
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import TELLS_UNPACKING

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMemory:
    """Memory of one call with everything inside it, in bytes."""

    num_parameters: int
    num_learnable_parameters: int
    param_memory: int
    #: of its parameters, in the step in which this was read
    gradient_memory: int
    input_memory: int
    output_memory: int
    #: kept by autograd for the backward pass, without parameters and buffers; None if unknown
    saved_memory: int | None
    #: parameters, gradients, and what was given, returned or saved, each block once
    total_memory: int
    #: what the forward pass left behind: on CUDA by the allocator, else what was returned or saved
    #: and not given
    memory_delta_fwd: int
    #: CUDA alone: what the nodes of the backward pass left behind
    memory_delta_bwd: int | None
    #: CUDA alone: the most that was allocated, as far as seen at the ends of calls and nodes; where
    #: the process allocated more than ever before, it is exact
    memory_peak_fwd: int | None
    memory_peak_bwd: int | None


#: a call, given tensors of these shapes, with or without a graph
Key = tuple[str, int, Shapes, bool]
_Value = TypeVar("_Value")
#: as many are known at a time
_MAX_CALLS = 10_000


class Allocator(NamedTuple):
    """Bytes that CUDA's allocator has given out now, and at most since the peak was last reset."""

    now: int
    most: int

    @classmethod
    def read(cls, device: torch.device) -> Allocator:
        """That of a device."""
        allocated = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]
        return cls(allocated["current"], allocated["peak"])

    def peak_since(self, before: Allocator) -> int:
        """At least: the peak is seen where it is a new one."""
        return self.most if self.most > before.most else max(self.now, before.now)


class _Unread:
    """A call whose memory is not known yet."""

    def __init__(self, call: Call, start: Allocator | None) -> None:
        self.call = call
        #: None: what it works on is not on CUDA
        self.start = start
        self.end: Allocator | None = None
        self.given: Blocks = {}
        self.returned: Blocks = {}
        self.saved: Blocks = {}
        self.delta_bwd = self.peak_bwd = 0


class MemoryWatch:
    """Reads the memory of calls that it has not seen, on tensors of these shapes."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[Key, CallMemory] = {}
        self._own: Blocks = {}
        #: keys and shapes of calls, each once for all steps, because new tuples set off collections
        self._shared: dict[Any, Any] = {}
        self._keys: dict[int, Key] = {}
        self._shapes: dict[int, object] = {}
        self._begin()

    def _begin(self) -> None:
        self._unread: dict[int, _Unread] = {}
        self._device = device_of(self._model)
        #: the keys of the step before, which is mostly alike, and of this one, by index of a call
        self._keys_before, self._keys = self._keys, {}
        self._shapes_before, self._shapes = self._shapes, {}
        #: by identity of a parameter
        self._gradients: dict[int, int] = {}

    def allocated(self) -> Allocator | None:
        """Return the allocator's counts for the model's device, or None unless it is on CUDA."""
        return (
            Allocator.read(self._device)
            if self._device is not None and self._device.type == "cuda"
            else None
        )

    @property
    def is_reading(self) -> bool:
        """True if this step has calls whose memory is read."""
        return bool(self._unread)

    def note_start(self, call: Call, shapes: Shapes, let_go: Callable[[], object]) -> None:
        """A call has started. Call ``let_go`` first if its memory must be read."""
        index = call.index
        key = self._keys_before.get(index)
        is_same = key is not None and key[0] is call.path and key[1] == call.invocation
        if key is None or not is_same or key[2] != shapes or key[3] is not torch.is_grad_enabled():
            key = self.share((call.path, call.invocation, shapes, torch.is_grad_enabled()))
        self._keys[index] = key
        if key not in self._known:
            let_go()
            self._unread[index] = _Unread(call, self.allocated())

    def share(self, value: _Value) -> _Value:
        """Return the first value that equals this one, so that steps have it in common."""
        return cast("_Value", self._shared.setdefault(value, value))

    def share_shapes(self, index: int, shapes: _Value) -> _Value:
        """Return the shapes that the call of an index had in the step before, if they are equal."""
        known: Any = self._shapes_before.get(index)
        self._shapes[index] = found = known if known == shapes else self.share(shapes)
        return cast("_Value", found)

    def note_end(self, call: Call, given: Sequence[Tensor], returned: Sequence[Tensor]) -> None:
        """A call has ended."""
        unread = self._unread.get(call.index)
        if unread is not None:
            unread.end = self.allocated()
            unread.given, unread.returned = blocks_of(given), blocks_of(returned)

    def note_made(self, owner: Call | None, node: Node) -> None:
        """A node of the graph was made in this call, or in none that is known."""
        unread = None if owner is None else self._unread.get(owner.index)
        if unread is not None:
            unread.saved |= blocks_of(tensors_saved_by(node))

    def follows(self, owner: Call | None) -> bool:
        """Return whether to read the allocator before and after the nodes of this call."""
        return owner is not None and owner.index in self._unread and self.allocated() is not None

    def note_node(self, owner: Call, before: Allocator) -> None:
        """A node of this call has run."""
        unread, after = self._unread[owner.index], self.allocated()
        if after is None:
            return
        unread.delta_bwd += after.now - before.now
        unread.peak_bwd = max(unread.peak_bwd, after.peak_since(before))

    def note_stored(self, parameter: Tensor) -> None:
        """A gradient was added to ``.grad``."""
        if self._unread and parameter.grad is not None:
            self._gradients[id(parameter)] = bytes_in(blocks_of([parameter.grad]))

    def close_step(self) -> dict[int, CallMemory]:
        """Return the memory of the finished step's calls, by their index."""
        if self._unread:
            self._own = blocks_of([*self._model.parameters(), *self._model.buffers()])
            inside = self._saved_inside()
            self._known |= {
                self._keys[index]: self._read(each, inside[index])
                for index, each in self._unread.items()
            }
        known = {index: self._known[key] for index, key in self._keys.items()}
        if len(self._known) > _MAX_CALLS:
            self._known.clear()
        if len(self._shared) > 2 * _MAX_CALLS:
            self._shared.clear()
        self._begin()
        return known

    def _saved_inside(self) -> dict[int, Blocks]:
        """Return the tensors that each call saved, including the calls inside it."""
        inside: dict[int, Blocks] = defaultdict(dict)
        for index in sorted(self._unread, reverse=True):  # those in a call come after it
            unread = self._unread[index]
            inside[index] |= {
                key: block for key, block in unread.saved.items() if key not in self._own
            }
            if unread.call.parent is not None:
                inside[unread.call.parent.index] |= inside[index]
        return inside

    def _read(self, unread: _Unread, saved: Blocks) -> CallMemory:
        parameters = list(unread.call.module.parameters())
        param_memory = bytes_in(blocks_of(parameters))
        gradients = sum(self._gradients.get(id(each), 0) for each in parameters)
        num_parameters, num_learnable = _count_parameters(parameters)
        left_behind = {**unread.returned, **saved}
        kept = {key: block for key, block in left_behind.items() if key not in unread.given}
        values = {**unread.given, **kept}
        values = {key: block for key, block in values.items() if key not in self._own}
        start, end = unread.start, unread.end
        if start is None or end is None:
            delta_fwd, peak_fwd = bytes_in(kept), None
        else:
            delta_fwd, peak_fwd = end.now - start.now, end.peak_since(start)
        delta_bwd = peak_bwd = None
        if start is not None:
            delta_bwd, peak_bwd = unread.delta_bwd, unread.peak_bwd
        return CallMemory(
            num_parameters=num_parameters,
            num_learnable_parameters=num_learnable,
            param_memory=param_memory,
            gradient_memory=gradients,
            input_memory=bytes_in(unread.given),
            output_memory=bytes_in(unread.returned),
            saved_memory=bytes_in(saved) if TELLS_UNPACKING else None,
            total_memory=param_memory + gradients + bytes_in(values),
            memory_delta_fwd=delta_fwd,
            memory_delta_bwd=delta_bwd,
            memory_peak_fwd=peak_fwd,
            memory_peak_bwd=peak_bwd,
        )


def _count_parameters(parameters: Iterable[nn.Parameter]) -> tuple[int, int]:
    """Return the number of parameters, and of those that require a gradient, without lazy ones."""
    number = num_learnable = 0
    for each in parameters:
        if not nn.parameter.is_lazy(each):
            number += each.numel()
            if each.requires_grad:
                num_learnable += each.numel()
    return number, num_learnable
