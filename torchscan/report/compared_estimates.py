"""Estimates of memory and time that both sides of a comparison have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from torchscan import units
from torchscan.report.info_data import InfoData

#: labels and formats of estimates, which are there if both sides have them
ESTIMATES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "peak_bytes": ("Peak memory", units.memory),
    "time_estimate": ("Time", units.duration),
}


class TimeSource(NamedTuple):
    """The devices of the times of both sides, before and after, and the error margins."""

    devices: tuple[str, str]
    #: how far each time may be off, as a share
    margins: tuple[float, float]

    def __str__(self) -> str:
        """Return devices with error margins: "H100 ± 40 %", or both if the sides differ."""
        texts = []
        for device, margin in zip(self.devices, self.margins, strict=True):
            texts.append(f"{device} ± {units.share(margin)}")
        before, after = texts
        if before == after:
            return before
        return f"{before} before and {after} now"


def compare_estimates(before: InfoData, after: InfoData) -> dict[str, tuple[float, float]]:
    """Return the estimates of memory and time that both infos have."""
    estimates = {}
    for key in ESTIMATES:
        sides = before["overall"].get(key), after["overall"].get(key)
        if None not in sides:
            estimates[key] = cast("tuple[float, float]", sides)
    return estimates


def time_source_of(before: InfoData, after: InfoData) -> TimeSource | None:
    """Return the devices and error margins of the times, or None if one side has none."""
    sources = []
    for info in (before, after):
        for note in info.get("estimates", []):
            values = note["values"]
            if note["code"] != "time-estimate" or not {"device", "margin"} <= values.keys():
                continue
            device, margin = str(values["device"]), cast("float", values["margin"])
            sources.append((device, margin))
    if len(sources) != 2:
        return None
    (old_device, old_margin), (new_device, new_margin) = sources
    return TimeSource((old_device, new_device), (old_margin, new_margin))
