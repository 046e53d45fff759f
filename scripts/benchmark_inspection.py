"""What inspecting real steps costs, and how much of them it attributes to modules: plain and inspected steps in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.torchvision_cpu import torchvision
from torchscan.inspection import inspect
from torchscan.runtime.run import RunFacts

_ROUNDS = 12


def _transformer() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-18": (lambda: torchvision.models.resnet18(), (8, 3, 128, 128)),
    "transformer": (_transformer, (16, 128, 256)),
    "Inception-v3": (lambda: torchvision.models.inception_v3(init_weights=False, aux_logits=False), (2, 3, 299, 299)),
}


def measure_inspection(only: str) -> None:
    """Print a line for each model."""
    print(f"{'model':14}{'inspected ÷ plain':>19}{'forward in children':>21}{'backward in modules':>21}{'of both':>9}")
    for name, (build, shape) in MODELS.items():
        if only.lower() in name.lower():
            ratio, facts = _measured(build().train(), torch.randn(shape))
            print(f"{name:14}{ratio:19.3f}{_in_children(facts):20.1%} {_in_modules(facts):20.1%} {_attributed(facts):8.1%}")


def _measured(model: nn.Module, x: Tensor) -> tuple[float, RunFacts]:
    """Plain and inspected steps take turns, so that both meet the same machine."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    plain, watched, facts = [], [], None
    for _ in range(_ROUNDS):
        plain.append(_seconds(model, x, optimizer))
        with inspect(model, warm_up=0) as run:
            watched.append(_seconds(model, x, optimizer))
        facts = run.facts
    assert facts is not None  # noqa: S101 - there was a round
    return statistics.median(watched[2:]) / statistics.median(plain[2:]), facts


def _seconds(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> float:
    start = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - start


def _in_children(facts: RunFacts) -> float:
    """Of the model's forward pass, what its children took; the rest is its own."""
    return sum(call.forward.median for call in facts.calls if call.parent == 0) / facts.forward.median


def _in_modules(facts: RunFacts) -> float:
    """Of the backward pass, what modules and their parameters took."""
    return 1 - facts.unowned.median / facts.backward.median


def _attributed(facts: RunFacts) -> float:
    return 1 - facts.unowned.median / (facts.forward.median + facts.backward.median)
