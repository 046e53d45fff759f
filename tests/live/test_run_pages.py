"""Pages of runs that have little in them, or odd step numbers."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchscan
from tests.live.test_bins import of
from torchscan.live.schema import Phase, Series, Watched
from torchscan.live.store import Store

SERIES = Series(path="0", type_name="Linear", kind="output", name="0")
Steps = Iterable[tuple[Phase, int, int]]


def write(run: Path, steps: Steps) -> Path:
    """Write a run with one series that is 1.0 in each pass: its phase, step and number."""
    store = Store(run / "rank0.sqlite", {"model": "Net", "closed": True})
    series = store.number_of(SERIES)
    for phase, step, number in steps:
        found = {series: of(torch.ones(4))}
        store.write(Watched(step=step, phase=phase, number=number, time=1.0 + number % 1000, distributions=found))
    store.close()
    return run


def shown(*runs: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The data of a page, and the pictures in it."""
    page = torchscan.page_of_run(*runs)._repr_html_()
    document = html.unescape(page)
    found = re.search(r'id="data">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    packed = data["measured"].get("histories")
    pictures = [] if packed is None else json.loads(zlib.decompress(base64.b64decode(packed)))
    return data, pictures


EVALUATIONS: Steps = [("eval", 0, 0), ("eval", 0, 1), ("eval", 0, 2)]


def test_a_run_with_evaluations_only_shows_them_by_their_number(tmp_path: Path) -> None:
    data, pictures = shown(write(tmp_path / "run", EVALUATIONS))
    assert data["question"][0] == "run: evaluation pass 2"
    (picture,) = pictures
    assert (picture["phase"], picture["first"]) == ("eval", [0, 1, 2])


def test_evaluations_before_the_first_training_step_are_not_shown_with_it(tmp_path: Path) -> None:
    data, pictures = shown(write(tmp_path / "run", [*EVALUATIONS, ("train", 0, 0)]))
    assert data["question"][0] == "run: step 0"
    (picture,) = pictures
    assert (picture["phase"], picture["first"]) == ("train", [0])


def test_a_run_without_any_step_has_a_page(tmp_path: Path) -> None:
    data, pictures = shown(write(tmp_path / "run", []))
    assert (data["question"][0], pictures) == ("run: no step", [])


@pytest.mark.parametrize(
    ("steps", "first", "until"),
    [
        ([7], [7], [8]),
        ([0, 1, 500], [0, 500], [500, 1000]),
        ([5, 6, 5, 7], [5, 6, 7], [6, 7, 8]),
        ([0, 2**40], [0, 2**40], [2**40, 2**41]),
    ],
    ids=["one", "gap", "back", "far"],
)
def test_odd_step_numbers_have_columns(tmp_path: Path, steps: list[int], first: list[int], until: list[int]) -> None:
    _, (picture,) = shown(write(tmp_path / "run", [("train", each, each) for each in steps]))
    assert (picture["first"], picture["until"]) == (first, until)


def test_of_two_runs_one_may_be_empty(tmp_path: Path) -> None:
    full, empty = (
        write(tmp_path / "full", [("train", 0, 0)]),
        write(tmp_path / "empty", []),
    )
    for runs in ((full, empty), (empty, full)):
        _, pictures = shown(*runs)
        assert [each["run"] for each in pictures] == ["full"]
