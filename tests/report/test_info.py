"""The info dict: what it says and that it is plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import crawl_module

LAYER_KEYS = {
    *("name", "path", "depth", "type", "call", "input_shape", "output_shape"),
    *("grad_params", "nograd_params", "param_size", "num_buffers", "buffer_size"),
    *("macs", "flops", "dmas", "bytes_read", "bytes_written"),
    *("receptive_field", "rf", "s", "p", "is_shared", "is_leaf", "complete"),
}


def test_it_survives_json_and_has_the_documented_keys(as_json: Callable[[Any], Any]) -> None:
    info = crawl_module(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (4,))
    assert as_json(info) == info
    assert set(info) == {
        "overheads",
        "layers",
        "overall",
        "without_formula",
        "unused_parameters",
        "provenance",
    }
    assert set(info["layers"][0]) == LAYER_KEYS
    assert info["overheads"] == {
        "cuda": {"pre": 0.0, "fwd": 0.0},
        "framework": {"pre": 0.0, "fwd": 0.0},
    }
    assert info["provenance"]["torch_version"] == torch.__version__
    assert info["provenance"]["inputs"] == [
        {"name": "args[0]", "shape": [1, 4], "dtype": "float32"}
    ]


def test_a_layer_says_who_it_is() -> None:
    root, inner, linear = crawl_module(nn.Sequential(nn.Sequential(nn.Linear(4, 2))), (4,))[
        "layers"
    ]
    assert [
        (each["name"], each["path"], each["depth"], each["type"]) for each in (root, inner, linear)
    ] == [
        ("Sequential", "", 0, "Sequential"),
        ("0", "0", 1, "Sequential"),
        ("0", "0.0", 2, "Linear"),
    ]
    assert [each["is_leaf"] for each in (root, inner, linear)] == [False, False, True]


def test_a_layer_is_named_by_its_way_from_the_module_that_called_it() -> None:
    model = Calls(
        lambda self, x: self.blocks[1](self.blocks[0](x)),
        blocks=nn.ModuleList([nn.Linear(4, 4), nn.ReLU()]),
    )
    names = [(layer["name"], layer["path"]) for layer in crawl_module(model, (4,))["layers"]]
    assert names == [("Calls", ""), ("blocks.0", "blocks.0"), ("blocks.1", "blocks.1")]


def test_the_batch_is_minus_one_where_torchscan_made_the_input() -> None:
    model = nn.Linear(4, 2)
    assert crawl_module(model, (7, 4), batch_size=3)["layers"][0]["output_shape"] == [
        -1,
        7,
        2,
    ]
    assert crawl_module(model, args=(torch.ones(3, 7, 4),))["layers"][0]["output_shape"] == [
        3,
        7,
        2,
    ]


def test_several_shapes_are_a_list_and_none_is_none() -> None:
    pair = crawl_module(Calls(lambda _, x, y: (x, [y])), [(4,), (5,)])["layers"][0]
    assert pair["input_shape"] == [[-1, 4], [-1, 5]]
    assert pair["output_shape"] == [[-1, 4], [-1, 5]]
    assert crawl_module(Calls(lambda _, x: None), (4,))["layers"][0]["output_shape"] is None


def test_parameters_by_kind_and_in_bytes() -> None:
    model = nn.Sequential(nn.Linear(4, 2).half(), nn.BatchNorm1d(2).half())
    model[0].bias.requires_grad_(False)
    _, linear, norm = crawl_module(model, (4,), batch_size=2)["layers"]
    assert (linear["grad_params"], linear["nograd_params"], linear["param_size"]) == (8, 2, 20)
    assert (norm["num_buffers"], norm["buffer_size"]) == (2 + 2 + 1, 2 * 4 + 8)


def test_a_shared_parameter_counts_where_it_appears_first() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    _, one, other = crawl_module(nn.Sequential(first, second), (4,))["layers"]
    assert (one["grad_params"], one["is_shared"]) == (16, False)
    assert (other["grad_params"], other["is_shared"]) == (0, True)


def test_a_module_called_twice_counts_its_parameters_once_and_its_cost_twice() -> None:
    model = Calls(lambda self, x: self.a(self.a(x)), a=nn.Linear(4, 4, bias=False))
    _, one, other = crawl_module(model, (4,))["layers"]
    assert (one["grad_params"], other["grad_params"], other["is_shared"]) == (16, 0, True)
    assert one["macs"] == other["macs"] == 16


def test_a_container_shows_what_it_does_itself() -> None:
    model = Calls(lambda self, x: x + self.a(x), a=nn.Linear(4, 4))
    root, linear = crawl_module(model, (4,))["layers"]
    assert (root["flops"], root["macs"], linear["macs"]) == (4, 0, 16)


def test_parameters_of_what_is_never_called_belong_to_the_module_around_it() -> None:
    class WithHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.auxiliary = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    info = crawl_module(WithHead(), (4,))
    assert info["layers"][0]["grad_params"] == 50 + 22
    assert info["unused_parameters"] == {"auxiliary": 72}
    assert info["overall"]["grad_params"] == 20 + 72


def test_parameters_used_by_somebody_else_are_not_unused() -> None:
    info = crawl_module(
        Calls(lambda self, x: self.m(x, x, x)[0], m=nn.MultiheadAttention(8, 2)), (3, 8)
    )
    assert info["unused_parameters"] == {}


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_provenance_says_how_the_pass_ran(execute: Any) -> None:
    provenance = crawl_module(nn.Linear(4, 2), (4,), execute=execute)["provenance"]
    (reason,) = provenance["reasons"]
    assert (provenance["execution"], reason["code"], provenance["mode"]) == (
        execute,
        "requested",
        "eval",
    )
