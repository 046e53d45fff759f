"""Parameters that quantised modules pack away in a kernel's own format."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls
from torchscan import (
    BudgetError,
    MissingFormulaError,
    assert_budget,
    crawl_module,
    estimate_memory,
    format_info,
    record,
)
from torchscan.analyses.totals import total_cost

quantisation: Any = torch.ao.quantization


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    """torch.ao.quantization warns that it is on its way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def dynamic(module: nn.Module, dtype: torch.dtype = torch.qint8) -> Any:
    return quantisation.quantize_dynamic(nn.Sequential(module), {type(module)}, dtype)


def embedding(module: nn.Module, config: Any) -> Any:
    model = nn.Sequential(module)
    model[0].qconfig = config
    return quantisation.convert(quantisation.prepare(model))


def parameters(model: nn.Module, *args: Tensor) -> tuple[int, int]:
    """How many, and their bytes."""
    overall = crawl_module(model, args=args)["overall"]
    assert overall["grad_params"] == overall["num_buffers"] == 0
    return overall["nograd_params"], overall["param_size"]


def test_a_dynamically_quantised_linear_layer_has_its_weights_and_its_bias() -> None:
    """10 · 20 weights of a byte, 20 biases of 4; 2 · 200 MACs."""
    info = crawl_module(dynamic(nn.Linear(10, 20)), args=(torch.zeros(2, 10),), strict=True)
    layer = next(each for each in info["layers"] if each["path"] == "0")
    assert (layer["nograd_params"], layer["param_size"], layer["macs"]) == (220, 200 + 80, 400)
    assert layer["bytes_read"] == 200 + 80 + 2 * 10 * 4
    assert (info["overall"]["grad_params"], info["overall"]["nograd_params"]) == (0, 220)
    assert info["unused_parameters"] == {}
    assert info["provenance"]["assumptions"] == []


def test_half_precision_is_stored_in_two_bytes() -> None:
    """It is unpacked in single precision, but not kept so."""
    assert parameters(dynamic(nn.Linear(10, 20), torch.float16), torch.zeros(2, 10)) == (
        220,
        400 + 80,
    )


def test_without_a_bias() -> None:
    assert parameters(dynamic(nn.Linear(10, 20, bias=False)), torch.zeros(2, 10)) == (200, 200)


def test_recurrent_layers() -> None:
    """4 gates of 5 units: 20 · (4 + 5) and 20 · (5 + 5) weights of a byte, 2 · 20 biases of 4 in each layer, counted once."""
    assert parameters(dynamic(nn.LSTM(4, 5, 2))[0], torch.zeros(3, 2, 4)) == (
        180 + 200 + 80,
        380 + 4 * 80,
    )
    assert parameters(dynamic(nn.LSTMCell(4, 5))[0], torch.zeros(2, 4)) == (180 + 40, 180 + 4 * 40)


def test_statically_quantised_layers() -> None:
    """4 · 27 weights and 4 biases, 144 · 5 and 5; scale and zero point of the input are buffers."""
    model: Any = nn.Sequential(
        quantisation.QuantStub(),
        nn.Conv2d(3, 4, 3),
        nn.Flatten(),
        nn.Linear(144, 5),
        quantisation.DeQuantStub(),
    ).eval()
    model.qconfig = quantisation.get_default_qconfig("x86")
    quantisation.prepare(model, inplace=True)
    model(torch.rand(2, 3, 8, 8))
    quantisation.convert(model, inplace=True)
    info = crawl_module(model, args=(torch.rand(2, 3, 8, 8),), strict=True)
    found = {each["path"]: (each["nograd_params"], each["param_size"]) for each in info["layers"]}
    assert (found["1"], found["3"]) == ((112, 108 + 16), (725, 720 + 20))
    assert info["overall"]["nograd_params"] == 837


