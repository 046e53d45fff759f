"""Accelerators by name."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchscan import InputError, register_device
from torchscan.hardware import device_catalog, measuring
from torchscan.hardware.device_catalog import known_devices
from torchscan.hardware.device_files import known_entry, save_entry
from torchscan.hardware.device_specs import device_named
from torchscan.hardware.this_machine import cpu_name

GIB = 2**30
NAMES = [name for name in known_devices() if known_entry(name)]
NUMBERS = {
    "memory_gb",
    "bandwidth_gbs",
    "l2_mb",
    "link_gbs",
    "power_w",
    "multiprocessors",
    "boost_mhz",
}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("h200", "NVIDIA H200"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("A100 80GB SXM4", "NVIDIA A100-SXM4-80GB"),
        ("A100 40GB SXM", "NVIDIA A100-SXM4-40GB"),
        ("A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("H100 NVL", "NVIDIA H100 NVL"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("L4", "NVIDIA L4"),
        ("L40", "NVIDIA L40"),
        ("RTX4090", "NVIDIA GeForce RTX 4090"),
        ("3090", "NVIDIA GeForce RTX 3090"),
        ("A10", "NVIDIA A10"),
        ("A40", "NVIDIA A40"),  # not the A100-SXM4-40GB
        ("P4", "Tesla P4"),
        ("P100 PCIe 12GB", "Tesla P100-PCIE-12GB"),
        ("RTX 2080", "NVIDIA GeForce RTX 2080"),
        ("Orin Nano 8GB", "NVIDIA Jetson Orin Nano 8GB"),
        ("H20", "NVIDIA H20"),
        ("RTX PRO 6000 Server", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("A800 PCIe", "NVIDIA A800 80GB PCIe"),
        ("MI250", "AMD Instinct MI250"),
        ("MI250X", "AMD Instinct MI250X"),
        ("MI250X GCD", "AMD Instinct MI250X GCD"),
        ("GTX 1650", "NVIDIA GeForce GTX 1650"),
        ("GTX 1660 SUPER", "NVIDIA GeForce GTX 1660 SUPER"),
        ("RTX 2080 Max-Q", "NVIDIA GeForce RTX 2080 with Max-Q Design"),
        ("RTX 2070 laptop", "NVIDIA GeForce RTX 2070 Laptop GPU"),
        ("RTX 3060", "NVIDIA GeForce RTX 3060"),
        ("RTX 3060 mobile", "NVIDIA GeForce RTX 3060 Laptop GPU"),
        ("RTX 4070", "NVIDIA GeForce RTX 4070"),
        ("RTX 4070 Laptop", "NVIDIA GeForce RTX 4070 Laptop GPU"),
        ("4090 notebook", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("RTX 4070 Ti", "NVIDIA GeForce RTX 4070 Ti"),
        ("RTX 4070 Ti SUPER", "NVIDIA GeForce RTX 4070 Ti SUPER"),
        ("RTX 4060 Ti", "NVIDIA GeForce RTX 4060 Ti"),
        ("RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti 16GB"),
        ("M2", "Apple M2"),
        ("M2 Max", "Apple M2 Max"),
        ("m1 pro", "Apple M1 Pro"),
        ("M3 Ultra", "Apple M3 Ultra"),
    ],
)
def test_a_name_is_found_by_its_words(name: str, full: str) -> None:
    assert device_named(name).name == full


@pytest.mark.parametrize(
    ("names", "full"),
    [
        (["H100", "h100", "NVIDIA H100"], "NVIDIA H100 80GB HBM3"),
        (["A100", "A100 80GB", "A100 SXM"], "NVIDIA A100-SXM4-80GB"),
        (["A800", "A800 SXM4"], "NVIDIA A800-SXM4-80GB"),
        (["RTX PRO 6000"], "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    ],
)
def test_a_short_name_means_the_device_that_the_catalogue_says(names: list[str], full: str) -> None:
    assert {device_named(name).name for name in names} == {full}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("A100 40GB", "NVIDIA A100-SXM4-40GB"),
        ("A100 PCIe", "NVIDIA A100 80GB PCIe"),
        ("H21", "H20"),
        ("V100", "matches several devices: give a name like Tesla V100-SXM2-16GB, .*32GB$"),
        (
            "RTX",
            r"matches \d\d devices: give a name like (NVIDIA [^,]+, ){4}NVIDIA [^,]+ "
            r"\(`torchscan devices` lists all\)$",
        ),
        ("RTX 5050 Laptop", "is not known"),
        ("Orin", "AGX Orin 32GB"),
    ],
)
def test_what_is_unclear_or_unknown_is_said(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        device_named(name)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("RTX 3099", "NVIDIA GeForce RTX 3090,"),
        ("rtx2085", "NVIDIA GeForce RTX 2080,"),
        ("H21", "NVIDIA H20,"),
        ("GTX 1070", "NVIDIA GeForce GTX 1080 Ti,"),
        ("TPU v7", "TPU v4,"),
        ("abacus", "NVIDIA H200 "),
    ],
)
def test_of_an_unknown_name_the_nearest_known_ones_are_proposed(name: str, first: str) -> None:
    with pytest.raises(InputError, match=f"is not known: give a name like {first}"):
        device_named(name)


def test_an_unknown_name_that_is_like_no_other() -> None:
    with pytest.raises(InputError, match="is not known: give a name like"):
        device_named("abacus")


@pytest.mark.parametrize(
    ("reported", "multiprocessors", "gib", "name"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", 68, 10.76, "NVIDIA GeForce RTX 2080 Ti"),
        ("GeForce RTX 2080 Ti", 68, 10.76, "NVIDIA GeForce RTX 2080 Ti"),  # before driver 470
        ("TITAN V", 80, 11.78, "NVIDIA TITAN V"),
        ("Orin", 16, 61.4, "NVIDIA Jetson AGX Orin 64GB"),
        ("Orin", 8, 15.0, "NVIDIA Jetson Orin NX 16GB"),
        ("Orin", 8, 7.4, "NVIDIA Jetson Orin Nano 8GB"),
        ("AMD Instinct MI250X", 110, 64.0, "AMD Instinct MI250X GCD"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 48, 15.9, "NVIDIA GeForce RTX 3080 Laptop GPU"),
        ("AMD Instinct MI250X/MI250", 104, 64.0, "AMD Instinct MI250 GCD"),
        ("NVIDIA RTX 9999", 300, 128.0, "NVIDIA RTX 9999"),
    ],
)
def test_the_card_in_this_machine_is_known_by_what_torch_reports(
    monkeypatch: pytest.MonkeyPatch, reported: str, multiprocessors: int, gib: float, name: str
) -> None:
    """Some names are of several modules, or of a card with two dies, each a device; their size tells."""
    size = {"total_memory": int(gib * GIB), "multi_processor_count": multiprocessors}
    properties = SimpleNamespace(name=reported, major=7, minor=5, **size)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    device = device_named("cuda")
    assert (device.name, device.memory_bytes, device.multiprocessors) == (
        name,
        int(gib * GIB),
        multiprocessors,
    )


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes ``sysctl`` answer as on a Mac of 32 GiB with this chip."""

    def pretend(chip: str) -> None:
        sysctl = tmp_path / "sysctl"
        sysctl.write_text(
            f'#!/bin/sh\ncase "$*" in "-n machdep.cpu.brand_string") echo "{chip}" ;;\n'
            f'"-n hw.memsize") echo {32 * GIB} ;; *) exit 1 ;; esac\n'
        )
        sysctl.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return pretend


