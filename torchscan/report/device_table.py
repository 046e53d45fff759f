"""Devices as tables: all of them, or one in full."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace

from torchscan import units
from torchscan.hardware.device_specs import RATES, Device
from torchscan.report.table import Cell, Column, Row, Screen, Table
from torchscan.report.text import grid

#: wide enough for every device that comes with torchscan
_WIDTH, _WIDTH_OF_ONE = 132, 80
#: columns leave in this order where the terminal is too narrow for them and names of at least that many characters
_LEAVING = ("fp64", "fp4", "tf32", "int8", "fp8", "bf16", "fp32")
_SHORTEST_NAME = 25
_MAKER = re.compile("^(NVIDIA|AMD) ")


def devices_table(devices: Mapping[str, Device]) -> Table:
    """Rates in 10^12 operations per second, bandwidth in GB/s, memory in GB."""
    figures = [*((form, form) for form in RATES), ("bandwidth_gbs", "GB/s"), ("memory_gb", "GB")]
    return Table(
        title="Devices",
        columns=[
            Column(key="device", heading="Device", is_number=False, min_width=_SHORTEST_NAME),
            *(Column(key=key, heading=heading, priority=_grade(key)) for key, heading in figures),
        ],
        rows=[_row(name, device) for name, device in devices.items()],
        remarks=[
            "Dense rates in 10^12 operations per second. Figures marked ? are unverified: no data sheet was at hand.",
            *(
                f"{device.short_name} is short for {name}."
                for name, device in devices.items()
                if device.short_name
            ),
        ],
        noun="devices",
    )


def _grade(key: str) -> int:
    return len(_LEAVING) - _LEAVING.index(key) if key in _LEAVING else 0


def device_list(devices: Mapping[str, Device], width: int | None = None) -> str:
    """All devices as text. In a narrow terminal names lose their makers and columns leave."""
    table = devices_table(devices)
    if width is not None and max(map(len, grid(table, Screen(_WIDTH)).splitlines())) > width:
        table = _without_makers(table)
    return table.write("text", width=width or _WIDTH)


def _without_makers(table: Table) -> Table:
    """``--device`` takes names without them, too."""
    rows = [(row, replace(row.cells[0], text=_MAKER.sub("", row.name))) for row in table.rows]
    return replace(table, rows=[replace(row, cells=[name, *row.cells[1:]]) for row, name in rows])


def _row(name: str, device: Device) -> Row:
    rates = {form: device.flops_per_second.get(form) for form in RATES}
    cells = [
        Cell(name, name.replace("Workstation Edition", "WS").replace("Generation", "Gen.")),
        *(
            _figure(device, form, None if rate is None else rate / 1e12)
            for form, rate in rates.items()
        ),
        _figure(
            device,
            "bandwidth_gbs",
            None if device.bytes_per_second is None else device.bytes_per_second / 1e9,
        ),
        _figure(device, "memory_gb", device.data_sheet_memory_gib),
    ]
    return Row(cells=cells)


def _figure(device: Device, figure: str, value: float | None) -> Cell:
    mark = "?" if device.is_unverified(figure) else ""
    return Cell(value, "-" if value is None else f"{_rounded(value)}{mark}")


def _rounded(value: float) -> str:
    """Four digits, or all of a whole number."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def device_table(device: Device) -> Table:
    """Everything known about one device, with the source of each figure."""
    sources: dict[str, int] = {}
    rows = [
        _figure_row(device, *each, sources) for each in _figures(device)
    ]  # which numbers the sources
    return Table(
        title=device.name,
        columns=[
            Column(key="figure", heading="Figure", is_number=False),
            Column(key="value", heading="Value"),
            Column(key="source", heading="Source", is_number=False),
        ],
        rows=rows,
        summary=[device.name],
        remarks=[
            *_names(device),
            *([device.note] if device.note else []),
            *(f"[{number}] {source}" for source, number in sources.items()),
        ],
        noun="figures",
    )


def _names(device: Device) -> list[str]:
    names = [*([device.short_name] if device.short_name else []), *device.aliases]
    return [f"also called {', '.join(names)}"] if names else []


def device_text(device: Device, width: int | None = None) -> str:
    """One device as text. Addresses are not broken, so that they can be opened."""
    narrow = min(width or _WIDTH_OF_ONE, _WIDTH_OF_ONE)
    table = device_table(device)
    notes = [_hanging(text, narrow) for text in table.remarks]
    return "\n".join([replace(table, remarks=()).write("text", width=narrow), *notes])


def _hanging(text: str, width: int) -> str:
    """Wrapped below its number, if it has one, which stays beside even the longest address."""
    number = re.match(r"\[\d+\] ", text)
    indent = " " * (number.end() if number else 0)
    lines = textwrap.wrap(
        text[len(indent) :], width - len(indent), break_long_words=False, break_on_hyphens=False
    )
    return (number[0] if number else "") + f"\n{indent}".join(lines)


def _figures(device: Device) -> list[tuple[str, str, float, str]]:
    """The key, name, value and text of each figure that is known."""
    rates = [
        (form, form, rate, units.count(rate, "OP/s", 1))
        for form, rate in device.flops_per_second.items()
    ]
    memory = [
        (
            "memory_gb",
            "memory",
            device.data_sheet_memory_gib,
            f"{device.data_sheet_memory_gib:g} GB",
        )
    ]
    cache = (
        [("l2_mb", "cache", device.l2_bytes, units.memory(device.l2_bytes, 0))]
        if device.l2_bytes
        else []
    )
    context = device.known_cuda_context_bytes
    count = device.multiprocessors
    return [
        *rates,
        *_optional("bandwidth_gbs", "bandwidth", device.bytes_per_second, "B/s"),
        *_optional("link_gbs", "links", device.link_bytes_per_second, "B/s"),
        *memory,
        *cache,
        *([("cuda_context_mb", "context", context, units.memory(context))] if context else []),
        *([("multiprocessors", "multiprocessors", count, str(count))] if count else []),
        *_optional("boost_mhz", "clock", device.clock_hz, "Hz"),
        *_optional("power_w", "power", device.power_watts, "W"),
    ]


def _optional(
    key: str, name: str, value: float | None, unit: str
) -> list[tuple[str, str, float, str]]:
    return [] if value is None else [(key, name, value, units.count(value, unit, 1))]


def _figure_row(
    device: Device, key: str, name: str, value: float, text: str, sources: dict[str, int]
) -> Row:
    origin = _origin(device, key, sources)
    return Row(cells=[Cell(name, name), Cell(value, text), Cell(origin, origin)])


def _origin(device: Device, figure: str, sources: dict[str, int]) -> str:
    """A word, or the number of the source below the table."""
    if device.is_measured:
        return "measured"
    if device.is_unverified(figure):
        return "unverified"
    source = device.source.get(figure, "")
    return f"[{sources.setdefault(source, len(sources) + 1)}]" if source else ""
