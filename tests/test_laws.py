"""Laws on random models: linear in batch, real = abstract, layers sum to the total, folding keeps the sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchscan
from torchscan import crawl_module, record
from torchscan.analyses.totals import by_module, by_operator, total_cost
from torchscan.ops import compute_cost
from torchscan.report.info_data import COST_SUMS, PARAMETER_SUMS
from torchscan.types import OpCost

RELAXED = settings(max_examples=15)


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
        st.sampled_from(
            ["conv", "norm", "group", "act", "pool", "depthwise"]
            + (["residual", "chain"] if depth else [])
        )
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
    return nn.Sequential(
        nn.Conv2d(3, channels, 1), *body, nn.Flatten(), nn.Linear(channels * 36, 5)
    )


def differentiable(model: nn.Module) -> nn.Module:
    """The gradient of an activation needs its result, which the next one must not write over."""
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


def crawl(model: nn.Module, **options: Any) -> dict[str, Any]:
    return crawl_module(model, (3, 6, 6), **options)


@pytest.mark.slow
@RELAXED
@given(models(), st.integers(2, 5))
def test_contractions_are_linear_in_the_batch(model: nn.Module, batch: int) -> None:
    one, several = crawl(model), crawl(model, batch_size=batch)
    for single, many in zip(one["layers"], several["layers"], strict=True):
        assert many["macs"] == batch * single["macs"]
        assert many["output_shape"] == single["output_shape"]
        assert many["grad_params"] == single["grad_params"]


@pytest.mark.slow
@RELAXED
@given(models(), st.sampled_from(["eval", "train"]))
def test_a_real_pass_and_one_on_shapes_agree(model: nn.Module, mode: Any) -> None:
    abstract, real = (
        crawl(model, mode=mode, batch_size=2, execute=how) for how in ("abstract", "real")
    )
    assert abstract["layers"] == real["layers"]


@pytest.mark.slow
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


@pytest.mark.slow
@RELAXED
@given(models().map(differentiable), st.sampled_from(["eval", "train"]))
def test_the_backward_pass_on_shapes_is_that_on_data(model: nn.Module, mode: Any) -> None:
    abstract, real = (
        record(model, (3, 6, 6), mode=mode, batch_size=2, training=True, execute=how)
        for how in ("abstract", "real")
    )
    assert by_module(abstract) == by_module(real)
    assert by_operator(abstract) == by_operator(real)
    assert total_cost(abstract).is_complete


@pytest.mark.slow
@RELAXED
@given(models().map(differentiable))
def test_a_backward_pass_takes_twice_the_products_but_for_the_first_layer(model: nn.Module) -> None:
    """Whose input needs no gradient: 36 pixels, 3 channels in."""
    trace = record(model, (3, 6, 6), mode="train", batch_size=2, training=True)
    forward, backward = (total_cost(trace, phase=phase).macs for phase in ("forward", "backward"))
    first = by_module(trace, phase="forward")["0"].macs
    assert backward == 2 * forward - first


@pytest.mark.slow
@RELAXED
@given(models().map(differentiable))
def test_a_module_costs_what_its_children_cost_and_its_own(model: nn.Module) -> None:
    trace = record(model, (3, 6, 6), mode="train", batch_size=2, training=True)
    totals = by_module(trace)
    for call in trace.modules:
        calls = [each for each in trace.modules if each.path == call.path]
        own = sum(
            (compute_cost(trace.ops[op].signature).cost for each in calls for op in each.ops),
            OpCost(),
        )
        children = {trace.modules[child].path for each in calls for child in each.children}
        if all(sum(each.path == child for each in trace.modules) == 1 for child in children):
            assert totals[call.path] == sum((totals[child] for child in children), own)


@pytest.mark.slow
@RELAXED
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 8)
)
def test_attention_split_by_heads_costs_the_sum(
    samples: int, heads: int, queries: int, keys: int, width: int
) -> None:
    def cost(shape: tuple[int, int]) -> OpCost:
        args = tuple(torch.zeros(*shape, length, width) for length in (queries, keys, keys))
        return total_cost(record(Attention(), args=args))

    assert cost((samples, heads)) == sum((cost((1, 1)) for _ in range(samples * heads)), OpCost())


@RELAXED
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]),
)
def test_a_recurrent_layer_is_linear_in_time_and_batch(
    steps: int, batch: int, inputs: int, units: int, kind: Any
) -> None:
    layer = kind(inputs, units)

    def cost(*shape: int) -> OpCost:
        return total_cost(record(layer, args=(torch.zeros(*shape, inputs),)))

    one, many = cost(1, 1), cost(steps, batch)
    assert (many.macs, many.flops) == (steps * batch * one.macs, steps * batch * one.flops)


@RELAXED
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_a_product_split_in_parts_costs_the_sum_of_the_parts(
    rows: int, inner: int, columns: int, parts: int
) -> None:
    def macs(left: tuple[int, int], right: tuple[int, int]) -> int:
        args = (torch.zeros(left), torch.zeros(right))
        return int(crawl_module(Product(), args=args)["overall"]["macs"])

    whole = macs((rows, inner * parts), (inner * parts, columns))
    assert whole == parts * macs((rows, inner), (inner, columns))


class Attention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


class Product(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right