@pytest.mark.parametrize("name", ["mps", "MPS", "mps:0", torch.device("mps")])
def test_mps_is_the_gpu_of_this_mac_with_its_memory(mac: Callable[[str], None], name: Any) -> None:
    mac("Apple M2 Max")
    device = device_named(name)
    assert (device.name, device.data_sheet_memory_gib) == ("Apple M2 Max", 32)
    assert device.flops_per_second == known_devices()["Apple M2 Max"].flops_per_second
    assert 0.5 * 32 * GIB < device.memory_bytes < 32 * GIB


def test_mps_of_a_chip_without_known_rates_is_refused(mac: Callable[[str], None]) -> None:
    mac("Apple M99")
    with pytest.raises(
        InputError, match="the rates of Apple M99 are not known: give a known device"
    ):
        device_named("mps")


def test_mps_on_another_machine_is_refused(mac: Callable[[str], None]) -> None:
    mac("Intel(R) Core(TM) i9")
    with pytest.raises(
        InputError, match="this machine is not a Mac with an Apple chip: give a name"
    ):
        device_named("mps")


def test_programs_get_less_than_is_on_the_data_sheet() -> None:
    """An H200 shows 139.8 GiB of 141, a T4, whose memory corrects errors, 14.6 to 14.8 of 16 (torch's total_memory)."""
    assert 137 * GIB < device_named("H200").memory_bytes < 139.9 * GIB
    assert 14.5 * GIB < device_named("T4").memory_bytes < 14.9 * GIB


