"""Kernels that read rows again, load elements one by one or take turns, by hand.

A card has 100 multiprocessors at 1 GHz, which move 100 GB/s and compute in no time; kernels stream
at 90 GB/s. Of another card, only the cycles of multiprocessors take time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.torch_version import TorchVersion

from tests.recording.test_record import Calls
from tests.versions import before
from torchscan import analyze_roofline, register_device
from torchscan.hardware import device_catalog

MEMORY, CACHED, CYCLES = "a slow memory", "a slow memory with a cache", "slow multiprocessors"
#: bytes per second of kernels that stream, and of the second-level cache: 0.3 of 64 per cycle
STREAMED, FROM_CACHE = 90e9, 0.3 * 64 * 100 * 1e9
CYCLE = 1 / (100 * 1e9)
is_new = TorchVersion(torch.__version__) >= "2.8"


@pytest.fixture(autouse=True)
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_catalog, "_registered", {})
    common: dict[str, Any] = {"memory_gb": 1000, "multiprocessors": 100, "boost_mhz": 1000}
    common["dense_tflops"] = {"fp32": 1e12, "fp16": 1e12, "bf16": 1e12}
    register_device(MEMORY, bandwidth_gbs=100, **common)
    register_device(CACHED, bandwidth_gbs=100, l2_mb=128, **common)
    register_device(CYCLES, bandwidth_gbs=1e12, arch="Ampere GA100", **common)


def meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def places(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.long, device="meta")


def seconds(
    device: str, operator: str, call: Callable[..., Any], *args: Any, training: bool = False
) -> float:
    """Return the time of one operator. Launches are less than a thousandth of it."""
    model = Calls(lambda _, *given: call(*given))
    result = analyze_roofline(model, args=args, device=device, training=training, progress=False)
    return result.by_kind[f"aten.{operator}"].time_estimate


def about(value: float) -> Any:
    return pytest.approx(value, rel=3e-3)


def size_of(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# -- rows that are read again --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "rows", "length", "again"),
    [
        (MEMORY, 400_000, 1024, 0),  # in the registers of a warp
        (MEMORY, 60_000, 8192, 0),  # in shared memory
        (MEMORY, 30_000, 16384, 0),  # two rows of 64 KiB fit into the first-level cache
        (MEMORY, 6_000, 131072, 2),  # two rows of 512 KiB do not
        (CACHED, 6_000, 131072, 2),  # 200 of them are more than half of 128 MiB
    ],
)
def test_a_softmax_reads_long_rows_three_times(
    device: str, rows: int, length: int, again: int
) -> None:
    x = meta(rows, length)
    for function, name in ((F.softmax, "_softmax"), (F.log_softmax, "_log_softmax")):
        time = seconds(device, name, lambda x, call=function: call(x, -1), x)
        assert time == about((2 + again) * size_of(x) / STREAMED)


def test_rows_that_are_read_again_come_from_the_second_level_cache_if_it_holds_them() -> None:
    """There are 200 rows of 256 KiB at a time, which are 50 of 128 MiB."""
    x = meta(12_000, 65536)
    time = seconds(CACHED, "_log_softmax", lambda x: F.log_softmax(x, -1), x)
    assert time == about(2 * size_of(x) / STREAMED + 2 * size_of(x) / FROM_CACHE)


def test_few_rows_are_fewer_at_a_time() -> None:
    """Of 100 rows of 1 MiB each multiprocessor has one: more than half of the cache of 128 MiB."""
    short, long = meta(100, 131072), meta(100, 262144)
    from_cache = seconds(CACHED, "_log_softmax", lambda x: F.log_softmax(x, -1), short)
    from_memory = seconds(CACHED, "_log_softmax", lambda x: F.log_softmax(x, -1), long)
    assert from_memory - 4 * size_of(long) / STREAMED == pytest.approx(25e-6, abs=2e-6)
    assert from_cache < 3 * size_of(short) / STREAMED


@pytest.mark.parametrize(
    ("function", "name", "passes"),
    [(F.log_softmax, "_log_softmax", 4), (F.softmax, "_softmax", 5)],
)
def test_the_gradient_of_a_softmax_reads_long_rows_twice(
    function: Callable[..., Tensor], name: str, passes: int
) -> None:
    """Of a logarithm, that is the gradient alone: its sum does not need the result."""
    x = meta(6_000, 131072, grad=True)
    time = seconds(MEMORY, f"{name}_backward_data", lambda x: function(x, -1), x, training=True)
    assert time == about(passes * size_of(x) / STREAMED)


@pytest.mark.parametrize(("length", "passes"), [(1024, 2), (16384, 3)])
def test_a_layer_norm_reads_long_rows_twice(length: int, passes: int) -> None:
    """16 rows of 4 KiB fit into the first-level cache of a multiprocessor, of 64 KiB they do not."""
    x = meta(40_000_000 // length * 16, length)
    time = seconds(MEMORY, "native_layer_norm", lambda x: F.layer_norm(x, (length,)), x)
    assert time == about(passes * size_of(x) / STREAMED)


@pytest.mark.parametrize(("has_weight", "passes"), [(True, 7), (False, 5)])
def test_the_gradient_of_a_layer_norm_is_two_kernels_that_read_both(
    has_weight: bool, passes: int
) -> None:
    """One reads long rows of gradient and input twice and writes; weights take another pass."""
    x = meta(40_000, 16384, grad=True)
    weights = (meta(16384, grad=True), meta(16384, grad=True)) if has_weight else ()
    time = seconds(
        MEMORY,
        "native_layer_norm_backward",
        lambda x, *weights: F.layer_norm(x, (16384,), *weights),
        x,
        *weights,
        training=True,
    )
    assert time == about(passes * size_of(x) / STREAMED)


# -- losses --------------------------------------------------------------------------------------


def test_a_single_block_adds_up_the_losses_of_rows() -> None:
    """Each turn of its threads takes 1.05 µs: 32 threads before torch 2.8, 1024 since."""
    rows = 2**25
    scores, targets = meta(rows, 2), places(rows)
    threads = 1024 if is_new else 32
    turns = rows / threads * 1.05e-6
    read = (8 + 4) * rows / STREAMED
    assert seconds(MEMORY, "nll_loss_forward", F.nll_loss, scores, targets) == about(turns + read)


@pytest.mark.skipif(not is_new, reason="32 threads, whatever the number of rows")
@pytest.mark.parametrize(("rows", "turns"), [(512, 16), (4096, 16), (1_000_000, 977)])
def test_the_block_has_a_thread_for_sixteen_rows(rows: int, turns: int) -> None:
    time = seconds(CYCLES, "nll_loss_forward", F.nll_loss, meta(rows, 2), places(rows))
    assert time == pytest.approx(turns * 1.05e-6 + 25e-6, rel=1e-3)


def test_losses_that_are_not_reduced_stream() -> None:
    rows = 2**28
    time = seconds(
        MEMORY,
        "nll_loss_forward",
        lambda x, y: F.nll_loss(x, y, reduction="none"),
        meta(rows, 2),
        places(rows),
    )
    assert time == about((8 + 4 + 4) * rows / STREAMED)


def test_the_gradient_of_a_loss_is_zeros_and_reads_no_score() -> None:
    scores, targets = meta(100_000, 10_000, grad=True), places(100_000)
    time = seconds(MEMORY, "nll_loss_backward", F.nll_loss, scores, targets, training=True)
    assert time == about(size_of(scores) / STREAMED)


# -- elements ------------------------------------------------------------------------------------

WIDE = (20_000, 100_000)


@pytest.mark.parametrize(
    ("operator", "call", "count"),
    [
        ("_to_copy", lambda x: x.to(torch.float64), 1),
        ("_to_copy", lambda x: x.to(torch.bfloat16), 0),
        ("_to_copy", lambda x: x.t().to(torch.float16, memory_format=torch.contiguous_format), 1),
        ("mul", lambda x: x * x[:, :1], 1),
        ("add", lambda x: x + x.reshape(WIDE[1], WIDE[0]).t(), 1),
        ("neg", lambda x: -x[:, ::2], 0.5),
        ("add", lambda x: x + x, 0),
        ("mul", lambda x: x * 2.0, 0),
        ("neg", lambda x: -x.t(), 0),
    ],
)
def test_kernels_that_cast_broadcast_or_reorder_load_one_element_at_a_time(
    operator: str, call: Callable[[Tensor], Tensor], count: float
) -> None:
    """That takes 0.72 cycles of a GA100."""
    x = meta(*WIDE)
    expected = count * x.numel() * 0.72 * CYCLE
    assert seconds(CYCLES, operator, call, x) == pytest.approx(expected, rel=3e-3, abs=1e-4)


def test_lists_of_tensors_in_16_bits_have_few_bytes_on_their_way() -> None:
    """As on an H100: 16.7 bytes in a cycle with several lists that are read, and 11.2 with one."""
    model = torch.nn.Linear(50_000, 20_000, bias=False, device="meta", dtype=torch.bfloat16)
    x = meta(1, 50_000, dtype=torch.bfloat16)
    result = analyze_roofline(model, args=(x,), device=CYCLES, training=True, optimizer="AdamW")
    times = {each.operator: each.time_estimate for each in result.operators}
    size = size_of(model.weight)
    assert times["aten._foreach_lerp_"] == about(3 * size / 16.7 * CYCLE)
    assert times["aten._foreach_sqrt"] == about(2 * size / 11.2 * CYCLE)


def test_an_optimizer_in_8_bits_searches_its_states() -> None:
    """3.4 cycles for each of AdamW's two states."""
    model = torch.nn.Linear(50_000, 20_000, bias=False, device="meta")
    x = meta(1, 50_000)
    result = analyze_roofline(model, args=(x,), device=CYCLES, training=True, optimizer="AdamW8bit")
    update = result.operators[-1]
    assert update.operator == "torchscan.optimizer_update_8bit_blockwise"
    assert update.time_estimate == about(2 * 3.4 * model.weight.numel() * CYCLE)


