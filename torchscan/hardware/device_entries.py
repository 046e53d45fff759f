"""Entries of device files, checked and converted to devices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torchscan.errors import InputError
from torchscan.hardware.device import Device

_MIB, _GIB = 2**20, 2**30
#: share of the data sheet's memory that the driver leaves to programs; less for GDDR memory with
#: ECC
USABLE, USABLE_WITH_GDDR_ECC = 0.975, 0.92
#: the formats that can have rates
RATES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
_REQUIRED = ("memory_gb", "bandwidth_gbs", "dense_tflops")
_NUMBERS = (
    "memory_gb",
    "bandwidth_gbs",
    "boost_mhz",
    "l2_mb",
    "link_gbs",
    "link_devices",
    "power_w",
    "multiprocessors",
    "cuda_context_mb",
)
_DESCRIPTIONS = (
    "capability",
    "vendor",
    "arch",
    "gddr_ecc",
    "memory_type",
    "l3_mb",
    "pcie",
    "aliases",
    "short_name",
    "source",
    "unverified",
    "note",
)
#: keys whose values are lists of strings -> an example of such a string
_LISTS = {"aliases": "my card", "unverified": "bandwidth_gbs"}
#: keys whose values are text -> an example
_TEXTS = {
    "vendor": "NVIDIA",
    "arch": "Ada AD102",
    "memory_type": "GDDR6X",
    "short_name": "RTX 4090",
    "note": "clock limited to 2.2 GHz",
    "pcie": "4.0x16",
}
#: keys of older device files -> their names now
_NEW_KEYS = {"context_mb": "cuda_context_mb"}
_OTHERS = ("dense_tflops", *_DESCRIPTIONS, "is_measured")
_UNITS = {"bandwidth_gbs": 1e9, "boost_mhz": 1e6, "link_gbs": 1e9}
_MEBIBYTES = ("cuda_context_mb", "l2_mb")


def to_device(name: str, entry: Mapping[str, Any], where: str) -> Device:
    """Return the device that an entry describes.

    ``where``, a file or function, is named in errors.
    """
    entry = {_NEW_KEYS.get(key, key): value for key, value in entry.items()}
    _check_keys(name, entry, where)
    _check_rates(name, entry["dense_tflops"], where)
    numbers = {key: entry[key] for key in _NUMBERS if key in entry}
    numbers |= {f"dense_tflops {key}": rate for key, rate in entry["dense_tflops"].items()}
    for key, value in numbers.items():
        if not _is_positive(value):
            raise InputError.about(where, f"{key} of {name!r} is {value!r}: give a number above 0")
    _check_descriptions(name, entry, where)
    return _convert_entry(name, entry)


def _convert_entry(name: str, entry: Mapping[str, Any]) -> Device:
    """Return the device of a checked entry, whose numbers are above 0."""
    memory = entry["memory_gb"]
    memory_bytes = _usable_bytes(entry)
    capability = entry.get("capability")
    if not isinstance(capability, int | float):
        capability = None
    scaled = {key: entry[key] * unit for key, unit in _UNITS.items() if key in entry}
    bandwidth = scaled["bandwidth_gbs"]
    rates = {form: rate * 1e12 for form, rate in entry["dense_tflops"].items()}
    source = entry.get("source", {})
    pcie_rate = _to_pcie_rate(entry.get("pcie", ""))
    unverified = tuple(entry.get("unverified", ()))
    aliases = tuple(entry.get("aliases", ()))
    num_bytes = {key: int(entry[key] * _MIB) for key in _MEBIBYTES if key in entry}
    context_bytes = num_bytes.get("cuda_context_mb")
    return Device(
        name=name,
        memory_bytes=memory_bytes,
        data_sheet_memory_gib=memory,
        known_cuda_context_bytes=context_bytes,
        capability=capability,
        vendor=entry.get("vendor", ""),
        arch=entry.get("arch", ""),
        multiprocessors=entry.get("multiprocessors"),
        clock_hz=scaled.get("boost_mhz"),
        flops_per_second=rates,
        bytes_per_second=bandwidth,
        memory_type=entry.get("memory_type", ""),
        has_gddr_ecc=bool(entry.get("gddr_ecc")),
        l2_bytes=num_bytes.get("l2_mb"),
        link_bytes_per_second=scaled.get("link_gbs"),
        link_devices=entry.get("link_devices"),
        pcie_bytes_per_second=pcie_rate,
        power_watts=entry.get("power_w"),
        source=source,
        unverified=unverified,
        note=entry.get("note", ""),
        aliases=aliases,
        short_name=entry.get("short_name", ""),
        is_measured=bool(entry.get("is_measured")),
    )


def _usable_bytes(entry: Mapping[str, Any]) -> int:
    """Return the bytes that programs can use; if they were measured, that is all of them."""
    usable = USABLE
    if entry.get("gddr_ecc"):
        usable = USABLE_WITH_GDDR_ECC
    if entry.get("is_measured"):
        usable = 1.0
    return int(entry["memory_gb"] * _GIB * usable)


def _check_keys(name: str, entry: Mapping[str, Any], where: str) -> None:
    missing = [key for key in _REQUIRED if key not in entry]
    unknown = entry.keys() - {*_NUMBERS, *_OTHERS}
    if not missing and not unknown:
        return
    problem = f"has unknown keys: {', '.join(sorted(unknown))}"
    if missing:
        problem = f"lacks {', '.join(missing)}"
    keys = ", ".join((*_NUMBERS, *_OTHERS))
    raise InputError.about(where, f"the device {name!r} {problem}: give {keys}")


def _check_rates(name: str, rates: object, where: str) -> None:
    if not isinstance(rates, Mapping) or not rates:
        raise InputError.about(
            where, f"dense_tflops of {name!r} is {rates!r}: give rates by type, {{'fp32': 35.6}}"
        )
    foreign = [key for key in rates if key.removesuffix("_acc16").removesuffix("_tc") not in RATES]
    if foreign:
        unknown = ", ".join(foreign)
        known = ", ".join(RATES)
        raise InputError.about(
            where, f"dense_tflops of {name!r} has {unknown}: give rates of {known}"
        )


def _check_descriptions(name: str, entry: Mapping[str, Any], where: str) -> None:
    for key, example in _TEXTS.items():
        text = entry.get(key, "")
        is_text = isinstance(text, str)
        if not is_text:
            raise InputError.about(where, f"{key} of {name!r} is {text!r}: give {example!r}")
    for key, example in _LISTS.items():
        names = entry.get(key, ())
        is_list = isinstance(names, list | tuple)
        are_strings = is_list and all(isinstance(each, str) for each in names)
        if not are_strings:
            wanted = f"give a list of strings, ['{example}']"
            raise InputError.about(where, f"{key} of {name!r} is {names!r}: {wanted}")
    source = entry.get("source", {})
    is_mapping = isinstance(source, Mapping)
    if not is_mapping:
        wanted = "give sources by key, {'memory_gb': 'data sheet'}"
        raise InputError.about(where, f"source of {name!r} is {source!r}: {wanted}")


def _is_positive(value: object) -> bool:
    """Return whether a value is a finite number above 0; booleans are not numbers."""
    if isinstance(value, bool):
        return False
    if not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def _to_pcie_rate(label: str) -> float | None:
    """Return the bytes per second of a slot in one direction: 31.5e9 for "4.0x16".

    A lane sends 8 · 2^(generation − 3) · 10^9 bits per second, of which 128 of 130 are data.
    """
    slot = re.fullmatch(r"(\d)\.0x(\d+)", label)
    if slot is None:
        return None
    generation = int(slot[1])
    lanes = float(slot[2])
    bits_per_second = lanes * 2.0 ** (generation - 3) * 8e9
    return bits_per_second * (128 / 130) / 8
