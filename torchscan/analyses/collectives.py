"""The collectives of one rank in a pass, by kind, group and module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torchscan.analyses.roofline.links import Fabric
from torchscan.ops.communication import COLLECTIVES, Kind, group_of, sent_bytes, whole_bytes
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Calls of one module that are alike."""

    kind: Kind
    #: mesh dimension of the process group, or torch's name of the group
    group: str
    #: number of ranks in the group
    num_ranks: int
    phase: Phase
    #: path of the module
    layer: str
    #: number of calls
    calls: int
    #: bytes of the complete tensors, of all calls
    bytes: int
    #: bytes that each rank sends, at least, in all calls
    sent_bytes: int
    #: seconds of all calls, whether or not they overlap computation, or None without a device
    seconds: float | None = None


def collectives_of(
    trace: Trace,
    fabric: Fabric | None = None,
    names: Mapping[tuple[int, ...], str] = MappingProxyType({}),
) -> tuple[Collective, ...]:
    """In the order in which they were met first. ``names``: of groups, by the processes in them."""
    calls: Counter[_Key] = Counter()
    sizes: Counter[_Key] = Counter()
    times: dict[_Key, float] = {}
    for op in trace.ops:
        if (key := _key(trace, op, names)) is not None:
            calls[key] += 1
            sizes[key] += whole_bytes(op.signature)
            if fabric is not None:
                times[key] = times.get(key, 0.0) + (fabric.seconds(op) or 0.0)
    return tuple(_collective(key, calls[key], sizes[key], times.get(key)) for key in calls)


_Key = tuple[Kind, str, int, Phase, str]


def _key(trace: Trace, op: OpCall, names: Mapping[tuple[int, ...], str]) -> _Key | None:
    kind = COLLECTIVES.get(op.signature.operator)
    if kind is None:
        return None
    group = group_of(op.signature)
    if group is not None and group.size == 1:  # a collective of one rank is only a copy
        return None
    if group is None:
        return kind, "", 0, op.phase, trace.path_of(op)
    default = group.purpose.removeprefix("mesh_") or group.name
    return kind, names.get(group.ranks, default), group.size, op.phase, trace.path_of(op)


def _collective(key: _Key, calls: int, size: int, seconds: float | None) -> Collective:
    kind, group, processes, phase, layer = key
    return Collective(
        kind=kind,
        group=group,
        num_ranks=processes,
        phase=phase,
        layer=layer,
        calls=calls,
        bytes=size,
        sent_bytes=sent_bytes(kind, size, processes),
        seconds=seconds,
    )
