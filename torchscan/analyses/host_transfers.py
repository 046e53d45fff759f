"""Time of copies between the device and the host, which the passes hide as far as they last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from torchscan.analyses.roofline.roofline_result import OperatorLoad, Roofline
from torchscan.hardware.device_specs import Device
from torchscan.notes import Note
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace

_TO_HOST = "torchscan.copy_to_host"
_TO_DEVICE = ("torchscan.copy_to_device", "torchscan.update_from_host")


class _PhaseCopies(NamedTuple):
    """Bytes that the operators of a phase copy in each direction."""

    to_host: int = 0
    to_device: int = 0


def add_transfers(roofline: Roofline, trace: Trace, device: Device) -> Roofline:
    """Return the roofline with the time of copies over PCIe that computation does not hide.

    Both directions work at once. Nothing hides the copies of an update on the host.
    """
    copied = _copied_by_phase(trace)
    if not copied:
        return roofline
    size = sum(each.to_host + each.to_device for each in copied.values())
    bandwidth = device.pcie_bytes_per_second
    if bandwidth is None:
        note = Note.of("transfers-unknown", size=size, device=device.name)
        return replace(roofline, assumptions=(*roofline.assumptions, note))
    loads = list(roofline.operators)
    times = dict(roofline.time_by_phase)
    for phase, each in copied.items():
        seconds = max(each) / bandwidth
        hidden = 0.0 if phase == "optimizer" else times.get(phase, 0.0)
        exposed = max(0.0, seconds - hidden)
        if exposed:
            _add_to_last_copy(loads, phase, exposed)
            times[phase] += exposed
    return _with_loads(roofline, loads, times, size)


def _copied_by_phase(trace: Trace) -> Mapping[Phase, _PhaseCopies]:
    copied: dict[Phase, _PhaseCopies] = {}
    for op, size in _copies(trace):
        before = copied.get(op.phase, _PhaseCopies())
        if op.signature.operator == _TO_HOST:
            copied[op.phase] = before._replace(to_host=before.to_host + size)
        else:
            copied[op.phase] = before._replace(to_device=before.to_device + size)
    return copied


def _copies(trace: Trace) -> Iterator[tuple[OpCall, int]]:
    """Yield the operators that copy, with the bytes of the tensor on the device."""
    for op in trace.ops:
        name = op.signature.operator
        if name == _TO_HOST or name in _TO_DEVICE:
            is_new = name == "torchscan.copy_to_device"
            spec = op.signature.outputs[0] if is_new else op.signature.inputs[0]
            yield op, spec.numel * spec.dtype.itemsize


def _add_to_last_copy(loads: list[OperatorLoad], phase: Phase, seconds: float) -> None:
    """Let the last copy of a phase take so many more seconds."""
    names = (_TO_HOST, *_TO_DEVICE)
    for index in reversed(range(len(loads))):
        load = loads[index]
        if load.phase == phase and load.operator in names:
            time = load.time_estimate + seconds
            loads[index] = replace(load, time_estimate=time, limiter="links")
            return


def _with_loads(
    roofline: Roofline, loads: list[OperatorLoad], times: Mapping[Phase, float], size: int
) -> Roofline:
    """Return the roofline with other times, which are added up anew for the model and for kinds."""
    more = sum(times.values()) - roofline.time_estimate
    whole = replace(roofline.total, time_estimate=roofline.total.time_estimate + more)
    kinds = dict(roofline.by_kind)
    for name in kinds.keys() & {_TO_HOST, *_TO_DEVICE}:
        own = [each for each in loads if each.operator == name]
        slowest = max(own, key=attrgetter("time_estimate"))
        seconds = sum(map(attrgetter("time_estimate"), own))
        kinds[name] = replace(kinds[name], time_estimate=seconds, limiter=slowest.limiter)
    time = roofline.time_estimate + more
    ratio = roofline.time_estimate / time
    layers = (whole, *roofline.layers[1:])
    changed = replace(roofline, operators=tuple(loads), layers=layers, by_kind=kinds)
    note = Note.of("transfers-hidden", size=size)
    return replace(
        changed,
        time_by_phase=times,
        time_estimate=time,
        compute_utilization=ratio * roofline.compute_utilization,
        memory_utilization=ratio * roofline.memory_utilization,
        assumptions=(*roofline.assumptions, note),
    )
