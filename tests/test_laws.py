"""Laws on random models: linear in batch, real = abstract, layers sum to the total, folding keeps the sums."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchscan
from torchscan.report.info import COST_SUMS, PARAMETER_SUMS

RELAXED = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


class Residual(nn.Module):
    """A block whose result is added to its input, or joined to it."""

    def __init__(self, body: nn.Module, joins: bool) -> None:
        super().__init__()
        self.body = body
        self.joins = joins

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return torch.cat([x, y], 1)[:, : x.shape[1]] if self.joins else x + y


@st.composite
def layers(draw: st.DrawFn, channels: int, depth: int = 2) -> nn.Module:
    """A layer that keeps the number of channels and the size of the image."""
    kind = draw(
        st.sampled_from(["conv", "norm", "group", "act", "pool", "depthwise"] + (["residual", "chain"] if depth else []))
    )
    if kind == "residual":
        return Residual(draw(layers(channels, depth - 1)), draw(st.booleans()))
    if kind == "chain":
        return nn.Sequential(*draw(st.lists(layers(channels, depth - 1), min_size=1, max_size=3)))
    size = draw(st.sampled_from([1, 3, 5]))
    return {
        "conv": nn.Conv2d(channels, channels, size, padding=size // 2, bias=draw(st.booleans())),
        "depthwise": nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels),
        "norm": nn.BatchNorm2d(channels, affine=draw(st.booleans())),
        "group": nn.GroupNorm(2, channels),
        "act": draw(st.sampled_from([nn.ReLU(inplace=True), nn.GELU(), nn.SiLU(), nn.Softmax(1)])),
        "pool": nn.MaxPool2d(3, 1, 1),
    }[kind]


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    """A convnet, sometimes with one block used twice."""
    channels = draw(st.sampled_from([2, 4]))
    body = draw(st.lists(layers(channels), min_size=1, max_size=4))
    if draw(st.booleans()):
        body.append(body[0])
    return nn.Sequential(nn.Conv2d(3, channels, 1), *body, nn.Flatten(), nn.Linear(channels * 36, 5))


def crawl(model: nn.Module, **options: Any) -> dict[str, Any]:
    return torchscan.crawl_module(model, (3, 6, 6), **options)


@RELAXED
@given(models(), st.integers(2, 5))
def test_contractions_are_linear_in_the_batch(model: nn.Module, batch: int) -> None:
    one, several = crawl(model), crawl(model, batch_size=batch)
    for single, many in zip(one["layers"], several["layers"], strict=True):
        assert many["macs"] == batch * single["macs"]
        assert many["output_shape"] == single["output_shape"]
        assert many["grad_params"] == single["grad_params"]


@RELAXED
@given(models(), st.sampled_from(["eval", "train"]))
def test_a_real_pass_and_one_on_shapes_agree(model: nn.Module, mode: Any) -> None:
    abstract, real = (crawl(model, mode=mode, batch_size=2, execute=how) for how in ("abstract", "real"))
    assert abstract["layers"] == real["layers"]


@RELAXED
@given(models())
def test_a_model_on_the_meta_device_costs_the_same(model: nn.Module) -> None:
    assert crawl(model)["layers"] == crawl(model.to("meta"))["layers"]


@RELAXED
@given(models())
def test_layers_sum_to_the_total_and_the_total_is_that_of_the_model(model: nn.Module) -> None:
    info = crawl(model)
    for key in (*PARAMETER_SUMS, *COST_SUMS):
        assert sum(layer[key] for layer in info["layers"]) == info["overall"][key]
    assert info["overall"]["grad_params"] == sum(each.numel() for each in model.parameters())
    assert info["overall"]["num_buffers"] == sum(each.numel() for each in model.buffers())


@RELAXED
@given(models(), st.data())
def test_folding_keeps_every_sum(model: nn.Module, data: st.DataObject) -> None:
    info = crawl(model)
    deepest = max(layer["depth"] for layer in info["layers"])
    folded = torchscan.aggregate_info(info, data.draw(st.integers(0, deepest)))
    for key in (*PARAMETER_SUMS, *COST_SUMS):
        assert sum(layer[key] for layer in folded["layers"]) == info["overall"][key]


@RELAXED
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_a_product_split_in_parts_costs_the_sum_of_the_parts(rows: int, inner: int, columns: int, parts: int) -> None:
    def macs(left: tuple[int, int], right: tuple[int, int]) -> int:
        args = (torch.zeros(left), torch.zeros(right))
        return int(torchscan.crawl_module(Product(), args=args)["overall"]["macs"])

    whole = macs((rows, inner * parts), (inner * parts, columns))
    assert whole == parts * macs((rows, inner), (inner, columns))


class Product(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right
