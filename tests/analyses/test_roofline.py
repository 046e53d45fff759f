"""The roofline of passes, against figures that are worked out by hand for a device with round numbers."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.recording.test_record import Calls
from tests.versions import before, needs
from torchscan import InputError, analyze_roofline, crawl_module, record, register_device
from torchscan.analyses.roofline.cache import bytes_in_cache
from torchscan.analyses.roofline.error_margin import COMPARED, TRAINED
from torchscan.analyses.roofline.kernels.products import filled
from torchscan.hardware import device_catalog
from torchscan.notes import Note
from torchscan.types import OperatorLoad, Roofline

#: 10 TFLOP/s in fp32, ten times that in fp16, 100 GB/s: ridges at 100 and 1000 FLOPs per byte
ROUND = "a round card"


@pytest.fixture(autouse=True)
def round_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_catalog, "_registered", {})
    register_device(
        ROUND,
        memory_gb=64,
        bandwidth_gbs=100,
        dense_tflops={"fp32": 10, "tf32": 50, "fp16": 100, "bf16": 100, "fp8": 200},
    )


def roofline(model: nn.Module, *shape: Any, device: str = ROUND, **options: Any) -> Roofline:
    return analyze_roofline(model, *shape, device=device, **options)


def only(result: Roofline, operator: str) -> OperatorLoad:
    (found,) = (each for each in result.operators if each.operator == f"aten.{operator}")
    return found


# -- bounds --------------------------------------------------------------------------------------------------------------


def test_a_large_product_is_bound_by_arithmetic() -> None:
    """4096³ MACs: 137 GFLOP at 10 TFLOP/s are 13.74 ms; three matrices of 64 MiB at 100 GB/s are 2.01 ms."""
    load = only(
        roofline(nn.Linear(4096, 4096, bias=False), (4096,), batch_size=4096, precision="fp32"),
        "mm",
    )
    assert load.limiter == "compute"
    assert load.time_bound == pytest.approx(2 * 4096**3 / 10e12)
    assert load.intensity == pytest.approx(2 * 4096**3 / (3 * 4096**2 * 4))
    assert load.ridge == 100


@pytest.mark.parametrize(
    ("window", "stride", "share"),
    [(3, 1, 1 / 9), (3, 2, 4 / 9), (5, 1, 1 / 25), (2, 2, 1), (1, 1, 1)],
)
def test_bound_of_single_precision_leaves_winograd_room(
    window: int, stride: int, share: float
) -> None:
    """An image of 64 outputs a side takes ``stride`` new inputs for each, and so as many products, along each dimension."""
    layer, size = nn.Conv2d(512, 512, window, stride, bias=False), 64 * stride + window - stride
    load = only(roofline(layer, (512, size, size), batch_size=8, precision="fp32"), "convolution")
    assert load.macs == 8 * 512 * 512 * 64**2 * window**2
    assert load.time_bound == pytest.approx(2 * load.macs * share / 10e12)
    assert load.limiter == (
        "compute" if load.intensity is not None and load.intensity > 100 else "memory"
    )


def test_winograds_room_is_in_the_gradients_of_a_convolution_too() -> None:
    """Two more convolutions of as many products each; on matrix units all of them count."""
    layer = nn.Conv2d(512, 512, 3, padding=1, bias=False)
    single, half = (
        only(
            roofline(layer, (512, 64, 64), batch_size=8, precision=precision, training=True),
            "convolution_backward",
        )
        for precision in ("fp32", "fp16")
    )
    assert single.time_bound == pytest.approx(2 * single.macs / 9 / 10e12)
    assert half.time_bound == pytest.approx(2 * half.macs / 100e12)


def test_utilisation_is_of_all_products_that_are_computed() -> None:
    layer = nn.Conv2d(512, 512, 3, padding=1, bias=False)
    result = roofline(layer, (512, 64, 64), batch_size=8, precision="fp32")
    assert result.compute_utilization == pytest.approx(
        2 * result.total.macs / 10e12 / result.time_estimate
    )


def test_a_pointwise_operator_is_bound_by_memory() -> None:
    load = only(roofline(nn.ReLU(), (1000,), batch_size=4000), "relu")
    assert (
        load.limiter,
        load.precision,
        load.flops,
        load.elements_read,
        load.elements_written,
    ) == (
        *("memory", "fp32"),
        *[4_000_000] * 3,
    )
    assert load.time_bound == pytest.approx(2 * 4_000_000 * 4 / 100e9)


def test_flops_count_and_not_macs() -> None:
    """A product at 60 MACs, which is 120 FLOPs, per byte lies above the ridge at 100."""
    load = only(
        roofline(nn.Linear(720, 720, bias=False), (720,), batch_size=720, precision="fp32"), "mm"
    )
    assert load.macs / (load.bytes_read + load.bytes_written) == 60
    assert (load.intensity, load.limiter) == (120, "compute")


@pytest.mark.parametrize(
    ("precision", "expected", "peak"),
    [
        ("fp32", "fp32", 10e12),
        ("tf32", "tf32", 50e12),
        ("fp16", "fp16", 100e12),
        ("bf16", "bf16", 100e12),
        ("fp8", "fp8", 200e12),
    ],
)
def test_the_precision_decides_on_the_peak(precision: Any, expected: Any, peak: float) -> None:
    load = only(
        roofline(nn.Linear(4096, 4096, bias=False), (4096,), batch_size=4096, precision=precision),
        "mm",
    )
    assert load.precision == expected
    assert load.time_bound == pytest.approx(2 * 4096**3 / peak)
    assert load.bytes_read == 2 * 4096**2 * {"fp32": 4, "tf32": 4, "fp8": 1}.get(expected, 2)


def test_as_the_model_is_convolutions_may_be_shortened_and_products_not() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4))
    result = roofline(model, (8, 8, 8))
    assert (only(result, "convolution").precision, only(result, "addmm").precision) == (
        "tf32",
        "fp32",
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 32)).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return F.softmax(self.out(self.norm(y)), -1)


def test_autocast_gives_each_operator_its_own_precision() -> None:
    result = roofline(Attention(), (128, 64), batch_size=4, precision="fp16-mixed")
    attention = only(result, "_scaled_dot_product_flash_attention")
    assert attention.precision == only(result, "addmm").precision == "fp16"
    assert only(result, "native_layer_norm").precision == "fp32"


def test_fused_attention_writes_no_scores() -> None:
    """Query, key and value in, the result and a number per row out; scores would be 64 MiB."""
    result = roofline(Attention(), (2048, 64), batch_size=4, precision="fp16")
    load = only(result, "_scaled_dot_product_flash_attention")
    operand = 4 * 2048 * 64 * 2
    assert operand <= load.bytes_read <= 3 * operand
    assert load.bytes_written == pytest.approx(
        operand + 4 * 2 * 2048 * 4, abs=64
    )  # and random state
    assert load.macs == 2 * 4 * 2 * 2048 * 2048 * 32


def test_integer_inputs() -> None:
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 8))
    result = roofline(model, (16,), torch.long, batch_size=4)
    assert only(result, "embedding").limiter in ("memory", "launch")
    assert only(result, "embedding").bytes_written == 4 * 16 * 64 * 4


# -- sums ----------------------------------------------------------------------------------------------------------------


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.only_child = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.only_child(x)) + 1


@pytest.mark.parametrize(
    "options", [{}, {"training": True, "optimizer": "AdamW"}, {"compiled": True}]
)
def test_everything_adds_up(options: dict[str, Any]) -> None:
    result = roofline(Nested(), (3, 32, 32), batch_size=8, **options)
    assert result.time_estimate == pytest.approx(
        math.fsum(each.time_estimate for each in result.operators)
    )
    assert result.time_estimate == pytest.approx(
        math.fsum(each.time_estimate for each in result.by_kind.values())
    )
    assert result.time_estimate == pytest.approx(math.fsum(result.time_by_phase.values()))
    assert result.total.time_estimate == pytest.approx(result.time_estimate)
    assert result.time_bound == pytest.approx(
        math.fsum(each.time_bound for each in result.operators)
    )
    by_name = {each.name: each for each in result.layers}
    assert by_name["only_child"].flops == by_name["only_child.0"].flops < result.total.flops
    assert sum(each.flops for each in result.operators) == result.total.flops


@pytest.mark.parametrize("device", [ROUND, "H200", "RTX 4090", "T4", "MI300X"])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_nothing_is_faster_than_its_bound(device: str, batch_size: int) -> None:
    result = roofline(
        nn.Sequential(Attention()),
        (256, 64),
        device=device,
        batch_size=batch_size,
        precision="fp16",
    )
    assert all(each.time_estimate >= each.time_bound > 0 for each in result.operators)


def test_the_costs_are_those_of_the_record() -> None:
    model = Nested()
    result, info = roofline(model, (3, 32, 32)), crawl_module(model, (3, 32, 32))
    assert result.total.macs == info["overall"]["macs"]


def test_a_training_step_comes_from_its_record() -> None:
    """The first layer's input needs no gradient: of 3 · 2 products 5 are computed, and not 6."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))
    step: dict[str, Any] = {"training": True, "loss": torch.sum, "optimizer": "SGD"}
    forward, training = (
        roofline(model, (64,), batch_size=32),
        roofline(model, (64,), batch_size=32, **step),
    )
    assert forward.total.macs * 5 == training.total.macs * 2
    assert list(training.time_by_phase) == ["forward", "backward", "optimizer"]