def test_the_memory_of_published_devices(truth: Callable[[str], Path]) -> None:
    published = json.loads(truth("device_peaks.json").read_text())["devices"]
    for name, figures in published.items():
        if name.startswith(("NVIDIA", "Tesla")):
            device = device_named(name)
            assert 0.9 * figures["mem_gb"] * GIB < device.memory_bytes <= figures["mem_gb"] * GIB
            assert device.capability == float(figures["cc"])


@pytest.mark.parametrize(
    ("name", "size"), [("A100 80GB PCIe", 8320 * 1024), ("H100 PCIe", 2**25), ("B200", 2**25)]
)
def test_what_cublas_works_in(name: str, size: int) -> None:
    """Torch's defaults: ``:4096:2:16:8``, 32 MiB on Hopper and Blackwell."""
    assert device_named(name).cublas_workspace_bytes == size


@pytest.mark.parametrize(("name", "size"), [("24 GiB", 24), ("12GB", 12), ("0.5 GiB", 0.5)])
def test_a_card_that_is_not_listed_is_given_by_its_memory(name: str, size: float) -> None:
    assert 0.95 * size * GIB < device_named(name).memory_bytes < size * GIB


@pytest.mark.parametrize("name", [0, 3.5])
def test_what_is_no_name_is_said(name: object) -> None:
    with pytest.raises(InputError, match="give its name"):
        device_named(name)  # type: ignore[arg-type]


def test_no_name_is_this_machine(own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="this machine has no GPU for torch, and its CPU"):
        device_named(None)
    save_entry(cpu_name(), FIGURES)
    assert device_named(None).name == cpu_name()


# -- rates ---------------------------------------------------------------------------------------------------------------


def test_the_rates_of_published_devices(truth: Callable[[str], Path]) -> None:
    published = json.loads(truth("device_peaks.json").read_text())["devices"]
    for name, figures in published.items():
        device = known_devices()[name]
        assert device.bytes_per_second == pytest.approx(figures["mem_bw"] * 1e9)
        assert dict(device.flops_per_second) == pytest.approx(
            {key: rate * 1e12 for key, rate in figures["dense_tflops"].items()}
        )
        assert all(
            key in figures["unverified"]
            for key in figures["dense_tflops"]
            if device.is_unverified(key)
        )


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_has_a_source_or_is_unverified(name: str) -> None:
    device, entry = known_devices()[name], known_entry(name)
    for figure in {*entry["dense_tflops"], *(entry.keys() & NUMBERS)}:
        assert (figure in device.source) != device.is_unverified(figure), figure