@pytest.mark.parametrize(
    ("bits", "config"),
    [(8, "float_qparams_weight_only_qconfig"), (4, "float_qparams_weight_only_qconfig_4bit")],
)
def test_tables_of_embeddings(bits: int, config: str) -> None:
    """10 rows of 6, two of them in a byte if they have 4 bits."""
    model = embedding(nn.EmbeddingBag(10, 6), getattr(quantisation, config))
    assert parameters(model, torch.zeros(2, 3, dtype=torch.long)) == (60, 60 * bits // 8)


def test_what_is_not_called_is_unused() -> None:
    layers = nn.ModuleDict(
        {"one": dynamic(nn.Linear(10, 20))[0], "other": dynamic(nn.Linear(10, 20))[0]}
    )
    info = crawl_module(
        Calls(lambda self, x: self.layers["one"](x), layers=layers), args=(torch.zeros(2, 10),)
    )
    assert info["overall"]["nograd_params"] == 440
    assert info["unused_parameters"] == {"layers.other": 220}


def test_an_object_that_two_modules_hold_counts_once() -> None:
    one, other = (dynamic(nn.Linear(10, 10))[0] for _ in range(2))
    other._packed_params._packed_params = one._packed_params._packed_params
    info = crawl_module(nn.Sequential(one, other), args=(torch.zeros(2, 10),))
    assert [(each["nograd_params"], each["is_shared"]) for each in info["layers"]] == [
        (0, False),
        (110, False),
        (0, True),
    ]


def test_a_copy_counts_again() -> None:
    one = dynamic(nn.Linear(10, 10))[0]
    assert parameters(nn.Sequential(one, copy.deepcopy(one)), torch.zeros(2, 10)) == (220, 2 * 140)


def test_objects_that_are_used_without_their_module() -> None:
    """Also in a list."""
    packed = dynamic(nn.Linear(10, 20))[0]._packed_params._packed_params
    model: Any = Calls(lambda self, x: torch.ops.quantized.linear_dynamic(x, self.held[0], False))
    model.held = [packed]
    info = crawl_module(model, args=(torch.zeros(2, 10),))
    assert (info["overall"]["nograd_params"], info["unused_parameters"]) == (220, {})


def packed_weights() -> Any:
    """10 · 20 and 20."""
    return dynamic(nn.Linear(10, 20))[0]._packed_params._packed_params


class Holder(nn.Module):
    """Sums up the products with what it is asked for, of all that it holds."""

    def __init__(self, use: Any, **held: Any) -> None:
        super().__init__()
        vars(self).update(held)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return sum(
            torch.ops.quantized.linear_dynamic(x, packed, False) for packed in self.use(self)
        )


CONTAINERS: dict[str, tuple[Any, Any]] = {
    "a dict": (lambda packed: {"a": packed}, lambda self: [self.held["a"]]),
    "lists": (lambda packed: [[[packed]]], lambda self: self.held[0][0]),
    "a list in a dict in a tuple": (
        lambda packed: (1, {"a": [packed]}),
        lambda self: self.held[1]["a"],
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_objects_in_containers_are_counted(name: str) -> None:
    put, use = CONTAINERS[name]
    info = crawl_module(Holder(use, held=put(packed_weights())), args=(torch.zeros(2, 10),))
    assert (info["overall"]["nograd_params"], info["unused_parameters"]) == (220, {})
    assert info["provenance"]["unreadable_weights"] == []


def test_a_list_that_holds_itself_is_looked_into_once() -> None:
    held = [packed_weights()]
    held.append(held)
    assert parameters(Holder(lambda self: self.held[:1], held=held), torch.zeros(2, 10))[0] == 220


def test_an_object_that_is_shown_does_not_hide_another() -> None:
    hidden = packed_weights()
    model = Holder(lambda self: [self.shown, hidden], shown=packed_weights())
    info = crawl_module(model, args=(torch.zeros(2, 10),))
    assert info["provenance"]["unreadable_weights"] == [
        {"code": "hidden-weights", "values": {"path": ""}}
    ]
    assert "≥ 220" in format_info(info)


def test_of_two_objects_of_a_module_the_one_that_no_operator_takes_is_unused() -> None:
    model = Holder(lambda self: [self.used], used=packed_weights(), unused=packed_weights())
    info = crawl_module(model, args=(torch.zeros(2, 10),))
    assert (info["overall"]["nograd_params"], sum(info["unused_parameters"].values())) == (440, 220)


def test_a_layer_may_use_what_another_module_holds() -> None:
    layer = Holder(lambda _: model.held)
    model: Any = Calls(lambda self, x: self.layer(x), layer=layer)
    model.held = [packed_weights()]
    info = crawl_module(model, args=(torch.zeros(2, 10),))
    assert (info["provenance"]["unreadable_weights"], info["unused_parameters"]) == ([], {})


def test_memory_holds_what_is_packed_away() -> None:
    memory = estimate_memory(dynamic(nn.Linear(10, 20)), (10,))
    assert memory.by_kind["parameters"] == 200 + 80
    assert memory.peak_bytes == 280 + 40 + 80


def test_budgets_limit_what_is_packed_away() -> None:
    model = dynamic(nn.Linear(10, 20))
    assert_budget(model, (10,), max_params=220)
    with pytest.raises(BudgetError):
        assert_budget(model, (10,), max_params=219)


def test_an_object_that_cannot_be_read_makes_a_lower_bound() -> None:
    """Such as one that has nothing to do with weights: nobody can tell."""
    model: Any = nn.Sequential(nn.Linear(10, 20))
    model.log = torch.classes.profiling._ScriptProfile()
    info = crawl_module(model, (10,))
    assert info["overall"]["grad_params"] == 220
    unread = {"code": "unreadable-weights", "values": {"path": "log"}}
    assert info["provenance"]["unreadable_weights"] == [unread]
    assumption = {"code": "weights-not-counted", "values": {"weights": unread}}
    assert assumption in info["provenance"]["assumptions"]
    assert "≥ 220" in format_info(info)
    for limit in ("max_params", "max_model_size", "max_peak_memory"):
        limits: dict[str, Any] = {limit: 10**6}
        with pytest.raises(MissingFormulaError, match="the weights in log, which cannot be read"):
            assert_budget(model, (10,), **limits)
    assert_budget(model, (10,), max_macs=200, max_trainable_params=220)
    assert "≥ 220" in str(torchscan.model_table({"a": model}, (10,), metrics=["params"]))
    assert "≥" not in format_info(crawl_module(nn.Linear(10, 20), (10,)))


def test_weights_that_no_module_shows_make_a_lower_bound() -> None:
    """A ScriptModule hides what it holds, and so does a closure."""
    packed = dynamic(nn.Linear(10, 20))[0]._packed_params._packed_params
    hidden = [
        torch.jit.script(dynamic(nn.Linear(10, 20))),
        Calls(lambda _, x: torch.ops.quantized.linear_dynamic(x, packed, False)),
    ]
    for model in hidden:
        text = " ".join(format_info(crawl_module(model, args=(torch.zeros(2, 10),))).split())
        weights = "the packed weights of the model, which no module exposes"
        assert f"Parameters and memory are not counted for {weights}." in text


def test_a_quantised_model_is_as_before() -> None:
    model, x = dynamic(nn.Linear(10, 20)), torch.randn(2, 10)
    before, attributes = (
        model(x),
        {name: vars(module).copy() for name, module in model.named_modules()},
    )
    record(model, args=(x,))
    assert torch.equal(model(x), before)
    assert {name: vars(module) for name, module in model.named_modules()} == attributes


def test_records_have_what_is_packed_away() -> None:
    trace = record(dynamic(nn.Linear(10, 20)), (10,))
    assert [(each.owner, each.numel, each.requires_grad) for each in trace.parameters] == [
        ("0._packed_params", 200, False),
        ("0._packed_params", 20, False),
    ]
    assert total_cost(trace).is_complete
