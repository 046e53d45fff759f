"""Loss, learning rate and gradient norm of real training, as a watched run has them."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.watching.watching import watch
from torchscan.errors import InputError
from torchscan.watching.history import WatchedRun
from torchscan.watching.sinks.sink import Sink, SinkData


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))


def norm_of(module: nn.Module) -> float:
    """Return the L2 norm of all gradients."""
    squares = [each.grad.square().sum() for each in module.parameters() if each.grad is not None]
    return math.sqrt(torch.stack(squares).sum().item())


def test_every_step_has_a_loss_and_sampled_steps_a_gradient_norm(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    losses, norms, rates = [], [], []
    with watch(net, tmp_path, graph=False, every=2):
        for _ in range(6):
            optimizer.zero_grad()
            loss = net(torch.randn(4, 6)).square().mean()
            loss.backward()
            losses.append(loss.item())
            norms.append(norm_of(net))
            rates.append(optimizer.param_groups[0]["lr"])
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            schedule.step()

    curves = WatchedRun(tmp_path).curves()
    assert list(curves.steps) == list(range(6))
    assert list(curves.losses) == pytest.approx(losses)
    assert list(curves.learning_rates) == pytest.approx(rates)
    assert list(curves.gradient_norms[::2]) == pytest.approx(norms[::2], rel=1e-5)
    assert list(curves.gradient_norms[1::2]) == [None, None, None], "not sampled"


def test_losses_and_gradients_are_those_before_a_scaler_scales_them(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses, norms = [], []
    with watch(net, tmp_path, graph=False, every=1):
        for _ in range(4):
            optimizer.zero_grad()
            loss = net(torch.randn(4, 6)).square().mean()
            scaler.scale(loss).backward()
            losses.append(loss.item())
            norms.append(norm_of(net) / scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
    curves = WatchedRun(tmp_path).curves()
    assert list(curves.losses) == pytest.approx(losses)
    assert list(curves.gradient_norms) == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize("every", [1, 4])
def test_a_discriminator_step_does_not_end_a_step_of_the_generator(
    tmp_path: Path, every: int
) -> None:
    """The generator runs twice in a step, and gradients reach the second result only."""
    generator, discriminator = nn.Linear(3, 6), model()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, discriminator)]
    losses = []
    with watch(generator, tmp_path, graph=False, every=every):
        for _ in range(8):
            fake = generator(torch.randn(4, 3)).detach()
            discriminator(fake).square().mean().backward()
            optimizers[1].step()
            loss = discriminator(generator(torch.randn(4, 3))).mean()
            loss.backward()
            losses.append(loss.item())
            optimizers[0].step()
            for each in optimizers:
                each.zero_grad()
    run = WatchedRun(tmp_path)
    assert list(run.curves().steps) == list(range(8))
    assert list(run.curves().losses) == pytest.approx(losses)
    assert run.steps() == list(range(0, 8, every))


@pytest.mark.parametrize("every", [1, 4])
def test_passes_of_a_frozen_model_are_evaluations(tmp_path: Path, every: int) -> None:
    net = model().requires_grad_(False)
    prompt = torch.randn(4, 6, requires_grad=True)
    optimizer = torch.optim.SGD([prompt], lr=0.1)
    with watch(net, tmp_path, graph=False, every=every):
        for _ in range(6):
            optimizer.zero_grad()
            net(prompt).square().mean().backward()
            optimizer.step()
    run = WatchedRun(tmp_path)
    assert not run.curves().steps
    assert list(run.curves("eval").numbers) == list(range(6))


def test_several_backward_passes_of_a_step_add_up(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    totals = []
    with watch(net, tmp_path, graph=False, every=2):
        for _ in range(4):
            optimizer.zero_grad()
            result = net(torch.randn(4, 6))
            parts: list[Tensor] = [result.square().mean(), result.abs().mean()]
            parts[0].backward(retain_graph=True)
            parts[1].backward()
            totals.append(parts[0].item() + parts[1].item())
            optimizer.step()
    assert list(WatchedRun(tmp_path).curves().losses) == pytest.approx(totals)


def test_evaluations_have_the_losses_that_the_program_logs(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    logged = []
    with watch(net, tmp_path, graph=False, every=1) as watcher:
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                logged.append(net(torch.randn(4, 6)).square().mean())
            net.train()
            watcher.log_evaluation(logged[-1])
        with pytest.raises(InputError, match="loss is 'low': give a number"):
            watcher.log_evaluation("low")  # type: ignore[arg-type]
    curves = WatchedRun(tmp_path).curves("eval")
    found = {
        step: loss
        for step, loss in zip(curves.steps, curves.losses, strict=True)
        if loss is not None
    }
    expected = {step: loss.item() for step, loss in enumerate(logged, 1)}
    assert found == pytest.approx(expected)


def test_losses_of_evaluations_outside_of_the_model(tmp_path: Path) -> None:
    net = model()
    with watch(net, tmp_path, graph=False, every=1) as watcher:
        watcher.log_evaluation(3.5)
        net(torch.randn(4, 6)).square().mean().backward()
        watcher.log_evaluation(2.5)
    curves = WatchedRun(tmp_path).curves("eval")
    assert list(zip(curves.steps, curves.losses, strict=True)) == [(0, 3.5), (1, 2.5)]


def test_a_paused_watcher_counts_steps_and_records_none(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, tmp_path, graph=False, every=1) as watcher:
        for step in range(9):
            if step == 0:
                watcher.note("epoch 0")
            if step == 3:
                watcher.pause()
                watcher.pause()
            if step == 6:
                watcher.resume()
            optimizer.zero_grad()
            net(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
        assert watcher.state_dict() == {"step": 9}
        with pytest.raises(InputError, match="text is '': give a sentence such as 'epoch 3'"):
            watcher.note("")
    run = WatchedRun(tmp_path)
    assert run.steps() == list(run.curves().steps) == [0, 1, 2, 6, 7, 8]
    assert [(each.note.code, each.note.values["step"]) for each in run.events] == [
        ("user-note", 0),
        ("paused", 3),
        ("resumed", 6),
    ]
    with pytest.raises(InputError, match="this watcher is closed"):
        watcher.note("late")


class _Slow(Sink):
    """A sink that keeps the worker busy in its first step."""

    def on_data(self, data: SinkData) -> None:
        if data.step == 0:
            time.sleep(0.5)


@pytest.mark.slow
def test_notes_have_the_time_at_which_they_were_made(tmp_path: Path) -> None:
    net = model()
    with watch(net, tmp_path, graph=False, every=1, sinks=[_Slow()]) as watcher:
        for _ in range(3):
            net(torch.randn(4, 6)).square().mean().backward()
        start = time.time()
        watcher.note("epoch 1")
        watcher.pause()
        watcher.resume()
        end = time.time()
    times = [event.time for event in WatchedRun(tmp_path).events]
    assert len(times) == 3
    assert start <= min(times) <= max(times) <= end


@pytest.mark.parametrize(
    ("dtype", "precision"), [(None, "float32"), (torch.bfloat16, "bf16-mixed")]
)
def test_a_run_knows_its_optimizer_batch_precision_and_device(
    dtype: torch.dtype | None, precision: str, tmp_path: Path
) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with watch(net, tmp_path, graph=False, every=1):
        for _ in range(2):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = net(torch.randn(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    about = WatchedRun(tmp_path).about
    facts = {name: about[name] for name in ("optimizer", "batch", "precision", "device")}
    assert facts == {
        "optimizer": "AdamW",
        "batch": [4, 6],
        "precision": precision,
        "device": "CPU",
    }
    assert about["parameters"] == 6 * 16 + 16 + 16 + 1
