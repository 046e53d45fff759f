"""Devices by name: what they have and how fast they are, from data sheets or measurements."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard

from torchscan.errors import Argument, Give, InputError, PythonOnly, Text
from torchscan.files import write_text
from torchscan.results import Result
from torchscan.wrong_arguments import explain_wrong_types

_MIB, _GIB = 2**20, 2**30

#: share of the data sheet's memory that the driver leaves to programs; less for GDDR memory with ECC
USABLE, USABLE_WITH_GDDR_ECC = 0.975, 0.92
#: memory of the CUDA context, torch's kernels and the libraries if it is not known: the assumed
#: size, and the smallest and largest reported one (docs/reference/memory-model.md)
CONTEXT, CONTEXT_RANGE = 512 * _MIB, (274 * _MIB, 1680 * _MIB)
#: workspace of cuBLAS, one for the forward and one for the backward pass: torch's defaults before
#: Hopper and from Hopper on
CUBLAS_WORKSPACE, CUBLAS_WORKSPACE_HOPPER = 8320 * 1024, 32 * _MIB
#: bytes that one multiprocessor can read from the second-level cache per cycle, at most
L2_BYTES_PER_CYCLE = 64

#: the environment variable that names the user's device file
USER_FILE = "TORCHSCAN_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Result):
    """A device. Rates are per second; None means that a value is not known."""

    name: str
    #: bytes that programs can use
    memory_bytes: int
    #: memory on the data sheet, in 2^30 bytes
    data_sheet_memory_gib: float = 0.0
    #: bytes of the context, kernels and libraries of a process, or None if they are not known
    known_cuda_context_bytes: int | None = None
    #: compute capability, such as 9.0; None if it is not a CUDA device
    capability: float | None = None
    vendor: str = ""
    arch: str = ""
    multiprocessors: int | None = None
    #: clock rate, in cycles per second
    clock_hz: float | None = None
    #: operations per second without sparsity, by operand type
    flops_per_second: Mapping[str, float] = field(default_factory=dict)
    #: memory bandwidth, in bytes per second
    bytes_per_second: float | None = None
    #: for example "GDDR7", if the share of the bandwidth that kernels attain depends on it
    memory_type: str = ""
    #: True if GDDR memory corrects errors (ECC), with check bits among the data
    has_gddr_ecc: bool = False
    #: size of the second-level cache, in bytes
    l2_bytes: int | None = None
    #: bytes per second to other devices, over all links in both directions
    link_bytes_per_second: float | None = None
    #: number of devices that a link joins, or None for all of a machine; PCIe joins the others
    link_devices: int | None = None
    #: bytes per second over PCIe, in one direction, or None if they are not known
    pcie_bytes_per_second: float | None = None
    #: power limit of the board, in watts
    power_watts: float | None = None
    #: sources of the numbers, by key
    source: Mapping[str, str] = field(default_factory=dict)
    #: keys of the numbers for which we found no source
    unverified: tuple[str, ...] = ()
    note: str = ""
    #: other names of the device
    aliases: tuple[str, ...] = ()
    #: name that selects this device among those whose names contain it: "H100"
    short_name: str = ""
    #: True if the rates were measured, so that they are attainable
    is_measured: bool = False

    @property
    def cuda_context_bytes(self) -> int:
        """Bytes of the context, kernels and libraries of a process, or an assumption."""
        known = self.known_cuda_context_bytes
        return CONTEXT if known is None else known

    @property
    def cuda_context_range(self) -> tuple[int, int]:
        """Smallest and largest expected ``cuda_context_bytes``."""
        known = self.known_cuda_context_bytes
        return CONTEXT_RANGE if known is None else (known, known)

    @property
    def room_bytes(self) -> int:
        """Bytes for tensors and workspaces."""
        return self.memory_bytes - self.cuda_context_bytes

    @property
    def has_allocator(self) -> bool:
        """True if torch's caching allocator manages the memory: on NVIDIA and AMD GPUs."""
        return self.vendor in ("", "NVIDIA", "AMD")

    @property
    def has_flash(self) -> bool:
        """True if torch has a flash attention kernel for the device."""
        return self.capability is None or self.capability >= 8

    @property
    def cublas_workspace_bytes(self) -> int:
        """Bytes of cuBLAS's workspace, for each thread that calls it."""
        return CUBLAS_WORKSPACE_HOPPER if (self.capability or 0) >= 9 else CUBLAS_WORKSPACE

    @property
    def l2_bytes_per_second(self) -> float | None:
        """Peak bytes per second from the second-level cache: 64 per cycle and multiprocessor."""
        if self.multiprocessors is None or self.clock_hz is None:
            return None
        return L2_BYTES_PER_CYCLE * self.multiprocessors * self.clock_hz

    def is_unverified(self, figure: str) -> bool:
        """Return whether a number, such as "bandwidth_gbs" or "fp16", has no source."""
        is_rate = figure in self.flops_per_second
        return figure in self.unverified or (is_rate and "dense_tflops" in self.unverified)


