"""Memory over time: byte for byte what a real run holds, operator by operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tests.torchvision_cpu  # noqa: F401 - makes torchvision importable
from tests.analyses.storage_counter import count_inference, count_step
from tests.sweeps import some_of
from tests.versions import needs, skip_before
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)
        )
        self.head = nn.Linear(64, 5)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.5
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


class WritesAndViews(nn.Module):
    """Writes through views and in place, a dropout, memory that is split and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 16, 3, padding=1, groups=4),
        )
        self.norm, self.head = nn.GroupNorm(4, 16), nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x).relu_()
        left, right = y[:, :8], y[:, 8:].clone()
        right.mul_(2).add_(1)
        z = torch.cat([left.sigmoid(), right], 1)
        z = F.leaky_relu(self.norm(self.two(z)), inplace=True) + y
        z = F.dropout(z.flatten(2).transpose(1, 2), 0.1, training=True)
        return self.head(z.mean(1)).softmax(-1)


class WithConstants(nn.Module):
    """Python numbers that become tensors, which somebody else lets go of, or autograd keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(10):
            x = x + torch.tensor([float(i)] * 10)
            x = self.layer(x) * torch.tensor([float(i)] * 10)
        return x


class Recurrent(nn.Module):
    def __init__(self, kind: Any = nn.LSTM, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.layer = kind(
            32, 64, 2, batch_first=True, bidirectional=bidirectional, dropout=0.1 * bidirectional
        )
        self.head = nn.Linear(128 if bidirectional else 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class LanguageModel(nn.Module):
    """A small Llama with grouped queries, up to its loss."""

    def __init__(self, *, checkpoints: bool) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "vocab_size": 500,
        }
        config = transformers.LlamaConfig(
            **sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128
        )
        self.model = transformers.LlamaForCausalLM(config)
        if checkpoints:
            self.model.activation_checkpointing_enable()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=x, labels=x, use_cache=False).loss


def _torchvision(name: str) -> nn.Module:
    return getattr(pytest.importorskip("torchvision.models"), name)()


def _bottlenecks() -> nn.Module:
    """Return ResNet-50 with one block of each width."""
    models = pytest.importorskip("torchvision.models")
    return models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=10)


def _total(output: Tensor) -> Tensor:
    return output.sum()


def _adamw(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, foreach=False)


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "perceptron": lambda: (
        nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)),
        torch.randn(4, 10),
    ),
    "bottlenecks": lambda: (_bottlenecks(), torch.randn(2, 3, 64, 64)),
    "ViT-B/16": lambda: (_torchvision("vit_b_16"), torch.randn(1, 3, 224, 224)),
    "Llama": lambda: (LanguageModel(checkpoints=False), torch.randint(0, 500, (2, 100))),
    "Llama, checkpoints": lambda: (
        LanguageModel(checkpoints=True),
        torch.randint(0, 500, (2, 100)),
    ),
    "LSTM": lambda: (Recurrent(), torch.randn(4, 50, 32)),
    "LSTM in both directions": lambda: (Recurrent(bidirectional=True), torch.randn(4, 20, 32)),
    "GRU": lambda: (Recurrent(nn.GRU), torch.randn(4, 20, 32)),
    "GRU in both directions": lambda: (
        Recurrent(nn.GRU, bidirectional=True),
        torch.randn(4, 20, 32),
    ),
    "RNN": lambda: (Recurrent(nn.RNN), torch.randn(4, 20, 32)),
    "RNN of rectifiers": lambda: (
        Recurrent(functools.partial(nn.RNN, nonlinearity="relu")),
        torch.randn(4, 20, 32),
    ),
    "constants": lambda: (WithConstants(), torch.randn(4, 10)),
    "checkpoints": lambda: (Checkpointed(use_reentrant=False), torch.randn(8, 32, 64)),
    "reentrant checkpoints": lambda: (
        Checkpointed(use_reentrant=True),
        torch.randn(8, 32, 64, requires_grad=True),
    ),
    "writes and views": lambda: (WritesAndViews(), torch.randn(8, 3, 16, 16)),
    "norms first": lambda: (
        nn.Sequential(nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True), nn.Conv2d(3, 4, 3)),
        torch.randn(4, 3, 16, 16),
    ),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2),
        torch.randn(3, 20, 64),
    ),
}


def history(
    model: nn.Module, x: Tensor, *, in_place_sums: bool = False, **request: Any
) -> list[int]:
    """The estimate; a run under a dispatch mode does not sum gradients in place."""
    trace = record_pass(
        PassRequest(module=model, args=(x,), execute="abstract", is_decomposed=True, **request)
    )
    return [moment.total for moment in MemoryTimeline(trace, in_place_sums=in_place_sums).moments]


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(CASES, {"ViT-B/16"}))
def test_a_training_step_holds_what_a_real_one_holds(name: str) -> None:
    model, x = CASES[name]()
    expected = count_step(model, x, _total, _adamw)
    assert history(model, x, mode="train", backward=_total, optimizer=_adamw) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", some_of(CASES, {"ViT-B/16"}))
def test_an_inference_holds_what_a_real_one_holds(name: str) -> None:
    model, x = CASES[name]()
    expected = count_inference(model, x)
    assert history(model, x) == expected


LOSSES = [
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
]


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", [*LOSSES, "soft_margin_loss", "poisson_nll_loss"])
def test_a_loss(name: str, reduction: str) -> None:
    """Some of torch's losses keep as much memory for one number as for one per element."""
    model, x = nn.Sequential(nn.Linear(10, 20), nn.Sigmoid()), torch.randn(4, 10)

    def loss(output: Tensor) -> Tensor:
        return getattr(F, name)(output, torch.ones_like(output), reduction=reduction).sum()

    expected = count_step(model, x, loss)
    assert history(model, x, mode="train", backward=loss) == expected


