"""Programs whose loop belongs to a framework."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.observing.loops import mlp
from tests.observing.training_program import MODEL, Counts, Training, program


def _loader(num_batches: int) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(4 * num_batches, 8, generator=generator)
    targets = torch.randint(3, (4 * num_batches,), generator=generator)
    return DataLoader(TensorDataset(features, targets), batch_size=4)


@program(4, Counts(4, 2 + 2 * 2), needs=("pytorch_lightning",), is_slow=True)
def lightning(num_steps: int) -> Training:
    """Two epochs, each with a validation of two batches, after a sanity check of two batches."""
    from pytorch_lightning import LightningModule, Trainer

    losses: list[float] = []

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(dropout=0.1)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            loss = F.cross_entropy(self(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def validation_step(self, batch: list[Tensor], _: int) -> None:
            F.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Classifier()
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = dict.fromkeys(silent, False)
    trainer = Trainer(max_epochs=2, accelerator="cpu", **options)

    def run() -> list[float]:
        trainer.fit(module, _loader(num_steps // 2), _loader(2))
        return losses

    return Training({MODEL: module}, run)


@program(4, Counts(4, 2), needs=("accelerate",), is_slow=True)
def accelerate(num_steps: int) -> Training:
    """Gradients are accumulated over two batches; two batches are evaluated at the end."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    model = mlp()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    given = model, torch.optim.SGD(model.parameters(), lr=0.1), _loader(num_steps)
    prepared, optimizer, loader = accelerator.prepare(*given)

    def run() -> list[float]:
        losses = []
        for x, target in loader:
            with accelerator.accumulate(prepared):
                loss = F.cross_entropy(prepared(x), target)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        prepared.eval()
        with torch.no_grad():
            for x, _target in _loader(2):
                prepared(x)
        return losses

    return Training({MODEL: model}, run)


class _WithLoss(nn.Module):
    """A model as the Trainer of transformers calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(dropout=0.1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@program(4, Counts(4, 2 * 2), needs=("transformers", "accelerate"), is_slow=True)
def transformers_trainer(num_steps: int) -> Training:
    """After every second step, two batches are evaluated."""
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(
        tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        max_steps=num_steps,
        eval_strategy="steps",
        eval_steps=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
    )
    samples = _loader(num_steps).dataset
    data = [{"x": samples[index][0], "labels": samples[index][1]} for index in range(4 * num_steps)]
    trainer = Trainer(_WithLoss(), settings, train_dataset=data, eval_dataset=data[:8])

    def run() -> list[float]:
        trainer.train()
        return [each["loss"] for each in trainer.state.log_history if "loss" in each]

    return Training({MODEL: trainer.model}, run)