def test_as_dict_is_plain(as_json: Callable[[Any], Any]) -> None:
    plain = roofline(Nested(), (3, 32, 32), precision="fp16-mixed").to_dict()
    assert as_json(plain) == plain
    assert {"time_bound", "time_estimate", "operators", "layers", "by_kind"} <= plain.keys()


# -- what kernels do -----------------------------------------------------------------------------------------------------


def test_tiles_and_waves() -> None:
    """One tile takes as long as one on each of 100 multiprocessors; 101 of them as long as 200."""
    assert filled(32, 32, 64, 1, 100) == pytest.approx(
        0.4 / 100
    )  # the share of the peak that small tiles reach
    assert filled(128 * 100, 128, 64, 1, 100) == 1
    assert filled(128 * 101, 128, 64, 1, 100) < 0.6
    assert filled(128, 128, 256 * 100, 1, 100) == pytest.approx(1)  # split along the sum
    assert filled(128 * 100, 128, 33, 1, 100) == pytest.approx(33 / 64)


def test_convolutions_in_half_precision_turn_operands_around_unless_these_lie_so() -> None:
    """So do those in single precision not, nor products one by one."""

    def time(layer: nn.Conv2d, precision: Any, layout: torch.memory_format) -> float:
        x = torch.zeros(64, 64, 56, 56, device="meta").to(memory_format=layout)
        return roofline(layer, args=(x,), device="RTX 3090", precision=precision).time_estimate

    three, one = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.Conv2d(64, 64, 1, bias=False)
    last, first = torch.channels_last, torch.contiguous_format
    assert time(three, "fp16", first) > 1.2 * time(three, "fp16", last)
    assert time(three, "fp32", first) == pytest.approx(time(three, "fp32", last))
    assert time(one, "fp16", first) == pytest.approx(time(one, "fp16", last))


def test_a_bias_of_a_convolution_is_a_pass_of_its_own() -> None:
    without, with_bias = (
        roofline(
            nn.Conv2d(64, 64, 3, bias=bias),
            (64, 56, 56),
            batch_size=64,
            device="A100-SXM4-80GB",
            precision="fp16",
        )
        for bias in (False, True)
    )
    passes = 2 * 64 * 64 * 54 * 54 * 2 / (0.9 * 2039e9)
    # the bias is also read, which is next to nothing
    assert with_bias.total.time_estimate - without.total.time_estimate == pytest.approx(
        passes, abs=0.1 * passes + 2 * 27e-6
    )


def test_small_calls_are_limited_by_their_launch() -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(10)))
    assert roofline(model, (8,)).total.limiter == "launch"
    assert roofline(model, (8,)).time_estimate > 10 * 15e-6
    assert (
        roofline(model, (8,), compiled=True).time_estimate < roofline(model, (8,)).time_estimate / 5
    )