@pytest.mark.slow
def test_an_output_is_dropped_when_the_loss_is_there_unless_it_is_held() -> None:
    model, x = nn.Linear(10, 20), torch.randn(4, 10)

    def step(**options: Any) -> list[int]:
        return history(model, x, mode="train", backward=_total, **options)

    assert step() == count_step(model, x, _total)
    assert step(holds_output=True) == count_step(model, x, _total, holds_output=True)
    assert step() != step(holds_output=True)


@pytest.mark.slow
def test_two_batches_before_a_step() -> None:
    """The gradients of the first are there while the second one runs."""
    model, x = CASES["bottlenecks"]()
    expected = count_step(model, x, _total, _adamw, accumulate=True)
    assert (
        history(model, x, mode="train", backward=_total, optimizer=_adamw, accumulate=True)
        == expected
    )


@pytest.mark.slow
def test_frozen_layers_have_neither_gradient_nor_state() -> None:
    model, x = CASES["encoder"]()
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad_(False)
    expected = count_step(model, x, _total, _adamw)
    assert history(model, x, mode="train", backward=_total, optimizer=_adamw) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    some_of(
        ["perceptron", "bottlenecks", "ViT-B/16", "Llama", "checkpoints", "encoder"], {"ViT-B/16"}
    ),
)
def test_a_step_under_autocast(name: str) -> None:
    """Casts of weights live until the loss is there, what they are saved for longer."""
    if name == "checkpoints":
        skip_before(
            "2.7",
            "it is not told that a checkpoint computes again, which keeps the cast of a bias longer",
        )
    model, x = CASES[name]()
    expected = count_step(model, x, _total, autocast=torch.bfloat16)
    assert history(model, x, mode="train", backward=_total, autocast=torch.bfloat16) == expected


class PartlyInSingle(nn.Module):
    """Switches autocast off for one layer, and on in another type for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        with torch.autocast(x.device.type, enabled=False):
            x = self.two(x.float()).relu()
        with torch.autocast("cpu", torch.float16):
            return self.three(x)


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_model_that_switches_autocast_itself(autocast: torch.dtype | None) -> None:
    model, x = PartlyInSingle(), torch.randn(9, 64)
    expected = count_step(model, x, _total, autocast=autocast)
    assert history(model, x, mode="train", backward=_total, autocast=autocast) == expected
    assert not torch.is_autocast_enabled("cpu")


OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            "Adadelta",
            "Adafactor",
            "Adagrad",
            "Adam",
            "AdamW",
            "Adamax",
            "ASGD",
            "NAdam",
            "RAdam",
        )
    },
    **{name: {} for name in ("RMSprop", "Rprop", "SGD")},
    "AdamW, fused": {"fused": True},
    "AdamW, foreach": {"foreach": True},
    "Adam, amsgrad": {"amsgrad": True},
    "SGD, momentum": {"momentum": 0.9, "nesterov": True},
    "SGD, fused": {"momentum": 0.9, "fused": True},
    "Adagrad, fused": {"fused": True},
    "Adagrad, foreach": {"foreach": True},
    "RMSprop, centered": {"momentum": 0.9, "centered": True, "foreach": True},
}


@pytest.mark.few(10)
@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_step_of_an_optimizer(name: str) -> None:
    """Its state, and what it needs for a moment, are those of its second step on data."""
    model, x = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), torch.randn(4, 10)

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return getattr(torch.optim, name.partition(",")[0])(parameters, lr=0.01, **OPTIMIZERS[name])

    expected = count_step(model, x, _total, make)
    assert history(model, x, mode="train", backward=_total, optimizer=make) == expected


@pytest.mark.slow
@needs("optim.Muon")
def test_muon_takes_the_matrices_that_it_is_given() -> None:
    model, x = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), torch.randn(4, 10)

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Muon([each for each in parameters if each.dim() == 2], lr=0.01)

    expected = count_step(model, x, _total, make)
    assert history(model, x, mode="train", backward=_total, optimizer=make) == expected