def test_a_group_norm_updates_its_statistics_element_by_element() -> None:
    """0.65 cycles, and then the cycles of a broadcast."""
    x = meta(1000, 64, 200, 200)
    time = seconds(CYCLES, "native_group_norm", lambda x: F.group_norm(x, 8), x)
    assert time == about((0.65 + 0.72) * x.numel() * CYCLE)


def test_the_statistics_of_a_group_norm_take_no_less_than_their_traffic() -> None:
    x = meta(100, 64, 200, 200)
    time = seconds(MEMORY, "native_group_norm", lambda x: F.group_norm(x, 8), x)
    assert time == about(3 * size_of(x) / STREAMED)


def test_rows_of_a_table_are_picked_by_division_before_torch_2_8() -> None:
    table, positions = meta(50_000, 4096), places(500_000)
    cycles = 0 if is_new else 1.9
    time = seconds(CYCLES, "embedding", F.embedding, positions, table)
    assert time == pytest.approx(cycles * 500_000 * 4096 * CYCLE, rel=3e-3, abs=1e-4)


@before("2.9", "the gradient is made by other operators")
def test_the_gradient_of_a_slice_is_zeros_into_which_it_is_copied() -> None:
    x = meta(20_000, 100_000, grad=True)
    gradient, result = size_of(x) / 4, size_of(x)
    time = seconds(MEMORY, "slice_backward", lambda x: x[:, :25_000], x, training=True)
    assert time == about((result + 2 * gradient) / STREAMED)


def test_the_gradient_of_an_embedding_adds_what_has_equal_positions() -> None:
    """3.7 cycles per element of the distinct rows, 0.3 per element of the gradients.

    Of positions at random, V · (1 − exp(−n / V)) are distinct.
    """
    table, positions = meta(50_000, 1024, grad=True), places(500_000)
    distinct = 50_000 * (1 - math.exp(-10))
    expected = (3.7 * distinct + 0.3 * 500_000) * 1024 * CYCLE
    name = "embedding_dense_backward"
    time = seconds(CYCLES, name, F.embedding, positions, table, training=True)
    assert time == pytest.approx(expected + 38 * 5e-6, rel=0.01)


def test_few_positions_of_an_embedding_are_not_sorted() -> None:
    table, positions = meta(50_000_000, 64, grad=True), places(3072)
    name = "embedding_dense_backward"
    time = seconds(MEMORY, name, F.embedding, positions, table, training=True)
    assert time == about(size_of(table) / STREAMED)
