"""What inspecting real steps costs, and how much of them it attributes to modules: plain and inspected steps in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.torchvision_cpu import torchvision
from torchscan import inspect
from torchscan.inspecting.run import RunFacts

_ROUNDS, _BLOCK = 12, 4
Note = Callable[[], None]


def _nothing() -> None:
    pass


def _transformer() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-18": (lambda: torchvision.models.resnet18(), (8, 3, 128, 128)),
    "transformer": (_transformer, (16, 128, 256)),
    "Inception-v3": (
        lambda: torchvision.models.inception_v3(init_weights=False, aux_logits=False),
        (2, 3, 299, 299),
    ),
}
SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tiny MLP": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (16, 8)),
    "MLP": (lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)), (64, 784)),
    "small CNN": (
        lambda: nn.Sequential(
            *(
                nn.Conv2d(3, 32, 3),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.Conv2d(32, 64, 3, 2),
                nn.BatchNorm2d(64),
                nn.ReLU(),
            ),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
        ),
        (16, 3, 32, 32),
    ),
}
_ON_CUDA = torch.cuda.is_available()
if _ON_CUDA:  # where these leave the device idle
    MODELS |= {
        "ResNet-50": (lambda: torchvision.models.resnet50(), (64, 3, 224, 224)),
        "ViT-B": (lambda: torchvision.models.vit_b_16(), (64, 3, 224, 224)),
    }


def measure_inspection(only: str) -> None:
    """Print two tables: what it costs and attributes, and how far its times are from the profiler's."""
    chosen = {
        name: (build, shape)
        for name, (build, shape) in MODELS.items()
        if only.lower() in name.lower()
    }
    print(
        f"{'model':14}{'inspected ÷ plain':>19}{'looking':>9}{'in children':>21}{'in modules':>21}{'of both':>9}"
    )
    for name, (build, shape) in chosen.items():
        ratio, looking, facts = _measured(*_placed(build().train(), shape))
        shares = f"{_in_children(facts):20.1%} {_in_modules(facts):20.1%} {_attributed(facts):8.1%}"
        print(f"{name:14}{ratio:19.3f}{looking:9.1%}{shares}", flush=True)
    print(
        f"\n{'forward of modules, ours ÷ profiler':36}{'modules':>8}{'median':>8}{'10 %':>7}{'90 %':>7}{'whole':>7}"
    )
    for name, (build, shape) in chosen.items():
        ratios, whole = _against_profiler(*_placed(build().train(), shape))
        tenths = statistics.quantiles(ratios, n=10)
        median = statistics.median(ratios)
        print(
            f"{name:36}{len(ratios):8}{median:8.3f}{tenths[0]:7.3f}{tenths[-1]:7.3f}{whole:7.3f}",
            flush=True,
        )


