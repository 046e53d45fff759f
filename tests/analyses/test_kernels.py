"""What the estimate takes kernels to do, by hand, with the constants of docs/reference/time-model.md.

One card computes at 10 and 100 TFLOP/s and moves bytes in no time; another moves 100 GB/s and computes in no time. Both have
100 multiprocessors at 1 GHz. The first call of a pass adds 20 µs until it is launched; each kernel adds 5 µs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.test_record import Calls
from tests.versions import needs
from torchscan import Scan, analyze_roofline, register_device
from torchscan.hardware import device_catalog

ARITHMETIC, MEMORY = "a card with endless bandwidth", "a card with endless arithmetic"
CALL, LAUNCH, CYCLE = 20e-6, 5e-6, 1 / (100 * 1e9)


@pytest.fixture(autouse=True)
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_catalog, "_registered", {})
    common: dict[str, Any] = {"memory_gb": 1000, "multiprocessors": 100, "boost_mhz": 1000}
    register_device(
        ARITHMETIC,
        bandwidth_gbs=1e12,
        dense_tflops={"fp32": 10, "fp16": 100, "bf16": 100},
        **common,
    )
    register_device(
        MEMORY, bandwidth_gbs=100, dense_tflops={"fp32": 1e12, "fp16": 1e12, "bf16": 1e12}, **common
    )


def seconds(
    device: str, call: nn.Module | Callable[..., Any], *args: Any, kernels: int = 1, **options: Any
) -> float:
    """The time of the only kernel of a model, or of a function, without what it takes to launch it."""
    model = call if isinstance(call, nn.Module) else Calls(lambda _, *given: call(*given))
    result = analyze_roofline(model, args=args, device=device, **options)
    return sum(each.time_estimate for each in result.operators) - CALL - kernels * LAUNCH


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-3)


# -- products ------------------------------------------------------------------------------------------------------------

#: cycles that the largest tile takes to begin and to end, and those of a summand in the chain
START, CHAIN = 4100, 2.0
#: operations in a cycle of one of the 100 multiprocessors, in single precision
PER_CYCLE = 10e12 / (100 * 1e9)


def product(*shapes: tuple[int, ...], device: str = ARITHMETIC) -> float:
    left, right = (meta(*shape) for shape in shapes)
    return seconds(
        device, torch.bmm if left.dim() == 3 else torch.mm, left, right, precision="fp32"
    )


def of_tiles(waves: float, tall: int, wide: int, sums: float, *, chain: int) -> float:
    """Return the seconds of waves of such tiles, each of which has so many sums, after a chain."""

    def loads(tall: int, wide: int) -> float:
        return 1 + 63 * (1 / tall + 1 / wide)

    share = loads(256, 128) / loads(tall, wide)
    start = START * (tall * wide / (256 * 128)) ** 0.5
    cycles = waves * (2 * tall * wide * sums / share / PER_CYCLE + start)
    return (cycles + CHAIN * min(chain, 2600)) / 1e9


def test_a_tile_for_each_multiprocessor_is_a_wave() -> None:
    whole = of_tiles(1, 256, 128, 4096, chain=4096)
    assert product((25600, 4096), (4096, 128)) == exactly(whole)
    assert product((128, 4096), (4096, 25600)) == exactly(whole)
    assert product((100, 256, 4096), (100, 4096, 128)) == exactly(whole)
    assert whole == pytest.approx(2 * 25600 * 128 * 4096 / 10e12, rel=5e-3)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(256, 128), (128, 256), (192, 128), (256, 64), (128, 64), (64, 128), (64, 64), (32, 32)],
)
def test_smaller_tiles_reach_a_smaller_share_of_the_peak(rows: int, columns: int) -> None:
    time = product((100, rows, 256), (100, 256, columns))
    assert time == exactly(of_tiles(1, rows, columns, 256, chain=256))


def test_fewer_tiles_take_as_long_if_the_sum_is_too_short_to_be_split() -> None:
    whole = of_tiles(1, 128, 128, 256, chain=256)
    assert product((100, 128, 256), (100, 256, 128)) == exactly(whole)
    assert product((60, 128, 256), (60, 256, 128)) == exactly(whole)


def test_sums_are_padded_to_steps_of_64() -> None:
    assert product((100, 128, 193), (100, 193, 128)) == exactly(
        of_tiles(1, 128, 128, 256, chain=193)
    )


@pytest.mark.parametrize(("tiles", "waves"), [(100, 1), (110, 1 + 1 / 3), (130, 2), (150, 2)])
def test_a_wave_of_which_little_is_filled_is_shorter(tiles: int, waves: float) -> None:
    """From 30 % on it is as long as another."""
    time = product((tiles, 32, 256), (tiles, 256, 32))
    assert time == exactly(of_tiles(waves, 32, 32, 256, chain=256))


@pytest.mark.parametrize("device", ["A100", "H200", "L40S"])
@pytest.mark.parametrize(("columns", "sums"), [(4096, 4096), (28672, 4096), (1024, 8192)])
def test_neighboring_rows_take_similar_times(columns: int, sums: int, device: str) -> None:
    rows = [1, 2, 63, 64, 65, 128, 129, 255, 256, 257, 512, 513, 1024, 1025, 2048, 2049]
    times = [
        seconds(
            device,
            torch.mm,
            meta(count, sums, dtype=torch.bfloat16),
            meta(sums, columns, dtype=torch.bfloat16),
            precision=None,
        )
        for count in rows
    ]
    for (before, after), (first, second) in zip(pairwise(rows), pairwise(times), strict=True):
        assert first <= second
        if after == before + 1:
            assert second <= 1.1 * first


def test_a_product_of_few_rows_streams_its_weights_after_a_chain() -> None:
    """On an A100: 93 % of what others stream, and two cycles for each of 2,600 sums at 1.41 GHz."""
    x, weight = meta(1, 4096, dtype=torch.bfloat16), meta(4096, 28672, dtype=torch.bfloat16)
    moved = 2 * (4096 + 4096 * 28672 + 28672) / (0.9 * 0.93 * 2039e9)
    time = seconds("A100", torch.mm, x, weight, precision=None)
    assert time == pytest.approx(moved + 2 * 2600 / 1.41e9, rel=0.03)


@pytest.mark.slow
def test_nothing_is_faster_than_the_bound() -> None:
    for rows in (1, 100, 10_000):
        for columns in (128, 4096):
            x, weight = meta(rows, 1024), meta(1024, columns)
            for device in ("A100", "H200", "L40S", ARITHMETIC, MEMORY):
                found = analyze_roofline(
                    Calls(lambda _, *given: torch.mm(*given)), args=(x, weight), device=device
                )
                assert found.time_bound <= found.time_estimate


def test_a_matrix_expanded_over_the_batch_takes_part_in_one_product() -> None:
    weight, added = meta(4096, 8192), meta(1, 1, 1)
    at_once = seconds(ARITHMETIC, torch.mm, meta(128, 4096), weight)
    rows, columns = meta(128, 1, 4096), weight.expand(128, 4096, 8192)
    transposed = columns.transpose(1, 2), rows.transpose(1, 2)
    for call in (torch.bmm, lambda *each: torch.baddbmm(added, *each, beta=0)):
        assert seconds(ARITHMETIC, call, rows, columns) == exactly(at_once)
        assert seconds(ARITHMETIC, call, *transposed) == exactly(at_once)
        assert seconds(ARITHMETIC, call, rows, columns.contiguous()) > 5 * at_once


def test_a_long_sum_is_split_among_multiprocessors() -> None:
    """One tile in 17.8 pieces of 720, and in 50 with fewer columns: as many as there is room for."""
    assert product((256, 12800), (12800, 128)) == exactly(
        min(
            of_tiles(1, 256, 128, 12800 / (12800 / 720), chain=12800),
            of_tiles(1, 64, 64, 12800 / 12.5, chain=12800),
            of_tiles(1, 128, 64, 12800 / (12800 / 720), chain=12800),
        )
    )


def test_products_stream_whatever_the_number_of_rows() -> None:
    chain = CHAIN * 2600 / 1e9
    for rows in (64, 65, 512):
        moved = 4 * (rows * 4096 + 4096 * 8192 + rows * 8192) / 0.9 / 100e9
        assert product((rows, 4096), (4096, 8192), device=MEMORY) == exactly(moved + chain)
        assert product((8192, 4096), (4096, rows), device=MEMORY) == exactly(moved + chain)


def test_a_product_with_a_vector_streams() -> None:
    assert seconds(MEMORY, torch.mv, meta(4096, 8192), meta(8192)) == exactly(
        4 * (4096 * 8192 + 8192 + 4096) / 0.9 / 100e9
    )


@needs("_grouped_mm")
@pytest.mark.parametrize(
    ("slots", "waves", "tall"),
    [
        (12800, 1, 128),  # 128 rows for each expert
        (3200, 1, 32),
        (64, 1, 32),  # 64 experts with a row
    ],
)
def test_each_expert_that_gets_rows_has_a_product(slots: int, waves: int, tall: int) -> None:
    rows, weights = (
        meta(slots, 256, dtype=torch.bfloat16),
        meta(100, 256, 128, dtype=torch.bfloat16),
    )
    ends = torch.linspace(slots // 100, slots, 100, dtype=torch.float64).to(torch.int32)
    time = seconds(
        ARITHMETIC, lambda left, right: torch._grouped_mm(left, right, offs=ends), rows, weights
    )
    in_single_precision = of_tiles(waves, tall, 128, 256, chain=0)
    start = START * (tall * 128 / (256 * 128)) ** 0.5 / 1e9
    assert time == exactly((in_single_precision - start) / 10 + start + CHAIN * 256 / 1e9)


# -- attention -----------------------------------------------------------------------------------------------------------


def attended(queries: int, keys: int, heads: int = 32, key_heads: int = 8, batch: int = 1) -> float:
    """Return the seconds of attention on the A100, which has 108 multiprocessors at 1.41 GHz."""
    operands = (
        meta(batch, count, length, 128, dtype=torch.bfloat16)
        for count, length in ((heads, queries), (key_heads, keys), (key_heads, keys))
    )

    def attend(*given: Tensor) -> Tensor:
        is_causal = queries == keys
        out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(*given, 0.0, is_causal)[0]
        return out

    return seconds("A100", attend, *operands, precision=None)


#: seconds until the first tile
FLOOR = 8600 / 1.41e9


def overlapped(arithmetic: float, traffic: float) -> float:
    return float((arithmetic**3 + traffic**3) ** (1 / 3))


def test_a_short_cache_is_a_tile_for_each_key_head() -> None:
    """Eight tiles of 128 keys, each of 4 µs and 18 ns for each key; nothing to copy for one sequence."""
    assert attended(1, 128) == pytest.approx(FLOOR + 4e-6 + 128 * 18e-9, rel=0.01)


def test_long_keys_are_split_among_multiprocessors() -> None:
    """4 · 108 ÷ 8 = 54 pieces of 607 keys, four of which a multiprocessor has at a time."""
    tile = 4e-6 + 32768 / 54 * 18e-9
    moved = 2 * 2 * 8 * 32768 * 128 / (0.9 * 0.93 * 2039e9)
    expected = FLOOR + 11_000 / 1.41e9 + overlapped(8 * 54 / 108 * tile, moved)
    assert attended(1, 32768) == pytest.approx(expected, rel=0.01)


def test_heads_that_share_no_keys_are_not_split() -> None:
    """32 heads on 108 multiprocessors: one tile of 8,192 keys each."""
    tile = 4e-6 + 8192 * 18e-9
    moved = 2 * 2 * 32 * 8192 * 128 / (0.9 * 0.93 * 2039e9)
    assert attended(1, 8192, key_heads=32) == exactly(FLOOR + overlapped(tile, moved))


def test_a_long_prompt_takes_its_products_and_a_softmax() -> None:
    """64 tiles of 128 queries for each of 32 heads, which attend 4,160 keys in the mean.

    64 lanes of vector units take 6 operations for each score, and a sixteenth of a cycle for its
    exponential. 78 % of 400 W are too little for 1.1 pJ at 312 TFLOP/s.
    """
    products = 4 * 128 * 128 / (0.9 * 312e12 / (108 * 1.41e9))
    of_key = products + 128 * (1 / 16 + 6 / 64)
    filled = 64 * 32 * (4600 + 4160 * of_key) / 108
    longest = 4600 + 8192 * of_key
    cycles = (filled**2 + longest**2) ** 0.5
    clock = 1.41e9 * (0.78 * 400 / (1.1e-12 * 312e12)) ** 0.5
    assert attended(8192, 8192) == pytest.approx(FLOOR + cycles / clock, rel=0.01)


#: TFLOP/s of FlashAttention 2 on an H100, by heads' width and length: its published backward pass,
#: not causal, of 16,384 tokens of 2,048 numbers
BACKWARD = {
    64: {512: 198, 1024: 238, 2048: 264, 4096: 279, 8192: 287, 16384: 291},
    128: {512: 214, 1024: 260, 2048: 291, 4096: 310, 8192: 318, 16384: 322},
}


def attended_backward(width: int, length: int, *, device: str, is_causal: bool = False) -> float:
    """Return the seconds of the backward pass of 16,384 tokens of 2,048 numbers."""
    batch, heads = 16384 // length, 2048 // width
    operands = (meta(batch, heads, length, width, dtype=torch.bfloat16) for _ in range(5))
    sums = meta(batch, heads, length)

    def differentiate(gradient: Tensor, *given: Tensor) -> Tensor:
        seed = torch.zeros((), dtype=torch.long, device="meta")
        lengths = (None, None, length, length)
        options = (0.0, is_causal, seed, seed)
        found: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            gradient, *given, *lengths, *options
        )[0]
        return found

    return seconds(device, differentiate, *operands, sums, precision=None)


def install_libraries(
    cuda: str, cudnn: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let torch say that it was built with these versions."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    versions = SimpleNamespace(getCompileVersion=lambda: cudnn)
    monkeypatch.setattr(torch._C, "_cudnn", versions, raising=False)


@pytest.mark.parametrize(
    ("width", "length", "rate"),
    [(width, *pair) for width, rates in BACKWARD.items() for pair in rates.items()],
)
def test_backward_attention_on_hopper_takes_as_long_as_published(
    width: int, length: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashAttention 2 is torch's choice on Hopper up to CUDA 12."""
    install_libraries("12.8", (9, 10, 2), monkeypatch)
    estimate = attended_backward(width, length, device="H100")
    assert 10 * 16384 * length * 2048 / estimate / 1e12 == pytest.approx(rate, rel=0.05)


