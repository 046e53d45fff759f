"""Searches for the way to serve a model, against what can be derived by hand."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.models.generating import Echo
from tests.versions import before
from torchscan import InputError, analyze_generation, parallel
from torchscan.types import ServingSearch


@functools.cache
def _searched(
    num_gpus: int = 1, *, formats: tuple[Any, ...] = (None,), **options: Any
) -> ServingSearch:
    given: dict[str, Any] = {"device": "H100", "progress": False, "max_batch_size": 8, **options}
    model = Echo(64, 512).to(torch.bfloat16)
    return parallel.search_serving(model, 64, 16, num_gpus=num_gpus, formats=formats, **given)


def test_the_most_tokens_per_second_are_the_best() -> None:
    search = _searched()
    assert sorted(each.batch_size for each in search.choices) == [1, 2, 4, 8]
    best = search.best
    assert best is not None
    assert best.tokens_per_second == max(each.tokens_per_second for each in search.choices)
    assert best is search.choices[0]


def test_a_search_without_choices_has_no_plot() -> None:
    pytest.importorskip("matplotlib")
    nothing = replace(_searched(), choices=())
    assert nothing.best is None
    with pytest.raises(InputError, match="the search found no way that fits: there is nothing to"):
        nothing.plot()


@pytest.mark.slow
def test_a_choice_is_the_estimate_under_load() -> None:
    search = _searched(price=3.6, engine="vllm")
    model = Echo(64, 512).to(torch.bfloat16)
    for each in search.choices:
        alone = analyze_generation(
            model, 64, 16, batch_size=each.batch_size, device="H100", engine="vllm"
        )
        assert each.per_token == pytest.approx(alone.per_token_under_load)
        assert each.first_token == pytest.approx(alone.first_token_under_load)
        rate = each.batch_size / alone.per_token_under_load
        assert each.tokens_per_second == pytest.approx(rate)
        assert each.price_per_million == pytest.approx(3.6 / 3600 / rate * 1e6)


@pytest.mark.slow
def test_limits_leave_out_what_is_slower() -> None:
    free = _searched()
    by_batch = {each.batch_size: each for each in free.choices}
    limit = (by_batch[2].per_token + by_batch[4].per_token) / 2
    search = _searched(max_per_token=limit)
    best = search.best
    assert best is not None
    assert best.batch_size in (2, 3)
    slow = next(each for each in search.choices if each.batch_size == 4)
    assert [note.code for note in slow.problems] == ["tokens-slow"]
    assert not any(each.batch_size == 8 for each in search.choices)
    none = _searched(max_first_token="0.001 us")
    assert none.best is None
    assert "No way is within the limits." in none.table().summary


@pytest.mark.slow
def test_copies_of_a_model_share_the_requests() -> None:
    one, two = _searched(), _searched(2)
    alone = {each.batch_size: each for each in one.choices}
    for each in two.choices:
        if each.tp == 1:
            rate = alone[each.batch_size].tokens_per_second
            assert each.num_copies == 2
            assert each.tokens_per_second == pytest.approx(2 * rate)
            assert each.tokens_per_second_per_gpu == pytest.approx(rate)


@pytest.mark.slow
def test_separate_gpus_for_prompts_are_split_by_what_both_take() -> None:
    search = _searched(2, separate=True)
    apart = [each for each in search.choices if each.prefill_tp == 1 and each.tp == 1]
    assert {each.num_copies + each.num_prefill_copies for each in apart} == {2}
    for each in apart:
        made = each.generation
        prompts = 1 / made.first_token
        requests = made.batch_size / (made.new * made.per_token)
        assert each.tokens_per_second == pytest.approx(min(prompts, requests) * made.new)
        assert each.per_token == made.per_token


@pytest.mark.slow
def test_a_slow_network_limits_separate_gpus() -> None:
    """At 10 MB/s, with 90 % of it for data, a cache of 16 MiB takes 1.9 s."""
    model = Echo(16384, 512).to(torch.bfloat16)
    search = parallel.search_serving(
        model, 8192, 16, num_gpus=2, device="H100", formats=[None], max_batch_size=64,
        separate=True, per_machine=1, network_gbs=0.01, progress=False,
    )  # fmt: skip
    apart = [each for each in search.choices if each.prefill_tp]
    assert apart
    for each in apart:
        slowest = 0.9 * 0.01e9 / (8192 * 2 * 512 * 2)
        assert each.tokens_per_second <= 1.001 * slowest * 16


def test_a_format_that_is_refused_leaves_the_others() -> None:
    search = _searched(formats=(None, "fp4"))
    assert search.choices
    assert {each.generation.compute for each in search.choices} == {None}
    (reason,) = (note for name, note in search.refused.items() if name.endswith("fp4"))
    assert "has no fp4 arithmetic" in str(reason)


def test_a_reason_keeps_the_advice_on_arguments_of_the_search() -> None:
    model: Any = Echo(64)
    model.config = SimpleNamespace(max_position_embeddings=100)
    search = parallel.search_serving(
        model, 64, 64, num_gpus=1, device="H100", formats=[None], progress=False
    )
    (reason,) = search.refused.values()
    assert str(reason).endswith("give a smaller prompt or new")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_machine", "bandwidth", "link"),
    [(8, 0.95 * 450e9, "links of the machine"), (1, 0.9 * 50e9, "network")],
)
def test_keys_and_values_of_the_prompt_are_sent(
    per_machine: int, bandwidth: float, link: str
) -> None:
    """Echo caches a key and a value of 512 numbers in 16 bits for each of 8,192 tokens: 16 MiB."""
    model = Echo(16384, 512).to(torch.bfloat16)
    search = parallel.search_serving(
        model, 8192, 16, num_gpus=2, device="H100", formats=[None], max_batch_size=1,
        separate=True, per_machine=per_machine, progress=False,
    )  # fmt: skip
    apart = [each for each in search.choices if each.prefill_tp]
    assert apart
    for each in apart:
        made = each.generation
        size = 8192 * 2 * 512 * 2
        assert each.cache_transfer == pytest.approx(size / bandwidth, rel=0.01, abs=2e-5)
        assert each.cache_transfer > size / 450e9
        waiting = made.first_token + each.cache_transfer + made.per_token
        assert each.first_token == pytest.approx(waiting)
    note = search.assumptions[-1]
    assert note.code == "prompts-apart"
    assert f"send keys and values over the {link}" in str(note)
    assert all(each.cache_transfer == 0 for each in search.choices if not each.prefill_tp)


def _mixture(**values: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tests.torchvision_cpu")  # transformers imports torchvision
    config = transformers.Qwen3MoeConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        vocab_size=256,
        num_experts_per_tok=2,
        **{"num_experts": 8, "moe_intermediate_size": 64, "intermediate_size": 64, **values},
    )
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def _names(search: ServingSearch) -> set[str]:
    return {str(each.layout) for each in search.choices}


@pytest.mark.slow
@pytest.mark.sweep
def test_experts_are_divided_in_both_ways() -> None:
    given: dict[str, Any] = {"num_gpus": 2, "device": "H100", "engine": "vllm", "formats": [None]}
    model = _mixture()
    search = parallel.search_serving(model, 64, 16, max_batch_size=4, progress=False, **given)
    assert _names(search) == {"tp 1", "tp 2", "tp 2, ep", "dp 2, ep"}
    by_way = {(str(each.layout), each.batch_size): each for each in search.choices}
    groups = by_way["dp 2, ep", 4]
    alone = analyze_generation(
        model,
        64,
        16,
        batch_size=4,
        device="H100",
        engine="vllm",
        mesh={"dp": 2},
        expert_parallel=True,
        progress=False,
    )
    assert groups.num_copies == 1
    assert groups.tokens_per_second == pytest.approx(2 * 4 / alone.per_token_under_load)
    assert by_way["tp 1", 4].num_copies == 2


@pytest.mark.slow
def test_ways_whose_weights_do_not_fit_are_not_recorded() -> None:
    """Experts take 768 GiB, two GPUs have 160."""
    model = _mixture(moe_intermediate_size=2**27)
    search = parallel.search_serving(
        model, 64, 16, num_gpus=2, device="H100", formats=[None], max_batch_size=1, progress=False
    )
    assert not search.choices
    assert search.num_traces == 0
    assert set(search.refused) == {"tp 1", "tp 2", "tp 2, ep", "dp 2, ep"}
    assert {note.code for note in search.refused.values()} == {"model-has-no-room"}


@before("2.9", "collectives do not run on shapes")
def test_reasons_name_no_arguments_of_others() -> None:
    search = _searched(2)
    (reason,) = search.refused.values()
    assert str(reason).startswith("Echo has no plan for tensor parallelism")
    assert "give" not in str(reason)


@pytest.mark.slow
def test_the_front_has_what_nothing_else_beats() -> None:
    search = _searched(formats=(None, "fp8"))
    for each in search.front:
        assert not any(
            other.per_token <= each.per_token
            and other.tokens_per_second_per_gpu > each.tokens_per_second_per_gpu
            for other in search.choices
        )


def test_a_search_is_plain_data_and_a_table() -> None:
    search = _searched(max_per_token=1.0)
    content = json.loads(search.to_json())
    assert len(content["choices"]) == len(search.choices)
    assert content["max_per_token"] == 1.0
    assert "1 × tp 1" in str(search.table())


def test_the_best_way_is_marked_in_each_format() -> None:
    search = _searched(max_per_token=1.0)
    best = search.best
    assert best is not None
    table = search.table()
    (marked,) = [line for line in str(table).splitlines() if " *  " in line]
    assert f"{best.tokens_per_second_per_gpu:,.0f}" in marked
    (marked,) = [line for line in table.write("markdown").splitlines() if r" \* |" in line]
    assert f"{best.tokens_per_second_per_gpu:,.0f}" in marked
    assert table.write("html").count('<tr class="best"') == 1
    assert "* marks the most tokens per second within the limits." in str(table)
    (marked,) = [
        line
        for line in table.write("text", colours=True).splitlines()
        if line.startswith("\x1b[1m")
    ]
    assert " *" in marked


def test_no_way_is_marked_if_none_is_within_the_limits() -> None:
    table = _searched(max_per_token=1e-9).table()
    assert "*" not in str(table)


def test_wrong_arguments_are_refused_in_a_line() -> None:
    with pytest.raises(InputError, match="max_per_token is 0: give seconds, more than 0"):
        _searched(max_per_token=0)
    with pytest.raises(
        InputError, match="max_first_token is 'soon', which is not a valid duration"
    ):
        _searched(max_first_token="soon")
    with pytest.raises(InputError, match="weights and formats are both given"):
        _searched(weights="int4", formats=("fp8",))
    with pytest.raises(InputError, match="num_gpus is 0"):
        _searched(0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_picture_has_a_point_for_each_choice() -> None:
    pytest.importorskip("matplotlib")
    search = _searched(max_per_token=1.0)
    ax = search.plot()
    points: list[Any] = [each.get_offsets() for each in ax.collections]
    drawn = {(round(float(x), 6), round(float(y), 3)) for ((x, y),) in points}
    for each in search.choices:
        rate = each.tokens_per_second_per_gpu
        assert (round(1000 * each.per_token, 6), round(rate, 3)) in drawn


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_names_in_the_picture_do_not_cross_a_line() -> None:
    pytest.importorskip("matplotlib")
    free = _searched()
    middle = next(each for each in free.front if each.batch_size == 4)
    ax = _searched(max_per_token=1.03 * middle.per_token).plot()
    figure: Any = ax.figure
    figure.draw_without_rendering()
    assert len(ax.lines) == 2, "the front, and the limit"
    assert ax.texts
    paths = [line.get_transform().transform_path(line.get_path()) for line in ax.lines]
    for text in ax.texts:
        box = text.get_window_extent()
        assert not any(path.intersects_bbox(box, filled=False) for path in paths)
