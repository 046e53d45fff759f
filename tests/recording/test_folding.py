"""Equal layers are recorded once; the record is that of the whole model, or all layers are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import analyze_generation, record
from torchscan.recording.folding import Folded, UnfoldableError
from torchscan.recording.folding.alike import difference
from torchscan.recording.folding.left_out_layers import left_out_of
from torchscan.recording.generation_passes import Generating, Length
from torchscan.recording.kept_passes import Kept
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest
from torchscan.user_warnings import TorchscanWarning


class Layer(nn.Module):
    def __init__(self, index: int, width: int = 8) -> None:
        super().__init__()
        self.index = index
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor, mask: Tensor, cache: dict[int, Tensor]) -> Tensor:
        keys = self.norm(x)
        cache[self.index] = keys = (
            torch.cat([cache[self.index], keys], 1) if self.index in cache else keys
        )
        return x + self.down(torch.relu(self.up(x + mask))) * keys.mean()


class Stack(nn.Module):
    """A model that takes and returns a cache."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.layers = nn.ModuleList(self.layer(index) for index in range(layers))

    def layer(self, index: int) -> nn.Module:
        return Layer(index)

    def forward(self, tokens: Tensor, cache: Mapping[int, Tensor] | None = None) -> dict[str, Any]:
        x, kept = self.embedding(tokens), dict(cache or {})
        mask = torch.ones(tokens.shape[1], 1)
        for layer in self.layers:
            x = layer(x, mask, kept)
        return {"scores": self.head(x[:, -1:]), "cache": kept}


class Kinds(Stack):
    """Every second layer is narrower inside, and the last one of its own kind."""

    def layer(self, index: int) -> nn.Module:
        layer = Layer(index)
        if index % 2 == 0:
            layer.up, layer.down = nn.Linear(8, 24), nn.Linear(24, 8)
        layer.__dict__["is_last"] = index == 11
        return layer


class Skipping(Stack):
    """The fifth layer adds what came out of the first."""

    def forward(self, tokens: Tensor, cache: Mapping[int, Tensor] | None = None) -> dict[str, Any]:
        x, kept = self.embedding(tokens), dict(cache or {})
        mask, first = torch.ones(tokens.shape[1], 1), x
        for index, layer in enumerate(self.layers):
            x = layer(x, mask, kept)
            first = x if index == 3 else first
            x = x + first if index == 5 else x
        return {"scores": self.head(x[:, -1:]), "cache": kept}


class Collecting(Stack):
    """The scores are of all layers' results."""

    def forward(self, tokens: Tensor, cache: Mapping[int, Tensor] | None = None) -> dict[str, Any]:
        x, kept, seen = self.embedding(tokens), dict(cache or {}), []
        for layer in self.layers:
            x = layer(x, torch.ones(tokens.shape[1], 1), kept)
            seen.append(x)
        return {"scores": self.head(torch.stack(seen).mean(0)), "cache": kept}


class OddLayer(Layer):
    def forward(self, x: Tensor, mask: Tensor, cache: dict[int, Tensor]) -> Tensor:
        result = super().forward(x, mask, cache)
        return result.tanh() if self.index == 6 else result


class Odd(Stack):
    """The sixth layer does something else, which nothing says."""

    def layer(self, index: int) -> nn.Module:
        return OddLayer(index)


class SometimesLayer(Layer):
    def forward(self, x: Tensor, mask: Tensor, cache: dict[int, Tensor]) -> Tensor:
        result = super().forward(x, mask, cache)
        return result.tanh() if self.index % 4 == 3 and x.shape[1] > 10 else result


class Sometimes(Stack):
    """Every fourth layer does something else, but not in short passes, and nothing says so."""

    def layer(self, index: int) -> nn.Module:
        return SometimesLayer(index)


def passes_of(model: nn.Module) -> Generating:
    return Generating(
        model.eval(),
        batch_size=1,
        precision=None,
        kernels={"device_type": "cuda", "has_flash": True},
    )


