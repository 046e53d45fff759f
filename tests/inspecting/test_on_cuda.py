"""What a real pass does on a CUDA device; elsewhere these tests are skipped, and say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.inspecting.faults import FAULTS, Of
from tests.torchvision_cpu import torchvision
from torchscan.cli.main import main
from torchscan.inspecting.run import RunFacts
from torchscan.inspection import inspect

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]
_MIB = 2**20


def to_device(value: Any) -> Any:
    """With everything that it holds."""
    if isinstance(value, Tensor):
        return value.cuda()
    if isinstance(value, dict):
        return {key: to_device(each) for key, each in value.items()}
    return type(value)(map(to_device, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_producer_is_named_and_soon_its_operator(name: str) -> None:
    """When the next step begins the device has not got so far: values are looked at where they are made in the one after it."""
    fault = FAULTS[name]
    torch.manual_seed(0)
    model = fault.model().cuda()
    with inspect(model, warm_up=0) as run, torch.device("cuda"):
        for _ in range(3):
            fault.run(model, *to_device(fault.inputs()))
            torch.cuda.synchronize()
    found = run.facts.nonfinite
    said = "\n".join(map(str, found))
    assert found, "nothing"
    certain = next(each for each in found if each.unsure is None or each is found[-1])
    assert (certain.path, certain.phase) == (fault.path, fault.phase), said
    if fault.operator and fault.phase != "optimizer":
        last = found[-1]
        source = str(last.operator) if last.origin is None else last.origin.code
        assert fault.operator in source, said


def _resnet() -> tuple[nn.Module, Tensor]:
    return torchvision.models.resnet18(), torch.rand(4, 3, 64, 64)


def _encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.rand(4, 32, 64)


def _recurrent() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(
        nn.LSTM(16, 32, batch_first=True), Of(lambda pair: pair[0]), nn.Linear(32, 4)
    ), torch.rand(4, 8, 16)


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.one, self.two, self.reentrant = nn.Linear(64, 64), nn.Linear(64, 64), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.two(checkpoint(self.one, x, use_reentrant=self.reentrant))


def _checkpointed() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(_Checkpointed(False), _Checkpointed(True)), torch.rand(4, 64)


Maker = Callable[[], tuple[nn.Module, Tensor]]
MAKERS: list[Maker] = [_resnet, _encoder, _recurrent, _checkpointed]


def _trained(
    make: Callable[[], tuple[nn.Module, Tensor]], steps: int = 4, **watched: Any
) -> tuple[list[Tensor], RunFacts | None]:
    """Losses, parameters and the state of the generator after some steps, under autocast every other step."""
    torch.manual_seed(0)
    model, x = make()
    model, x = model.cuda(), x.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    run = inspect(model, **watched) if watched else None
    losses = []
    if run is not None:
        run.start()
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=step % 2 == 1):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    if run is not None:
        run.finish()
    return [
        *losses,
        *model.parameters(),
        torch.cuda.get_rng_state(),
    ], None if run is None else run.facts


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("make", MAKERS)
def test_results_are_the_same_with_and_without(make: Maker) -> None:
    with _deterministic():
        (plain, _), (again, _), (watched, facts) = (
            _trained(make),
            _trained(make),
            _trained(make, warm_up=0),
        )
    if not all(map(torch.equal, plain, again)):
        pytest.skip("this model is not deterministic here")
    assert all(map(torch.equal, plain, watched))
    assert facts is not None
    assert facts.nonfinite == ()


@pytest.mark.parametrize("make", MAKERS)
def test_the_time_on_the_device_is_that_of_children_and_a_rest(make: Maker) -> None:
    """A stream runs one thing after the other, so children never take longer than what they are in."""
    _, facts = _trained(make, steps=4, warm_up=3)
    assert facts is not None
    assert facts.steps == 1
    for index, call in enumerate(facts.calls):
        inside = [each for each in facts.calls if each.parent == index]
        forward = [
            each.device_forward.median
            for each in inside
            if each.device_forward is not None and not each.is_again
        ]
        backward = [
            each.device_backward.median for each in inside if each.device_backward is not None
        ]
        for took, parts in ((call.device_forward, forward), (call.device_backward, backward)):
            assert took is not None
            assert sum(parts) <= took.median + 1e-6 * len(parts), call.path
        assert call.device_forward is not None
        assert call.device_forward.median > 0, call.path


def test_nobody_waits_for_the_device() -> None:
    """By torch's mode that raises where the host waits for the device. What comes after the last step may wait."""
    model, x = _resnet()
    model, x = model.cuda(), x.cuda()
    with inspect(model) as run:
        model(x).sum().backward()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                model(x).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert run.facts.steps == 3