@explain_wrong_types
def device_named(name: str | None, *, is_timed: bool = False) -> Device:
    """Return the device with this name. Case does not matter, and an unambiguous part is enough.

    ``is_timed``: times are asked for, so that advice leaves out devices of which only the memory is
    known.

    - "H200" and "RTX 4090" are parts of a name. "H100" and "A100" are the SXM cards with 80 GB,
      because they are short names in the catalog. "V100" is ambiguous.
    - "cuda" is this machine's GPU, "mps" that of a Mac, "24 GiB" a GPU with that much memory.
    - None is this machine's GPU, or else its CPU, if it was measured.
    """
    if name is None:
        return at_hand()
    if is_torch_device(name):
        name = str(name)
    if not isinstance(name, str):
        raise InputError.of_value(
            "device", name, "give its name ('NVIDIA H200'), its memory ('24 GiB') or 'cuda'"
        )
    lower = name.lower()
    if lower == "auto":  # the word of the command line
        return at_hand()
    if re.fullmatch(r"cuda(:\d+)?", lower):
        return _cuda(lower)
    if re.fullmatch(r"mps(:0)?", lower):
        return _apple()
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?gi?b", lower)
    if size and float(size[1]) == 0:
        raise InputError.of_value("device", name, "give its memory, such as '24 GiB'")
    if size:
        return Device(
            name=name,
            memory_bytes=int(float(size[1]) * _GIB * USABLE),
            data_sheet_memory_gib=float(size[1]),
            capability=8.0,
        )
    if _CPU.fullmatch(lower):
        return _own_cpu()
    return _device_of_catalog(name, is_timed=is_timed)


def _device_of_catalog(name: str, *, is_timed: bool) -> Device:
    """Return the known device of this name, alias or unambiguous part of a name."""
    known = known_devices()
    lower = name.lower()
    matches = [full for full in known if full.lower() == lower]
    if not matches:
        matches = [
            full for full, device in known.items() if lower in map(str.lower, device.aliases)
        ]
    if not matches:
        matches = _prefer_short_names(name, [full for full in known if is_part(name, full)])
    if len(matches) == 1:
        return known[matches[0]]

    near = [full for full in known if _has_words(name, full)]
    if not near and lower not in _KINDS:
        near = _most_similar(name, known)
    problem = "matches several devices" if matches else "is not known"
    advice: Text = f"a name like {', '.join(near or ['NVIDIA H200'])}"
    if not matches:
        memory = "" if is_timed else ", or its memory, such as '24 GiB'"
        own = PythonOnly(", or register it with register_device(...)")
        advice = (advice, f" (`torchscan devices` lists all){memory}", own)
    raise InputError(Argument("device"), f" is {name!r}, which {problem}: give ", advice)


#: the CPU of this machine, as torch names it
_CPU = re.compile(r"cpu(:\d+)?")
#: kinds of devices, which are not names of devices
_KINDS = ("gpu", "xpu", "hip", "hpu", "npu", "xla")


def _prefer_short_names(name: str, fitting: list[str]) -> list[str]:
    """Return the devices whose short name is among the words, or all that fit if there is none."""
    if len(fitting) < 2:
        return fitting
    known = known_devices()
    meant = [full for full in fitting if _has_words(known[full].short_name, name)]
    return meant or fitting


#: similarity that a name needs to be suggested for an unknown one; 1 means equal
_ALIKE = 0.6


