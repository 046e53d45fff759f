"""Devices as text: all in a table, or one in full."""

from __future__ import annotations

import textwrap

from tabulate import tabulate

from torchscan import units
from torchscan.hardware.devices import RATES, Device

_WIDTH = 80


def device_list(devices: dict[str, Device]) -> str:
    """TFLOP/s and TOP/s, GB/s and GiB; what is from memory is marked."""
    rows = [[_short(name), *(_rate(device, form) for form in RATES), *_memory(device)] for name, device in devices.items()]
    headings = ["Device", *RATES, "GB/s", "GB"]
    table = tabulate(rows, headings, tablefmt="simple", disable_numparse=True, colalign=["left"] + ["right"] * 10)
    return f"{table}\n\nDense rates in 10^12 operations per second. ? is from memory, not from a data sheet."


def _short(name: str) -> str:
    return name.replace("Workstation Edition", "WS").replace("Generation", "Gen.")


def _rate(device: Device, form: str) -> str:
    rate = device.flops_per_second.get(form)
    return "-" if rate is None else f"{rate / 1e12:.4g}{_mark(device, form)}"


def _memory(device: Device) -> tuple[str, str]:
    bandwidth = (
        "-" if device.bytes_per_second is None else f"{device.bytes_per_second / 1e9:.0f}{_mark(device, 'bandwidth_gbs')}"
    )
    return bandwidth, f"{device.data_sheet_memory_gib:g}{_mark(device, 'memory_gb')}"


def _mark(device: Device, figure: str) -> str:
    return "?" if device.is_unverified(figure) else ""


def device_text(device: Device) -> str:
    """All that is known of one, each figure with where it comes from."""
    figures = [(form, f"{units.count(rate, 'OP/s', 1)}", form) for form, rate in device.flops_per_second.items()]
    figures += _optional("bandwidth", device.bytes_per_second, "B/s", "bandwidth_gbs") + _optional(
        "links", device.link_bytes_per_second, "B/s", "link_gbs"
    )
    figures += [("memory", f"{device.data_sheet_memory_gib:g} GB", "memory_gb")]
    figures += [("cache", units.memory(device.l2_bytes, 0), "l2_mb")] if device.l2_bytes else []
    figures += [("multiprocessors", str(device.multiprocessors), "multiprocessors")] if device.multiprocessors else []
    figures += _optional("clock", device.clock_hz, "Hz", "boost_mhz") + _optional("power", device.power_watts, "W", "power_w")
    sources: dict[str, int] = {}
    rows = [(name, text, _origin(device, figure, sources)) for name, text, figure in figures]
    table = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=("left", "right", "left"))
    notes = [
        textwrap.fill(f"[{number}] {source}", _WIDTH, break_long_words=False, break_on_hyphens=False)
        for source, number in sources.items()
    ]
    return "\n".join([device.name, table, *([device.note] if device.note else []), *notes])


def _optional(name: str, value: float | None, unit: str, figure: str) -> list[tuple[str, str, str]]:
    return [] if value is None else [(name, units.count(value, unit, 1), figure)]


def _origin(device: Device, figure: str, sources: dict[str, int]) -> str:
    """In a word, or by the number of what is told below."""
    if device.is_measured:
        return "measured"
    if device.is_unverified(figure):
        return "unverified: from memory"
    source = device.source.get(figure, "")
    return f"[{sources.setdefault(source, len(sources) + 1)}]" if source else ""
