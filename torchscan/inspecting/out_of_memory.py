"""An out-of-memory error of an inspected step, explained by what is known of the model.

The allocator's snapshot has the addresses of all blocks, and stacks only if the program records
them. The model's parameters and gradients, the states of its optimizers, and the tensors that its
graph saved have addresses, too. The error is not changed but for a note, and nothing is allocated.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath
from traceback import walk_tb
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim.optimizer import Optimizer

from torchscan.analyses.memory_snapshot.allocator_history import AllocatorHistory
from torchscan.analyses.memory_snapshot.block_owners import KnownOwner
from torchscan.analyses.memory_snapshot.module_paths import ModulePaths
from torchscan.analyses.memory_snapshot.snapshot_analysis import analyze_snapshot
from torchscan.analyses.memory_snapshot.snapshot_data import SnapshotData, TraceEvent
from torchscan.analyses.memory_snapshot.snapshot_file import parse_snapshot
from torchscan.analyses.memory_snapshot.snapshot_result import MemorySnapshot, SnapshotDevice
from torchscan.inspecting.pass_graph import edges_behind
from torchscan.inspecting.storage_blocks import tensors_saved_by
from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import allocator_snapshot, local_part
from torchscan.units import parse_memory

#: the request and the GPU in torch's message
_REQUEST = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)? (?:[KMGT]iB|bytes))")
_GPU = re.compile(r"\bGPU (\d{1,3})\b")
#: frames of Python from 3.13 on show variables, and copy none
_COPIES_VARIABLES: Final = sys.version_info < (3, 13)


def explain_out_of_memory(
    error: BaseException,
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    maker_of: Callable[[Node], Call | None],
) -> MemorySnapshot | None:
    """Return what held the GPU's memory, or None if its allocator has no snapshot.

    Args:
        error: the exception, whose frames hold tensors of the step.
        model: the model.
        optimizers: those that update its parameters.
        maker_of: returns the call of a module that created a node of the graph.
    """
    content = allocator_snapshot()
    if content is None:
        return None
    message = str(error)
    gpu = _GPU.search(message)
    index = torch.cuda.current_device() if gpu is None else int(gpu[1])
    free, capacity = torch.cuda.mem_get_info(index)
    device = SnapshotDevice(
        index=index,
        name=torch.cuda.get_device_name(index),
        capacity_bytes=capacity,
        free_bytes=free,
    )
    owners = TensorOwners()
    owners.add_state(model, optimizers)
    owners.add_step(error, maker_of)
    return explain_content(content, device, message, owners, ModulePaths(model))


def explain_content(
    content: Any,
    device: SnapshotDevice,
    message: str,
    owners: TensorOwners,
    modules: ModulePaths | None = None,
) -> MemorySnapshot:
    """Return what held the memory, from a snapshot's content and the owners of its addresses."""
    data = parse_snapshot(content)
    if AllocatorHistory(data, device.index).failed_at is None:
        data = _with_failure(data, device, message)
    return analyze_snapshot(data, device, "oom", modules, owners.by_address)


def describe_out_of_memory(found: MemorySnapshot) -> Note:
    """Return the verdict on a run that ended with this."""
    kind, size = next(iter(found.by_kind.items()), ("unknown", 0))
    place, place_size = "", 0
    if found.held:
        largest = found.held[0]
        place, place_size = largest.path or largest.place, largest.size
    advice = found.suggestions[0].to_data() if found.suggestions else None
    return Note.of(
        "verdict-out-of-memory",
        request=found.failed_bytes or 0,
        used=found.requested_bytes,
        reserved=found.reserved_bytes,
        kind=kind,
        share=size / max(found.requested_bytes, 1),
        place=place,
        place_size=place_size,
        suggestion=advice,
    )


class TensorOwners:
    """Purpose of memory by its address, of tensors that the model and the step have."""

    def __init__(self) -> None:
        self.by_address: dict[int, KnownOwner] = {}

    def add_state(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
        """Add parameters, buffers, gradients, and states of optimizers."""
        paths: dict[int, str] = {}
        for path, module in modules_of(model):
            for own in module._parameters.values():
                if own is not None:
                    paths.setdefault(id(own), path)
                    self._add(own, KnownOwner("parameters", path))
                    self._add(own.grad, KnownOwner("gradients", path))
            for buffer in module._buffers.values():
                self._add(buffer, KnownOwner("buffers", path))
        for optimizer in optimizers:
            for parameter, state in list(optimizer.state.items()):
                owner = KnownOwner("optimizer", paths.get(id(parameter), ""))
                for tensor in tensors_in(state):
                    self._add(tensor, owner)

    def add_step(self, error: BaseException, maker_of: Callable[[Node], Call | None]) -> None:
        """Add what the graph of the step saved, and tensors in variables of the frames."""
        variables = list(_variables_of(error))
        nodes = [tensor.grad_fn for _, tensor in variables]
        for node in edges_behind([node for node in nodes if node is not None], 0):
            call = maker_of(node)
            owner = KnownOwner("activations", "" if call is None else call.path)
            for tensor in tensors_saved_by(node):
                self._add(tensor, owner)
        for place, tensor in variables:
            self._add(tensor, KnownOwner("other", "", place))

    def _add(self, tensor: Tensor | None, owner: KnownOwner) -> None:
        """Add the memory of a tensor, unless it has an owner."""
        if tensor is None or nn.parameter.is_lazy(tensor):
            return
        try:
            address = local_part(tensor).untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError, ValueError):  # without a storage
            return
        if address:
            self.by_address.setdefault(address, owner)


def _variables_of(error: BaseException) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in variables of the frames that the exception left, with their places.

    Python before 3.13 copies the variables of a function into a dict, which would hold tensors that
    the function drops when it goes on after the error.
    """
    for frame, line in walk_tb(error.__traceback__):
        variables = frame.f_locals
        copied = list(variables.items())
        if _COPIES_VARIABLES and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            variables.clear()
        file = PurePath(frame.f_code.co_filename).name
        for name, value in copied:
            if isinstance(value, Tensor):
                yield f"{file}:{line} {frame.f_code.co_name}, {name}", value


def _with_failure(data: SnapshotData, device: SnapshotDevice, message: str) -> SnapshotData:
    """Return the data with an event for the failed request, which torch records only if asked."""
    request = _REQUEST.search(message)
    size = 0 if request is None else parse_memory(request[1])
    event = TraceEvent("oom", 0, int(size), 0, device.free_bytes, (0, 0), None)
    missing = device.index + 1 - len(data.traces)
    traces = [*data.traces, *[()] * missing]
    traces[device.index] = (*traces[device.index], event)
    return replace(data, traces=tuple(traces))
