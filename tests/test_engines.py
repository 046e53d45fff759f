"""Inference engines, loads and arithmetic in fewer bits, against what can be derived by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from tests.models.generating import Echo
from torchscan import InputError
from torchscan.types import Engine, Generation

PLAIN = Engine(name="plain")


def _asked(model: nn.Module, prompt: int = 64, new: int = 8, **options: Any) -> Generation:
    given = {"device": "H100", **options}
    found = torchscan.analyze_generation(model, prompt, new, **given)
    assert isinstance(found, Generation)
    return found


def test_the_time_of_the_host_is_added_to_each_pass() -> None:
    plain = _asked(Echo(), batch_size=4, engine=PLAIN)
    waiting = replace(PLAIN, host_time=1e-3, host_time_per_sequence=1e-4)
    slow = _asked(Echo(), batch_size=4, engine=waiting)
    assert slow.per_token == pytest.approx(plain.per_token + 1e-3 + 4e-4)
    assert slow.first_token == pytest.approx(plain.first_token + 1e-3 + 1e-4)


def test_a_long_prompt_takes_several_passes() -> None:
    """A prompt of 64 tokens in chunks of 16 waits four times for the host."""
    waiting = replace(PLAIN, host_time=1e-3)
    whole = _asked(Echo(), engine=waiting)
    pieces = _asked(Echo(), engine=replace(waiting, prompt_chunk=16))
    assert pieces.first_token == pytest.approx(whole.first_token + 3e-3)
    assert pieces.prompt_work_bytes == whole.prompt_work_bytes // 4


def test_the_first_token_is_that_of_one_request() -> None:
    alone, together = (_asked(Echo(64, 512), batch_size=size) for size in (1, 16))
    assert together.first_token == alone.first_token == alone.first_token_of_all
    assert together.first_token_of_all > together.first_token


def test_prompts_that_fit_into_a_chunk_share_a_pass() -> None:
    """Of 8 prompts of 64 tokens, chunks of 128 tokens take two each: four passes."""
    engine = replace(PLAIN, prompt_chunk=128)
    two, eight = (_asked(Echo(), batch_size=size, engine=engine) for size in (2, 8))
    assert eight.first_token_of_all == pytest.approx(4 * two.first_token_of_all)


def test_tokens_under_load_wait_for_the_prompts_of_others() -> None:
    found = _asked(Echo(), batch_size=4)
    share = 3 / 4 * found.first_token_of_all / found.new
    assert found.per_token_under_load == pytest.approx(found.per_token + share)
    alone = _asked(Echo())
    assert alone.per_token_under_load == alone.per_token
    assert alone.first_token_under_load == pytest.approx(alone.first_token)
    assert alone.first_token_under_load_p99 == pytest.approx(alone.first_token)


def test_requests_stay_together_if_prompts_come_first() -> None:
    """Of four prompts in a row, the first tokens come after one, two, three and four of them."""
    engine = replace(PLAIN, prompts_first=True, prompt_chunk=4096)
    found = _asked(Echo(64, 2048), 4096, batch_size=4, engine=engine)
    of_all = found.first_token_of_all
    served = replace(found.queue, length_spread=0.0).serve()
    assert served.first_token == pytest.approx(of_all * (1 + 2 + 3 + 4) / 16)
    assert served.first_token_median == pytest.approx(of_all * (2 + 3) / 8)
    assert served.first_token_p99 == pytest.approx(of_all)
    others = of_all * (3 + 2 + 1 + 0) / 16
    assert found.per_token_under_load == pytest.approx(found.per_token + others / found.new)


def test_margins_are_those_of_models_that_were_compared() -> None:
    compared = _asked(Echo(), batch_size=8, engine="vllm-0.12")
    assert compared.margin.label.endswith("measured times of 2 models in vLLM 0.12 on Hopper GPUs")
    assert -1 < compared.margin.low < 0 < compared.margin.high
    for options in (
        {"device": "L40S", "engine": "vllm-0.12", "batch_size": 8},
        {"device": "H100", "engine": "vllm-0.12", "batch_size": 512},
        {"device": "H100", "engine": "cuda-graph"},
    ):
        other = _asked(Echo(), **options)
        assert "not validated" in str(other.margin.reason)
        assert other.margin.high == -other.margin.low > compared.margin.high


def test_an_engine_is_named_or_described() -> None:
    found = _asked(Echo(), engine="vllm")
    assert found.engine.name == "vllm"
    assert found.engine.version
    assert found.engine.source
    assert found.to_dict()["engine"]["host_time"] == found.engine.host_time
    with pytest.raises(InputError, match="engine is 'vlm': give one of cuda-graph, vllm"):
        _asked(Echo(), engine="vlm")
    with pytest.raises(InputError, match="host_time is -1: give seconds, from 0 to 60"):
        Engine(name="mine", host_time=-1)
    with pytest.raises(InputError, match="prompt_chunk is 0: give a number of tokens"):
        Engine(name="mine", prompt_chunk=0)


def test_products_in_eight_bits_read_half_the_weights() -> None:
    """Of Echo's four matrices, key and value are quantized; each is read once a token."""
    model = Echo(64, 1024).to(torch.bfloat16)
    whole, halved = (_asked(model, compute=each) for each in (None, "fp8"))
    assert whole.weights_bytes - halved.weights_bytes == 2 * 1024 * 1024
    products = [each for each in halved.decode.operators if each.precision == "fp8"]
    assert len(products) == 2
    for each in products:  # the input is read in 8 bits, too, and the result written in 16
        assert each.bytes_read == 1024 * 1024 + 1024
        assert each.bytes_written == 2 * 1024
    assert halved.compute == "fp8"
    assert halved.weights == "fp8"


def test_products_in_eight_bits_are_faster_for_many_rows() -> None:
    model = Echo(64, 4096).to(torch.bfloat16)
    times = [
        _asked(model, 4096, 8, **given).first_token
        for given in ({"compute": "fp8"}, {}, {"weights": "fp8"})
    ]
    assert times[0] < times[1] < times[2]  # unpacking costs time


def test_arithmetic_that_a_device_lacks_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"compute is 'fp8', and .*A100.* has no fp8 arithmetic: leave it out; weights sets",
    ):
        _asked(Echo(), device="A100-SXM4-80GB", compute="fp8")
    with pytest.raises(
        InputError, match=r"compute is 'fp4', and .* has no fp4 .*: give 'fp8'; weights sets"
    ):
        _asked(Echo(), compute="fp4")
    with pytest.raises(InputError, match=r"compute is .fp8., and weights are in int4"):
        _asked(Echo(), compute="fp8", weights="int4")
    with pytest.raises(InputError, match="compute is 'int3': give"):
        _asked(Echo(), compute="int3")


def test_four_bits_have_a_scale_for_each_sixteen_weights() -> None:
    model = Echo(64, 1024).to(torch.bfloat16)
    found = _asked(model, compute="fp4", device="B200")
    matrix = 1024 * 1024
    others = 2 * (64 * 1024 + 1024 * 64)
    assert found.weights_bytes == others + 2 * (matrix // 2 + matrix // 16)