@pytest.mark.slow
def test_kernels_run_while_the_host_launches_others() -> None:
    """A long kernel hides the launches of short ones behind it."""
    small = nn.Sequential(*(nn.ReLU() for _ in range(10)))
    large = nn.Linear(8192, 8192, bias=False)
    together = roofline(
        Calls(lambda self, x: (self.big(x), self.tiny(x[:1])), big=large, tiny=small),
        (8192,),
        batch_size=4096,
    )
    alone = (
        roofline(large, (8192,), batch_size=4096).time_estimate
        + roofline(small, (8192,)).time_estimate
    )
    assert together.time_estimate < alone - 100e-6


def test_what_was_just_used_is_in_the_cache() -> None:
    """The second operator finds 4 MB in a cache of 48 MiB, and so does the third what that has made."""
    model = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    loads = roofline(model, (1000,), batch_size=1000, device="L4").operators
    assert loads[1].limiter in ("cache", "launch")
    assert loads[1].time_bound < 8e6 / 300e9 / 4
    large = roofline(model, (1000,), batch_size=100_000, device="L4").operators
    assert {each.limiter for each in large} == {"memory"}


def test_compiled_chains_pass_values_on_in_registers() -> None:
    """Of three pointwise operators the first reads, the last writes, and there is one launch."""
    model = nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.Tanh())
    eager, compiled = (
        roofline(model, (1000,), batch_size=4000, compiled=each) for each in (False, True)
    )
    size = 4_000_000 * 4
    assert [each.bytes_read + each.bytes_written for each in eager.operators] == [2 * size] * 3
    assert [(each.bytes_read, each.bytes_written) for each in compiled.operators] == [
        (size, 0),
        (0, 0),
        (0, size),
    ]
    assert compiled.time_bound == pytest.approx(
        eager.time_bound / 3, rel=0.02
    )  # besides some arithmetic


def test_compiled_what_is_used_elsewhere_is_written() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x.relu()
        return self.linear(y) + y.sigmoid()

    model = Calls(forward, linear=nn.Linear(64, 64))
    loads = roofline(model, (64,), batch_size=64, compiled=True).operators
    relu = next(each for each in loads if each.operator == "aten.relu")
    assert relu.bytes_written == 64 * 64 * 4


def moved(result: Roofline) -> dict[str, tuple[int, int]]:
    return {
        each.operator.removeprefix("aten."): (each.bytes_read, each.bytes_written)
        for each in result.operators
    }


@pytest.mark.parametrize("last", ["relu", "relu_"])
def test_compiled_what_the_model_returns_is_written(last: str) -> None:
    size = 64 * 64 * 4
    model = Calls(lambda _, x: getattr(x.sigmoid(), last)())
    result = roofline(model, (64,), batch_size=64, compiled=True)
    assert sum(written for _, written in moved(result).values()) >= size
    both = roofline(
        Calls(lambda _, x: ((y := x.relu()), y.sigmoid())), (64,), batch_size=64, compiled=True
    )
    assert moved(both) == {"relu": (size, size), "sigmoid": (0, size)}


def test_compiled_what_is_written_again_in_place_is_written_once() -> None:
    """The batch norm, the sum and the activation of a residual block are one kernel."""
    size = 8 * 16 * 32 * 32 * 4
    block = Calls(lambda s, x: F.relu(s.norm(x).add_(x), inplace=True), norm=nn.BatchNorm2d(16))
    result = roofline(block, (16, 32, 32), batch_size=8, compiled=True)
    assert sum(written for _, written in moved(result).values()) == size
    assert sum(read for read, _ in moved(result).values()) == pytest.approx(
        size, rel=0.01
    )  # and four numbers per channel


def test_compiled_results_that_nobody_reads_are_not_written() -> None:
    pool = nn.MaxPool2d(2)
    eager, compiled = (
        roofline(pool, (16, 32, 32), batch_size=8, compiled=each).operators[0]
        for each in (False, True)
    )
    assert eager.bytes_written == 8 * 16 * 16 * 16 * (4 + 8)  # and the place of each, an integer
    assert compiled.bytes_written == 8 * 16 * 16 * 16 * 4


def test_both_halves_of_a_rotary_embedding_are_one_kernel() -> None:
    """It reads numbers, cosines and sines once, and writes the rotated numbers."""

    def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        halves = first * cosines - second * sines, second * cosines + first * sines
        return torch.cat(halves, -1)

    x, angles = torch.zeros(64, 8, 128), torch.zeros(64, 1, 64)
    model = Calls(lambda _, *given: rotate(*given))
    result = analyze_roofline(
        model, args=(x, angles, angles.clone()), device="H100 SXM", compiled=True
    )
    assert sum(each.bytes_read for each in result.operators) == 4 * (x.numel() + 2 * angles.numel())
    assert sum(each.bytes_written for each in result.operators) == 4 * x.numel()


def test_compiled_operands_that_are_ready_do_not_end_a_kernel() -> None:
    """``exp`` of a parameter can run before everything else; a product of the first result cannot."""
    size, weight = 512 * 64 * 4, nn.Parameter(torch.ones(64))
    ready = Calls(lambda s, x: x.sigmoid() * s.weight.exp(), weight=weight)
    assert moved(roofline(ready, (64,), batch_size=512, compiled=True))["sigmoid"] == (size, 0)
    dependent = Calls(lambda s, x: (y := x.sigmoid()) * s.linear(y), linear=nn.Linear(64, 64))
    assert moved(roofline(dependent, (64,), batch_size=512, compiled=True))["sigmoid"] == (
        size,
        size,
    )