def test_what_the_allocator_says_of_a_call() -> None:
    """1,024 x 1,024 numbers of 4 bytes are 4 MiB: a layer leaves its result, and so does GELU.

    The allocator gives a request up to 1 MiB more where it does not split a block.
    """
    model = nn.Sequential(
        nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024, bias=False)
    ).cuda()
    x = torch.rand(1024, 1024, device="cuda")
    model(x).sum().backward()  # cuBLAS takes its workspace
    model.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    most = torch.cuda.max_memory_allocated()
    with inspect(model, warm_up=0) as run:
        model(x).sum().backward()
    assert torch.cuda.max_memory_allocated() > most  # nobody has reset it
    root, *layers = run.facts.calls
    results = [call.memory_delta_fwd for call in layers]
    assert all(4 * _MIB <= each <= 5 * _MIB for each in results)
    assert root.memory_delta_fwd == sum(results)
    assert all((call.memory_peak_fwd or 0) >= call.memory_delta_fwd for call in run.facts.calls)
    # gradients: of the last layer's weight, 4 MiB; of its input, which is freed when GELU has made its own; and so on
    first, activation, last = (call.gradient_memory for call in layers)
    assert 4 * _MIB + 4096 <= first <= 5 * _MIB + 4096
    assert activation == 0
    assert 4 * _MIB <= last <= 5 * _MIB


def test_what_is_captured_is_not_watched() -> None:
    """Replaying a graph runs none of the model's code; capturing it runs no kernel."""
    model, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    with inspect(model, warm_up=0) as run:
        model(x).sum().backward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x).sum().backward()
        graph.replay()
        model(x).sum().backward()
    assert run.facts.steps == 2


def test_gradients_that_are_cleared_before_the_next_step_are_seen() -> None:
    """Of the weight: 100 · 1e38, which is infinite when the backward pass ends, and zero when the next step begins."""
    model, x = nn.Linear(1, 1, bias=False).cuda(), torch.full((1, 1), 1e38, device="cuda")
    nn.init.constant_(model.weight, 1e-38)
    with inspect(model, warm_up=0) as run:
        for _ in range(2):
            (model(x).sum() * 100).backward()
            model.zero_grad(set_to_none=False)
    assert run.facts.nonfinite[0].phase == "backward"
    assert run.facts.nonfinite[0].kind == "Inf"


def test_tensors_of_two_streams() -> None:
    """What is made in a stream is looked at in it: nothing is found where nothing is."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
    other = torch.cuda.Stream()
    with inspect(model, warm_up=0) as run:
        for step in range(20):
            x = torch.randn(512, 512, device="cuda")
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other if step % 2 else torch.cuda.current_stream()):
                model(x).square().mean().backward()
            torch.cuda.current_stream().wait_stream(other)
    assert run.facts.nonfinite == ()
    assert run.facts.steps == 20


def test_a_model_on_the_device_is_inspected_by_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "inspect",
                "torchvision.models:resnet18",
                "--input",
                "3,64,64",
                "--steps",
                "3",
                "--training",
            ]
        )
        == 0
    )
    assert torch.cuda.get_device_name() in capsys.readouterr().out