def _placed(model: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    place = torch.device("cuda" if _ON_CUDA else "cpu")
    return model.to(place), torch.randn(shape, device=place)


def _measured(model: nn.Module, x: Tensor) -> tuple[float, float, RunFacts]:
    """What a step costs, and what looking takes: blocks of plain and inspected steps take turns on the same machine."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    plain, watched, looking, facts = [], [], [], None
    for _ in range(_ROUNDS // 2):
        _seconds(model, x, optimizer)
        plain += _block(model, x, optimizer)
        with inspect(model) as run:
            _seconds(model, x, optimizer)  # warms up, and reads the memory of all calls
            watched += _block(model, x, optimizer, lambda: looking.append(run.overhead))
        facts = run.facts
    assert facts is not None  # noqa: S101 - there was a round
    usual = statistics.median(plain)
    return statistics.median(watched) / usual, statistics.median(looking) / usual, facts


def measure_checks(only: str) -> None:
    """Print what a step costs after the timed ones, in which only loss, gradients and parameters are checked."""
    chosen = {
        name: each for name, each in {**SMALL, **MODELS}.items() if only.lower() in name.lower()
    }
    print(f"{'model':14}{'plain':>10}{'checked ÷ plain':>17}")
    for name, (build, shape) in chosen.items():
        plain, checked = _plain_and_checked(*_placed(build().train(), shape))
        print(f"{name:14}{1e3 * plain:7.2f} ms{checked / plain:17.3f}", flush=True)


def _plain_and_checked(model: nn.Module, x: Tensor) -> tuple[float, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rounds = 100 if _seconds(model, x, optimizer) < 0.02 else _ROUNDS
    plain, checked = [], []
    for _ in range(rounds):
        plain += _block(model, x, optimizer)
        with inspect(model, warm_up=0, steps=1, expected=False):
            for _ in range(3):
                _seconds(model, x, optimizer)
            checked += _block(model, x, optimizer)
    return statistics.median(plain), statistics.median(checked)


def _block(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, note: Note = _nothing
) -> list[float]:
    """Seconds of each step; on a device, which nobody waits for in between, of all of them together."""
    if not _ON_CUDA:
        return [_seconds(model, x, optimizer, note) for _ in range(_BLOCK)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(_BLOCK):
        _seconds(model, x, optimizer, note)
    torch.cuda.synchronize()
    return [(time.perf_counter() - start) / _BLOCK]


def _seconds(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, note: Note = _nothing
) -> float:
    start = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    took = time.perf_counter() - start
    note()
    return took


def _in_children(facts: RunFacts) -> float:
    """Of the model's forward pass, what its children took; the rest is its own."""
    children = [call.device_forward or call.forward for call in facts.calls if call.parent == 0]
    return sum(each.median for each in children) / (facts.device or facts).forward.median


def _in_modules(facts: RunFacts) -> float:
    """Of the backward pass, what modules and their parameters took."""
    passes = facts.device or facts
    return 1 - passes.outside_modules.median / passes.backward.median


def _attributed(facts: RunFacts) -> float:
    passes = facts.device or facts
    return 1 - passes.outside_modules.median / (passes.forward.median + passes.backward.median)


def _against_profiler(model: nn.Module, x: Tensor) -> tuple[list[float], float]:
    """Of each module that is called once and takes 100 µs or more, our time as a share of the profiler's; and of the whole."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        with inspect(model, warm_up=0) as run:
            model(x)
        for call in run.facts.calls:
            ours.setdefault(call.path, []).append((call.device_forward or call.forward).median)
        for path, seconds in _profiled(model, x).items():
            theirs.setdefault(path, []).append(seconds)
    medians = {
        path: statistics.median(each[2:])
        for path, each in theirs.items()
        if len(each) == _ROUNDS == len(ours[path])
    }
    ratios = {
        path: statistics.median(ours[path][2:]) / took
        for path, took in medians.items()
        if took >= 1e-4
    }
    return list(ratios.values()), ratios[""]


def _profiled(model: nn.Module, x: Tensor) -> dict[str, float]:
    """Seconds of each module by torch's profiler, which sees a range that is opened and closed by hooks."""
    ranges: list[torch.profiler.record_function] = []
    handles = []
    for path, module in model.named_modules():

        def enter(_module: nn.Module, _args: object, path: str = path) -> None:
            ranges.append(torch.profiler.record_function(f"module {path}"))
            ranges[-1].__enter__()

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(
            module.register_forward_hook(lambda *_: ranges.pop().__exit__(None, None, None))
        )
    activities = [
        torch.profiler.ProfilerActivity.CPU,
        *([torch.profiler.ProfilerActivity.CUDA] if _ON_CUDA else []),
    ]
    with torch.profiler.profile(activities=activities) as profile:
        model(x)
        if _ON_CUDA:
            torch.cuda.synchronize()
    for handle in handles:
        handle.remove()
    return {
        each.key.removeprefix("module "): (
            each.device_time_total if _ON_CUDA else each.cpu_time_total
        )
        / 1e6
        for each in profile.key_averages()
        if each.key.startswith("module ") and each.count == 1
    }
