"""Models that are nested more deeply than Python calls functions."""

from __future__ import annotations

import sys
from typing import Literal

import pytest
from torch import nn

import torchscan
from tests.observables import process_state
from torchscan import (
    RecordError,
    crawl_module,
    estimate_memory,
    format_info,
    receptive_field,
    record,
    summary,
)
from torchscan.analyses.totals import total_cost


def nested(levels: int) -> nn.Module:
    """A product of 4 by 4, so many levels down."""
    module: nn.Module = nn.Linear(4, 4)
    for _ in range(levels):
        module = nn.Sequential(module)
    return module


needs_depth = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="Python 3.12 itself cannot call so deeply"
)


@pytest.mark.slow
@needs_depth
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_a_thousand_levels_are_recorded(execute: Literal["abstract", "real"]) -> None:
    limit = sys.getrecursionlimit()
    trace = record(nested(1000), (4,), execute=execute)
    assert [call.depth for call in trace.modules] == list(range(1001))
    assert (total_cost(trace).macs, sum(each.numel for each in trace.parameters)) == (
        16,
        20,
    )
    assert sys.getrecursionlimit() == limit


@pytest.mark.slow
@needs_depth
def test_a_thousand_levels_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    model = nested(1000)
    info = crawl_module(model, (4,), training=True)
    assert info["overall"]["macs"] == 32  # the product, and the gradient of its weight
    assert [layer["depth"] for layer in info["layers"]] == list(range(1001))
    assert len(format_info(info).splitlines()) > 1001
    assert torchscan.aggregate_info(info, 2)["overall"]["macs"] == 32
    summary(model, (4,), receptive_field=True, max_depth=2)
    assert "Linear" not in capsys.readouterr().out
    assert estimate_memory(model, (4,)).peak_bytes > 0
    assert receptive_field(model, (4,)).output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:global module forward hook:UserWarning")
def test_too_many_levels_are_refused_in_a_line() -> None:
    model = nested(5000)
    before, limit = process_state(), sys.getrecursionlimit()
    advice = "another Python" if sys.version_info[:2] == (3, 12) else r"sys.setrecursionlimit\("
    with pytest.raises(
        RecordError, match=rf"levels deep.*RecursionError(.|\n)*try: {advice}"
    ) as caught:
        record(model, (4,))
    assert all(len(line) < 300 for line in str(caught.value).splitlines())
    assert (process_state(), sys.getrecursionlimit()) == (before, limit)