def test_backward_attention_waits_for_shared_memory() -> None:
    """Sixteen tiles of 128 keys for each of 8 · 16 heads, on 108 multiprocessors.

    For a query, five products of 128 · 128 numbers take 89 cycles, and their loads 0.84 · 128.
    """
    of_query = 0.84 * 128 + 128 * (1 / 16 + 6 / 64)
    tile = 235 * 128 + 2048 * of_query
    cycles = ((16 * 128 * tile / 108) ** 2 + tile**2) ** 0.5
    estimate = attended_backward(128, 2048, device="A100")
    assert estimate == pytest.approx(cycles / 1.41e9, rel=0.01)


def test_causal_backward_attention_skips_blocks() -> None:
    whole, half = (
        attended_backward(128, 16384, device="A100", is_causal=is_causal)
        for is_causal in (False, True)
    )
    assert half == pytest.approx(0.51 * whole, rel=0.03)


def engine_attended(operator: str, *operands: Tensor, **options: Any) -> float:
    """Return the seconds of an operator that inference engines have, on the A100."""
    attend = getattr(torch.ops.torchscan, operator)
    call = lambda *given: attend(*given, **options)  # noqa: E731
    return seconds("A100", call, *operands, precision=None)


def half(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.bfloat16)


def test_a_window_leaves_out_the_blocks_before_it() -> None:
    """A tile of 128 queries attends to 1,024 + 128 keys, those of the first nine blocks to fewer."""
    heads = half(1, 32, 8192, 128)
    keys = half(1, 8, 8192, 128)
    products = 4 * 128 * 128 / (0.9 * 312e12 / (108 * 1.41e9))
    of_key = products + 128 * (1 / 16 + 6 / 64)
    mean = (1152 * (1152 + 128) / 2 + (8192 - 1152) * 1152) / 8192
    filled = 64 * 32 * (4600 + mean * of_key) / 108
    longest = 4600 + 1152 * of_key
    cycles = (filled**2 + longest**2) ** 0.5
    clock = 1.41e9 * (0.78 * 400 / (1.1e-12 * 312e12)) ** 0.5
    time = engine_attended("fused_attention", heads, keys, keys, is_causal=True, window=1024)
    assert time == pytest.approx(FLOOR + cycles / clock, rel=0.01)


