"""Devices as tables: all of them, or one in full."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torchscan import units
from torchscan.hardware.device_entries import RATES
from torchscan.hardware.device_specs import Device
from torchscan.report.make_table import ColumnOf, make_table, number, words
from torchscan.report.table import Cell, Screen, Table
from torchscan.report.text import format_rows

#: wide enough for every device that comes with torchscan
_WIDTH, _WIDTH_OF_ONE = 132, 80
#: columns leave in this order where the terminal is too narrow for them and names of at least that many characters
_LEAVING = ("fp64", "fp4", "tf32", "int8", "fp8", "bf16", "fp32")
_SHORTEST_NAME = 25
_MAKER = re.compile("^(NVIDIA|AMD) ")


def devices_table(devices: Mapping[str, Device]) -> Table:
    """Rates in 10^12 operations per second, bandwidth in GB/s, memory in GB."""

    def bandwidth(device: Device) -> Cell:
        return _figure(device, "bandwidth_gbs", device.bytes_per_second, 1e9)

    def memory(device: Device) -> Cell:
        return _figure(device, "memory_gb", device.data_sheet_memory_gib)

    columns = (
        words("device", "Device", _short_name, min_width=_SHORTEST_NAME),
        *(number(form, form, partial(_rate, form=form), priority=_grade(form)) for form in RATES),
        number("bandwidth_gbs", "GB/s", bandwidth),
        number("memory_gb", "GB", memory),
    )
    return make_table(
        "Devices",
        columns,
        [*devices.values()],
        remarks=[
            "Dense rates in 10^12 operations per second. Values marked ? are unverified: no data sheet was found.",
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
    if width is not None and max(map(len, format_rows(table, Screen(_WIDTH)).splitlines())) > width:
        table = _without_makers(table)
    return table.write("text", width=width or _WIDTH)


def _without_makers(table: Table) -> Table:
    """``--device`` takes names without them, too."""
    rows = [(row, replace(row.cells[0], text=_MAKER.sub("", row.name))) for row in table.rows]
    return replace(table, rows=[replace(row, cells=[name, *row.cells[1:]]) for row, name in rows])


def _short_name(device: Device) -> Cell:
    shortened = device.name.replace("Workstation Edition", "WS").replace("Generation", "Gen.")
    return Cell(device.name, shortened)


def _rate(device: Device, form: str) -> Cell:
    return _figure(device, form, device.flops_per_second.get(form), 1e12)


def _figure(device: Device, figure: str, value: float | None, unit: float | None = None) -> Cell:
    if value is None:
        return Cell(None, "-")
    scaled = value if unit is None else value / unit
    mark = "?" if device.is_unverified(figure) else ""
    return Cell(scaled, f"{_rounded(scaled)}{mark}")


def _rounded(value: float) -> str:
    """Four digits, or all of a whole number."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def device_table(device: Device) -> Table:
    """Everything known about one device, with the source of each property."""
    sources: dict[str, int] = {}
    columns = (
        words("figure", "Property", lambda row: row[1]),
        number("value", "Value", lambda row: Cell(*row[2:])),
        words("source", "Source", lambda row: _origin(device, row[0], sources)),
    )
    figures = _figures(device)
    table = make_table(device.name, columns, figures, summary=[device.name], noun="properties")
    remarks = [
        *_names(device),
        *([device.note] if device.note else []),
        *(f"[{number}] {source}" for source, number in sources.items()),  # which the rows numbered
    ]
    return replace(table, remarks=remarks)


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


def _in(unit: str) -> Callable[[float], str]:
    return lambda value: units.count(value, unit, 1)


_FIGURES: Sequence[ColumnOf[Device]] = (
    number("bandwidth_gbs", "bandwidth", "bytes_per_second", _in("B/s")),
    number("link_gbs", "links", "link_bytes_per_second", _in("B/s")),
    number("memory_gb", "memory", "data_sheet_memory_gib", "{:g} GB".format),
    number("l2_mb", "cache", "l2_bytes", lambda size: units.memory(size, 0)),
    number("cuda_context_mb", "context", "known_cuda_context_bytes", units.memory),
    number("multiprocessors", "multiprocessors"),
    number("boost_mhz", "clock", "clock_hz", _in("Hz")),
    number("power_w", "power", "power_watts", _in("W")),
)


def _figures(device: Device) -> list[tuple[str, str, float, str]]:
    """Return the key, name, value and text of each figure that is known."""
    text = _in("OP/s")
    rates = [(form, form, rate, text(rate)) for form, rate in device.flops_per_second.items()]
    others = [(figure.column, figure.value(device), figure.text) for figure in _FIGURES]
    return rates + [
        (column.key, column.heading, value, text(value)) for column, value, text in others if value
    ]


def _origin(device: Device, figure: str, sources: dict[str, int]) -> str:
    """A word, or the number of the source below the table."""
    if device.is_measured:
        return "measured"
    if device.is_unverified(figure):
        return "unverified"
    source = device.source.get(figure, "")
    return f"[{sources.setdefault(source, len(sources) + 1)}]" if source else ""
