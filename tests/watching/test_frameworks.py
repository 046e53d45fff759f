"""Training by frameworks is watched as docs/watch.md shows: its lines are run from there."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tests.forked
import tests.torchvision_cpu  # noqa: F401 - the frameworks import torchvision, which needs it
import torchscan
from tests.opening import watched_run
from torchscan.types import WatchedRun

pytestmark = [
    pytest.mark.slow,  # each has a process of its own, which imports torch
    pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck"),
    pytest.mark.filterwarnings(
        "ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"
    ),
]

PAGE = (Path(torchscan.__file__).parent.parent / "docs" / "watch.md").read_text()
BATCHES = torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
RUN = "runs/first"
ACCUMULATED = (1, 2)


def lines_of(framework: str, start: str = "spawn") -> str:
    """What the page shows below the name, for each step."""
    found = re.search(rf"\*\*{framework}\*\*.*?```py\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1].replace("every=10", f"every=1, start={start!r}")


def run_lines(framework: str, start: str = "spawn", **names: object) -> dict[str, Any]:
    """Run them where these names are known."""
    known = {"torch": torch, "torchscan": torchscan, **names}
    exec(lines_of(framework, start), known)  # noqa: S102
    return known


def start_of(batches: int) -> str:
    """Return the default way to start the worker, in one of the cases: it imports torch anew."""
    return "spawn" if batches == 1 else "forkserver"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recorded() -> WatchedRun:
    return watched_run(RUN)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def loader(size: int = 4) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(BATCHES), batch_size=size)


def assert_same(plain: nn.Module, watched: nn.Module) -> None:
    pairs = zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


# -- Lightning -----------------------------------------------------------------------------------------------------------


def lightning_module(calls_itself: bool = True) -> Any:
    lightning = pytest.importorskip("pytorch_lightning")

    class Trained(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return (self(batch[0]) if calls_itself else self.net(batch[0])).square().mean()

        def validation_step(self, batch: list[Tensor], number: int) -> None:
            self.training_step(batch, number)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Trained()


def lightning_trainer(**options: object) -> Any:
    """Two epochs of four batches; three batches are for validation, of which two are the sanity check."""
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options |= {
        "max_epochs": 2,
        "limit_val_batches": 3,
        "accelerator": "cpu",
        **dict.fromkeys(silent, False),
    }
    return pytest.importorskip("pytorch_lightning").Trainer(**options)


def fit(module: Any, *, watches: bool, start: str = "forkserver", **options: object) -> Any:
    trainer = lightning_trainer(**options)
    torch.manual_seed(1)  # for dropout
    if watches:
        run_lines(
            "Lightning",
            start,
            module=module,
            trainer=trainer,
            train_loader=loader(),
            validation_loader=loader(),
        )
    else:
        trainer.fit(module, loader(), loader())
    return trainer


@pytest.mark.few(1)
@pytest.mark.parametrize("batches", ACCUMULATED)
def test_lightning(batches: int) -> None:
    plain, watched = lightning_module(), lightning_module()
    fit(plain, watches=False, accumulate_grad_batches=batches)
    start = start_of(batches)
    trainer = fit(watched, watches=True, start=start, accumulate_grad_batches=batches)
    assert_same(plain, watched)
    run = recorded()
    assert (run.about["model"], run.steps(), run.steps("eval")) == (
        "Trained",
        list(range(8)),
        [0, 4, 8],
    )
    assert trainer.global_step == 8 // batches
    assert len(run.history("net.0 output", "eval")) == 2 + 3 + 3
    assert {"Trained input", "net.3 output gradient", "net.0.weight gradient"} <= {
        each.label for each in run.series
    }
    changed = [update > 0 for update in run.history("net.0.weight").statistic("update")]
    assert changed == [(step + 1) % batches == 0 for step in range(8)]


@pytest.mark.sweep
def test_lightning_without_the_sanity_check() -> None:
    fit(lightning_module(), watches=True, num_sanity_val_steps=0)
    assert recorded().steps("eval") == [4, 8]


def test_lightning_of_a_module_that_calls_only_its_parts() -> None:
    plain, watched = lightning_module(calls_itself=False), lightning_module(calls_itself=False)
    fit(plain, watches=False)
    fit(watched, watches=True)
    assert_same(plain, watched)
    run = recorded()
    assert (run.steps(), run.steps("eval")) == (list(range(8)), [0, 4, 8])
    assert len(run.history("net.0 output")) == 8


# -- accelerate ----------------------------------------------------------------------------------------------------------


def accelerator_of(batches: int) -> Any:
    return pytest.importorskip("accelerate").Accelerator(
        cpu=True, gradient_accumulation_steps=batches
    )


def loop(
    accelerator: Any, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any
) -> list[Tensor]:
    """Two epochs; after each, something is evaluated."""
    losses = []
    for _ in range(2):
        for (x,) in batches:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            model(BATCHES)
        model.train()
    return losses


@pytest.mark.few(1)
@pytest.mark.parametrize("batches", ACCUMULATED)
def test_accelerate(batches: int) -> None:
    def trained(prepare: Callable[..., tuple[Any, ...]]) -> tuple[nn.Module, list[Tensor]]:
        accelerator, model = accelerator_of(batches), net()
        given = model, torch.optim.SGD(model.parameters(), lr=0.1), loader()
        *prepared, watcher = prepare(accelerator, *given)
        losses = loop(accelerator, *prepared)
        if watcher is not None:
            watcher.close()
        return model, losses

    def as_shown(
        accelerator: Any, model: nn.Module, optimizer: Any, loader: Any
    ) -> tuple[Any, ...]:
        prepared = {"model": model, "optimizer": optimizer, "loader": loader}
        known = run_lines("accelerate", start_of(batches), accelerator=accelerator, **prepared)
        return tuple(known[name] for name in ("model", "optimizer", "loader", "watcher"))

    plain, losses = trained(lambda accelerator, *given: (*accelerator.prepare(*given), None))
    watched, same = trained(as_shown)
    assert_same(plain, watched)
    assert all(map(torch.equal, losses, same))
    run = recorded()
    assert (run.steps(), run.steps("eval")) == (list(range(8)), [4, 8])
    assert {"Sequential input", "3 output gradient", "0.weight gradient"} <= {
        each.label for each in run.series
    }


# -- transformers --------------------------------------------------------------------------------------------------------


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        result = self.net(x)
        return {"loss": (result - labels).square().mean(), "logits": result}


def transformers_trainer(batches: int) -> Any:
    """Eight batches of two; after every fourth one, sixteen samples are evaluated in two batches."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    often = {"max_steps": 8 // batches, "eval_strategy": "steps", "eval_steps": 4 // batches}
    sizes = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": batches,
    }
    data = [{"x": x, "labels": torch.ones(2)} for x in BATCHES]
    settings = transformers.TrainingArguments("output", use_cpu=True, **quiet, **often, **sizes)
    return transformers.Trainer(WithLoss(), settings, train_dataset=data, eval_dataset=data)