def test_a_window_as_long_as_the_text_hides_nothing() -> None:
    heads, keys = half(1, 32, 2048, 128), half(1, 8, 2048, 128)
    time = engine_attended("fused_attention", heads, keys, keys, is_causal=True, window=2048)
    assert time == pytest.approx(attended(2048, 2048), rel=1e-3)


def test_a_token_reads_the_keys_of_its_window() -> None:
    """Eight tiles of 128 keys, of 32,768."""
    keys = half(1, 8, 32768, 128)
    time = engine_attended("fused_attention", half(1, 32, 1, 128), keys, keys, window=128)
    assert time == pytest.approx(attended(1, 128), rel=1e-3)


def test_all_heads_attend_to_latents_in_tiles_of_64() -> None:
    """128 heads are two tiles for each of 54 sequences, one for each multiprocessor.

    A tile has products of 64 rows with 576 and with 512 numbers for each key, and a softmax. It
    draws power all the time.
    """
    batch, keys = 54, 8192
    latents = half(batch, 1, keys, 512), half(batch, 1, keys, 64)
    queries = half(batch, 128, 1, 512), half(batch, 128, 1, 64)
    of_key = 2 * 64 * (576 + 512) / (0.9 * 312e12 / (108 * 1.41e9)) + 64 * (1 / 16 + 6 / 64)
    clock = 1.41e9 * (0.78 * 400 / (1.1e-12 * 312e12)) ** 0.5
    tile = max(4e-6 + keys * of_key / 1.41e9, keys * of_key / clock)
    moved = 2 * batch * keys * 576 / (0.9 * 0.93 * 2039e9)
    time = engine_attended("latent_attention", *queries, *latents)
    assert time == pytest.approx(FLOOR + overlapped(tile, moved), rel=0.01)