def test_compiled_calls_that_are_equal_run_once() -> None:
    """Two layers of the same sigmoid: it is computed once, and written once."""
    size = 512 * 64 * 4
    model = Calls(
        lambda s, x: s.first(x.sigmoid()) * s.second(x.sigmoid()),
        first=nn.Linear(64, 64, bias=False),
        second=nn.Linear(64, 64, bias=False),
    )
    result = roofline(model, (64,), batch_size=512, compiled=True)
    assert [each.operator for each in result.operators].count("aten.sigmoid") == 1
    assert moved(result)["sigmoid"] == (size, size)
    written = Calls(
        lambda s, x: s.first(x.sigmoid()) * s.first(x.mul_(2).sigmoid()),
        first=nn.Linear(64, 64, bias=False),
    )
    result = roofline(written, (64,), batch_size=512, compiled=True)
    assert [each.operator for each in result.operators].count("aten.sigmoid") == 2


@before("2.8", "a checkpoint imports the compiler, or does not show what it saves")
def test_compiled_reductions_are_kept_for_the_backward_pass() -> None:
    """A sum for each row is not computed again; with a checkpoint, everything is."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x.amax(-1, keepdim=True)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradients[0] * x.amax(-1, keepdim=True)

    def reductions(run: Callable[..., Tensor]) -> list[str]:
        model = Calls(lambda s, x: run(Twice.apply, s.layer(x)), layer=nn.Linear(64, 64))
        result = roofline(model, (64,), batch_size=512, compiled=True, training=True)
        return [each.phase for each in result.operators if each.operator == "aten.amax"]

    assert reductions(lambda call, x: call(x)) == ["forward"]
    assert reductions(partial(checkpoint, use_reentrant=False)) == ["forward", "backward"]


def test_compiled_conversions_take_place_where_they_are_read() -> None:
    """The wide copy of a half-precision result is not written, although a later kernel reads it."""
    size = 512 * 64 * 2
    model = Calls(
        lambda s, x: (wide := (y := x.sigmoid()).float()) * s.layer(y).float().exp() + wide,
        layer=nn.Linear(64, 64, bias=False, dtype=torch.float16),
    )
    result = roofline(model, (64,), torch.float16, batch_size=512, compiled=True)
    assert moved(result)["sigmoid"] == (size, size)
    assert sum(each.bytes_written for each in result.operators) == size + size + 2 * size


def test_compiled_bound_is_of_what_no_compiler_can_avoid() -> None:
    """Input, weights and result once, or the products: whatever lies between may stay on the chip."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    given_and_left = 4 * (2 * 4096 * 64 + 2 * 64 * 256 + 256 + 64)
    products = 2 * 2 * 4096 * 64 * 256
    result = roofline(model, (64,), batch_size=4096, compiled=True)
    assert result.time_bound == pytest.approx(max(given_and_left / 100e9, products / 10e12))
    assert result.time_bound == pytest.approx(sum(each.time_bound for each in result.operators))
    dropped = Calls(lambda s, x: (s.unread(x), x.relu())[1], unread=nn.Linear(64, 4096))
    assert roofline(dropped, (64,), batch_size=4096, compiled=True).time_bound == pytest.approx(
        2 * 4096 * 64 * 4 / 100e9
    )


def _compiled_conv(groups: int, layout: torch.memory_format, **options: Any) -> float:
    x = torch.zeros(64, 128, 56, 56, device="meta", dtype=torch.float16).to(memory_format=layout)
    model = nn.Conv2d(128, 128, 3, padding=1, bias=False, groups=groups).half()
    return roofline(model, args=(x,), compiled=True, **options).time_estimate


@pytest.mark.parametrize("options", [{}, {"training": True}])
def test_a_compiler_lays_images_out_channels_last(options: dict[str, Any]) -> None:
    """But for groups of more than one channel, which it has found to take longer so: their operands are turned and back."""
    plain, grouped = (
        {
            layout: _compiled_conv(groups, layout, **options)
            for layout in (torch.contiguous_format, torch.channels_last)
        }
        for groups in (1, 2)
    )
    assert plain[torch.contiguous_format] == pytest.approx(plain[torch.channels_last], rel=0.01)
    assert grouped[torch.contiguous_format] > 1.1 * grouped[torch.channels_last]


def test_compiled_sums_over_images_are_kernels_of_their_own() -> None:
    """The result of the activation is written and read: 3 passes through memory, and 2 of rows, which are summed at once."""
    image, row = meta_roofline((16, 64, 64, 64), (2, 3)), meta_roofline((16, 64, 64, 64), (3,))
    assert image == pytest.approx(3 / 2 * row, rel=0.02)


