"""Costs as formulas, as people and programs read them."""

from __future__ import annotations

import csv
import io
from fractions import Fraction
from pathlib import Path

import pytest

import torchscan
from tests.models.generating import Echo, Window
from torchscan.cli.main import main
from torchscan.types import Polynomial, SymbolicCosts


def _lines(width: int, vocabulary: int = 100_003) -> list[str]:
    table = torchscan.symbolic_costs(Echo(vocabulary, 256)).table()
    return table.write("text", width=width).splitlines()


@pytest.mark.parametrize("width", [36, 50, 80])
def test_a_formula_goes_on_in_further_lines_and_is_never_left_out(width: int) -> None:
    """By hand: 2·256² + 256·100,003 for each token, 2·256 for each pair of them."""
    lines = _lines(width)
    assert max(map(len, lines)) <= width
    assert "Hidden columns" not in " ".join(lines)
    first = next(at for at, line in enumerate(lines) if "MACs" in line)
    below = next(at for at, line in enumerate(lines) if "FLOPs" in line)
    at = lines[first].index("2.573e+07")
    assert " ".join(line[at:] for line in lines[first:below]) == "2.573e+07·B·T + 512·B·T²"
    assert all(not line[:at].strip() for line in lines[first + 1 : below])


def test_programs_get_every_digit() -> None:
    costs = torchscan.symbolic_costs(Echo(100_003, 256))
    rows = list(csv.DictReader(io.StringIO(costs.table().write("csv"))))
    (macs,) = (row["formula"] for row in rows if (row["pass"], row["figure"]) == ("prompt", "macs"))
    assert macs == f"{2 * 256**2 + 256 * 100_003}*B*T + 512*B*T**2"
    assert eval(macs, {"B": 3, "T": 7}) == costs.prompt["macs"](3, 7)  # type: ignore[misc] # noqa: S307


def test_the_remarks_hold_for_every_row() -> None:
    whole = torchscan.symbolic_costs(Echo()).table()
    assert any(
        "matches what was recorded for 2 sequences of 68 tokens and 3 sequences of 517" in each
        for each in whole.remarks
    )
    assert any(
        "eager PyTorch" in each and "copies the growing cache" in each for each in whole.remarks
    )
    assert not any("no polynomial" in each for each in whole.remarks)
    some = torchscan.symbolic_costs(Window(100)).table()
    assert any(each.startswith("Each formula was fitted from T = 64 on") for each in some.remarks)
    assert any("--near on the command line" in each for each in some.remarks)
    missing = [row.cells[2] for row in some.rows if row.cells[2].text == "no polynomial"]
    assert missing
    assert all(cell.value is None for cell in missing)


@pytest.mark.parametrize("known", ["prompt", "token"])
def test_the_remarks_hold_for_prompts_and_tokens(known: str) -> None:
    """One of both passes has a formula, 3 B, so one remark says how, the other why there is none."""
    formulas: dict[str, dict[str, Polynomial | None]]
    formulas = {"prompt": {"macs": None}, "token": {"macs": None}}
    formulas[known]["macs"] = Polynomial({(1, 0): Fraction(3)})
    costs = SymbolicCosts(**formulas, fitted=((1, 64),), checked=((2, 68),))
    _, fitted, missing = costs.table().remarks
    assert fitted.startswith("Each formula was fitted from T = 64 on")
    assert missing.startswith("There is no polynomial")


def test_powers_are_set_as_mathematics() -> None:
    table = torchscan.symbolic_costs(Echo(10, 8)).table()
    assert r"208$\cdot$B$\cdot$T + 16$\cdot$B$\cdot$T$^{2}$" in table.write("latex")


def test_the_shell_fits_near_a_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.models.generating import Window\nmodel = Window(100)\n"
    )
    monkeypatch.chdir(tmp_path)
    asked = ["summary", "mine.py:model", "--symbolic"]
    assert main([*asked, "--format", "csv"]) == 0
    assert "token,cache_bytes,\n" in capsys.readouterr().out
    assert main([*asked, "--near", "101", "--format", "csv"]) == 0
    assert "token,cache_bytes,3200*B\n" in capsys.readouterr().out


#: options of summary for the table of layers
OF_LAYERS = (
    *("--max-depth 1", "--columns type", "--receptive-field", "--match a", "--sort macs"),
    *("--fold-repeats", "--wrap-mode head", "--convention ptflops", "--strict"),
    *("--device H100", "--optimizer Adam", "--precision bf16"),
)
#: those of a pass: formulas have any length and batch size, and have no mode
OF_PASS = (
    *("--by operator", "--top 3", "--training", "--mode train", "--input 8", "--batch-size 2"),
    "--loop-iterations 3",
)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--near", "9"],
            "--near is for the formulas of --symbolic: give both, or leave out --near",
        ),
        *(
            (
                ["--symbolic", *options.split()],
                f"{options.split()[0]} does not go with --symbolic, which shows all formulas of "
                "the forward pass: leave it out",
            )
            for options in (*OF_LAYERS, *OF_PASS)
        ),
        *(
            (
                ["--by", "operator", "--input", "8", *options.split()],
                f"{options.split()[0]} is for the table of layers: leave it out, or leave out --by",
            )
            for options in OF_LAYERS
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", "torch.nn:Linear(8, 8)", *options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"torchscan: {said}\n")