def cached(kept: Kept) -> int:
    return sum(kept.times.get(name, 1) * tensor.numel() for name, tensor in kept.tensors.items())


def both(passes: Generating) -> tuple[Kept, Kept]:
    return passes.prompted(Length(5)), passes.continued(Length(5, 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stack, Kinds])
def test_the_record_is_that_of_the_whole_model(kind: type[Stack]) -> None:
    model = kind()
    whole, folded = passes_of(model), passes_of(model)
    folded.fold(Length(3))
    assert folded.folded is not None
    for one, other in zip(both(whole), both(folded), strict=True):
        assert difference(one.trace, other.trace) is None
        assert other.operators < one.operators == len(other.trace.ops)
        sizes = [
            sum(each.times.get(name, 1) * tensor.numel() for name, tensor in each.tensors.items())
            for each in (one, other)
        ]
        assert sizes[0] == sizes[1]


class Chain(nn.Module):
    """Six equal layers, of which four are run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_layer_that_did_not_run_has_calls_parameters_and_memory() -> None:
    model = Chain()
    folded = Folded.of(model)
    assert folded is not None
    assert folded.slots is not None
    assert folded.slots.like == {
        f"layers.{index}.0.{name}": f"layers.2.0.{name}"
        for index in (4, 5)
        for name in ("weight", "bias")
    }
    traces = []
    for module in (model, folded.module):
        request = PassRequest(module=module, input_shape=(8,), is_decomposed=True)
        traces.append(record_pass(request))
    whole, short = traces
    found = folded.unfolded(folded.completed(short))
    layers = [f"layers.{index}" for index in range(6)]
    paths = ["", *(f"{layer}{inner}" for layer in layers for inner in ("", ".0", ".1"))]
    assert [call.path for call in found.modules] == paths
    assert [each.path for each in found.parameters] == [
        name for name, _ in model.named_parameters()
    ]
    assert len({each.storages for each in found.parameters}) == 2 * 6
    assert difference(whole, found) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Skipping, Collecting, Odd])
def test_where_layers_cannot_stand_in_for_others_all_are_run(kind: type[Stack]) -> None:
    model = kind()
    whole, folded = passes_of(model), passes_of(model)
    folded.fold(Length(3))
    assert folded.folded is None
    for one, other in zip(both(whole), both(folded), strict=True):
        assert difference(one.trace, other.trace) is None
        assert other.operators == one.operators


@pytest.mark.slow
def test_layers_that_differ_in_long_passes_alone_are_all_run() -> None:
    model = Sometimes(12).eval()
    folded = passes_of(model)
    folded.fold(Length(3))
    assert folded.folded is not None
    with pytest.raises(UnfoldableError):
        folded.prompted(Length(20)).trace  # noqa: B018 - the record is made here
    found = analyze_generation(model, 20, 2, device="NVIDIA L4")
    assert sum(each.operator.startswith("aten.tanh") for each in found.prefill.operators) == 3


class Ended(nn.Module):
    """A product, and a module that returns its input, several times for several samples."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.same = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.product(x)
        return self.same(x) if x.shape == (1, 4) else self.same(self.same(x))


def test_the_operators_of_a_layer_are_those_of_an_equal_one_that_has_ended() -> None:
    """``same`` stands where the product would come again: after its operator."""
    trace = record(Ended(), (4,))
    (left_out,) = left_out_of(trace, {"same": "product"})
    assert (left_out.call.path, left_out.model.path) == ("same", "product")
    assert (left_out.begin, left_out.end, left_out.at) == (0, 1, 1)
    assert left_out.renamed("product.weight") == "same.weight"
    whole, product, same = trace.modules
    trace = replace(trace, modules=(whole, product._replace(end=None), same))
    with pytest.raises(UnfoldableError, match="a layer has not ended"):
        left_out_of(trace, {"same": "product"})
    with pytest.raises(UnfoldableError, match="called several times"):
        left_out_of(record(Ended(), (4,), batch_size=2), {"same": "product"})


