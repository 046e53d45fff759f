"""What would help: every change is estimated as if it had been asked for."""

from __future__ import annotations

import gc
import json
import pickle
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchscan import InputError, analyze_roofline, estimate_memory
from torchscan.analyses.suggestions_result import Suggestion, Suggestions

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
        return (
            checkpoint(self.inside, x, use_reentrant=False)
            if self.is_checkpointed
            else self.inside(x)
        )


def blocks(is_checkpointed: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), *(Block(is_checkpointed) for _ in range(6)))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)
    )


def named(suggestions: Suggestions, change: str) -> Suggestion:
    (found,) = (each for each in suggestions.suggestions if each.change == change)
    return found


def time_suggestions(model: nn.Module, *shape: Any, **options: Any) -> Suggestions:
    return analyze_roofline(model, *shape, **{**CARD, **options}).suggestions()


def memory_suggestions(model: nn.Module, *shape: Any, **options: Any) -> Suggestions:
    return estimate_memory(model, *shape, **options).suggestions()


def test_changes_of_arguments_are_estimated_as_if_asked_for() -> None:
    suggestions = time_suggestions(blocks(), (256, 64), batch_size=512)
    changes: dict[str, dict[str, Any]] = {
        "compile": {"compiled": True},
        "bfloat16": {"precision": "bf16"},
        "bfloat16 by autocast": {"precision": "bf16-mixed"},
    }
    for change, arguments in changes.items():
        asked = analyze_roofline(
            blocks(), (256, 64), batch_size=512, **CARD, **arguments
        ).time_estimate
        found = named(suggestions, change)
        assert found.after == asked
        assert found.saves == pytest.approx(1 - asked / suggestions.before)


def test_the_best_comes_first() -> None:
    saved = [
        each.saves for each in time_suggestions(blocks(), (256, 64), batch_size=512).suggestions
    ]
    assert saved == sorted(saved, reverse=True)
    assert min(saved) >= 0.01


def test_channels_last_is_estimated_on_such_images() -> None:
    suggestions = time_suggestions(images(), (64, 56, 56), batch_size=256, precision="fp16")
    x = torch.zeros(256, 64, 56, 56, device="meta").to(memory_format=torch.channels_last)
    asked = analyze_roofline(images(), args=(x,), precision="fp16", **CARD)
    assert named(suggestions, "channels last").after == asked.time_estimate < suggestions.before


def test_larger_batches_are_compared_by_the_sample() -> None:
    """A layer of few samples is all launches: four times as many take as long."""
    found = named(time_suggestions(blocks(), (64,), batch_size=2), "larger batches")
    assert found.after == analyze_roofline(blocks(), (64,), batch_size=8, **CARD).time_estimate / 4
    assert found.saves == pytest.approx(0.75, abs=0.01)


@pytest.mark.slow
def test_checkpoints_are_those_that_the_model_could_have() -> None:
    found = named(memory_suggestions(blocks(), (256, 64), **STEP), "checkpoints")
    asked = estimate_memory(blocks(is_checkpointed=True), (256, 64), **STEP).verdict
    assert asked is not None
    assert found.after == asked.reserved_bytes
    assert "1 … 6" in str(found.how)


class Stack(nn.Module):
    """Beside the list of its blocks stands a norm, as in encoders and decoders."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(is_checkpointed) for _ in range(4))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        """One block after the other."""
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class TwoStacks(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = Stack(is_checkpointed), Stack(is_checkpointed)

    def forward(self, x: Tensor) -> Tensor:
        """Both."""
        return self.decoder(self.encoder(x))


class Branches(nn.Module):
    """A block whose own layers are in a list."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, 512), nn.Linear(512, 64)])
        self.is_checkpointed = is_checkpointed

    def inside(self, x: Tensor) -> Tensor:
        """What is computed again."""
        return x + self.inner[1](torch.relu(self.inner[0](x)))

    def forward(self, x: Tensor) -> Tensor:
        """With a checkpoint of its own, or without."""
        return (
            checkpoint(self.inside, x, use_reentrant=False)
            if self.is_checkpointed
            else self.inside(x)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        TwoStacks,
        lambda is_checkpointed: nn.Sequential(*(Branches(is_checkpointed) for _ in range(6))),
    ],
)
def test_checkpoints_are_around_blocks_and_not_around_stacks_of_them(
    build: Callable[[bool], nn.Module],
) -> None:
    model = build(False)
    found = named(memory_suggestions(model, (256, 64), **STEP), "checkpoints")
    asked = estimate_memory(build(True), (256, 64), **STEP).verdict
    assert asked is not None
    assert found.after == asked.reserved_bytes


