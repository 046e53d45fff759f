"""The plot of ways to serve a model: each is where its times put it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from tests.models.generating import Echo
from torchscan import InputError, parallel
from torchscan.notes import Note
from torchscan.types import ServingSearch

mpl.use("Agg")


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    yield
    plt.close("all")


@functools.cache
def search() -> ServingSearch:
    model = Echo(64, 512).to(torch.bfloat16)
    return parallel.search_serving(
        model, 64, 16, num_gpus=1, device="H100", formats=[None], max_batch_size=8, progress=False
    )


def test_a_line_joins_the_ways_that_no_other_beats() -> None:
    """In order of the time per token, in milliseconds; a point is at each."""
    ax = search().plot()
    (line,) = ax.get_lines()
    front = search().front
    assert len(front) > 1
    xs, ys = [1000 * each.per_token for each in front], [each.tokens_per_second for each in front]
    assert np.asarray(line.get_xdata()) == pytest.approx(xs)
    assert np.asarray(line.get_ydata()) == pytest.approx(ys)
    points = np.concatenate([np.asarray(each.get_offsets()) for each in ax.collections])
    assert len(points) == len(search().choices) + len(front)
    assert points[-len(front) :] == pytest.approx(np.array([xs, ys]).T)
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "Time per token, ms",
        "Tokens per second and GPU",
    )
    assert ax.get_ylim()[0] == 0


def test_the_best_way_and_some_of_the_others_are_named() -> None:
    names = [text.get_text() for text in search().plot().texts]
    assert 1 < len(names) <= 5
    assert any("batch 8" in name for name in names)


def test_ways_beyond_a_limit_are_hollow_and_the_limit_is_a_line() -> None:
    fine = search()
    first, *others = fine.choices
    slow = Note.of("tokens-slow", seconds=0.003, limit=0.002)
    choices = (replace(first, problems=(slow,)), *others)
    ax = replace(fine, choices=choices, max_per_token=0.002).plot()
    hollow, *filled = list(ax.collections)[: len(choices)]
    assert len(hollow.get_facecolor()) == 0
    assert all(len(each.get_facecolor()) == 1 for each in filled)
    limit = ax.get_lines()[-1]
    assert np.asarray(limit.get_xdata()).tolist() == [2, 2]
    assert len(search().plot().get_lines()) == 1, "there is no limit"


def test_a_search_without_ways_has_no_plot() -> None:
    with pytest.raises(InputError, match="found no way that fits: there is nothing to draw"):
        replace(search(), choices=()).plot()
