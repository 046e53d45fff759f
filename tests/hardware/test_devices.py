"""Accelerators by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchscan.errors import InputError
from torchscan.hardware import devices
from torchscan.hardware.devices import device_named, known_devices, register_device, save_entry

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("h200", "NVIDIA H200"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("A100 80GB SXM4", "NVIDIA A100-SXM4-80GB"),
        ("L4", "NVIDIA L4"),
        ("L40", "NVIDIA L40"),
        ("RTX4090", "NVIDIA GeForce RTX 4090"),
        ("3090", "NVIDIA GeForce RTX 3090"),
        ("A10", "NVIDIA A10"),
    ],
)
def test_a_name_is_found_by_its_words(name: str, full: str) -> None:
    assert device_named(name).name == full


@pytest.mark.parametrize(
    ("name", "hint"), [("A100", "NVIDIA A100-SXM4-40GB"), ("H20", "H200"), ("V100", "32GB"), ("GTX 1650", "1650 Ti")]
)
def test_what_is_unclear_or_unknown_is_said(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        device_named(name)


def test_an_unknown_name_that_is_like_no_other() -> None:
    with pytest.raises(InputError, match="is not known: give a name like"):
        device_named("abacus")


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


@pytest.mark.parametrize(("name", "size"), [("A100 80GB PCIe", 8320 * 1024), ("H100 PCIe", 2**25), ("B200", 2**25)])
def test_what_cublas_works_in(name: str, size: int) -> None:
    """Torch's defaults: ``:4096:2:16:8``, 32 MiB on Hopper and Blackwell."""
    assert device_named(name).cublas_workspace_bytes == size


@pytest.mark.parametrize(("name", "size"), [("24 GiB", 24), ("12GB", 12), ("0.5 GiB", 0.5)])
def test_a_card_that_is_not_listed_is_given_by_its_memory(name: str, size: float) -> None:
    assert 0.95 * size * GIB < device_named(name).memory_bytes < size * GIB


@pytest.mark.parametrize("name", [0, None, 3.5])
def test_what_is_no_name_is_said(name: object) -> None:
    with pytest.raises(InputError, match="give its name"):
        device_named(name)  # type: ignore[arg-type]


# -- rates ---------------------------------------------------------------------------------------------------------------


def test_the_rates_of_published_devices(truth: Callable[[str], Path]) -> None:
    published = json.loads(truth("device_peaks.json").read_text())["devices"]
    for name, figures in published.items():
        device = known_devices()[name]
        assert device.bytes_per_second == pytest.approx(figures["mem_bw"] * 1e9)
        assert dict(device.flops_per_second) == pytest.approx(
            {key: rate * 1e12 for key, rate in figures["dense_tflops"].items()}
        )
        assert all(device.is_unverified(key) == (key in figures["unverified"]) for key in figures["dense_tflops"])


@pytest.mark.parametrize("name", known_devices())
def test_no_rate_is_a_sparse_one(name: str) -> None:
    """With half of the bits twice the rate, GeForce's narrow sums four times: a sparse figure would be more."""
    flops = known_devices()[name].flops_per_second
    for wide, narrow, most in (("fp16", "fp8", 2.1), ("fp8", "fp4", 4.1), ("tf32", "fp16", 2.1), ("fp16", "int8", 4.1)):
        if wide in flops and narrow in flops and not name.startswith("Gaudi"):
            assert flops[narrow] <= most * flops[wide]


@pytest.fixture
def own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path / "below" / "devices.json"))
    monkeypatch.setattr(devices, "_registered", {})
    return tmp_path / "below" / "devices.json"


FIGURES: dict[str, Any] = {"memory_gb": 10, "bandwidth_gbs": 500, "dense_tflops": {"fp32": 5}}


def test_a_device_of_ones_own(own_file: Path) -> None:
    made = register_device("my card", **FIGURES, l2_mb=4)
    assert device_named("My Card") == made
    assert (made.bytes_per_second, made.flops_per_second["fp32"], made.l2_bytes) == (500e9, 5e12, 4 * 2**20)
    assert not own_file.exists()


def test_a_file_of_ones_own_wins_over_the_package(own_file: Path) -> None:
    save_entry("NVIDIA H200", FIGURES)
    save_entry("another", FIGURES)
    assert device_named("NVIDIA H200").bytes_per_second == 500e9
    assert list(json.loads(own_file.read_text())["devices"]) == ["NVIDIA H200", "another"]
    assert [each.name for each in own_file.parent.iterdir()] == ["devices.json"]


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
        ('{"devices": {"x": {"memory_gb": 3, "bandwidth_gbs": 1, "dense_tflops": {}}}}', "give rates by type"),
        ('{"devices": {"x": {"memory_gb": 3, "bandwidth_gbs": 1, "dense_tflops": {"fp32": 1}, "y": 1}}}', "unknown keys: y"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(own_file: Path, content: str, message: str) -> None:
    own_file.parent.mkdir()
    own_file.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        device_named("H200")
    assert str(own_file) in str(caught.value)
    assert own_file.read_text() == content


def test_a_file_of_devices_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path))  # a folder
    with pytest.raises(InputError, match=tmp_path.name):
        device_named("H200")
