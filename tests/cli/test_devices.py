"""``torchscan devices`` as a person in a shell uses it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from torchscan import analyze_roofline
from torchscan.cli.main import main


@pytest.fixture(autouse=True)
def own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path / "devices.json"))
    return tmp_path / "devices.json"


def test_the_list_marks_what_is_unverified(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (h200,) = (line.split() for line in lines if line.startswith("NVIDIA H200"))
    (rtx,) = (line.split() for line in lines if line.startswith("NVIDIA GeForce RTX 3090  "))
    assert h200[2:] == ["34", "67", "494.5", "989", "989", "1979", "1979", "-", "4800", "141"]
    assert rtx[4:] == ["-", "35.6?", "35.6?", "71.2?", "71.2?", "-", "284.7?", "-", "936?", "24?"]
    assert max(map(len, lines)) <= 132


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """What a command writes in a terminal of that many columns."""

    def lines(columns: int, *command: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert main(command) == 0
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize("columns", [240, 132, 120, 100, 80, 60, 50, 40])
def test_no_line_of_the_list_is_wider_than_the_terminal(
    terminal: Callable[..., list[str]], columns: int
) -> None:
    lines = terminal(columns, "devices")
    assert max(map(len, lines)) <= columns
    assert sum("RTX" in line for line in lines) > 20


def test_in_a_narrow_terminal_columns_leave_before_names_are_cut(
    terminal: Callable[..., list[str]],
) -> None:
    lines = terminal(50, "devices")
    assert lines[1].split() == ["Device", "fp16", "GB/s", "GB"]
    assert ["GeForce", "RTX", "2080", "SUPER", "44.6", "496", "8"] in [
        line.split() for line in lines
    ]
    said = re.search(r"Hidden columns: (.*)\.$", " ".join(lines))
    assert said is not None
    assert sorted(said[1].split(", ")) == ["bf16", "fp32", "fp4", "fp64", "fp8", "int8", "tf32"]
    assert terminal(80, "devices")[1].split() == [
        "Device",
        "fp32",
        "fp16",
        "bf16",
        "fp8",
        "int8",
        "GB/s",
        "GB",
    ]


def test_what_is_piped_is_as_wide_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "Device",
        "fp64",
        "fp32",
        "tf32",
        "fp16",
        "bf16",
        "fp8",
        "int8",
        "fp4",
        "GB/s",
        "GB",
    ]
    assert any(line.startswith("NVIDIA RTX PRO 6000 Blackwell Max-Q WS ") for line in lines)


def test_rates_are_never_written_as_powers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    (mi355x,) = (
        line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("AMD Instinct MI355X")
    )
    assert mi355x[-3:] == ["10100", "8000", "288"]


@pytest.mark.parametrize("columns", [132, 80, 50])
def test_of_one_device_only_addresses_are_wider_than_the_terminal(
    terminal: Callable[..., list[str]], columns: int
) -> None:
    lines = terminal(columns, "devices", "Tesla P100-PCIE-12GB")
    wide = [line for line in lines if len(line) > min(columns, 80)]
    assert all(
        line.startswith("[") and line.split()[1].startswith("https://") and len(line.split()) == 2
        for line in wide
    )
    assert sum(line.startswith("[2] https://github.com/") for line in lines) == 1


def test_one_device_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "H100 PCIe"]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA H100 PCIe" in text
    assert "2.0 TB/s  [1]" in text
    assert "[1] https://github.com/stas00/ml-engineering" in " ".join(text.split())
    assert "unverified" in text


def test_short_names_are_listed_and_the_full_one_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["devices"]) == 0
    assert "H100 is short for NVIDIA H100 80GB HBM3." in capsys.readouterr().out.splitlines()
    assert main(["devices", "H100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NVIDIA H100 80GB HBM3"
    assert "also called H100, H100 SXM, H100 SXM5, NVIDIA H100 SXM5" in lines


def test_figures_of_unknown_source_have_no_number(
    own_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_file.write_text(
        json.dumps(
            {
                "devices": {
                    "mine": {"memory_gb": 64, "bandwidth_gbs": 1, "dense_tflops": {"fp32": 1}}
                }
            }
        )
    )
    assert main(["devices", "mine"]) == 0
    assert "[" not in capsys.readouterr().out


def test_a_context_that_is_known_is_shown_and_used(
    own_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"memory_gb": 64, "bandwidth_gbs": 1, "dense_tflops": {"fp32": 1}, "context_mb": 1536}
    own_file.write_text(json.dumps({"devices": {"mine": figures}}))
    assert main(["devices", "mine"]) == 0
    assert "1.50 GiB" in capsys.readouterr().out
    layer = ["memory", "torch.nn:Linear(8, 8)", "--input", "8", "--device", "mine"]
    assert main(layer) == 0
    assert "Context and kernels        1.50 GiB\n" in capsys.readouterr().out
    assert main([*layer, "--cuda-context", "900MiB"]) == 0
    assert "Context and kernels        900.00 MiB\n" in capsys.readouterr().out


def test_a_context_is_an_amount_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "memory",
                "torch.nn:Linear(8, 8)",
                "--input",
                "8",
                "--device",
                "H200",
                "--cuda-context",
                "much",
            ]
        )
    assert ended.value.code == 2
    assert "'much' is not a valid amount of memory" in capsys.readouterr().err


def test_an_unknown_one_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "RTX 3099"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "give a name like NVIDIA GeForce RTX 3090" in captured.err
    assert main(["devices", "nope"]) == 2
    assert (
        "NAME is 'nope', which is not known: give a name like NVIDIA H200 (`torchscan devices` lists all)"
        in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="measures the CUDA device instead")
@pytest.mark.sweep
def test_a_measured_cpu_can_be_asked_about(
    own_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_file.write_text(
        json.dumps(
            {"devices": {"mine": {"memory_gb": 1, "bandwidth_gbs": 1, "dense_tflops": {"fp32": 1}}}}
        )
    )
    state = torch.random.get_rng_state()
    assert main(["devices", "--measure"]) == 0
    assert capsys.readouterr().err == f"Wrote {own_file}.\n"
    entries = json.loads(own_file.read_text())["devices"]
    assert next(iter(entries)) == "mine"
    (entry,) = (entry for name, entry in entries.items() if name != "mine")
    assert entry["bandwidth_gbs"] > 0.5
    assert entry["dense_tflops"]["fp32"] > 0.001
    assert torch.equal(state, torch.random.get_rng_state())
    assert analyze_roofline(nn.Linear(8, 8), (8,)).time_estimate > 0


@pytest.mark.slow
@pytest.mark.sweep  # other tests start other commands in this way
def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchscan", "devices", "T4"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "Tesla T4" in done.stdout