def test_layers_whose_integers_differ_are_of_different_kinds() -> None:
    model = Stack(8)
    for index, layer in enumerate(model.layers):
        layer.register_buffer("window", torch.tensor(10 * index))
    assert Folded.of(model) is None


def test_layers_with_hooks_or_of_a_kind_that_comes_twice_are_all_run() -> None:
    model = Stack(2)
    assert Folded.of(model) is None
    model = Stack(6)
    for layer in model.layers:
        layer.register_forward_hook(lambda *_: None)
    assert Folded.of(model) is None


class UncopiedLayer(Layer):
    """A layer that refuses to be copied."""

    def __copy__(self) -> None:
        raise TypeError("no copies")


class Uncopied(Stack):
    def layer(self, index: int) -> nn.Module:
        return UncopiedLayer(index)


class Unspeakable:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise ArithmeticError("no text")


def test_layers_that_cannot_be_copied_are_all_run() -> None:
    assert Folded.of(Uncopied(8)) is None


def test_sparse_buffers_of_layers_are_compared_by_layout() -> None:
    model = Stack(8)
    for layer in model.layers:
        layer.register_buffer("matrix", torch.eye(3).to_sparse())
    assert Folded.of(model) is not None


def test_an_error_that_was_not_foreseen_is_reported_and_all_layers_are_run() -> None:
    model: Any = Stack(8)
    model.config = SimpleNamespace(kinds=[Unspeakable()] * 8)
    with pytest.warns(TorchscanWarning, match="records all layers.*ArithmeticError: no text"):
        assert Folded.of(model) is None


def test_the_model_stays_as_it_is() -> None:
    model = Stack()
    layers, forwards = list(model.layers), [vars(each).get("forward") for each in model.layers]
    names = [name for name, _ in model.named_modules()]
    passes = passes_of(model)
    passes.fold(Length(3))
    assert passes.folded is not None
    both(passes)
    assert list(model.layers) == layers
    assert [vars(each).get("forward") for each in model.layers] == forwards == [None] * 12
    assert [name for name, _ in model.named_modules()] == names


_SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 9,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8000,
}
#: kinds of models with what is not usual in them
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 128},
    "gemma3_text": {"head_dim": 128, "sliding_window": 128, "num_hidden_layers": 18},
    "mixtral": {"num_local_experts": 4},
    "deepseek_v3": {"n_routed_experts": 16, "moe_intermediate_size": 512, "n_group": 4},
}


def language_model(kind: str, **sizes: Any) -> Any:
    pytest.importorskip("tests.torchvision_cpu")  # transformers imports torchvision
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **{**_SIZES, **LANGUAGE_MODELS[kind], **sizes})
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def with_all_layers_run(model: Any) -> Any:
    """Layers with different hooks are of different kinds."""
    for layer in model.model.layers:
        layer.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        *((kind, "cuda-graph") for kind in ("llama", "gemma3_text", "deepseek_v3")),
        # of one kind of layers, as the first
        *((kind, "cuda-graph") for kind in ("qwen3", "mixtral")),
        ("llama", "transformers"),
    ],
)
def test_estimates_of_repeated_layers_are_those_of_all_layers(kind: str, engine: Any) -> None:
    models = language_model(kind), with_all_layers_run(language_model(kind))
    some, every = (
        analyze_generation(each, 200, 100, batch_size=2, device="NVIDIA L4", engine=engine)
        for each in models
    )
    for name in ("params", "active_params", "weights_bytes", "cache_bytes", "work_bytes"):
        assert getattr(some, name) == getattr(every, name)
    assert some.prompt_work_bytes == every.prompt_work_bytes
    for one, other in ((some.prefill, every.prefill), (some.decode, every.decode)):
        assert one.time_estimate == pytest.approx(other.time_estimate, rel=5e-4)
        assert one.time_bound == pytest.approx(other.time_bound, rel=5e-4)
        assert [each.layer for each in one.operators] == [each.layer for each in other.operators]
        assert [each.name for each in one.layers] == [each.name for each in other.layers]
        assert [each.flops for each in one.layers] == [each.flops for each in other.layers]