#: these have vector rates at another clock than that of their matrix rates, which boost_mhz is
OTHER_CLOCKS = (
    "NVIDIA H100",
    "NVIDIA H20",
    "NVIDIA H200",
    "NVIDIA B200",
    "NVIDIA GB200",
    "NVIDIA TITAN V",
)
CORES = {
    6.0: 64,
    6.1: 128,
    7.0: 64,
    7.5: 64,
    8.0: 64,
    8.6: 128,
    8.7: 128,
    8.9: 128,
    9.0: 128,
    10.0: 128,
    12.0: 128,
}


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(OTHER_CLOCKS)])
def test_vector_rates_are_two_operations_per_core_and_cycle(name: str) -> None:
    device = known_devices()[name]
    if device.capability and device.multiprocessors and device.clock_hz:
        cores = device.multiprocessors * CORES[device.capability]
        assert device.flops_per_second["fp32"] == pytest.approx(
            2 * cores * device.clock_hz, rel=0.03
        )


#: operations in fp16 and int8 per cycle and multiprocessor, with sums in 16 and 32 bits
MATRIX_CYCLES = {
    7.0: (1024, None),
    7.5: (1024, 2048),
    8.0: (2048, 4096),
    8.6: (1024, 2048),
    8.7: (2048, 4096),
}


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.startswith((*OTHER_CLOCKS, "NVIDIA GeForce GTX"))]
)
def test_matrix_rates_are_those_of_the_units_at_boost_clock(name: str) -> None:
    device = known_devices()[name]
    rates = device.flops_per_second
    if device.capability in MATRIX_CYCLES and device.multiprocessors and device.clock_hz:
        cycles = device.multiprocessors * device.clock_hz
        half, byte = MATRIX_CYCLES[device.capability]
        narrow = 1 if name != "NVIDIA A10G" else 0.5
        assert rates.get("fp16_acc16", rates["fp16"]) == pytest.approx(
            narrow * half * cycles, rel=0.03
        )
        assert byte is None or rates["int8"] == pytest.approx(narrow * byte * cycles, rel=0.03)


@pytest.mark.parametrize(
    ("name", "cores", "mhz", "fp32"),
    [
        ("RTX 4090 Laptop", 9728, 2040, 39.7),
        ("RTX 4070 Laptop", 4608, 2175, 20.0),
        ("RTX 3050 Laptop", 2048, 1740, 7.13),
        ("RTX 4080 SUPER", 10240, 2550, 52.2),
        ("GTX 1660 SUPER", 1408, 1785, 5.03),
    ],
)
def test_the_rates_of_consumer_gpus_are_those_of_their_cores(
    name: str, cores: int, mhz: int, fp32: float
) -> None:
    """2 operations per core and cycle at the highest boost clock."""
    device = device_named(name)
    assert device.clock_hz == mhz * 1e6
    assert device.flops_per_second["fp32"] == pytest.approx(2 * cores * mhz * 1e6, rel=0.001)
    assert device.flops_per_second["fp32"] == pytest.approx(fp32 * 1e12, rel=0.01)


@pytest.mark.parametrize("name", [name for name in NAMES if "GeForce GTX 16" in name])
def test_what_is_not_known_of_gtx_16_is_not_there(name: str) -> None:
    device = known_devices()[name]
    assert set(device.flops_per_second) == {"fp32", "fp16"}
    assert "no matrix units" in device.note or "no tensor cores" in device.note


@pytest.mark.parametrize("name", [name for name in NAMES if "GeForce RTX" in name])
def test_geforce_halves_the_rate_of_sums_in_single_precision(name: str) -> None:
    rates = known_devices()[name].flops_per_second
    assert rates["fp16"] == pytest.approx(rates["fp16_acc16"] / 2, rel=0.01)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.startswith(("Tesla P", "NVIDIA GeForce GTX 10"))]
)
def test_pascal_has_no_matrix_units(name: str) -> None:
    """The P100's vectors of two halves, and the slow halves of the others, do not sum in single precision."""
    device = known_devices()[name]
    rates = device.flops_per_second
    assert rates["fp16"] == rates["fp32"]
    assert rates["fp16_acc16"] == pytest.approx(
        rates["fp32"] * (2 if device.capability == 6.0 else 1 / 64), rel=0.01
    )
    assert rates.get("int8", 0) == pytest.approx(
        0 if device.capability == 6.0 else 4 * rates["fp32"], rel=0.01
    )