def _most_similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the three known names with the most similar words."""
    likeness = {full: _likeness(_words(name), _words(full)) for full in known}
    similar = [full for full in likeness if likeness[full] >= _ALIKE]
    similar.sort(key=lambda full: -likeness[full])
    return similar[:3]


def _likeness(words: Collection[str], others: Collection[str]) -> float:
    """Return the mean similarity of each word to the most similar one of the others."""
    total = 0.0
    for word in words:
        total += max(difflib.SequenceMatcher(None, word, other).ratio() for other in others)
    return total / max(len(words), 1)


def _own_cpu() -> Device:
    measured = known_devices().get(cpu_name())
    if measured is None:
        raise InputError(
            Argument("device"),
            " is 'cpu', and this CPU has not been measured: give a GPU, such as 'NVIDIA H200', "
            "leave it out, or run `torchscan devices --measure` first",
        )
    return measured


def is_torch_device(device: object) -> bool:
    """Return whether the value is a ``torch.device``; torch need not be imported."""
    return type(device).__module__ == "torch" and type(device).__name__ == "device"


def can_estimate_for(device: object) -> TypeGuard[str]:
    """Return whether that names a device: not None, and not a CPU that was not measured.

    In other tools ``device="cpu"`` names the place where the model runs. Here it asks for no
    estimate.
    """
    if device is None:
        return False
    return not _CPU.fullmatch(str(device).lower()) or cpu_name() in known_devices()


def known_devices() -> dict[str, Device]:
    """Return all devices: the package's, those in the user's file and registered ones.

    Later ones replace earlier ones.
    """
    path = user_file()
    of_user = {name: _device(name, entry, str(path)) for name, entry in _read(path).items()}
    return {**_of_package(), **of_user, **_registered}


_registered: dict[str, Device] = {}


@explain_wrong_types
def register_device(
    name: str,
    *,
    memory_gb: float,
    bandwidth_gbs: float,
    dense_tflops: Mapping[str, float],
    capability: float | None = None,
    multiprocessors: int | None = None,
    boost_mhz: float | None = None,
    l2_mb: float | None = None,
    link_gbs: float | None = None,
    power_w: float | None = None,
    arch: str | None = None,
    memory_type: str | None = None,
    cuda_context_mb: float | None = None,
) -> Device:
    """Make a device known to this process; the user's device file makes it known to all.

    Args:
        name: as ``torch.cuda.get_device_name()`` returns it. Replaces any device of that name.
        memory_gb: memory, in 2^30 bytes.
        bandwidth_gbs: memory bandwidth, in 10^9 bytes per second.
        dense_tflops: peak rates in 10^12 operations per second, without sparsity:
            ``{"fp32": 35.6, "fp16": 71.2}``.
        capability: CUDA's compute capability, such as 8.6.
        multiprocessors: their number, which determines how much of the device small kernels use.
        boost_mhz: boost clock, in MHz.
        l2_mb: size of the second-level cache, in 2^20 bytes.
        link_gbs: NVLink and the like, in both directions, in 10^9 bytes per second.
        power_w: power limit of the board, in watts.
        arch: "Ada", "Hopper", …: decides how much power an operation takes.
        memory_type: "GDDR7" gives less of its bandwidth to kernels than other memory.
        cuda_context_mb: what a process holds for its context, kernels and libraries, in 2^20 bytes.

    """
    if not isinstance(name, str) or not name:
        raise InputError.of_value("name", name, "give the name of the device, a string")
    given = {
        "memory_gb": memory_gb,
        "bandwidth_gbs": bandwidth_gbs,
        "dense_tflops": dense_tflops,
        "capability": capability,
        "multiprocessors": multiprocessors,
        "boost_mhz": boost_mhz,
        "l2_mb": l2_mb,
        "link_gbs": link_gbs,
        "power_w": power_w,
        "arch": arch,
        "memory_type": memory_type,
        "cuda_context_mb": cuda_context_mb,
    }
    entry = {key: value for key, value in given.items() if value is not None}
    device = _registered[name] = _device(name, entry, "register_device")
    return device


def user_file() -> Path:
    """Return the user's device file.

    It is ``$TORCHSCAN_DEVICES``, or ``torchscan/devices.json`` in the configuration folder.
    """
    if USER_FILE in os.environ:
        return Path(os.environ[USER_FILE])
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "torchscan" / "devices.json"


def save_entry(name: str, entry: Mapping[str, Any]) -> Path:
    """Add an entry to the user's device file.

    A new file replaces the old one, so that nothing is lost.
    """
    path = user_file()
    _device(name, entry, str(path))
    entries = {**_read(path), name: dict(entry)}
    require_writable(path)
    write_text(path, json.dumps({"devices": entries}, indent=2) + "\n")
    return path


def require_writable(path: Path) -> None:
    """Raise unless the file can be written or created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error}): set {USER_FILE} to another file"
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: set {USER_FILE} to another file")


def known_entry(name: str) -> dict[str, Any]:
    """Return the package's entry for a device, as in its file; empty if there is none."""
    return dict(_content()["devices"].get(name, {}))