@pytest.mark.few(1)
@pytest.mark.parametrize("batches", ACCUMULATED)
def test_transformers(batches: int) -> None:
    plain, watched = transformers_trainer(batches), transformers_trainer(batches)
    torch.manual_seed(1)
    plain.train()
    torch.manual_seed(1)
    run_lines("transformers", start_of(batches), trainer=watched)
    assert_same(plain.model, watched.model)
    losses, same = (
        [each["loss"] for each in trainer.state.log_history if "loss" in each]
        for trainer in (plain, watched)
    )
    assert losses == same
    assert len(losses) == watched.state.global_step == 8 // batches
    run = recorded()
    assert (run.steps(), run.steps("eval")) == (list(range(8)), [4, 8])
    assert len(run.history("net.0 output", "eval")) == 4
    assert {"net input", "net.3 output gradient", "net.0.weight gradient"} <= {
        each.label for each in run.series
    }


# -- a step for each of the optimizer's ----------------------------------------------------------------------------------

Started = tuple[nn.Module, Callable[[], object]]


def with_lightning() -> Started:
    module, trainer = lightning_module(), lightning_trainer(accumulate_grad_batches=2)
    return module, lambda: trainer.fit(module, loader(), loader())


def with_accelerate() -> Started:
    accelerator, model = accelerator_of(2), nn.Sequential(OrderedDict(net=net()))
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    return model, lambda: loop(accelerator, *prepared)


def with_transformers() -> Started:
    trainer = transformers_trainer(2)
    return trainer.model, trainer.train


@pytest.mark.few(1)
@pytest.mark.parametrize("start", [with_lightning, with_accelerate, with_transformers])
def test_steps_of_the_optimizer(start: Callable[[], Started]) -> None:
    model, train = start()
    with torchscan.watch(model, RUN, every=1, start="forkserver") as watcher:
        handle = run_lines("Gradient accumulation", watcher=watcher)["handle"]
        train()
        handle.remove()
    run = recorded()
    sanity_check = [0] if start is with_lightning else []
    assert (run.steps(), run.steps("eval")) == ([0, 1, 2, 3], [*sanity_check, 2, 4])
    assert len(run.history("net.0 output")) == len(run.history("net.0 (2) output")) == 4
    assert all(update > 0 for update in run.history("net.0.weight").statistic("update"))