def test_without_a_device_it_is_the_peak_of_the_tensors() -> None:
    step: dict[str, Any] = {"batch_size": 8, "training": True}
    model = blocks()
    suggestions = memory_suggestions(model, (256, 64), **step)
    assert suggestions.metric == "peak_bytes"
    assert suggestions.before == estimate_memory(model, (256, 64), **step).peak_bytes
    asked = estimate_memory(blocks(is_checkpointed=True), (256, 64), **step).peak_bytes
    assert named(suggestions, "checkpoints").after == asked


@pytest.mark.slow
def test_a_fused_optimizer_is_torchs() -> None:
    asked = analyze_roofline(
        blocks(), (64,), **{**STEP, "optimizer": partial(torch.optim.AdamW, fused=True)}
    )
    assert (
        named(time_suggestions(blocks(), (64,), **STEP), "fused optimizer").after
        == asked.time_estimate
    )


@pytest.mark.slow
def test_what_cannot_be_tried_is_said() -> None:
    """Rprop has no fused kernel."""
    suggestions = time_suggestions(blocks(), (64,), **{**STEP, "optimizer": "Rprop"})
    texts = [str(each) for each in suggestions.ineffective]
    assert "fused optimizer: Rprop has no fused kernel" in texts


def test_batches_that_do_not_fit_are_of_no_help() -> None:
    """Of 2^18 rows, a block keeps 0.56 GiB: 6 of them fit 5.8 GiB, and 24 do not."""
    suggestions = time_suggestions(
        blocks(), (64,), batch_size=2**18, training=True, device="RTX 2060"
    )
    assert "larger batches: twice as many samples do not fit on NVIDIA GeForce RTX 2060" in [
        str(each) for each in suggestions.ineffective
    ]


@pytest.mark.parametrize("training", [False, True])
def test_together_is_the_best_there_is(training: bool) -> None:
    """It has the precision that goes best with the other changes, and stands first because it saves most."""
    options: dict[str, Any] = {"batch_size": 512, "training": training}
    suggestions = time_suggestions(blocks(), (256, 64), **options)
    (first, *_) = suggestions.suggestions
    assert first.change == "together"
    for precision in ("tf32", "bf16-mixed", *([] if training else ["bf16"])):
        given: Any = {"precision": precision, **options}
        asked = analyze_roofline(blocks(), (256, 64), compiled=True, **given, **CARD)
        assert first.after <= asked.time_estimate


def test_one_change_is_not_repeated_as_all_of_them() -> None:
    """Of one sample there is no smaller batch; the types of 16 bits exclude each other."""
    changes = [each.change for each in memory_suggestions(blocks(), (256, 64)).suggestions]
    assert "together" not in changes
    assert changes == ["bfloat16"]


def test_a_smaller_batch_goes_with_other_changes() -> None:
    options: dict[str, Any] = {**STEP, "batch_size": 64}
    together, *_ = memory_suggestions(blocks(), (256, 64), **options).suggestions
    asked = estimate_memory(
        blocks(is_checkpointed=True),
        (256, 64),
        **{**options, "batch_size": 32, "accumulate": True, "precision": "bf16-mixed"},
    )
    assert asked.verdict is not None
    assert together.change == "together"
    assert together.after <= asked.verdict.reserved_bytes


def test_a_model_in_16_bits_is_offered_no_narrower_numbers() -> None:
    suggestions = time_suggestions(blocks().bfloat16(), (256, 64), batch_size=512)
    texts = [*map(str, suggestions.ineffective), *(each.change for each in suggestions.suggestions)]
    assert not any("tf32" in each or "bfloat16" in each for each in texts)