@pytest.mark.parametrize(
    ("name", "original", "factors"),
    [
        ("A800", "A100", {"link": 400 / 600}),
        ("A800 PCIe", "A100 80GB PCIe", {"link": 400 / 600}),
        ("RTX PRO 6000 Server", "RTX PRO 6000", {"memory": 1597 / 1792, "rates": 120 / 125.95}),
    ],
)
def test_editions_differ_in_what_their_data_sheets_say(
    name: str, original: str, factors: dict[str, float]
) -> None:
    device, other = device_named(name), device_named(original)
    links = other.link_bytes_per_second
    expected = None if links is None else links * factors.get("link", 1)
    assert device.link_bytes_per_second == expected
    memory = (other.bytes_per_second or 0) * factors.get("memory", 1)
    assert device.bytes_per_second == pytest.approx(memory)
    for form, rate in other.flops_per_second.items():
        assert device.flops_per_second[form] == pytest.approx(rate * factors.get("rates", 1), 0.001)


@pytest.mark.parametrize("name", ["AMD Instinct MI250X", "AMD Instinct MI250"])
def test_a_die_has_half_of_the_card(name: str) -> None:
    card, die = known_devices()[name], known_devices()[f"{name} GCD"]
    assert 2 * (die.bytes_per_second or 0) == pytest.approx(card.bytes_per_second, rel=0.002)
    assert 2 * die.data_sheet_memory_gib == card.data_sheet_memory_gib
    assert 2 * (die.l2_bytes or 0) == card.l2_bytes
    for form, rate in card.flops_per_second.items():
        assert 2 * die.flops_per_second[form] == pytest.approx(rate, rel=0.005)


@pytest.mark.parametrize("name", NAMES)
def test_no_rate_is_a_sparse_one(name: str) -> None:
    """With half of the bits twice the rate, GeForce's narrow sums four times: a sparse figure would be more."""
    flops = known_devices()[name].flops_per_second
    for wide, narrow, most in (
        ("fp16", "fp8", 2.1),
        ("fp8", "fp4", 4.1),
        ("tf32", "fp16", 2.1),
        ("fp16", "int8", 4.1),
    ):
        if wide in flops and narrow in flops and not name.startswith("Gaudi"):
            assert flops[narrow] <= most * flops[wide]


@pytest.fixture
def own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path / "below" / "devices.json"))
    monkeypatch.setattr(device_catalog, "_registered", {})
    return tmp_path / "below" / "devices.json"


FIGURES: dict[str, Any] = {"memory_gb": 10, "bandwidth_gbs": 500, "dense_tflops": {"fp32": 5}}


def test_a_device_of_ones_own(own_file: Path) -> None:
    made = register_device("my card", **FIGURES, l2_mb=4)
    assert device_named("My Card") == made
    assert (made.bytes_per_second, made.flops_per_second["fp32"], made.l2_bytes) == (
        500e9,
        5e12,
        4 * 2**20,
    )
    assert not own_file.exists()


def test_a_file_of_ones_own_wins_over_the_package(own_file: Path) -> None:
    save_entry("NVIDIA H200", FIGURES)
    save_entry("another", FIGURES)
    assert device_named("NVIDIA H200").bytes_per_second == 500e9
    assert list(json.loads(own_file.read_text())["devices"]) == ["NVIDIA H200", "another"]
    assert [each.name for each in own_file.parent.iterdir()] == ["devices.json"]


def _entry_with(**others: Any) -> str:
    """Return a device file with one entry, of which only these values may be wrong."""
    return json.dumps({"devices": {"x": {**FIGURES, **others}}})


