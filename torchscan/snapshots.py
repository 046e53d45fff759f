"""The function that reads snapshots of torch's CUDA allocator."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from typing import get_args

from torch import nn

from torchscan.analyses.memory_snapshot.allocator_history import SnapshotMoment
from torchscan.analyses.memory_snapshot.module_paths import ModulePaths
from torchscan.analyses.memory_snapshot.snapshot_analysis import analyze_snapshot
from torchscan.analyses.memory_snapshot.snapshot_data import SnapshotData
from torchscan.analyses.memory_snapshot.snapshot_file import read_snapshot_file
from torchscan.analyses.memory_snapshot.snapshot_result import MemorySnapshot, SnapshotDevice
from torchscan.errors import Argument, Give, InputError
from torchscan.files import path_of
from torchscan.hardware.device_specs import device_named
from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.request import require_module
from torchscan.wrong_arguments import explain_wrong_types

_GPU = re.compile(r"cuda:(\d{1,3})")


@explain_wrong_types
def read_snapshot(
    path: str | os.PathLike[str],
    module: nn.Module | None = None,
    *,
    moment: SnapshotMoment | None = None,
    device: str | None = None,
) -> MemorySnapshot:
    """Explain an out-of-memory error or a peak, from a snapshot of torch's CUDA allocator.

    The result has the memory by line of code, module and kind, and changes that would have helped.
    ``torch.cuda.memory._dump_snapshot`` writes the file; its dict as JSON is also read. The file is
    read without ``pickle``: nothing in it is imported or called.

    Args:
        path: the file.
        module: the model that was trained, to name its modules. It is left unchanged.
        moment: "oom", when the last request failed; "peak", when most memory was in use;
            "end", when the snapshot was taken. None: the first of these that the snapshot has.
        device: the device's name or memory ('RTX 4090', '24 GiB'), to compute the memory outside of
            torch; or the GPU to read ('cuda:1'). None: the GPU whose request failed, or that holds
            the most.
    """
    if module is not None:
        require_module(module)
    data = read_snapshot_file(path_of(path))
    gpu = _GPU.fullmatch(device) if isinstance(device, str) else None
    index = _index_of(data, None if gpu is None else int(gpu[1]))
    found = SnapshotDevice(index=index)
    if device is not None and gpu is None:
        named = device_named(device)
        found = SnapshotDevice(index=index, name=named.name, capacity_bytes=named.memory_bytes)
    if moment is not None and moment not in get_args(SnapshotMoment):
        raise InputError.of_choice("moment", moment, get_args(SnapshotMoment))
    _require_moment(data, index, moment)
    if module is None:
        return analyze_snapshot(data, found, moment)
    modules = ModulePaths(module)
    snapshot = analyze_snapshot(data, found, moment, modules)
    if modules.is_recognized or not modules.has_others:
        return snapshot
    # Layers of torch's classes would be those of another model.
    snapshot = analyze_snapshot(data, found, moment)
    note = Note.of("snapshot-other-model", model=type_name_of(module))
    return replace(snapshot, notes=(note, *snapshot.notes))


def _index_of(data: SnapshotData, given: int | None) -> int:
    """Return the GPU whose request failed last, or that has the most memory reserved."""
    reserved: Counter[int] = Counter()
    for segment in data.segments:
        reserved[segment.device] += segment.total_size
    traced = [index for index, events in enumerate(data.traces) if events]
    known = sorted({*reserved, *traced})
    if given is not None:
        if given not in known:
            raise InputError(
                Argument("device"),
                f" is 'cuda:{given}', of which the snapshot has nothing: give ",
                Give("device", f"cuda:{known[0] if known else 0}"),
            )
        return given
    for index in reversed(traced):
        if any(event.action == "oom" for event in data.traces[index]):
            return index
    return max(known, key=lambda index: reserved[index], default=0)


def _require_moment(data: SnapshotData, index: int, moment: SnapshotMoment | None) -> None:
    """Raise an InputError if the snapshot lacks the events that lead to a moment."""
    events = data.traces[index] if index < len(data.traces) else ()
    if moment == "peak" and not events:
        reason = "no events were recorded"
    elif moment == "oom" and all(event.action != "oom" for event in events):
        reason = "no failed request was recorded"
    else:
        return
    raise InputError(
        Argument("moment"),
        f" is {moment!r}, and {reason} on cuda:{index}: give ",
        Give("moment", "end"),
    )