def test_it_is_said_of_what_and_how_sure() -> None:
    model = blocks()
    suggestions = time_suggestions(model, (64,), batch_size=8, precision="fp16-mixed")
    assert (
        suggestions.question
        == "NVIDIA GeForce RTX 3090, fp16-mixed, batch size 8; limited by launch (100 % of the time)"
    )
    estimate = analyze_roofline(model, (64,), batch_size=8, precision="fp16-mixed", **CARD)
    assert suggestions.baseline.error_share == estimate.error_margin.share
    assert f"± {100 * estimate.error_margin.share:.0f} %" in str(suggestions)


def test_what_makes_it_fit_is_said() -> None:
    """Of 2^18 rows, 6 blocks keep 3.4 GiB: too much for 3 GiB, unless they are computed again."""
    suggestions = memory_suggestions(
        blocks(), (64,), batch_size=2**18, training=True, device="3 GiB"
    )
    assert suggestions.baseline.fits is False
    assert named(suggestions, "checkpoints").fits is True
    assert str(suggestions).splitlines()[2].split()[-2:] == ["Fits", "How"]


class Generator(nn.Module):
    """Images from a vector: no input has channels."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.conv, self.last = (
            nn.Linear(64, 64 * 28 * 28),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.Conv2d(64, 64, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions."""
        y: Tensor = self.last(self.conv(self.wide(x).view(-1, 64, 28, 28)))
        return y


class Masked(nn.Module):
    """A mask has as many dimensions as an image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """What is masked is no image."""
        return self.conv(x).mean() + (mask * mask).sum()


def test_channels_last_is_of_the_weights_too() -> None:
    model = Generator()
    laid_out = Generator().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    asked = analyze_roofline(laid_out, (64,), batch_size=256, precision="fp16", **CARD)
    suggestions = time_suggestions(model, (64,), batch_size=256, precision="fp16")
    assert named(suggestions, "channels last").after == asked.time_estimate


def test_channels_last_is_of_images_alone() -> None:
    model, x, mask = Masked(), torch.zeros(256, 64, 28, 28), torch.zeros(8, 4, 512, 512)
    turned = analyze_roofline(
        model, args=(x.to(memory_format=torch.channels_last), mask), precision="fp16", **CARD
    )
    suggestions = time_suggestions(model, args=(x, mask), precision="fp16")
    assert named(suggestions, "channels last").after == pytest.approx(
        turned.time_estimate, rel=0.01
    )
    assert "channels last" not in str(time_suggestions(blocks(), (64,)))


class WithOwnForward(Block):
    """What checkpoints are put around: its forward is an attribute of its own, and it has hooks."""

    def __init__(self) -> None:
        super().__init__(is_checkpointed=False)
        self.forward = self.inside  # type: ignore[method-assign]
        self.register_forward_hook(lambda *_: None)


@pytest.mark.sweep
@pytest.mark.slow
def test_the_model_is_as_before_and_nobody_is_warned() -> None:
    model = nn.Sequential(*(WithOwnForward() for _ in range(3)), nn.Dropout())
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    random = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory_suggestions(model, (256, 64), **STEP)
        time_suggestions(model, (256, 64), **STEP)
    assert {path: vars(module) for path, module in model.named_modules()} == before
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.slow
def test_a_result_keeps_no_model() -> None:
    model = blocks()
    gone = weakref.ref(model)
    result = estimate_memory(model, (64,), **CARD)
    del model
    gc.collect()
    assert gone() is None
    with pytest.raises(InputError, match="keep a reference to it"):
        result.suggestions()


def test_a_result_that_was_pickled_has_no_model_to_ask() -> None:
    model = blocks()
    for result in (analyze_roofline(model, (64,), **CARD), estimate_memory(model, (64,), **CARD)):
        assert result.suggestions().before > 0
        loaded = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own
        assert loaded == result
        with pytest.raises(InputError, match="keep a reference to it"):
            loaded.suggestions()


def test_as_data_and_as_text() -> None:
    suggestions = time_suggestions(blocks(), (64,))
    assert json.loads(json.dumps(suggestions.to_dict()))["before"] == suggestions.before
    assert suggestions.suggestions[0].change in repr(suggestions)
    assert "No effect" in str(suggestions)


def test_suggestions_can_be_counted_and_gone_through() -> None:
    model = nn.Linear(64, 64)
    found = analyze_roofline(model, (64,), device="RTX 3090").suggestions()
    assert len(found) == len(list(found)) > 0
    assert [each.change for each in found] == [each.change for each in found.suggestions]
