"""Rows and levels of a page, which are its data, with values by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from tests.report.test_page import data_of
from torchscan import Scan, html_report


class Block(nn.Module):
    """Two named inputs, and two results that are named by their keys."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.act = nn.ReLU()

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        y = self.act(self.conv(x))
        return {"y": y, "more": y * scale}


class Net(nn.Module):
    """A block, two that are equal to each other but see more, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, scale)["y"]
        result: Tensor = self.head(x.flatten(1))
        return result


IMAGE = "1×2×4×4"


def content_of(model: nn.Module, *inputs: Tensor, **options: Any) -> dict[str, Any]:
    return data_of(html_report(Scan(model, args=inputs, **options)))


def rows_of(model: nn.Module, *inputs: Tensor, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = content_of(model, *inputs, **options)["rows"]
    return rows


def net_content(**options: Any) -> dict[str, Any]:
    return content_of(Net(), torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4), **options)


def column(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return [row.get(key) for row in rows]


def test_rows_have_the_names_places_and_shapes_of_calls() -> None:
    rows = net_content()["rows"]
    names = ["Net", "blocks.0", "conv", "act", "blocks.1 … 2", "conv", "act", "head"]
    assert column(rows, "name") == names
    paths = ["", "blocks.0", "blocks.0.conv", "blocks.0.act", "blocks.1", "blocks.1.conv"]
    assert column(rows, "path") == column(rows, "key") == [*paths, "blocks.1.act", "head"]
    types = ["Net", "Block", "Conv2d", "ReLU", "Block", "Conv2d", "ReLU", "Linear"]
    assert column(rows, "type") == types
    assert column(rows, "in") == [None, 0, 1, 1, 0, 4, 4, 0]
    assert column(rows, "depth") == [0, 1, 2, 2, 1, 2, 2, 1]
    assert column(rows, "level") == list(range(8))
    assert column(rows, "repeats") == [1, 1, 1, 1, 2, 1, 1, 1]
    equal = [["blocks.1", "blocks.2"], ["blocks.1.conv", "blocks.2.conv"]]
    equal.append(["blocks.1.act", "blocks.2.act"])
    assert column(rows, "calls") == [None, None, None, None, *equal, None]
    assert column(rows, "labels") == [None] * 8
    one, two = [IMAGE], [IMAGE, IMAGE]
    assert column(rows, "input") == [two, two, one, one, two, one, one, ["1×32"]]
    assert column(rows, "output") == [["1×3"], two, one, one, two, one, one, ["1×3"]]


def test_tensors_of_a_row_are_named_if_there_are_several() -> None:
    rows = net_content()["rows"]
    takes = [["x", IMAGE], ["scale", IMAGE]]
    gives = [["y", IMAGE], ["more", IMAGE]]
    assert column(rows, "takes") == [takes, takes, None, None, takes, None, None, None]
    assert column(rows, "gives") == [None, gives, None, None, gives, None, None, None]


def test_rows_sum_the_costs_of_equal_calls_and_of_what_is_inside() -> None:
    """A convolution has 2 · 2 · 9 weights and 2 biases, and 32 results of 18 products each.

    It reads and writes 128 bytes and reads 38 parameters, a ReLU 256 bytes and a product 384. The
    head has 96 products and 3 biases.
    """
    rows = net_content()["rows"]
    assert column(rows, "params") == [213, 38, 38, 0, 76, 76, 0, 99]
    assert column(rows, "macs") == [1824, 576, 576, 0, 1152, 1152, 0, 96]
    assert column(rows, "flops") == [3840, 1216, 1152, 32, 2432, 2304, 64, 192]
    assert column(rows, "bytes") == [3680, 1048, 408, 256, 2096, 816, 512, 536]
    assert column(rows, "complete") == [True] * 8


def test_rows_have_the_receptive_fields_after_their_last_equal_call() -> None:
    """The third block sees 7 of 4 places, three of them before the first. Rows in it see 5.

    They are those of the second block.
    """
    rows = net_content()["rows"]
    assert column(rows, "rf") == ["global", "3", "3", "3", "7", "5", "5", "global"]
    assert column(rows, "rfSides") == [["global"], [3], [3], [3], [7], [5], [5], ["global"]]
    axis = {"units": 4, "length": 4, "starts": [-3], "rise": 1, "sizes": [7], "inside": None}
    assert rows[4]["sees"] == {"y": axis, "x": axis}
    assert "sees" not in rows[0]


def test_rows_have_the_settings_of_their_modules() -> None:
    rows = net_content()["rows"]
    assert rows[2]["settings"] == [
        ["", "2, 2"],
        ["kernel_size", "(3, 3)"],
        ["stride", "(1, 1)"],
        ["padding", "(1, 1)"],
    ]
    assert "settings" not in rows[0]


def test_rows_have_memory_where_it_is_estimated() -> None:
    """A block keeps two results of 128 bytes at its end; its product is not in a row.

    The weights take 852 bytes, the inputs 256.
    """
    rows = net_content()["rows"]
    assert column(rows, "activations")[1:] == [128, 128, 128, 256, 256, 256, 12]
    assert rows[2]["peak"] == 852 + 256 + 128
    assert rows[3]["peak"] == 852 + 256 + 2 * 128
    assert rows[0]["peak"] == max(column(rows, "peak"))


def test_rows_of_equal_calls_have_the_highest_peak_of_them() -> None:
    """In training, results are kept, so that the last of equal layers has the highest peak."""
    layers = [nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()) for _ in range(3)]
    options: dict[str, Any] = {"training": True, "optimizer": "SGD", "loss": torch.sum}
    scan = Scan(nn.Sequential(*layers), args=(torch.zeros(1000, 8),), **options)
    rows = data_of(html_report(scan))["rows"]
    peaks = {layer.path: layer.peak_bytes for layer in scan.memory.layers}
    assert column(rows, "name")[1] == "0 … 2"
    assert rows[1]["peak"] == max(peaks[str(index)] for index in range(3))
    assert len({peaks[str(index)] for index in range(3)}) > 1


def test_rows_without_a_device_have_no_times() -> None:
    assert not any("time" in row or "limiter" in row for row in net_content()["rows"])


def test_rows_have_the_time_of_their_operators_and_what_limits_most_of_it() -> None:
    """A product of 4096³ is limited by arithmetic, 16 MiB of ReLU by memory, each in two calls."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(2)))
    scan = Scan(model, args=(torch.zeros(4096, 4096, device="meta"),), device="A100 SXM 80GB")
    rows = data_of(html_report(scan))["rows"]
    times: dict[str, float] = {}
    for operator in scan.roofline.operators:
        times[operator.layer] = times.get(operator.layer, 0.0) + operator.time_estimate
    assert column(rows, "name") == ["Sequential", "0 … 1", "0", "1"]
    total = sum(times.values())
    own = [times["0.0"] + times["1.0"], times["0.1"] + times["1.1"]]
    assert column(rows, "time") == [float(f"{time:.4g}") for time in (total, total, *own)]
    assert column(rows, "limiter") == ["compute", "compute", "compute", "memory"]