def test_few_heads_fill_a_tile_of_latents_with_padding() -> None:
    keys = half(54, 1, 8192, 512), half(54, 1, 8192, 64)
    few = engine_attended("latent_attention", half(54, 8, 1, 512), half(54, 8, 1, 64), *keys)
    full = engine_attended("latent_attention", half(54, 64, 1, 512), half(54, 64, 1, 64), *keys)
    assert few == pytest.approx(full, rel=0.02)


@pytest.mark.parametrize("keys", [16, 500, 4000, 100_000])
def test_attention_takes_longer_with_more_keys_and_is_never_faster_than_the_bound(
    keys: int,
) -> None:
    for queries in (1, keys):
        assert attended(queries, keys) < attended(queries + (queries == keys), keys + 1) * 1.001
        moved = 2 * 128 * (2 * 8 * keys + 2 * 32 * queries)
        assert attended(queries, keys) >= moved / 2039e9


# -- recurrent layers ----------------------------------------------------------------------------------------------------


def test_packed_sequences_take_as_many_steps_as_the_longest_has() -> None:
    """Nine rows in five steps, each of two products: 5 µs each."""
    weights = [meta(4 * 32, 32), meta(4 * 32, 32), meta(4 * 32), meta(4 * 32)]
    sizes: tuple[Any, ...] = (
        2,
        32,
        0,
        1,
        False,
        0.0,
        False,
        False,
        [3, 2, 2, 1, 1],
        None,
    )  # an LSTM of 32, one layer
    states, moved = (
        (meta(1, 3, 32), meta(1, 3, 32)),
        4 * (9 * 32 + 2 * 4 * 32 * 33 + 9 * 32 + 4 * 3 * 32),
    )

    def run(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._cudnn_rnn(x, weights, 4, None, *states, *sizes)[0]
        return out

    result = analyze_roofline(Calls(lambda _, x: run(x)), args=(meta(9, 32),), device=MEMORY)
    load = result.by_kind["aten._cudnn_rnn"]
    assert load.time_estimate == pytest.approx(CALL + 5 * LAUNCH + moved / 0.5 / 100e9, abs=1e-6)


# -- convolutions --------------------------------------------------------------------------------------------------------


def convolved(
    x: Tensor, out: int, device: str = MEMORY, *, window: int = 3, **options: Any
) -> float:
    layer = nn.Conv2d(x.shape[1], out, window, padding=window // 2, bias=False, **options).to(
        "meta", x.dtype
    )
    return seconds(device, layer, x)


@pytest.mark.parametrize(("channels", "side"), [(8, 32), (1, 64), (64, 1)])
def test_half_precision_is_turned_around_unless_it_lies_channels_last(
    channels: int, side: int
) -> None:
    """One channel, or one place, is in no order that torch could tell: it counts as contiguous."""
    x = meta(64, channels, side, side, dtype=torch.float16)
    moved = 2 * (64 * channels * side**2 + channels * 64 * 9 + 64 * 64 * side**2) / (0.9 * 100e9)
    assert convolved(x, 64) == exactly(moved * (1 + 2 * 0.52))
    last = x.to(memory_format=torch.channels_last)
    assert convolved(last, 64) == exactly(
        moved * (1 if channels > 1 and side > 1 else 1 + 2 * 0.52)
    )
    assert convolved(x.float(), 64) == exactly(2 * moved)


def test_one_by_one_convolutions_are_not_turned_around_if_their_places_are_whole_lines() -> None:
    for side, turned in ((4, 0), (5, 2 * 0.52)):
        moved = 2 * (64 * 64 * side**2 + 64 * 64 + 64 * 64 * side**2) / (0.9 * 100e9)
        assert convolved(meta(64, 64, side, side, dtype=torch.float16), 64, window=1) == exactly(
            moved * (1 + turned)
        )


def test_a_one_by_one_convolution_reaches_95_percent_of_the_peak() -> None:
    x = meta(50, 256, 16, 16, dtype=torch.float16)
    assert convolved(x, 256, ARITHMETIC, window=1) == exactly(
        2 * 50 * 256 * 256 * 256 / 100e12 / 0.95
    )


def test_channels_are_padded_to_eight_and_sums_to_32() -> None:
    """3 channels count as 8, and 8 · 9 sums as 96."""
    x = meta(50, 3, 16, 16, dtype=torch.float16)
    assert convolved(x, 256, ARITHMETIC) == exactly(2 * 50 * 256 * 256 * 96 / 100e12)


@pytest.mark.parametrize(("window", "rate"), [(5, 0.15), (7, 0.038)])
def test_large_depthwise_windows_reach_a_small_share_of_vector_units(
    window: int, rate: float
) -> None:
    time = convolved(meta(8, 64, 32, 32), 64, ARITHMETIC, window=window, groups=64)
    assert time == exactly(2 * 8 * 64 * 32**2 * window**2 / 10e12 / rate)


def test_ten_places_are_a_large_window() -> None:
    rates: dict[str, Any] = {
        "dense_tflops": {"fp32": 10},
        "multiprocessors": 100,
        "boost_mhz": 2000,
    }
    register_device("a card with a fast clock", memory_gb=64, bandwidth_gbs=1e12, **rates)
    layer = nn.Conv2d(64, 64, (2, 5), padding=(0, 2), groups=64, bias=False).to("meta")
    time = seconds("a card with a fast clock", layer, meta(8, 64, 33, 32))
    assert time == exactly(2 * 8 * 64 * 32**2 * 10 / 10e12 / 0.15)


@pytest.mark.parametrize(("window", "rate"), [(7, 1.0), (9, 0.02)])
def test_channels_last_depthwise_windows_are_fast_up_to_seven(window: int, rate: float) -> None:
    x = meta(8, 64, 32, 32).to(memory_format=torch.channels_last)
    time = convolved(x, 64, ARITHMETIC, window=window, groups=64)
    assert time == exactly(2 * 8 * 64 * 32**2 * window**2 / 10e12 / rate)


def test_a_bias_of_a_channels_last_depthwise_convolution_is_another_pass() -> None:
    x = meta(8, 64, 32, 32).to(memory_format=torch.channels_last)
    layers = [
        nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=bias).to("meta") for bias in (False, True)
    ]
    without, with_bias = (seconds(MEMORY, layer, x) for layer in layers)
    assert with_bias - without == pytest.approx(2 * 4 * 8 * 64 * 32**2 / 0.9 / 100e9, rel=1e-2)