def meta_roofline(shape: tuple[int, ...], dims: tuple[int, ...]) -> float:
    """Bytes that a compiled activation and its mean move, in seconds."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.sigmoid(x)
            return y, y.mean(dims)

    return roofline(Model(), args=(torch.zeros(shape, device="meta"),), compiled=True).time_estimate


def test_compiled_bound_leaves_out_what_the_cache_may_hold() -> None:
    size = 4 * 64 * 1024**2  # bytes, of which an RTX 4090 has 72 MiB of cache
    result = roofline(nn.ReLU(), (1024, 1024), batch_size=64, device="RTX 4090", compiled=True)
    assert result.time_bound == pytest.approx((2 * size - 72 * 1024**2) / 1008e9, rel=0.01)


def test_batch_norms_with_statistics_take_longer_channel_by_channel() -> None:
    """1.7 and 2.2 times what two readings and a writing take; channels-last they are as quick as any normalisation."""

    def step(layout: torch.memory_format) -> dict[str, float]:
        model = Calls(
            lambda s, x: s.norm(x.contiguous(memory_format=layout)), norm=nn.BatchNorm2d(64)
        )
        result = roofline(model, (64, 64, 64), batch_size=64, training=True)
        return {
            each.operator.removeprefix("aten."): each.time_estimate for each in result.operators
        }

    plain, last = step(torch.contiguous_format), step(torch.channels_last)
    assert plain["native_batch_norm"] / last["native_batch_norm"] == pytest.approx(1.7, rel=0.05)
    assert plain["native_batch_norm_backward"] / last[
        "native_batch_norm_backward"
    ] == pytest.approx(2.6, rel=0.05)


def test_compiled_each_part_of_a_tensor_is_read() -> None:
    """As in gated units: both halves."""
    model = Calls(lambda _, x: x[:, :32] * x[:, 32:].sigmoid())
    result = roofline(model, (64,), batch_size=64, compiled=True)
    assert sum(read for read, _ in moved(result).values()) == 64 * 64 * 4


def test_compiled_a_sum_over_everything_ends_a_kernel_and_one_over_rows_does_not() -> None:
    def launches(model: nn.Module) -> int:
        result = roofline(model, (64, 64), batch_size=64, compiled=True)
        return sum(each.bytes_read >= 64 * 64 * 64 * 4 for each in result.operators)

    assert launches(Calls(lambda _, x: x - x.mean(-1, keepdim=True))) == 1
    assert launches(Calls(lambda _, x: x - x.mean((0, 1), keepdim=True))) == 2


def test_compiled_work_of_one_kernel_overlaps() -> None:
    """Its bound is the larger of all arithmetic and all traffic, not the sum of what is larger in each operator."""
    gelus = [nn.GELU("tanh") for _ in range(20)]
    result = roofline(
        nn.Sequential(nn.ReLU(), *gelus, nn.ReLU()), (1000,), batch_size=4000, compiled=True
    )
    flops, moving = 4_000_000 * (2 + 20 * 14) / 10e12, 2 * 4_000_000 * 4 / 100e9
    assert result.time_bound == pytest.approx(max(flops, moving))


def test_compiled_what_a_chain_finds_in_the_cache_is_all_that_it_moves() -> None:
    """4 MB read and written by one kernel or by three of them together, in a cache of 48 MiB."""
    one, three = (
        roofline(
            nn.Sequential(*(nn.ReLU() for _ in range(count))),
            (1000,),
            batch_size=1000,
            device="L4",
            compiled=True,
        )
        for count in (1, 3)
    )
    assert three.time_bound == pytest.approx(one.time_bound)


def test_compiled_products_stay_kernels_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    loads = roofline(model, (64,), batch_size=64, compiled=True).operators
    assert [each.bytes_written for each in loads if each.operator != "aten.t"] == [64 * 64 * 4] * 3


def test_interpolation_that_loops_over_samples_and_channels_takes_its_time() -> None:
    """196 threads go through 1024 · 160 planes, 0.29 µs each."""
    result = roofline(
        nn.Upsample(scale_factor=2, mode="bilinear"),
        (160, 7, 7),
        batch_size=1024,
        device="RTX 3090",
    )
    assert result.time_estimate > 1024 * 160 * 0.29e-6


@pytest.mark.slow
def test_power_limits_small_cards_with_many_units() -> None:
    """An L4 has 72 W for 121 TFLOP/s, an RTX 3090 350 W for 71."""

    def share(device: str) -> float:
        load = only(
            roofline(
                nn.Linear(16384, 16384, bias=False, device="meta"),
                (16384,),
                batch_size=16384,
                device=device,
                precision="fp16",
            ),
            "mm",
        )
        return load.time_bound / load.time_estimate

    assert share("L4") < 0.75
    assert share("RTX 3090") > 0.9


def test_a_causal_mask_leaves_out_half() -> None:
    """The MACs are dense by convention; what lies beyond the diagonal is not computed."""

    def attend(*, is_causal: bool) -> OperatorLoad:
        model = Calls(lambda _, x: F.scaled_dot_product_attention(x, x, x, is_causal=is_causal))
        x = torch.zeros(4, 8, 4096, 64, dtype=torch.float16, device="meta")
        return only(roofline(model, args=(x,)), "_scaled_dot_product_flash_attention")

    dense, causal = attend(is_causal=False), attend(is_causal=True)
    assert dense.macs == causal.macs
    assert causal.time_bound == pytest.approx(dense.time_bound * 4097 / 8192)
    assert 0.5 < causal.time_estimate / dense.time_estimate < 0.6


def test_cards_without_flash_attention_take_another_kernel() -> None:
    kinds = [
        roofline(Attention(), (128, 64), device=device, precision="fp16").by_kind
        for device in ("T4", "NVIDIA A10")
    ]
    names = [next(name for name in each if "attention" in name) for each in kinds]
    assert names == [
        "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_flash_attention",
    ]


@pytest.mark.slow
def test_products_with_few_rows_stream_their_weight() -> None:
    """As in decoding: one token at a time, 117 MB of weight at 78 % of 2039 GB/s, after a chain."""
    layer = nn.Linear(4096, 14336, bias=False)
    load = only(
        roofline(layer, (4096,), device="A100-SXM4-80GB", precision="bf16", compiled=True), "mm"
    )
    assert load.limiter == "memory"
    streamed = 2 * 4096 * 14336 / (0.9 * 0.93 * 2039e9)
    launched = 5e-6 + 2.1e-6  # by the host, then on the device
    expected = streamed + 2 * 2600 / 1.41e9 + launched
    assert load.time_estimate == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_step_of_a_recurrent_layer_waits_for_the_one_before(
    batch_first: bool, training: bool
) -> None:
    """200 steps, whichever dimension they are: at least 5 µs each."""
    shape = (4, 200, 32) if batch_first else (200, 4, 32)
    layer = nn.LSTM(32, 32, batch_first=batch_first)
    options: dict[str, Any] = (
        {"training": True, "loss": lambda out: out[0].sum()} if training else {}
    )
    result = roofline(layer, args=(torch.zeros(shape),), device="H200", **options)
    kinds = [each for name, each in result.by_kind.items() if "rnn" in name]
    assert len(kinds) == 1 + training
    assert all(200 * 5e-6 <= each.time_estimate < 800 * 5e-6 for each in kinds)


def test_depthwise_and_grouped_convolutions_are_not_as_fast_as_full_ones() -> None:
    """With as many MACs: 64 channels with all, in groups of 4, or one by one with more places."""

    def time(groups: int, side: int) -> float:
        layer = nn.Conv2d(64, 64, 3, padding=1, groups=groups, bias=False)
        load = only(
            roofline(
                layer, (64, side, side), batch_size=64, device="A100-SXM4-80GB", precision="fp16"
            ),
            "convolution",
        )
        return load.time_estimate / load.macs

    assert time(1, 28) < time(16, 112) < time(64, 224)


def test_both_gradients_of_a_depthwise_convolution_take_as_long_as_its_result() -> None:
    model = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
    x = torch.zeros(64, 64, 112, 112, requires_grad=True, device="meta")
    kinds = roofline(
        model, args=(x,), device="RTX 3090", precision="fp16-mixed", training=True
    ).by_kind
    forward, backward = (
        kinds[f"aten.convolution{each}"].time_estimate for each in ("", "_backward")
    )
    assert backward == pytest.approx(2 * forward, rel=0.1)


def test_statistics_of_a_batch_are_a_pass_of_their_own() -> None:
    norm = nn.BatchNorm2d(64)
    evaluating, training = (
        roofline(norm, (64, 56, 56), batch_size=64, mode=mode).total.time_estimate
        for mode in ("eval", "train")
    )
    assert training > 1.4 * evaluating


def test_nothing_uses_more_of_the_memory_than_there_is() -> None:
    for device in ("L4", "RTX 4090"):
        result = roofline(
            nn.Sequential(*(nn.ReLU() for _ in range(50))), (1000,), batch_size=1000, device=device
        )
        assert 0 < result.memory_utilization <= 1


def test_what_is_written_and_kept_has_to_leave_the_cache() -> None:
    """300 results of 16 MiB, all alive at the end, through a cache of 72 MiB: 5 ms of a memory with 1008 GB/s."""
    model = Calls(lambda _, x: [x * (number + 1) for number in range(300)])
    result = roofline(model, (2**22,), device="RTX 4090")
    assert result.time_bound > 299 * 2**24 / 1008e9


def test_a_part_of_a_tensor_is_in_the_cache_because_all_of_it_was_used() -> None:
    """Half of 32 MiB that were just written, in a cache of 72 MiB: the 16 MiB of its result alone are for the memory."""
    model = Calls(lambda _, x: x.relu()[: 2**22].exp())
    load = only(
        roofline(model, args=(torch.zeros(2**23, device="meta"),), device="RTX 4090"), "exp"
    )
    assert load.time_bound == pytest.approx(2**24 / 1008e9)


def test_another_part_of_a_tensor_is_not_in_the_cache_because_one_was_used() -> None:
    model = Calls(lambda _, x: [x[number] * 2 for number in range(64)])
    result = roofline(model, args=(torch.zeros(64, 2**20, device="meta"),), device="L4")
    assert result.time_bound > 2 * 64 * 2**22 / 300e9 * 0.99


@pytest.mark.parametrize(("size", "expected"), [(31, 0), (32, 12)])
def test_what_fits_exactly_is_in_the_cache(size: int, expected: int) -> None:
    """A pass uses 24 bytes, an input and its result of 12 each: three quarters of 32."""
    assert bytes_in_cache(record(nn.ReLU(), (3,)), size, [12]) == [(expected, 0)]


def test_what_is_not_modelled_is_said() -> None:
    result = roofline(Calls(lambda _, x: torch.linalg.eigh(x @ x.mT)[0]), (16, 16))
    assert any(each.code == "kernels-not-modeled" for each in result.warnings)


@pytest.mark.parametrize("device", ["TPU v5e", "Gaudi2", "Apple M2"])
def test_devices_of_which_less_is_known_give_plain_figures_too(device: str) -> None:
    result = roofline(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).bfloat16(), (8,), device=device)
    json.dumps(result.to_dict(), allow_nan=False)
    assert all(each.time_bound > 0 for each in result.operators)


@needs("backends.cudnn.conv")
def test_torchs_switches_decide_where_the_model_is_as_it_is() -> None:
    """The new ones, after which the old ones cannot be read any more."""
    switch: Any = torch.backends.cuda.matmul
    before = switch.fp32_precision
    try:
        switch.fp32_precision = "tf32"
        assert only(roofline(nn.Linear(8, 8), (8,)), "addmm").precision == "tf32"
        assert only(roofline(nn.Linear(8, 8), (8,), precision="fp32"), "addmm").precision == "fp32"
    finally:
        switch.fp32_precision = before


def test_inputs_keep_their_gradients_in_another_precision() -> None:
    x = torch.ones(8, 8, requires_grad=True)
    result = roofline(
        Calls(lambda _, x: x * x), args=(x,), training=True, loss=torch.sum, precision="bf16"
    )
    assert "backward" in result.time_by_phase


# -- questions that have no answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "RTX 3099"}, "is not known: give a name like NVIDIA GeForce RTX 3090"),
        ({"device": "24 GiB"}, "are not known: give a device"),
        ({"precision": "fp12"}, "give one of 'fp32'"),
        ({"device": "V100-SXM2-32GB", "precision": "bf16"}, "has no bf16: give fp32, fp16"),
        ({"device": "V100-SXM2-32GB", "precision": "bf16-mixed"}, "has no bf16"),
        ({"precision": "fp8", "device": "A100-SXM4-80GB"}, "has no fp8"),
        ({"loss": torch.sum}, "give training=True"),
    ],
)
def test_bad_questions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        roofline(nn.Linear(4, 4), (4,), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_card_one_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="torchscan devices --measure"):
        analyze_roofline(nn.Linear(4, 4), (4,))


def test_what_does_not_fit_is_said_beside_the_result() -> None:
    with pytest.warns(UserWarning, match="does not fit on a round card: it needs"):
        result = roofline(nn.ReLU(), (2**20,), batch_size=2**14)
    assert result.warnings
    assert result.time_estimate > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not roofline(nn.ReLU(), (2**20,)).warnings


def test_figures_from_memory_are_named() -> None:
    assert any(
        each.code == "unverified-values"
        for each in roofline(nn.Linear(8, 8), (8,), device="RTX 3090").assumptions
    )
    (note,) = roofline(nn.Linear(8, 8), (8,), device="H200", precision="bf16").assumptions
    # its peak does not last with this power
    assert note == Note.of("unverified-values", device="NVIDIA H200", values=["power_w"])
    assert not roofline(nn.Linear(8, 8), (8,)).assumptions


def test_a_format_that_a_device_has_no_rate_for_is_assumed_and_said() -> None:
    model = nn.Linear(8, 8).double()
    result = roofline(model, (8,))
    assert any("no fp64 rate is known" in str(each) for each in result.assumptions)


@pytest.mark.slow
def test_half_precision_that_no_data_sheet_tells_of_is_as_fast_as_single() -> None:
    register_device("an old card", memory_gb=64, bandwidth_gbs=100, dense_tflops={"fp32": 10})
    for dtype in (torch.float16, torch.bfloat16):
        layer = nn.Linear(4096, 4096, bias=False).to(dtype)
        load = only(roofline(layer, (4096,), batch_size=4096, device="an old card"), "mm")
        assert load.time_bound == pytest.approx(2 * 4096**3 / 10e12)


def test_double_precision_that_no_data_sheet_tells_of_is_a_64th_of_single() -> None:
    """2·4096³ FLOPs at 10/64 TFLOP/s."""
    load = only(
        roofline(nn.Linear(4096, 4096, bias=False).double(), (4096,), batch_size=4096), "mm"
    )
    assert load.limiter == "compute"
    assert load.time_bound == pytest.approx(2 * 4096**3 / (10e12 / 64))


@pytest.mark.parametrize(
    ("rates", "rate"),
    [({}, 10e12 / 64), ({"fp64": 0.5}, 0.5e12), ({"fp64": 0.5, "fp64_tc": 5}, 0.5e12)],
)
def test_arithmetic_in_double_precision_has_a_rate_of_its_own(
    rates: dict[str, float], rate: float
) -> None:
    """Mish is 11 FLOPs per element, on the vector units: none of it is done by those for products of matrices."""
    register_device(
        "a wide card", memory_gb=64, bandwidth_gbs=4000, dense_tflops={"fp32": 10} | rates
    )
    load = only(roofline(nn.Mish(), (2**24,), device="a wide card", dtype=torch.float64), "mish")
    assert load.limiter == "compute"
    assert load.time_bound == pytest.approx(11 * 2**24 / rate)


@pytest.mark.parametrize(
    ("trained", "training"),
    [(["query"], True), (["query", "key"], True), (["query", "key"], False)],
)
def test_attention_keeps_what_the_backward_pass_of_any_operand_needs(
    trained: list[str], training: bool
) -> None:
    """Besides 4·64·32 results the kernel writes its random state, two integers, and for a gradient one number per row."""
    layers = {name: nn.Linear(32, 32).requires_grad_(name in trained) for name in ("query", "key")}

    def attend(net: Any, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            net.query(x)[:, None], net.key(x)[:, None], x[:, None]
        )

    load = only(
        roofline(Calls(attend, **layers), (64, 32), batch_size=4, device="T4", training=training),
        "_scaled_dot_product_efficient_attention",
    )
    assert load.bytes_written == 4 * 64 * 32 * 4 + 2 * 8 + (4 * 64 * 4 if training else 0)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_a_plain_recurrent_layer_keeps_one_gate_of_each_step_on_a_gpu(nonlinearity: str) -> None:
    """2 steps of 5 sequences and 3 units: 30 outputs, 15 last states, and for the gradient a gate, a cell and an output: 90."""
    step = roofline(nn.RNN(7, 3, nonlinearity=nonlinearity), (5, 7), batch_size=2, training=True)
    assert only(step, "_cudnn_rnn").bytes_written == 4 * (30 + 15 + 90)


def test_the_model_is_as_before() -> None:
    model = Nested()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    roofline(model, (3, 32, 32), training=True, optimizer="AdamW", precision="bf16")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(each.grad is None for each in model.parameters())


# -- published -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "resnet50",
        "vit_base_patch16_224",
        "efficientnet_b0",
        "swin_tiny_patch4_window7_224",
        "vgg11",
    ],
)
def test_measured_step_times(name: str, truth: Callable[[str], Path]) -> None:
    """One of each kind; of the whole table scripts/benchmark --roofline tells."""
    pytest.importorskip("tests.torchvision_cpu")
    timm = pytest.importorskip("timm")
    rows = [line.split(",") for line in truth("throughput_rtx3090.csv").read_text().splitlines()]
    batch, milliseconds = next(
        (int(row[2]), float(row[3])) for row in rows if row[0] == name and row[1] == "224"
    )
    with torch.device("meta"):
        model = timm.create_model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the activations of some are kept in one block too many
        result = roofline(
            model, (3, 224, 224), device="RTX 3090", precision="fp16-mixed", batch_size=batch
        )
    assert 1000 * result.time_estimate == pytest.approx(milliseconds, rel=0.12)


def test_kinds_of_operators_come_with_the_slowest_first() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(512, 4096), nn.Tanh(), nn.Linear(4096, 512))
    kinds = analyze_roofline(model, (512,), batch_size=64, device="H200").by_kind
    times = [each.time_estimate for each in kinds.values()]
    assert len(times) == 3
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("layer", "shape", "operator", "precision"),
    [
        (nn.LSTM(64, 64), (8, 1, 64), "aten._cudnn_rnn", "tf32"),
        (nn.Linear(64, 64), (8, 64), "aten.addmm", "fp32"),
    ],
)
def test_recurrent_layers_have_a_precision_of_their_own(
    layer: nn.Module, shape: Any, operator: str, precision: str
) -> None:
    """By default torch lets cuDNN shorten numbers, and products not."""
    loads = analyze_roofline(
        layer, args=(torch.zeros(shape),), device="H200", training=True
    ).operators
    assert {each.precision for each in loads if each.operator == operator} == {precision}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of importing its compiler
def test_a_compiled_model_is_estimated_compiled() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    given = roofline(torch.compile(model), (64,), batch_size=4096)  # type: ignore[arg-type]
    assert given.compiled
    assert (
        given.time_estimate == roofline(model, (64,), batch_size=4096, compiled=True).time_estimate
    )


# -- ranges --------------------------------------------------------------------------------------------------------------


def image_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(64, 256, 3), nn.ReLU(), nn.Conv2d(256, 64, 3))


def spread(model: nn.Module, device: str, **options: Any) -> Roofline:
    return analyze_roofline(
        model,
        (64, 112, 112),
        batch_size=64,
        device=device,
        **{"precision": "fp16-mixed", **options},
    )


@pytest.mark.parametrize(
    ("device", "options", "mode"),
    [
        ("RTX 3090", {}, "eager"),
        ("RTX 4090", {}, "eager"),
        ("RTX 4090", {"compiled": True}, "compiled"),
        ("RTX 3090", {"training": True}, "training"),
    ],
)
def test_where_such_models_were_compared_the_range_is_theirs(
    device: str, options: dict[str, Any], mode: str
) -> None:
    result = spread(image_model(), device, **options)
    (known,) = (
        each
        for each in COMPARED
        if (device in each.gpu, each.mode, each.kind) == (True, mode, "convolutions")
    )
    assert result.error_margin.share == known.share
    assert result.error_margin.reason.values["models"] == known.models
    low, high = result.time_range
    assert low == pytest.approx(max(result.time_bound, (1 - known.share) * result.time_estimate))
    assert high == pytest.approx((1 + known.share) * result.time_estimate)


@pytest.mark.parametrize(
    ("device", "options", "share"),
    [
        ("RTX 4090", {"training": True}, 0.4),  # steps were measured on another card
        ("RTX 3090", {"training": True, "compiled": True}, 0.4),
        ("RTX 3090", {"precision": "fp32"}, 0.4),
        ("H100 SXM", {}, 0.4),
        ("MI300X", {}, 0.5),
        (ROUND, {}, 0.5),
    ],
)
def test_elsewhere_it_is_a_guess_and_says_so(
    device: str, options: dict[str, Any], share: float
) -> None:
    result = spread(image_model(), device, **options)
    assert result.error_margin.share == pytest.approx(share, abs=0.03)
    assert result.error_margin.reason.code != "validated"


def test_one_small_layer_in_16_bits_makes_no_compared_pass() -> None:
    body, head = nn.Linear(4096, 4096), nn.Linear(4096, 16).bfloat16()
    model = Calls(lambda s, x: s.last(s.first(x).bfloat16()), first=body, last=head)
    result = analyze_roofline(model, (4096,), batch_size=8192, device="RTX 3090")
    assert result.error_margin.share == pytest.approx(0.4, abs=0.01)


def test_a_pass_without_products_was_not_compared() -> None:
    result = analyze_roofline(nn.Sigmoid(), (2**20,), batch_size=64, device="RTX 3090")
    assert result.error_margin.reason.code != "validated"


def test_what_waits_for_launches_may_be_half_as_long_again() -> None:
    """Nothing but launches, which depend on the host."""
    result = analyze_roofline(
        nn.Sequential(*(nn.Linear(16, 16) for _ in range(50))),
        (16,),
        device="RTX 3090",
        precision="fp16",
    )
    assert result.error_margin.share == pytest.approx(0.5, abs=0.01)
    assert result.error_margin.reason.code == "launches-not-validated"
    assert "launches take 100 % of the time (± 50 %)" in str(result.error_margin.reason)


def test_models_without_convolutions_were_not_compared() -> None:
    result = analyze_roofline(
        nn.Linear(4096, 4096), (4096,), batch_size=8192, device="RTX 3090", precision="fp16-mixed"
    )
    assert result.error_margin.share == pytest.approx(0.4, abs=0.01)
    assert result.error_margin.reason.values["missing"] == "convolutions"


def attending(*, device: str = "H100", **options: Any) -> Roofline:
    """Return the roofline of a layer with attention of 4,096 tokens in bf16."""

    def attend(states: Any, x: Tensor) -> Tensor:
        heads = states.joined(x).view(*x.shape[:2], 3, 16, 128).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = states.out(found.transpose(1, 2).flatten(2))
        return mixed

    model = Calls(attend, joined=nn.Linear(2048, 3 * 2048), out=nn.Linear(2048, 2048))
    shape = (4096, 2048)
    return analyze_roofline(
        model.bfloat16(), shape, torch.bfloat16, batch_size=8, device=device, **options
    )


@pytest.mark.parametrize(("is_float8", "bits"), [(False, 16), (True, 8)])
def test_training_of_language_models_has_the_range_of_published_steps(
    is_float8: bool, bits: int
) -> None:
    options: dict[str, Any] = {"float8": "tensorwise", "compiled": True} if is_float8 else {}
    margin = attending(training=True, **options).error_margin
    (known,) = (each for each in TRAINED if each.is_float8 == is_float8)
    assert margin.share == known.share
    assert margin.reason.code == "training-validated"
    assert f"training steps of language models in {bits} bits" in str(margin.reason)


@pytest.mark.slow
def test_inference_and_other_gpus_have_no_published_steps() -> None:
    for result in (attending(), attending(device="L40S", training=True)):
        assert result.error_margin.reason.code == "not-validated"


def test_the_range_begins_no_lower_than_the_bound() -> None:
    result = spread(image_model(), "MI300X")
    assert result.time_bound <= result.time_range[0] < result.time_estimate < result.time_range[1]


def test_optimizers_are_not_compiled() -> None:
    """Kernels for lists of tensors have no results, and write to their operands all the same."""
    layer = nn.Linear(1024, 1024, device="meta")
    moved = []
    for compiled in (False, True):
        result = analyze_roofline(
            layer, (1024,), training=True, optimizer="AdamW", device="A100", compiled=compiled
        )
        calls = [each for each in result.operators if each.phase == "optimizer"]
        moved.append(sum(each.bytes_read + each.bytes_written for each in calls))
    assert moved[0] == moved[1]


def test_a_kernel_does_not_reduce_rows_and_columns() -> None:
    """Both sums are computed from the product: the second kernel reads it again."""

    class Sums(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            doubled = 2 * x
            return doubled.sum(-1), doubled.sum(0)

    x = torch.empty(4096, 4096, device="meta")
    result = analyze_roofline(Sums(), args=(x,), device="A100", compiled=True)
    assert sum(each.bytes_read for each in result.operators) >= 2 * x.nbytes