def test_a_level_has_the_edges_between_its_boxes_and_names_tensors_of_modules() -> None:
    model, block, *_ = net_content()["levels"]
    kinds = ["input", "module", "input", "module", "operator", "module", "output"]
    names = ["x", "blocks.0", "scale", "blocks.1 … 2", "flatten", "head", "output"]
    assert column(model["nodes"], "kind") == kinds
    assert column(model["nodes"], "name") == names
    assert column(model["nodes"], "row") == [None, 1, None, 4, None, 7, None]
    shapes = [IMAGE, IMAGE, IMAGE, IMAGE, "1×32", "1×3", "1×3"]
    assert column(model["nodes"], "shape") == shapes
    assert sorted(model["edges"]) == [
        [0, 1, IMAGE, "x"],
        [1, 3, IMAGE, "x"],  # the key of the result is not the name of the argument
        [2, 1, IMAGE, "scale"],
        [2, 3, IMAGE, "scale"],
        [3, 4, IMAGE, "y"],
        [4, 5, "1×32"],
        [5, 6, "1×3"],
    ]
    assert not any(len(edge) > 3 for edge in block["edges"])


def test_rows_of_a_module_that_is_called_again_have_labels() -> None:
    model = Calls(lambda self, x: self.act(self.fc(self.act(x))), act=nn.ReLU(), fc=nn.Linear(4, 4))
    rows = rows_of(model, torch.zeros(2, 4))
    assert column(rows, "key") == ["", "act", "fc", "act@2"]
    assert column(rows, "labels") == [None, None, None, ["act (2)"]]
    assert column(rows, "params") == [20, 0, 20, 0]


def test_positions_of_tensors_are_not_names() -> None:
    """Results of a tuple have none; of arguments, only the last has, after two by position."""
    inner = Calls(lambda self, *args, mask: (args[0] + args[1], args[1] * mask))
    model = Calls(lambda self, x: sum(self.inner(x, x + 1, mask=x - 1)), inner=inner)
    row = rows_of(model, torch.zeros(2, 4))[1]
    assert row["takes"] == [["0", "2×4"], ["1", "2×4"], ["mask", "2×4"]]
    assert "gives" not in row


def test_a_row_names_eight_tensors_at_most() -> None:
    inner = Calls(lambda self, x: {f"part {number}": x + number for number in range(9)})
    model = Calls(lambda self, x: self.inner(x)["part 8"], inner=inner)
    row = rows_of(model, torch.zeros(4))[1]
    assert row["gives"] == [[f"part {number}", "4"] for number in range(8)]
    assert row["output"] == ["4"] * 8


def test_a_module_that_does_nothing_has_no_level_but_a_model_has() -> None:
    rows = rows_of(nn.Sequential(nn.Identity(), nn.ReLU()), torch.zeros(4))
    assert column(rows, "level") == [0, None, 1]
    assert column(rows_of(nn.Identity(), torch.zeros(4)), "level") == [0]


def test_long_names_are_truncated() -> None:
    name = "layer" * 100
    rows = rows_of(
        Calls(lambda self, x: self._modules[name](x), **{name: nn.ReLU()}), torch.ones(4)
    )
    assert rows[1]["name"] == rows[1]["path"] == f"{name[:300]}…"
    assert rows[1]["key"] == name


def test_the_row_of_a_failed_call_says_so() -> None:
    rows = rows_of(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), torch.zeros(2, 4))
    assert column(rows, "failed") == [None, None, True]


@torch.library.custom_op("page_rows::unknown", mutates_args=())
def unknown(x: Tensor) -> Tensor:
    return x.clone()


@unknown.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_rows_with_an_operator_of_unknown_cost_are_incomplete() -> None:
    model = nn.Sequential(nn.ReLU(), Calls(lambda self, x: unknown(x)))
    assert column(rows_of(model, torch.zeros(4)), "complete") == [False, True, False]
