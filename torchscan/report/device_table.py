"""Devices as tables: all of them, or one in full."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torchscan import units
from torchscan.hardware.device_entries import RATES
from torchscan.hardware.device_specs import Device
from torchscan.report.make_table import ColumnOf, make_table, number, words
from torchscan.report.table import Screen, Table
from torchscan.report.table_rows import Cell
from torchscan.report.text import format_rows
from torchscan.report.text_columns import column_texts

#: wide enough for every device that comes with torchscan
_WIDTH, _WIDTH_OF_ONE = 132, 80
#: rates that a narrow terminal hides, those with the largest number first
_PRIORITIES = {"fp64": 7, "fp4": 6, "tf32": 5, "int8": 4, "fp8": 3, "bf16": 2, "fp32": 1}
_MIN_NAME_WIDTH = 25
_MAKER = re.compile("^(NVIDIA|AMD) ")


def devices_table(devices: Mapping[str, Device]) -> Table:
    """Return rates in 10^12 operations per second, bandwidth in GB/s and memory in GB."""

    def name(device: Device) -> Cell:
        shortened = device.name.replace("Workstation Edition", "WS").replace("Generation", "Gen.")
        return Cell(device.name, shortened)

    def rate(form: str, device: Device) -> Cell:
        return _figure(device, form, device.flops_per_second.get(form), 1e12)

    def bandwidth(device: Device) -> Cell:
        return _figure(device, "bandwidth_gbs", device.bytes_per_second, 1e9)

    def memory(device: Device) -> Cell:
        return _figure(device, "memory_gb", device.data_sheet_memory_gib)

    rates = [
        number(form, form, partial(rate, form), priority=_PRIORITIES.get(form, 0)) for form in RATES
    ]
    columns = [words("device", "Device", name, min_width=_MIN_NAME_WIDTH), *rates]
    columns.append(number("bandwidth_gbs", "GB/s", bandwidth))
    columns.append(number("memory_gb", "GB", memory))
    remarks = [
        "Dense rates in 10^12 operations per second. Values marked ? are unverified: no data sheet "
        "was found."
    ]
    for full_name, device in devices.items():
        if device.short_name:
            remarks.append(f"{device.short_name} is short for {full_name}.")
    return make_table("Devices", columns, [*devices.values()], remarks=remarks, noun="devices")


def _figure(device: Device, figure: str, value: float | None, unit: float | None = None) -> Cell:
    """Return a value in a unit with four digits, or all digits of a whole number."""
    if value is None:
        return Cell(None, "-")
    if unit is not None:
        value /= unit
    text = f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
    mark = "?" if device.is_unverified(figure) else ""
    return Cell(value, text + mark)


def device_list(devices: Mapping[str, Device], width: int | None = None) -> str:
    """Return all devices as text.

    A narrow terminal shows names without their makers, which ``--device`` takes as well, and hides
    columns.
    """
    table = devices_table(devices)
    if width is None:
        return table.write("text", width=_WIDTH)
    text = format_rows(table, column_texts(table, _WIDTH), Screen(_WIDTH))
    widest = max(map(len, text.splitlines()))
    if widest > width:
        rows = []
        for row in table.rows:
            name = row.cells[0]._replace(text=_MAKER.sub("", row.name))
            rows.append(row._replace(cells=[name, *row.cells[1:]]))
        table = replace(table, rows=rows)
    return table.write("text", width=width or _WIDTH)


class _Property(NamedTuple):
    """A property of a device."""

    key: str
    name: str
    value: float
    text: str


def device_table(device: Device) -> Table:
    """Return everything known about one device, with the source of each property."""
    sources: dict[str, int] = {}

    def origin(row: _Property) -> str:
        """Return a word, or the number of the source, of which rows are the first to refer."""
        if device.is_measured:
            return "measured"
        if device.is_unverified(row.key):
            return "unverified"
        source = device.source.get(row.key, "")
        return f"[{sources.setdefault(source, len(sources) + 1)}]" if source else ""

    columns = (
        words("figure", "Property", "name"),
        number("value", "Value", lambda row: Cell(row.value, row.text)),
        words("source", "Source", origin),
    )
    rows = _known_properties(device)
    table = make_table(device.name, columns, rows, summary=[device.name], noun="properties")

    remarks = []
    names = [name for name in (device.short_name, *device.aliases) if name]
    if names:
        remarks.append(f"also called {', '.join(names)}")
    if device.note:
        remarks.append(device.note)
    remarks += [f"[{number}] {source}" for source, number in sources.items()]
    return replace(table, remarks=remarks)


def device_text(device: Device, width: int | None = None) -> str:
    """Return one device as text. Addresses are not broken, so that they can be opened."""
    narrow = min(width or _WIDTH_OF_ONE, _WIDTH_OF_ONE)
    table = device_table(device)
    notes = [_wrap_below_number(text, narrow) for text in table.remarks]
    return "\n".join([replace(table, remarks=()).write("text", width=narrow), *notes])


def _wrap_below_number(text: str, width: int) -> str:
    """Wrap a text beside its number, if it has one; even the longest address stays beside it."""
    match = re.match(r"\[\d+\] ", text)
    label = match[0] if match else ""
    indent = " " * len(label)
    text = text.removeprefix(label)
    lines = textwrap.wrap(text, width - len(label), break_long_words=False, break_on_hyphens=False)
    return label + f"\n{indent}".join(lines)


_OTHER_PROPERTIES: Sequence[ColumnOf[Device]] = (
    number(
        "bandwidth_gbs", "bandwidth", "bytes_per_second", partial(units.count, unit="B/s", digits=1)
    ),
    number(
        "link_gbs", "links", "link_bytes_per_second", partial(units.count, unit="B/s", digits=1)
    ),
    number("memory_gb", "memory", "data_sheet_memory_gib", "{:g} GB".format),
    number("l2_mb", "cache", "l2_bytes", lambda size: units.memory(size, 0)),
    number("cuda_context_mb", "context", "known_cuda_context_bytes", units.memory),
    number("multiprocessors", "multiprocessors"),
    number("boost_mhz", "clock", "clock_hz", partial(units.count, unit="Hz", digits=1)),
    number("power_w", "power", "power_watts", partial(units.count, unit="W", digits=1)),
)


def _known_properties(device: Device) -> list[_Property]:
    properties = []
    for form, rate in device.flops_per_second.items():
        properties.append(_Property(form, form, rate, units.count(rate, "OP/s", 1)))
    for each in _OTHER_PROPERTIES:
        value, column = each.value(device), each.column
        if value:
            properties.append(_Property(column.key, column.heading, value, each.text(value)))
    return properties