def test_descriptions_of_a_file_are_those_of_its_device(own_file: Path) -> None:
    """A slot of generation 4 with 16 lanes: 16 · 16·10⁹ bits per second, 128 of 130 of them data."""
    own_file.parent.mkdir()
    own_file.write_text(_entry_with(pcie="4.0x16", aliases=["y"], unverified=["bandwidth_gbs"]))
    device = device_named("y")
    assert device.name == "x"
    assert device.is_unverified("bandwidth_gbs")
    assert device.pcie_bytes_per_second == pytest.approx(32e9 * 128 / 130)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a device file"),
        ("[]", "is not a device file"),
        ('{"devices": {"x": 3}}', "is not a device file"),
        ('{"devices": {"x": {"memory_gb": 3}}}', "lacks bandwidth_gbs, dense_tflops"),
        (
            '{"devices": {"x": {"memory_gb": 3, "bandwidth_gbs": -1, "dense_tflops": {"fp32": 1}}}}',
            "bandwidth_gbs of 'x' is -1",
        ),
        (
            '{"devices": {"x": {"memory_gb": 3, "bandwidth_gbs": 1, "dense_tflops": {}}}}',
            "give rates by type",
        ),
        (
            '{"devices": {"x": {"memory_gb": 3, "bandwidth_gbs": 1, "dense_tflops": {"fp32": 1}, "y": 1}}}',
            "unknown keys: y",
        ),
        (_entry_with(dense_tflops=[5]), r": dense_tflops of 'x' is \[5\]: give rates by type"),
        (
            _entry_with(dense_tflops={"fp32": 5, "fp5": 9, "int9_tc": 9}),
            ": dense_tflops of 'x' has fp5, int9_tc: give rates of fp64, fp32, tf32",
        ),
        (_entry_with(memory_gb=True), ": memory_gb of 'x' is True: give a number above 0"),
        (
            _entry_with(pcie=["4.0x16"]),
            r"pcie of 'x' is \['4.0x16'\]: give '4.0x16'",
        ),
        (_entry_with(arch=["Ada"]), r"arch of 'x' is \['Ada'\]: give 'Ada AD102'"),
        (
            _entry_with(source=3),
            "source of 'x' is 3: give sources by key, {'memory_gb': 'data sheet'}",
        ),
        (_entry_with(aliases=3), r"aliases of 'x' is 3: give a list of strings, \['my card'\]"),
        (_entry_with(aliases="y"), "aliases of 'x' is 'y': give a list of strings"),
        (_entry_with(aliases=["y", 3]), r"aliases of 'x' is \['y', 3\]: give a list of strings"),
        (
            _entry_with(unverified=3),
            r"unverified of 'x' is 3: give a list of strings, \['bandwidth_gbs'\]",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    own_file: Path, content: str, message: str
) -> None:
    own_file.parent.mkdir()
    own_file.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        device_named("H200")
    assert str(caught.value).startswith((f"{own_file}: ", f"{own_file} is not a device file"))
    assert own_file.read_text() == content


def test_a_file_of_devices_that_cannot_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path))  # a folder
    with pytest.raises(InputError, match=tmp_path.name):
        device_named("H200")


def test_rates_of_this_machine_are_those_of_the_shortest_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock goes on by 0.1 s whenever it is read: so long is a run, and 0.5 s are enough.

    256 MiB are read and written, and two matrices with 1,024 rows and columns multiplied.
    """
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("time.perf_counter", map((0.1).__mul__, itertools.count()).__next__)
    formats = {"fp32": (torch.float32, False), "tf32": (torch.float32, True)}
    monkeypatch.setattr(measuring, "_FORMATS", formats)  # others are slow on a CPU
    before = torch.get_rng_state()
    name, entry = measuring.measure()
    assert torch.get_rng_state().equal(before)
    assert (name, entry["vendor"], entry["is_measured"]) == (cpu_name(), "CPU", True)
    assert entry["bandwidth_gbs"] == round(2 * 256 * 2**20 / 0.1 / 1e9, 1)
    assert entry["dense_tflops"] == {"fp32": round(2 * 1024**3 / 0.1 / 1e12, 4)}
    assert entry["note"].endswith(": bandwidth, fp32")
    assert entry["memory_gb"] > 0
