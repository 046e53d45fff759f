"""Limits on generating text, against sizes derived by hand, and times on either side of what is estimated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from tests.models.generating import Echo, Recurrent
from torchscan import (
    BudgetError,
    InputError,
    MissingFormulaError,
    analyze_generation,
    assert_budget,
)
from torchscan.budgets import check_budget, read_budgets
from torchscan.cli.main import main
from torchscan.generation_metrics import OF_GENERATION
from torchscan.hardware.device_specs import device_named
from torchscan.types import Generation

CARD = "NVIDIA L4"
#: of Echo(10, 8), in bytes: embedding, key, value and scores; a key and a value for each token
WEIGHTS, CACHE = 4 * (10 * 8 + 8 * 8 + 8 * 8 + 8 * 10), 2 * 8 * 4


def _asserted(model: Any = None, **given: Any) -> None:
    strict = given.pop("strict", True)
    limits = {name: given.pop(name) for name in list(given) if name.startswith(("max_", "min_"))}
    assert_budget(_analyze(model, **given), strict=strict, **limits)


def _analyze(model: Any = None, **options: Any) -> Generation:
    return analyze_generation(model or Echo(), 4, 2, device=CARD, **options)


@pytest.mark.parametrize(
    ("limit", "most"), [("max_weights", WEIGHTS), ("max_cache_per_token", CACHE)]
)
def test_a_limit_on_memory_holds_to_the_last_byte(limit: str, most: int) -> None:
    _asserted(**{limit: most})
    _asserted(**{limit: f"{most} B"})
    with pytest.raises(BudgetError):
        _asserted(**{limit: most - 1})


@pytest.mark.slow
def test_context_and_batch_are_those_that_there_is_memory_for() -> None:
    """Of float32: 256 numbers of each of 10 letters, key and value of 256 · 256, scores; a key and a value for each token."""
    model, cache = Echo(10, 256), 2 * 256 * 4
    generation = _analyze(model, batch_size=2)
    work = max(generation.work_bytes, generation.prompt_work_bytes)
    room = device_named(CARD).room_bytes - 4 * (2 * 10 * 256 + 2 * 256 * 256)
    context, batch = (room - work) // 2 // cache, room // (6 * cache + work // 2)
    _asserted(model, batch_size=2, min_context=context, min_batch_size=batch)
    with pytest.raises(
        BudgetError, match=rf"Largest context: {context:,} tokens, at least {context + 1:,} tokens"
    ):
        _asserted(model, batch_size=2, min_context=context + 1)
    with pytest.raises(
        BudgetError, match=rf"Largest batch: {batch:,} sequences, at least {batch + 1:,} sequences"
    ):
        _asserted(model, batch_size=2, min_batch_size=batch + 1)


def test_a_state_leaves_room_for_any_context() -> None:
    def step(model: nn.Module, cache: Any, token: Tensor) -> tuple[Any, Any]:
        return model(token, cache)

    _asserted(Recurrent(), step=step, min_context=10**9, max_cache_per_token=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "attribute"),
    [
        ("max_time_per_token", "per_token"),
        ("max_first_token", "first_token"),
        ("min_tokens_per_second", "tokens_per_second"),
    ],
)
def test_times_are_compared_as_they_are_estimated(limit: str, attribute: str) -> None:
    exact = getattr(_analyze(batch_size=3), attribute)
    beyond = 1.01 if limit.startswith("min") else 0.99
    _asserted(batch_size=3, **{limit: exact})
    with pytest.raises(BudgetError):
        _asserted(batch_size=3, **{limit: exact * beyond})


def test_the_error_says_what_is_exceeded_by_how_much_and_where() -> None:
    with pytest.raises(AssertionError) as caught:
        _asserted(
            max_weights="1 KiB", max_cache_per_token=63, min_context=10, max_time_per_token="1 us"
        )
    head, weights, cache, time, *layers = str(caught.value).splitlines()
    assert (head, weights, cache) == (
        "Generation on NVIDIA L4 exceeds its budget",
        "  Weights: 1.12 KiB, at most 1.00 KiB (+12.50 %)",
        "  Cache per token: 64 B, at most 63 B (+1.59 %)",
    )
    assert time.startswith("  Each further token after: ")
    assert f" ± {100 * _analyze().decode.error_margin.share:.0f} %, at most 1.00 µs (+" in time
    (first,) = layers  # no layer of so small a model is to blame
    assert first.startswith("    launch overhead of 9 operators: ")


def test_a_batch_that_is_too_large_is_explained_by_what_occupies_memory() -> None:
    """Weights of 288 numbers of 4 bytes; 6 tokens, of each a key and a value of 8 such numbers."""
    with pytest.raises(BudgetError) as caught:
        _asserted(min_batch_size=10**12)
    _, batch, *held = str(caught.value).splitlines()
    assert batch.startswith("  Largest batch: ")
    assert held == ["    weights: 1.12 KiB", "    cache of a sequence: 384 B"]


def test_what_a_rate_may_be_off_is_what_its_times_may_be() -> None:
    made = _analyze(batch_size=2)
    off = (
        made.first_token * made.prefill.error_margin.share
        + made.per_token * made.decode.error_margin.share
    )
    rate = OF_GENERATION["tokens_per_second"]
    assert rate.off(made) == pytest.approx(off / (made.first_token + made.per_token))
    assert (
        rate.read(made)
        == f"{made.tokens_per_second:,.0f} ± {100 * off / (made.first_token + made.per_token):.0f} %"
    )


def test_numbers_have_the_words_of_the_table() -> None:
    made = _analyze()
    table = {row.cells[0].text: row.cells[1].text for row in made.table().rows}
    for metric in OF_GENERATION.values():
        assert metric.text(metric.value(made)) == table[metric.heading]


class Unpriced(Echo):
    def forward(self, tokens: Tensor, cache: Any = None) -> dict[str, Any]:
        made = super().forward(tokens, cache)
        return {**made, "scores": torch.special.bessel_j0(made["scores"])}


@pytest.mark.slow
def test_what_is_only_a_bound_is_within_no_limit() -> None:
    with pytest.raises(
        MissingFormulaError,
        match=r"only a lower bound is known for Each further token after.*bessel_j0",
    ):
        _asserted(Unpriced(), max_time_per_token="1 s")
    with pytest.raises(
        MissingFormulaError, match="only an upper bound is known for New tokens per second"
    ):
        _asserted(Unpriced(), min_tokens_per_second=1)
    with pytest.warns(
        UserWarning, match="lower bounds, .* no cost formula: aten.special_bessel_j0.default"
    ):
        _asserted(Unpriced(), max_time_per_token="1 s", strict=False)
    with pytest.warns(UserWarning, match="values are lower bounds"):
        _asserted(Unpriced(), max_weights=WEIGHTS)  # which is known
    assert OF_GENERATION["time_per_token"].read(_analyze(Unpriced())).startswith("≥ ")
    assert OF_GENERATION["tokens_per_second"].read(_analyze(Unpriced())).startswith("≤ ")


def test_what_the_card_has_no_memory_for_is_said() -> None:
    with torch.device("meta"):
        model = Echo(10, 100_000)  # key and value have 40 GB each
    with pytest.warns(
        UserWarning, match="memory of NVIDIA L4 is too small for a sequence of 6 tokens"
    ):
        _asserted(model, max_cache_per_token=2 * 100_000 * 4)
    with (
        pytest.warns(UserWarning, match="is too small for"),
        pytest.raises(
            BudgetError, match=r"Largest context: does not fit, at least 6 tokens \(−100.00 %\)"
        ),
    ):
        _asserted(model, min_context=6)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, "there is no limit for a generation: give one, such as max_time_per_token"),
        ({"max_weights": "heavy"}, "max_weights is 'heavy', which is not a valid amount of memory"),
        ({"min_context": -1}, "min_context is -1: give a number"),
        (
            {"max_params": 1},
            "max_params is not a limit of a generation: give max_time_per_token, "
            "max_time_per_token_under_load, max_first_token, "
            "min_tokens_per_second, max_weights, max_cache_per_token, min_context or min_batch_size, "
            r"or what crawl_module\(module, …\) returns",
        ),
        (
            {"max_weights": WEIGHTS, "per_sample": True},
            "per_sample is True, and no limit of a generation is divided: leave it out",
        ),
        (
            {"max_weights": WEIGHTS, "batch_size": 2},
            "batch_size is for a model, and this is a generation: leave it out, or give the model",
        ),
    ],
)
def test_wrong_use_is_refused_in_one_line(limits: dict[str, Any], says: str) -> None:
    made = _analyze()
    with pytest.raises(InputError, match=says) as caught:
        assert_budget(made, **limits)
    assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="did you mean 'max_weights'"):
        assert_budget(made, max_weight=1)  # type: ignore[call-arg]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_of_transformers() -> None:
    """Two layers, in which two heads of 16 keep a key and a value; 64 positions. All is of 4 bytes, 2 in bf16."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
    }
    config = transformers.LlamaConfig(
        **sizes, intermediate_size=128, vocab_size=100, max_position_embeddings=64
    )
    model = transformers.LlamaForCausalLM(config)
    cache = 2 * 2 * 2 * 16 * 4
    _asserted(model, max_cache_per_token=cache, min_context=64)
    _asserted(model, max_cache_per_token=cache // 2, precision="bf16")
    with pytest.raises(BudgetError) as caught:
        _asserted(model, max_cache_per_token=cache - 1, min_context=65)
    assert str(caught.value).splitlines()[1:] == [
        "  Cache per token: 512 B, at most 511 B (+0.20 %)",
        "  Largest context: 64 tokens, at least 65 tokens (−1.54 %)",
    ]


# -- in the budget file --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "writers.py").write_text("from tests.models.generating import Echo\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [each for each in sys.modules if each.startswith("_torchscan_target_")]:
        del sys.modules[name]


def _written(*limits: str, above: str = "") -> Path:
    head = f"[budgets.echo]\ntarget = 'writers.py:Echo'\ndevice = '{CARD}'\n{above}\n[budgets.echo.generation]\n"
    path = Path("torchscan.toml")
    path.write_text("\n".join([head, "prompt = 4", "new = 2", *limits]))
    return path


def test_the_file_asks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Without other limits no input is needed."""
    _written(f"max_weights = {WEIGHTS}", f"max_cache_per_token = {CACHE}", "min_context = '1k'")
    assert main(["check"]) == 0
    assert capsys.readouterr().out.startswith(
        "✓ echo: Weights 1.12 KiB, Cache per token 64 B, Largest context "
    )
    _written(f"max_weights = {WEIGHTS - 1}", f"max_cache_per_token = {CACHE}")
    assert main(["check"]) == 1
    assert (
        capsys.readouterr().out
        == "✗ echo exceeds its budget\n  Weights: 1,152, at most 1,151 (+0.09 %)\n"
    )


def test_precision_and_batch_are_those_of_the_budget() -> None:
    path = _written(
        f"max_weights = {WEIGHTS // 2}",
        "max_first_token = '1 s'",
        above="precision = 'bf16'\nbatch_size = 3",
    )
    outcome = check_budget(read_budgets(path)["echo"])
    assert outcome.is_fine
    assert outcome.values["first_token"] == _analyze(batch_size=3, precision="bf16").first_token


def test_a_pass_may_be_limited_as_well() -> None:
    path = _written("max_weights = 1", above="input = '5:long'\nmax_params = 287\nmax_macs = '1k'")
    outcome = check_budget(read_budgets(path)["echo"])
    assert list(outcome.values) == ["params", "macs", "weights"]
    assert [each.metric for each in outcome.excesses] == ["params", "macs", "weights"]
