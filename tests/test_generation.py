"""What generating text takes, against what can be derived by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.models.generating import Adapted, Echo, InPlace, Recurrent, Seeing, Window
from torchscan import InputError, RecordError, register_device
from torchscan.hardware import device_catalog
from torchscan.hardware.device_specs import device_named
from torchscan.notes import Note

CARD = "RTX 3090"


def _asked(
    model: nn.Module, prompt: int = 4, new: int = 2, **options: Any
) -> torchscan.types.Generation:
    return torchscan.analyze_generation(model, prompt, new, device=CARD, **options)


def _called_by_place(
    model: nn.Module, cache: Tensor | None, token: Tensor
) -> tuple[Tensor, Tensor]:
    output, cache = model(token, cache)
    return output, cache


def test_keys_and_values_grow_with_every_token() -> None:
    found = _asked(Echo(vocabulary=10, width=8), batch_size=3)
    assert found.params == found.active_params == 10 * 8 + 8 * 8 + 8 * 8 + 8 * 10
    assert found.weights_bytes == 4 * found.params
    assert found.cache_bytes_per_token == 2 * 8 * 4
    assert found.cache_bytes == 6 * 2 * 8 * 4


@pytest.mark.parametrize("weights", [None, "int8"])
def test_a_tied_weight_is_held_once(weights: Any) -> None:
    """The output projection has the weight of the embedding, which stays as it is."""
    model = Echo(vocabulary=10, width=8)
    model.out.weight = model.embedding.weight
    found = _asked(model, weights=weights)
    matrix = 4 * 8 * 8 if weights is None else 8 * 8 + 8 * 2
    assert found.params == 10 * 8 + 2 * 8 * 8
    assert found.weights_bytes == 4 * 10 * 8 + 2 * matrix


def test_a_window_is_full_at_some_point() -> None:
    assert _asked(Window(3)).cache_bytes == 3 * 8 * 4
    assert _asked(Window(3)).cache_bytes_per_token == 0
    assert _asked(Window(100)).cache_bytes == 6 * 8 * 4
    assert _asked(Window(100)).cache_bytes_per_token == 8 * 4


def test_a_state_does_not_grow() -> None:
    found = _asked(Recurrent(), step=_called_by_place)
    assert found.cache_bytes == 16 * 4
    assert found.cache_bytes_per_token == 0
    assert found.max_context is None
    assert Note.of("cache-ends", tokens=8192) in found.assumptions
    assert not any(each.code == "cache-grows" for each in found.assumptions)
    assert Note.of("cache-grows", tokens=8192) in _asked(Echo()).assumptions


def test_a_cache_with_a_room_of_its_own_is_all_there_from_the_beginning() -> None:
    found = _asked(InPlace(16), step=_called_by_place)
    assert found.cache_bytes == 16 * 8 * 4
    assert found.max_context == 6
    assert Note.of("reach-limited", tokens=6) in found.assumptions


def test_a_model_that_generates_takes_no_change() -> None:
    model = Echo().train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    _asked(model)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_stored_weights_take_their_bits_and_their_scales() -> None:
    """Key and value are packed; the embedding, and the product that the scores come from, are not."""
    whole = 4 * (10 * 64 + 64 * 10)
    matrix = 64 * 64
    assert _asked(Echo(10, 64)).weights_bytes == whole + 2 * 4 * matrix
    assert _asked(Echo(10, 64), weights="int8").weights_bytes == whole + 2 * (matrix + 64 * 2)
    assert _asked(Echo(10, 64), weights="fp8").weights_bytes == whole + 2 * matrix
    assert _asked(Echo(10, 64), weights="int4:32").weights_bytes == whole + 2 * (
        matrix // 2 + matrix // 32 * 4
    )
    assert _asked(Echo(10, 64), weights="mxfp4").weights_bytes == whole + 2 * (
        matrix // 2 + matrix // 32
    )


def test_a_stored_cache_takes_its_bits() -> None:
    assert _asked(Echo(), cache="fp8").cache_bytes == 6 * 2 * 8
    assert _asked(Echo(), cache="int8").cache_bytes == 6 * 2 * (8 + 2)
    assert _asked(Recurrent(), cache="fp8", step=_called_by_place).cache_bytes == 16 * 4


def test_half_the_precision_is_half_the_bytes() -> None:
    assert _asked(Echo(), precision="bf16").weights_bytes == _asked(Echo()).weights_bytes // 2
    assert _asked(Echo(), precision="bf16").cache_bytes == _asked(Echo()).cache_bytes // 2


def test_eager_code_copies_the_cache_that_engines_append_to() -> None:
    """Key and value of 512 tokens each, read and written: against one token."""
    appended, copied = _asked(Echo(), 512, 1), _asked(Echo(), 512, 1, engine="transformers")
    assert _bytes_joined(copied) == [513 * 8 * 4] * 2
    assert _bytes_joined(appended) == [8 * 4] * 2
    assert copied.per_token > appended.per_token


def _bytes_joined(found: torchscan.types.Generation) -> list[int]:
    calls = [each for each in found.decode.operators if each.operator == "aten.cat"]
    return [each.bytes_written for each in calls]


def test_memory_is_shared_out_among_sequences() -> None:
    found = _asked(Echo(10, 256), batch_size=2)
    assert found.cache_bytes_per_token == 2 * 256 * 4
    left = device_named(CARD).room_bytes - found.weights_bytes
    work = max(found.work_bytes, found.prompt_work_bytes)
    assert found.max_context == (left - work) // 2 // found.cache_bytes_per_token
    assert found.max_batch_size == left // (found.cache_bytes + work // 2)


def test_too_many_sequences_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_catalog, "_registered", {})
    figures: dict[str, Any] = {
        "bandwidth_gbs": 500,
        "dense_tflops": {"fp32": 5},
        "cuda_context_mb": 1,
    }
    register_device("small", memory_gb=8 / 1024, **figures)
    sweep = torchscan.analyze_generation(Echo(10, 256), 400, 2, batch_size=[1, 64], device="small")
    most = sweep.generations[0].max_batch_size
    assert most == (
        int(8 * 2**20 * 0.975) - 2**20 - 4 * (2 * 2560 + 2 * 256**2)
    ) // _bytes_of_a_sequence(sweep.generations[0])
    assert f"Warning: there is memory for only {most} sequences." in sweep.table().remarks
    register_device("tiny", memory_gb=1 / 1024, **figures)
    sweep = torchscan.analyze_generation(Echo(10, 256), 400, 2, batch_size=[1], device="tiny")
    assert "Warning: the memory is too small for the model." in sweep.table().remarks


def _bytes_of_a_sequence(found: torchscan.types.Generation) -> int:
    return found.cache_bytes + max(found.work_bytes, found.prompt_work_bytes)


def test_a_sweep_is_the_same_question_for_each_batch() -> None:
    sweep = torchscan.analyze_generation(Echo(), 4, 2, batch_size=[1, 8], device=CARD, price=3.6)
    assert [each.batch_size for each in sweep.generations] == [1, 8]
    for each in sweep.generations:
        alone = _asked(Echo(), batch_size=each.batch_size)
        assert (each.per_token, each.cache_bytes) == (alone.per_token, alone.cache_bytes)
        seconds = each.first_token_of_all + each.per_token
        assert each.tokens_per_second == pytest.approx(2 * each.batch_size / seconds)
        assert sweep.price_per_million(each) == pytest.approx(
            3.6 / 3600 * 1e6 * seconds / (2 * each.batch_size)
        )
    assert json.loads(json.dumps(sweep.to_dict()))["num_traces"] == sweep.num_traces


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": 0}, "prompt is 0: give a positive integer"),
        ({"new": "many"}, "new is 'many': give a positive integer, or a text such as '4k'"),
        ({"batch_size": True}, "batch_size is True"),
        (
            {"precision": "fp8"},
            "precision is 'fp8': give one of 'fp32', 'tf32', 'fp16', 'bf16'; weights sets",
        ),
        ({"precision": "int3"}, "precision is 'int3'"),
        ({"weights": "int3"}, "weights is 'int3': give one of"),
        ({"cache": "int4:0"}, "cache is 'int4:0'"),
    ],
)
def test_wrong_use_is_said_in_a_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        _asked(Echo(), **options)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_cache_is_told_of_step() -> None:
    with pytest.raises(
        InputError, match="Embedding returns no cache that it takes again: give step="
    ) as caught:
        _asked(nn.Embedding(5, 2))
    assert "\n" not in str(caught.value)


def test_a_model_that_takes_no_tokens_is_told_what_does() -> None:
    with pytest.raises(
        RecordError,
        match=r"^Conv2d cannot be run token by token: .* failed.*: give .*inputs=, or step=",
    ) as caught:
        _asked(nn.Conv2d(3, 8, 3))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_an_error_of_a_step_is_that_of_its_user() -> None:
    with pytest.raises(RecordError, match="ZeroDivisionError") as caught:
        _asked(Echo(), step=lambda model, cache, token: 1 // 0)
    assert "cannot be run token by token" not in str(caught.value)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of torch's own, when it imports the compiler
def test_a_compiled_model_is_asked_as_it_was_written() -> None:
    compiled, written = _asked(_compiled(Echo())), _asked(Echo())
    assert compiled.to_dict() == written.to_dict()
    assert (
        torchscan.symbolic_costs(_compiled(Echo())).to_dict()
        == torchscan.symbolic_costs(Echo()).to_dict()
    )
    with pytest.raises(InputError, match=r"^Embedding returns no cache"):
        _asked(_compiled(nn.Embedding(5, 2)))
    given: list[nn.Module] = []

    def step(model: nn.Module, cache: Any, token: Tensor) -> tuple[Any, Any]:
        given.append(model)
        output = model(token, cache)
        return output, output["cache"]

    assert _asked(_compiled(Echo()), step=step).cache_bytes == written.cache_bytes
    assert {type(each) for each in given} == {Echo}


def _compiled(model: nn.Module) -> Any:
    return torch.compile(model)


def test_a_wrapper_takes_what_its_model_takes() -> None:
    wrapped, alone = _asked(Adapted(Adapted(Echo()))), _asked(Echo())
    assert (wrapped.params, wrapped.cache_bytes, wrapped.per_token) == (
        alone.params,
        alone.cache_bytes,
        alone.per_token,
    )


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_image_is_looked_at_once_and_its_places_are_tokens_of_the_prompt(
    batch_size: int,
) -> None:
    image = {"image": torch.zeros(1, 2, 12), "tokens": torch.tensor([[1, -1, -1]])}
    seen, read = (
        _asked(Seeing(), batch_size=batch_size, inputs=inputs) for inputs in (image, None)
    )
    assert seen.cache_bytes == read.cache_bytes == 6 * 2 * 8 * 4
    # the prompt of one sequence, whatever the batch
    assert _macs(seen.prefill) - _macs(read.prefill) == 2 * 12 * 8
    assert _macs(seen.decode) == _macs(read.decode)


def _macs(roofline: torchscan.types.Roofline) -> int:
    return sum(each.macs for each in roofline.operators)


def test_inputs_are_tensors_by_the_names_of_arguments() -> None:
    with pytest.raises(
        InputError,
        match="inputs has 'picture', which Seeing does not take: choose from tokens, cache, image",
    ):
        _asked(Seeing(), inputs={"picture": torch.zeros(1, 2, 12)})
    with pytest.raises(InputError, match=r"inputs\['image'\] is a list: give a tensor"):
        _asked(Seeing(), inputs={"image": [1]})
    with pytest.raises(InputError, match="prompt is 2, and inputs has 3 tokens of it"):
        _asked(Seeing(), prompt=2, inputs={"tokens": torch.zeros(1, 3, dtype=torch.long)})


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        scaled: Tensor = self.layer(x) * scale
        return scaled


class Unnamed(nn.Module):
    def forward(self, *tokens: Tensor) -> Tensor:
        return tokens[0]


def test_a_model_needs_an_argument_for_its_tokens() -> None:
    given = {"x": torch.zeros(1, 3), "scale": torch.zeros(1, 3)}
    with pytest.raises(
        InputError,
        match=r"^inputs is floating-point for every argument of Scaled \(x, scale\): leave out the "
        r"one that takes tokens, or give step=, a function that calls the model$",
    ):
        _asked(Scaled(), inputs=given)
    no_names = "^Unnamed takes no argument by name: give step=, a function that calls the model$"
    with pytest.raises(InputError, match=no_names):
        _asked(Unnamed())
    with pytest.raises(InputError, match=no_names):
        torchscan.symbolic_costs(Unnamed())


def test_more_tokens_than_positions_are_refused() -> None:
    model = Echo()
    model.config = type("Config", (), {"max_position_embeddings": 5})()
    with pytest.raises(InputError, match=r"the model has 5 positions, fewer than 4 \+ 2 tokens"):
        _asked(model)


def test_the_shell_asks_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchscan.cli.main import main

    (tmp_path / "mine.py").write_text("from tests.models.generating import Echo\nmodel = Echo\n")
    monkeypatch.chdir(tmp_path)
    asked = [
        "llm",
        "serve",
        "mine.py:model",
        "--device",
        CARD,
        "--context",
        "1k",
        "--new",
        "24",
        "--batch-size",
        "1,2",
        "--price",
        "2.5",
    ]
    assert main([*asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["prompt"] for each in found["generations"]] == [1000, 1000]
    assert main(asked) == 0
    assert "prompt of 1,000 tokens, 24 new" in " ".join(capsys.readouterr().out.split())
    assert main(["llm", "serve", *asked[2:5], "--context", "24", "--new", "24"]) == 2
    assert "which leaves no prompt" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_a_picture_has_a_point_for_each_batch() -> None:
    pytest.importorskip("matplotlib")
    sweep = torchscan.analyze_generation(Echo(), 4, 2, batch_size=[8, 1], device=CARD)
    ax = sweep.plot()
    drawn: list[Any] = [each.get_offsets() for each in ax.collections]
    points = [tuple(each[0]) for each in drawn]
    assert points == [
        pytest.approx((1000 * each.per_token, each.tokens_per_second))
        for each in reversed(sweep.generations)
    ]
    assert [each.get_text() for each in ax.texts] == ["1 sequence", "8 sequences"]
    for single in (
        torchscan.analyze_generation(Echo(), 4, 2, batch_size=[1], device=CARD),
        _asked(Echo()),
    ):
        with pytest.raises(InputError, match="only one batch size to draw"):
            single.plot()


def test_costs_are_formulas() -> None:
    """Keys, values and scores are products for each token; those of attention for each pair of tokens."""
    costs = torchscan.symbolic_costs(Echo(10, 8))
    assert costs.prompt["macs"] is not None
    assert {
        powers: int(each) for powers, each in costs.prompt["macs"].coefficients.items() if each
    } == {
        (1, 1): 2 * 8 * 8 + 8 * 10,
        (1, 2): 2 * 8,
    }
    assert str(costs.prompt["macs"]) == "208·B·T + 16·B·T²"
    assert str(costs.token["macs"]) == "224·B + 16·B·T"
    assert str(costs.token["cache_bytes"]) == "64·B + 64·B·T"
    assert costs.to_dict()["prompt"]["macs"] == {"1,1": "208", "1,2": "16"}


def test_a_window_that_fills_up_has_no_formula_before() -> None:
    assert torchscan.symbolic_costs(Window(100), near=64).token["cache_bytes"] is None
    assert str(torchscan.symbolic_costs(Window(100), near=101).token["cache_bytes"]) == "3200·B"