def test_small_depthwise_windows_take_cycles_for_each_element() -> None:
    assert convolved(meta(8, 64, 32, 32), 64, ARITHMETIC, groups=64) == exactly(
        8 * 64 * 32**2 * 1.4 * CYCLE
    )


def test_groups_run_on_the_faster_units() -> None:
    """Of four channels each: on matrix units all but nothing of a tile would be of use."""
    x = meta(8, 64, 32, 32, dtype=torch.float16)
    products, cycles = 2 * 8 * 32**2 * 64 * 4 * 9 / 10e12 / 0.9, 8 * 64 * 32**2 * 2.2 * CYCLE
    assert convolved(x, 64, ARITHMETIC, groups=16) == exactly(max(products, cycles))


# -- passes over memory --------------------------------------------------------------------------------------------------


def test_operands_in_another_order_than_the_result_are_not_read_in_whole_lines() -> None:
    x, moved = meta(4000, 1000), 3 * 4 * 4_000_000
    assert seconds(MEMORY, torch.add, x, x.clone()) == exactly(moved / 0.9 / 100e9)
    assert seconds(MEMORY, torch.add, x, meta(1000, 4000).T) == exactly(moved / 0.8 / 100e9)


def test_lists_of_tensors_take_a_kernel_for_each_64() -> None:
    for count, kernels in ((64, 1), (65, 2), (129, 3)):
        tensors = [meta(1000) for _ in range(count)]
        time = seconds(
            MEMORY, lambda *each: torch._foreach_add(each, 1.0), *tensors, kernels=kernels
        )
        assert time == exactly(2 * 4 * 1000 * count / 0.9 / 100e9)


