"""docs/accuracy.md says what the package says, and nothing else says it; how its figures are worked out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.far_off import far_off, four_of_five, rounded_up, spearman
from tests.marked import blocks_of, rows_of, table, with_blocks
from tests.stated_accuracy import stated

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
BLOCKS = blocks_of(PAGE.read_text())
OTHER_PAGES = [
    each for each in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if each != PAGE
]
#: how a figure about our own accuracy would be said
ACCURACY = re.compile(
    r"(median|mean) error|rank correlation|error of [\d.]+ %|as long as estimated|estimate ÷ measured",
    re.IGNORECASE,
)


def test_ranges_of_estimates_are_those_of_the_page() -> None:
    assert {row[0]: (row[1], row[4]) for row in rows_of(BLOCKS["time"])} == stated()


def test_every_table_of_the_page_is_filled() -> None:
    assert [name for name, text in BLOCKS.items() if not text.strip()] == []


def test_the_summary_has_as_many_models_as_its_sections() -> None:
    summary = {
        row[0].removeprefix("time, "): _number(row[2])
        for row in rows_of(BLOCKS["summary"])
        if row[0].startswith("time")
    }
    for name in {row[0].rpartition(", ")[0] for row in rows_of(BLOCKS["time"])}:
        assert summary[name] == _models(BLOCKS["time"], name) == _models(BLOCKS["held-out"], name)


def _models(block: str, name: str) -> int:
    return sum(_number(row[1]) for row in rows_of(block) if row[0].startswith(name))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def test_what_is_faster_than_the_bound_has_a_reason_or_none_that_is_known() -> None:
    rows = rows_of(BLOCKS["faster"])
    assert rows
    for _, model, ratio, why in rows:
        assert float(ratio) >= 1, model
        assert why, model


@pytest.mark.parametrize("page", OTHER_PAGES, ids=lambda page: page.stem)
def test_figures_about_how_good_it_is_stand_on_one_page_only(page: Path) -> None:
    assert ACCURACY.findall(page.read_text()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_without_the_tables_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tests.torchvision_cpu")
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    truth: Any = importlib.import_module("benchmark_truth")
    page = tmp_path / "accuracy.md"
    assert truth.write_truth(tmp_path, page, leave_one_out=False) == len(truth.TABLES)
    printed = capsys.readouterr().out
    assert "nothing written: zoo.csv, receptive_field.json, throughput_rtx3090.csv" in printed
    assert list(tmp_path.iterdir()) == []


# -- how figures are worked out ------------------------------------------------------------------------------------------


def test_estimates_beside_measured_times() -> None:
    found = far_off([1.0, 2.0, 3.3, 4.0, 10.0], [1.0, 2.5, 3.0, 4.0, 5.0])
    assert (found.models, found.bias, found.ranks) == (5, 1.0, 1.0)
    assert found.median == pytest.approx(0.1)  # of 0, 0.2, 0.1, 0 and 1 of the measured time
    assert found.kept == pytest.approx(0.25)  # of 0, 0.25, 0.09, 0 and 0.5 of the estimate


@pytest.mark.parametrize(
    ("distances", "kept"),
    [([3.0], 3.0), ([1.0, 2.0, 3.0, 4.0, 5.0], 4.0), ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 5.0)],
)
def test_four_of_five_lie_no_further_off(distances: list[float], kept: float) -> None:
    assert four_of_five(distances) == kept


@pytest.mark.parametrize(
    ("share", "whole"), [(0.0601, 0.07), (0.07, 0.07), (0.29, 0.29), (0.0, 0.0)]
)
def test_a_share_is_rounded_up_to_a_whole_per_cent(share: float, whole: float) -> None:
    assert rounded_up(share) == whole


def test_ranks_that_are_reversed() -> None:
    assert spearman([1.0, 2.0, 30.0], [9.0, 8.0, 1.0]) == pytest.approx(-1)
    assert spearman([1.0], [2.0]) == 1


# -- pages ---------------------------------------------------------------------------------------------------------------


def test_a_block_is_written_and_the_rest_stays() -> None:
    page = "before\n<!-- written: one -->\nold\n<!-- end -->\nkept\n<!-- written: two -->\n<!-- end -->\n"
    again = with_blocks(page, {"one": "\nnew \\1\n"})
    assert again == page.replace("old", "\nnew \\1")
    assert blocks_of(again) == {"one": "\nnew \\1\n", "two": ""}


def test_a_block_that_the_page_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="no block three"):
        with_blocks("<!-- written: one -->\n<!-- end -->", {"three": ""})


def test_the_first_table_of_a_text_is_read_as_it_was_written() -> None:
    text = table(("a", "b"), [(1, "x y"), ("", 2)])
    assert rows_of(f"text\n\n{text}\n{table(('c',), [(3,)])}") == [["1", "x y"], ["", "2"]]
    assert rows_of("no table") == []