def at_hand() -> Device:
    """Return this machine's GPU, or else its CPU, if it was measured."""
    import torch  # here, so that listing devices needn't wait for it

    if torch.cuda.is_available():
        return _cuda("cuda")
    if torch.backends.mps.is_available():
        return _apple()
    cpu = cpu_name()
    known = known_devices()
    if cpu in known:
        return known[cpu]
    raise InputError(
        "this machine has no GPU for torch, and its CPU has not been measured: give ",
        Give("device", "NVIDIA H200"),
        ", for example, or run `torchscan devices --measure` first",
    )


def cpu_name() -> str:
    """Return the model name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {models[0] if models else 'of this machine'}"


def _cuda(name: str) -> Device:
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            Argument("device"),
            f" is {name!r}, and this machine has no CUDA device: give a name, such as 'NVIDIA "
            "H200'",
        )
    properties = torch.cuda.get_device_properties(name)
    return replace(
        _with_properties(properties),
        memory_bytes=properties.total_memory,
        capability=properties.major + properties.minor / 10,
        multiprocessors=properties.multi_processor_count,
    )


def _apple() -> Device:
    """Return the GPU of this Mac, with the memory that this Mac has."""
    import torch

    chip = _sysctl("machdep.cpu.brand_string")
    if not chip.startswith("Apple "):
        raise InputError(
            Argument("device"),
            " is 'mps', and this machine is not a Mac with an Apple chip: give a name, such as "
            "'Apple M2 Max'",
        )
    known = known_devices().get(chip)
    if known is None:
        raise InputError(
            Argument("device"),
            f" is 'mps', and the rates of {chip} are not known: give a known device, such as "
            "'Apple M2 Max'",
            PythonOnly(", or register it with register_device(...)"),
        )
    size = int(_sysctl("hw.memsize"))
    has_mps = torch.backends.mps.is_available()
    usable = torch.mps.recommended_max_memory() if has_mps else int(size * USABLE)
    return replace(known, memory_bytes=usable, data_sheet_memory_gib=size / _GIB)


def _sysctl(name: str) -> str:
    """Return what macOS says about this machine, or "" on other systems."""
    try:
        said = subprocess.run(  # noqa: S603
            ["sysctl", "-n", name],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return said.stdout.strip()


def _with_properties(properties: Any) -> Device:
    """Return the known device that torch describes.

    Several have the same name, as all Jetson Orin do: then it is the most similar.
    """

    def difference(device: Device) -> tuple[int, int]:
        multiprocessors = properties.multi_processor_count - (device.multiprocessors or 0)
        return abs(multiprocessors), abs(properties.total_memory - device.memory_bytes)

    called = [device for device in known_devices().values() if _is_called(device, properties.name)]
    unknown = Device(name=properties.name, memory_bytes=0)
    return min(called, key=difference, default=unknown)


def _is_called(device: Device, name: str) -> bool:
    """Return whether the device has this name. Older drivers leave out the vendor."""
    names = [each.removeprefix("NVIDIA ") for each in (device.name, *device.aliases)]
    return name.removeprefix("NVIDIA ") in names


#: words that tell one model from another, so a name must not leave them out
_DISTINGUISHING = {"ti", "super", "max", "nvl", "s", "g", "q", "pro", "ultra", "gcd", "laptop"}
#: other words for one in the names of devices
_SYNONYMS = {"mobile": "laptop", "notebook": "laptop"}


def is_part(name: str, full: str) -> bool:
    """Return whether ``full`` contains the words of ``name``.

    "A100 80GB SXM" is part of "NVIDIA A100-SXM4-80GB", and "A10" is not. "GTX 1650" is not part of
    "GTX 1650 Ti".
    """
    return _has_words(name, full) and not (_words(full) - _words(name)) & _DISTINGUISHING


def _has_words(name: str, full: str) -> bool:
    given = _words(name)
    return bool(given) and given <= _words(full)


def _words(name: str) -> set[str]:
    """Return the words of a name, letters apart from numbers: "RTX4090" is "rtx", "4090"."""
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    return {_SYNONYMS.get(word, word) for word in words}


@cache
def _content() -> dict[str, Any]:
    file = resources.files("torchscan.hardware").joinpath("devices.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@cache
def _of_package() -> dict[str, Device]:
    sources = _content()["sources"]
    devices = {}
    for name, entry in _content()["devices"].items():
        source = {key: sources[number] for key, number in entry.get("source", {}).items()}
        devices[name] = _device(name, {**entry, "source": source}, "devices.json")
    return devices


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        entries: dict[str, Any] = content["devices"]
        is_nested = isinstance(entries, dict) and all(
            isinstance(each, dict) for each in entries.values()
        )
        if not is_nested:
            raise TypeError("'devices' is not an object of objects")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'{path} is not a device file, {{"devices": {{"my GPU": {{…}}}}}}: {error!r}'
        ) from error
    return entries


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
#: keys of older device files -> their names now
_NEW_KEYS = {"context_mb": "cuda_context_mb"}
_OTHERS = ("dense_tflops", *_DESCRIPTIONS, "is_measured")


def _device(name: str, entry: Mapping[str, Any], where: str) -> Device:
    entry = {_NEW_KEYS.get(key, key): value for key, value in entry.items()}
    _check(name, entry, where)
    context = entry.get("cuda_context_mb")
    usable = USABLE_WITH_GDDR_ECC if entry.get("gddr_ecc") else USABLE
    if entry.get("is_measured"):
        usable = 1.0
    capability = entry.get("capability")
    return Device(
        name=name,
        memory_bytes=int(entry["memory_gb"] * _GIB * usable),
        data_sheet_memory_gib=entry["memory_gb"],
        known_cuda_context_bytes=None if context is None else int(context * _MIB),
        capability=capability if isinstance(capability, int | float) else None,
        vendor=entry.get("vendor", ""),
        arch=entry.get("arch", ""),
        multiprocessors=entry.get("multiprocessors"),
        clock_hz=_scaled(entry.get("boost_mhz"), 1e6),
        flops_per_second={form: rate * 1e12 for form, rate in entry["dense_tflops"].items()},
        bytes_per_second=entry["bandwidth_gbs"] * 1e9,
        memory_type=entry.get("memory_type", ""),
        has_gddr_ecc=bool(entry.get("gddr_ecc")),
        l2_bytes=None if "l2_mb" not in entry else int(entry["l2_mb"] * _MIB),
        link_bytes_per_second=_scaled(entry.get("link_gbs"), 1e9),
        link_devices=entry.get("link_devices"),
        pcie_bytes_per_second=_to_pcie_rate(entry.get("pcie", "")),
        power_watts=entry.get("power_w"),
        source=entry.get("source", {}),
        unverified=tuple(entry.get("unverified", ())),
        note=entry.get("note", ""),
        aliases=tuple(entry.get("aliases", ())),
        short_name=entry.get("short_name", ""),
        is_measured=bool(entry.get("is_measured")),
    )


def _to_pcie_rate(label: str) -> float | None:
    """Return the bytes per second of a slot in one direction: 31.5e9 for "4.0x16".

    A lane sends 8 · 2^(generation − 3) · 10^9 bits per second, of which 128 of 130 are data.
    """
    slot = re.fullmatch(r"(\d)\.0x(\d+)", label)
    if slot is None:
        return None
    generation, lanes = int(slot[1]), float(slot[2])
    return lanes * 2.0 ** (generation - 3) * 8e9 * (128 / 130) / 8


def _scaled(figure: float | None, unit: float) -> float | None:
    return None if figure is None else figure * unit


def _check(name: str, entry: Mapping[str, Any], where: str) -> None:
    missing = [key for key in _REQUIRED if key not in entry]
    unknown = entry.keys() - {*_NUMBERS, *_OTHERS}
    if missing or unknown:
        problem = f"has unknown keys: {', '.join(sorted(unknown))}"
        if missing:
            problem = f"lacks {', '.join(missing)}"
        raise InputError.about(
            where, f"the device {name!r} {problem}: give {', '.join((*_NUMBERS, *_OTHERS))}"
        )
    rates = entry["dense_tflops"]
    if not isinstance(rates, Mapping) or not rates:
        raise InputError.about(
            where, f"dense_tflops of {name!r} is {rates!r}: give rates by type, {{'fp32': 35.6}}"
        )
    foreign = [key for key in rates if key.removesuffix("_acc16").removesuffix("_tc") not in RATES]
    if foreign:
        raise InputError.about(
            where,
            f"dense_tflops of {name!r} has {', '.join(foreign)}: give rates of {', '.join(RATES)}",
        )
    numbers = {key: entry[key] for key in _NUMBERS if key in entry}
    numbers |= {f"dense_tflops {key}": rate for key, rate in rates.items()}
    for key, value in numbers.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0:
            raise InputError.about(where, f"{key} of {name!r} is {value!r}: give a number above 0")