@needs("ops.aten._fused_rms_norm_backward")
def test_an_rms_norm_is_one_kernel() -> None:
    """It reads and writes 2 bytes for each element; mixed types are computed in pieces."""
    x, weight = meta(4096, 1024, dtype=torch.bfloat16), meta(1024, dtype=torch.bfloat16)

    def operators(*given: Tensor, **options: Any) -> list[str]:
        model = Calls(lambda _, x, w: F.rms_norm(x, (1024,), w))
        steps = Scan(model, args=given, device=MEMORY, progress=False, **options).steps
        return [op.signature.operator for op in steps.ops if "rms" in op.signature.operator]

    moved = 2 * (2 * x.numel() + weight.numel())
    roofline = analyze_roofline(
        Calls(lambda _, x, w: F.rms_norm(x, (1024,), w)), args=(x, weight), device=MEMORY
    )
    assert roofline.time_bound == exactly(moved / 100e9)
    assert operators(x, weight) == ["aten._fused_rms_norm"]
    assert operators(x, weight.float()) == []
    needed = x.clone().requires_grad_(), weight.clone().requires_grad_()
    both = ["aten._fused_rms_norm", "aten._fused_rms_norm_backward"]
    assert operators(*needed, training=True) == both


def test_a_rotary_embedding_of_two_halves_is_one_kernel() -> None:
    """Compiled: heads are read and written once."""

    def rotate(_: nn.Module, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        left, right = heads.chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    heads, angles = meta(4096, 32, 128), meta(4096, 1, 64)
    found = analyze_roofline(
        Calls(rotate), args=(heads, angles, angles.clone()), device=MEMORY, compiled=True
    )
    moved = 4 * (2 * heads.numel() + 2 * angles.numel())
    assert found.time_estimate == exactly(moved / 0.9 / 100e9 + 2.1e-6)


def test_a_gradient_of_an_rms_norm_that_is_differentiated_is_computed_in_pieces() -> None:
    """As on a card: the kernel of the gradient has no gradient itself."""

    def penalty(_: nn.Module, given: Tensor) -> Tensor:
        x = given.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.rms_norm(x, (8,)).sum(), x, create_graph=True)
        return gradient.square().mean() + given.mean()

    x = torch.ones(4, 8, requires_grad=True)
    steps = Scan(Calls(penalty), args=(x,), device=MEMORY, training=True, progress=False).steps
    assert steps.provenance.execution == "abstract"
    assert not any(op.signature.operator.endswith("rms_norm_backward") for op in steps.ops)


def test_a_dropout_streams_with_a_mask_of_bytes() -> None:
    """In training: read, written, and a byte of mask for each element."""
    moved = 4096 * 1024 * (4 + 4 + 1)
    assert seconds(MEMORY, lambda x: F.dropout(x, 0.3), meta(4096, 1024), mode="train") == exactly(
        moved / 0.9 / 100e9
    )


def test_adding_at_indices_is_slow() -> None:
    """A row of 100 numbers each: copied with what is added, then read and written at 0.3."""
    x, index, source = meta(5000, 100), meta(5000, dtype=torch.int64), meta(5000, 100)
    time = seconds(
        MEMORY, lambda *given: torch.index_add(given[0], 0, *given[1:]), x, index, source, kernels=2
    )
    copied, added = 3 * 4 * 5000 * 100 + 8 * 5000, 2 * 4 * 5000 * 100
    assert time == exactly((copied / 0.9 + added / 0.3) / 100e9)


