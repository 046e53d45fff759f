"""Accelerators by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchscan.errors import InputError
from torchscan.hardware.devices import device_named

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
    assert 137 * GIB < device_named("H200").memory < 139.9 * GIB
    assert 14.5 * GIB < device_named("T4").memory < 14.9 * GIB


def test_the_memory_of_published_devices(truth: Callable[[str], Path]) -> None:
    published = json.loads(truth("device_peaks.json").read_text())["devices"]
    for name, figures in published.items():
        if name.startswith(("NVIDIA", "Tesla")):
            device = device_named(name)
            assert 0.9 * figures["mem_gb"] * GIB < device.memory <= figures["mem_gb"] * GIB
            assert device.capability == float(figures["cc"])


@pytest.mark.parametrize(("name", "size"), [("A100 80GB PCIe", 8320 * 1024), ("H100 PCIe", 2**25), ("B200", 2**25)])
def test_what_cublas_works_in(name: str, size: int) -> None:
    """Torch's defaults: ``:4096:2:16:8``, 32 MiB on Hopper and Blackwell."""
    assert device_named(name).cublas_workspace == size


@pytest.mark.parametrize(("name", "size"), [("24 GiB", 24), ("12GB", 12), ("0.5 GiB", 0.5)])
def test_a_card_that_is_not_listed_is_given_by_its_memory(name: str, size: float) -> None:
    assert 0.95 * size * GIB < device_named(name).memory < size * GIB


@pytest.mark.parametrize("name", [0, None, 3.5])
def test_what_is_no_name_is_said(name: object) -> None:
    with pytest.raises(InputError, match="give its name"):
        device_named(name)  # type: ignore[arg-type]
