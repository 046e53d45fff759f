"""What would help: every change is estimated as if it had been asked for."""

from __future__ import annotations

import json
import pickle
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchscan import InputError, analyze_roofline, estimate_memory
from torchscan.analyses.remedies import Remedies, Remedy

CARD: dict[str, Any] = {"device": "RTX 3090"}
STEP: dict[str, Any] = {**CARD, "training": True, "optimizer": "AdamW", "batch_size": 8}


class Block(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 512), nn.Linear(512, 64)
        self.is_checkpointed = is_checkpointed

    def inside(self, x: Tensor) -> Tensor:
        """What is computed again."""
        return x + self.narrow(torch.relu(self.wide(x)))

    def forward(self, x: Tensor) -> Tensor:
        """With a checkpoint of its own, or without."""
        return checkpoint(self.inside, x, use_reentrant=False) if self.is_checkpointed else self.inside(x)


def blocks(is_checkpointed: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), *(Block(is_checkpointed) for _ in range(6)))


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))


def named(remedies: Remedies, change: str) -> Remedy:
    (found,) = (each for each in remedies.remedies if each.change == change)
    return found


def test_changes_of_arguments_are_estimated_as_if_asked_for() -> None:
    remedies = analyze_roofline(blocks(), (256, 64), batch_size=512, **CARD).remedies()
    changes: dict[str, dict[str, Any]] = {
        "compile": {"compiled": True},
        "bfloat16": {"precision": "bf16"},
        "bfloat16 by autocast": {"precision": "bf16-mixed"},
        "together": {"compiled": True, "precision": "bf16"},
    }
    for change, arguments in changes.items():
        asked = analyze_roofline(blocks(), (256, 64), batch_size=512, **CARD, **arguments).time_estimate
        found = named(remedies, change)
        assert found.after == asked
        assert found.saves == pytest.approx(1 - asked / remedies.before)


def test_the_best_comes_first() -> None:
    saved = [each.saves for each in analyze_roofline(blocks(), (256, 64), batch_size=512, **CARD).remedies().remedies]
    assert saved == sorted(saved, reverse=True)
    assert min(saved) >= 0.01


def test_channels_last_is_estimated_on_such_images() -> None:
    remedies = analyze_roofline(images(), (64, 56, 56), batch_size=256, precision="fp16", **CARD).remedies()
    x = torch.zeros(256, 64, 56, 56, device="meta").to(memory_format=torch.channels_last)
    asked = analyze_roofline(images(), args=(x,), precision="fp16", **CARD)
    assert named(remedies, "channels last").after == asked.time_estimate < remedies.before


def test_larger_batches_are_compared_by_the_sample() -> None:
    """A layer of few samples is all launches: four times as many take as long."""
    found = named(analyze_roofline(blocks(), (64,), batch_size=2, **CARD).remedies(), "larger batches")
    assert found.after == analyze_roofline(blocks(), (64,), batch_size=8, **CARD).time_estimate / 4
    assert found.saves == pytest.approx(0.75, abs=0.01)


def test_checkpoints_are_those_that_the_model_could_have() -> None:
    found = named(estimate_memory(blocks(), (256, 64), **STEP).remedies(), "checkpoints")
    asked = estimate_memory(blocks(is_checkpointed=True), (256, 64), **STEP).verdict
    assert asked is not None
    assert found.after == asked.reserved_bytes
    assert "1 … 6" in found.how


def test_without_a_device_it_is_the_peak_of_the_tensors() -> None:
    remedies = estimate_memory(blocks(), (256, 64), batch_size=8, training=True).remedies()
    assert (remedies.figure, remedies.before) == (
        "peak_bytes",
        estimate_memory(blocks(), (256, 64), batch_size=8, training=True).peak_bytes,
    )
    asked = estimate_memory(blocks(is_checkpointed=True), (256, 64), batch_size=8, training=True).peak_bytes
    assert named(remedies, "checkpoints").after == asked


def test_a_fused_optimizer_is_torchs() -> None:
    found = analyze_roofline(blocks(), (64,), **STEP).remedies()
    fused = partial(torch.optim.AdamW, fused=True)
    assert (
        named(found, "fused optimizer").after == analyze_roofline(blocks(), (64,), **{**STEP, "optimizer": fused}).time_estimate
    )


def test_what_cannot_be_tried_is_said() -> None:
    remedies = analyze_roofline(blocks(), (64,), **{**STEP, "optimizer": "Rprop"}).remedies()
    assert "fused optimizer: the optimizer could not be made" in " ".join(remedies.of_no_help) or "no fused kernel" in str(
        remedies
    )


def test_the_model_is_as_before_and_nobody_is_warned() -> None:
    model = blocks()
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate_memory(model, (256, 64), **STEP).remedies()
        analyze_roofline(model, (256, 64), **STEP).remedies()
    assert {path: vars(module).keys() for path, module in model.named_modules()} == {
        path: each.keys() for path, each in before.items()
    }


def test_a_result_that_was_pickled_has_no_model_to_ask() -> None:
    for result in (analyze_roofline(blocks(), (64,), **CARD), estimate_memory(blocks(), (64,), **CARD)):
        assert result.remedies().before > 0
        loaded = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own
        assert loaded == result
        with pytest.raises(InputError, match="estimate it again"):
            loaded.remedies()


def test_as_data_and_as_text() -> None:
    remedies = analyze_roofline(blocks(), (64,), **CARD).remedies()
    assert json.loads(json.dumps(remedies.as_dict()))["before"] == remedies.before
    assert remedies.remedies[0].change in repr(remedies)
    assert "Of no help" in str(remedies)