def test_adding_at_few_indices_copies() -> None:
    x, index, source = meta(5_000_000, 100), meta(5, dtype=torch.int64), meta(5, 100)
    time = seconds(
        MEMORY, lambda *given: torch.index_add(given[0], 0, *given[1:]), x, index, source, kernels=2
    )
    assert time == exactly(2 * 4 * 5_000_000 * 100 / 0.9 / 100e9)


def test_sorting_goes_over_the_data_twice_for_each_byte_of_a_number() -> None:
    for dtype, passes in ((torch.float32, 8), (torch.int16, 4)):
        x = meta(1000, 1000, dtype=dtype)
        moved = 10**6 * (2 * dtype.itemsize + 8)  # numbers in and out, indices of 8 bytes
        assert seconds(MEMORY, torch.sort, x, kernels=passes) == exactly(
            passes * moved / 0.9 / 100e9
        )


def test_each_row_that_is_normalised_takes_cycles() -> None:
    assert seconds(ARITHMETIC, nn.LayerNorm(16).to("meta"), meta(1000, 100, 16)) == exactly(
        100_000 * 250 * CYCLE
    )


def test_statistics_of_a_batch_take_another_pass() -> None:
    """At 1 / 1.7 of the rate, channel by channel."""
    norm, x = nn.BatchNorm2d(64).to("meta"), meta(64, 64, 56, 56)
    once = 4 * 64 * 64 * 56**2 / 0.9 / 100e9
    modes: dict[Any, float] = {"eval": 2, "train": 1.7 * 3}
    for mode, passes in modes.items():
        load = analyze_roofline(norm, args=(x,), device=MEMORY, mode=mode).by_kind[
            "aten.native_batch_norm"
        ]
        assert load.time_estimate == pytest.approx(passes * once, rel=0.03)


def test_elements_whose_place_is_computed_take_cycles() -> None:
    x = meta(8, 64, 32, 32)
    count = x.numel()
    assert seconds(ARITHMETIC, lambda a, b: torch.cat([a, b]), x, x.clone()) == exactly(
        2 * count * 0.65 * CYCLE
    )
    assert seconds(ARITHMETIC, nn.AvgPool2d(2), x) == exactly(count * 1.1 * CYCLE)
    assert seconds(ARITHMETIC, nn.Upsample(scale_factor=2), x) == exactly(4 * count * 2 * CYCLE)


@pytest.mark.parametrize(("mode", "dims"), [("bilinear", 2), ("bicubic", 2), ("trilinear", 3)])
def test_smooth_interpolation_loops_over_samples_and_channels(mode: str, dims: int) -> None:
    """8 · 64 turns of 0.29 µs, once for all places if these are fewer than 100 · 512."""
    x, few = meta(8, 64, *[8] * dims), meta(8, 64, *[2] * dims)
    rounds = -(-(16**dims) // (100 * 512))
    for source, turns in ((x, 8 * 64 * rounds), (few, 8 * 64)):
        cycles = source.numel() * 2**dims * 2 * CYCLE
        assert seconds(ARITHMETIC, nn.Upsample(scale_factor=2, mode=mode), source) == exactly(
            cycles + turns * 0.29e-6
        )


def test_channels_last_smooth_interpolation_loops_over_nothing() -> None:
    x = meta(8, 64, 8, 8).to(memory_format=torch.channels_last)
    assert seconds(ARITHMETIC, nn.Upsample(scale_factor=2, mode="bilinear"), x) == exactly(
        8 * 64 * 16**2 * 2 * CYCLE
    )


def test_unfolding_launches_a_kernel_for_each_sample() -> None:
    assert seconds(ARITHMETIC, lambda x: F.unfold(x, 3), meta(7, 2, 5, 5)) == pytest.approx(
        7 * 20e-6, rel=0.01
    )


# -- power ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "picojoules"),
    [
        *(
            ("Pascal GP100", 28.0),
            ("Pascal GP102", 20.0),
            ("Turing", 2.2),
            ("Ampere", 1.6),
            ("Ada AD104", 1.2),
            ("Ada", 1.8),
            ("Hopper", 0.72),
        ),
        *(("Blackwell GB100", 0.67), ("Blackwell", 1.4)),
    ],
)
def test_power_limits_the_rate_of_products(arch: str, picojoules: float) -> None:
    """78 % of 150 W, and the rate goes with the square root of what is missing.

    Volta and GA100 issue 92 and 90 % of their peak.
    """
    register_device(
        "hungry",
        memory_gb=64,
        bandwidth_gbs=1e12,
        dense_tflops={"fp32": 100, "fp16": 400},
        power_w=150,
        arch=arch,
    )
    rate = 400e12 * {"Volta": 0.92, "Ampere GA100": 0.9}.get(arch, 1.0)
    share = (0.78 * 150 / (picojoules * 1e-12 * rate)) ** 0.5
    x = meta(8192, 8192, dtype=torch.float16)
    assert seconds("hungry", torch.mm, x, x.clone(), precision=None) == exactly(
        2 * 8192**3 / (rate * min(1.0, share))
    )


