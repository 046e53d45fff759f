"""The cost of a pass: in all, per operator, per module, under conventions, and when something has no price."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import InputError, MissingFormulaError, crawl_module, format_info, record
from torchscan.analyses.totals import by_module, by_operator, total_cost
from torchscan.types import OpCost


class Twice(nn.Module):
    """One layer that is called twice, and an addition of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(self.body(x))


#: 16 products, of 4 + 16 numbers one of 4; a comparison for each of them
LINEAR = OpCost(
    macs=16, flops=32, elements_read=20, elements_written=4, bytes_read=80, bytes_written=16
)
RELU = OpCost(flops=4, elements_read=4, elements_written=4, bytes_read=16, bytes_written=16)
ADD = OpCost(flops=4, elements_read=8, elements_written=4, bytes_read=32, bytes_written=16)


def test_by_operator() -> None:
    costs = by_operator(record(Twice(), (4,)))
    assert costs == {"aten.linear": LINEAR + LINEAR, "aten.relu": RELU + RELU, "aten.add": ADD}


def test_by_module_counts_what_is_below_it_and_every_call() -> None:
    costs = by_module(record(Twice(), (4,)))
    body = LINEAR + LINEAR + RELU + RELU
    assert costs == {"": body + ADD, "body": body, "body.0": LINEAR + LINEAR, "body.1": RELU + RELU}


def test_all_of_them_agree_with_the_total_and_with_the_layers() -> None:
    trace = record(Twice(), (4,))
    total = total_cost(trace)
    assert total == by_module(trace)[""] == sum(by_operator(trace).values(), OpCost())
    overall = crawl_module(Twice(), (4,))["overall"]
    assert (overall["macs"], overall["flops"], overall["dmas"]) == (
        total.macs,
        total.flops,
        total.dmas,
    )


def test_a_module_inside_itself_counts_once() -> None:
    class Recursive(nn.Module):
        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            return self(x, depth - 1) + 1 if depth else x

    costs = by_module(record(Recursive(), (4,)))
    assert costs[""].flops == 2 * 4


def test_a_phase_that_there_is_not_is_refused() -> None:
    trace = record(Twice(), (4,))
    with pytest.raises(InputError, match="phase is 'bwd': choose from 'forward', 'backward'"):
        total_cost(trace, phase="bwd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no backward pass"):
        by_module(trace, phase="backward")


def test_a_price_that_is_missing_is_said() -> None:
    model = nn.Sequential(Calls(lambda _, x: torch.special.bessel_j0(x)), nn.ReLU())
    trace = record(model, (4,))
    assert not total_cost(trace).is_complete
    assert {path: cost.is_complete for path, cost in by_module(trace).items()} == {
        "": False,
        "0": False,
        "1": True,
    }
    assert not by_operator(trace)["aten.special_bessel_j0"].is_complete
    with pytest.raises(MissingFormulaError, match=r"aten\.special_bessel_j0\.default in 0"):
        total_cost(trace, strict=True)


def test_a_convention_changes_the_macs_only() -> None:
    trace = record(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (4,))
    ours, fvcore = total_cost(trace), total_cost(trace, convention="fvcore")
    assert (ours.macs, fvcore.macs) == (16, 16 + 5 * 4)
    assert (ours.flops, ours.dmas) == (fvcore.flops, fvcore.dmas)
    assert by_operator(trace, convention="fvcore")["aten.layer_norm"].macs == 20
    assert by_module(trace, convention="fvcore")["1"].macs == 20


def test_the_info_is_that_of_the_convention() -> None:
    info = crawl_module(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (4,), convention="fvcore")
    assert [layer["macs"] for layer in info["layers"]] == [0, 16, 20]
    assert info["provenance"]["convention"] == "fvcore"
    text = format_info(info)
    assert "MACs by fvcore" in text
    assert "MACs follow the rules of fvcore" in text