def test_attention_on_hopper_takes_as_long_as_measured_with_cuda_13(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an H100's step of Llama-8B with 8,192 tokens, cuDNN's kernels took 0.90 + 3.26 ms a layer."""
    install_libraries("13.0", (9, 17, 0), monkeypatch)
    shape = (1, 32, 8192, 128)
    query, key, value = (
        torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for _ in range(3)
    )
    result = analyze_roofline(
        Calls(lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        args=(query, key, value),
        device="NVIDIA H100 80GB HBM3",
        training=True,
    )
    times = {
        each.phase: each.time_estimate for each in result.operators if "attention" in each.operator
    }
    assert times["forward"] == pytest.approx(0.895e-3, rel=0.2)
    assert times["backward"] == pytest.approx(3.26e-3, rel=0.05)


@pytest.mark.parametrize(
    ("arch", "picojoules", "issued", "cuda", "share"),
    [
        ("Ampere GA100", 1.1, 0.9, "12.8", 0.55),
        ("Ampere GA100", 1.1, 0.9, "13.0", 0.55),
        ("Hopper", 0.72, 1.0, "12.8", 0.43),
        ("Hopper", 0.72, 1.0, "13.0", 0.656),
        ("Blackwell GB100", 0.67, 1.0, "12.8", 0.43),
        ("Blackwell GB100", 0.67, 1.0, "13.0", 0.656),
        ("Ada", 1.8, 1.0, "13.0", 0.78),
    ],
)
def test_a_training_step_has_less_power_than_a_burst(
    arch: str,
    picojoules: float,
    issued: float,
    cuda: str,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 150 W; kernel tables of data-center GPUs are bursts, those of others are not."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    rates = {"fp32": 1e6, "fp16": 400}
    register_device(
        "warm", memory_gb=64, bandwidth_gbs=1e12, dense_tflops=rates, power_w=150, arch=arch
    )
    layer = nn.Linear(8192, 8192, bias=False, device="meta").half()
    result = analyze_roofline(
        layer, args=(meta(8192, 8192, dtype=torch.float16),), device="warm", training=True
    )
    products = [each for each in result.operators if each.macs]
    demanded = picojoules * 1e-12 * 400e12
    rate = 400e12 * min(issued, issued**0.5 * (share * 150 / demanded) ** 0.5)
    assert products[0].time_estimate - CALL - LAUNCH == exactly(2 * 8192**3 / rate)


#: TFLOP/s of products in single precision that others measured, and the sheet that they are shares of
SGEMM = {
    "Tesla V100-SXM2-16GB": 0.97 * 15.7,
    "NVIDIA A100-PCIE-40GB": 0.81 * 19.5,
    "NVIDIA A100 80GB PCIe": 0.91 * 19.5,
    "NVIDIA H100 80GB HBM3": 0.75 * 67,
    "NVIDIA RTX A6000": 23.27,
    "NVIDIA L4": 0.29 * 30.3,
    "Tesla T4": 0.48 * 8.1,
}


@pytest.mark.parametrize(("device", "measured"), SGEMM.items())
def test_single_precision_is_limited_by_power_too(device: str, measured: float) -> None:
    x = meta(16384, 16384)
    estimate = seconds(device, torch.mm, x, x.clone(), precision="fp32")
    assert 2 * 16384**3 / estimate / 1e12 == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize(
    ("watts", "exponent"), [(60, 1), (75, 1), (112.5, 0.75), (150, 0.5), (300, 0.5)]
)
def test_boards_of_75_watts_have_no_voltage_to_give_up(watts: float, exponent: float) -> None:
    """78 % of the watts for 800 TFLOP/s at 1.8 pJ each: the clock goes down with the ratio, from 150 W on with its root."""
    rates = {"fp32": 50, "fp16": 800}
    register_device(
        "small", memory_gb=64, bandwidth_gbs=1e12, dense_tflops=rates, power_w=watts, arch="Ada"
    )
    x = meta(8192, 8192, dtype=torch.float16)
    rate = 800e12 * (0.78 * watts / (1.8 * 800)) ** exponent
    assert seconds("small", torch.mm, x, x.clone(), precision=None) == exactly(2 * 8192**3 / rate)


@pytest.mark.parametrize("options", [{"memory_type": "GDDR7"}, {"gddr_ecc": True}])
def test_some_memory_gives_less_of_its_bandwidth(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.84 of the 0.9 that others give; the bound is that of the data sheet."""
    entry = {"memory_gb": 64, "bandwidth_gbs": 100, "dense_tflops": {"fp32": 1e6}}
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path / "devices.json"))
    (tmp_path / "devices.json").write_text(
        json.dumps({"devices": {"other": entry, "slower": {**entry, **options}}})
    )
    other, slower = (
        analyze_roofline(nn.ReLU(), args=(meta(2**28),), device=name)
        for name in ("other", "slower")
    )
    assert slower.time_bound == other.time_bound == exactly(2 * 2**30 / 100e9)
    assert slower.time_estimate == exactly(other.time_estimate / 0.84)
