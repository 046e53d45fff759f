"""Memory and time over ways to checkpoint a step: derived from two passes, as if each was recorded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from torchscan import InputError, Scan, estimate_memory
from torchscan.types import CheckpointChoice, CheckpointCurve

BATCH, WIDTH, HIDDEN, LAYERS = 512, 64, 1024, 6
STEP: dict[str, Any] = {"device": "RTX 3090", "training": True, "batch_size": BATCH}
#: bytes of what a block saves and its checkpoint does not: the hidden units, which are rectified
HIDDEN_BYTES = 4 * BATCH * HIDDEN


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(torch.relu(self.wide(x)))


class Blocks(nn.Module):
    """A model as timm and torchvision build them, with its blocks in a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x)).sum()


class Attending(nn.Module):
    """A model as transformers builds them, with its layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"batch_first": True, "device": "meta"}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(1024, 4, 4096, **options) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def curve_of(model: nn.Module, *shape: Any, **options: Any) -> CheckpointCurve:
    return Scan(model, *shape, **{**STEP, **options}).checkpointing()


def named(curve: CheckpointCurve, checkpoint: Any) -> CheckpointChoice:
    (found,) = [
        each
        for each in curve
        if each.checkpoint == checkpoint and type(each.checkpoint) is type(checkpoint)
    ]
    return found


@pytest.fixture(scope="module")
def curve() -> CheckpointCurve:
    return curve_of(Blocks(), (WIDTH,))


def test_choices_are_the_usual_ones_and_operators(curve: CheckpointCurve) -> None:
    assert curve.num_layers == LAYERS
    numbers = {each.checkpoint: each.num_checkpointed for each in curve if not each.saved}
    assert numbers == {False: 0, True: 6, 2: 3, 3: 2, 4: 1, "selective": 6}
    (saving,) = [each for each in curve if each.saved]
    assert saving.checkpoint == [torch.ops.aten.addmm.default]
    (result,) = saving.saved or ()
    assert result.modules == ("wide",)
    assert result.shapes == ((HIDDEN,), (BATCH, WIDTH), (WIDTH, HIDDEN))
    assert result.size == LAYERS * HIDDEN_BYTES


def test_flops_are_those_of_what_runs_again(curve: CheckpointCurve) -> None:
    """A checkpoint stops when it has what was saved: the narrow layer does not run again."""
    rectifying = BATCH * HIDDEN
    block = 2 * BATCH * WIDTH * HIDDEN + rectifying
    assert named(curve, False).recomputed_flops == 0
    assert named(curve, True).recomputed_flops == LAYERS * block
    assert named(curve, 2).recomputed_flops == 3 * block
    assert named(curve, [torch.ops.aten.addmm.default]).recomputed_flops == LAYERS * rectifying
    # torchtitan's policy saves products without a bias alone
    assert named(curve, "selective").recomputed_flops == LAYERS * block


def test_share_of_flops_is_that_of_the_step_without_checkpoints(curve: CheckpointCurve) -> None:
    step = Scan(Blocks(), (WIDTH,), **STEP)
    flops = sum(cost.flops for cost in step.costs("operator").values())
    full = named(curve, True)
    assert full.recomputed_share == pytest.approx(full.recomputed_flops / flops, rel=0.01)


def test_memory_is_that_of_hidden_units(curve: CheckpointCurve) -> None:
    """The last block has its hidden units in any case when the backward pass begins."""
    without = named(curve, False).peak_bytes
    assert without - named(curve, True).peak_bytes == (LAYERS - 1) * HIDDEN_BYTES
    # every second layer: of layers 2, 4 and 6, the last one runs again first
    assert without - named(curve, 2).peak_bytes == 2 * HIDDEN_BYTES


def test_front_has_no_choice_that_another_one_beats(curve: CheckpointCurve) -> None:
    for each in curve:
        better = [
            other
            for other in curve
            if other.time_estimate < each.time_estimate
            and other.reserved_bytes <= each.reserved_bytes
        ]
        assert each.is_on_front == (not better)
    assert curve.front[0] is curve.baseline
    times = [each.time_estimate for each in curve]
    assert times == sorted(times)


def test_fastest_is_within_the_limit() -> None:
    estimate = estimate_memory(model := Blocks(), (WIDTH,), **STEP)
    curve = estimate.checkpointing()
    assert curve.fastest is curve.baseline
    reserved = named(curve, 2).reserved_bytes
    limited = estimate.checkpointing(max_memory=reserved)
    fastest = limited.fastest
    assert fastest is not None
    assert fastest.reserved_bytes <= reserved < named(limited, False).reserved_bytes
    assert fastest.time_estimate <= named(limited, 2).time_estimate
    assert estimate.checkpointing(max_memory="1 MiB").fastest is None
    del model


def test_results_to_save_are_chosen_for_the_limit() -> None:
    """Between two choices of operators, a policy saves the products that have room."""
    model = nn.Sequential(*(TwoProducts() for _ in range(4)))
    curve = curve_of(model, (WIDTH,))
    (saving,) = [each for each in curve if isinstance(each.checkpoint, list)]
    limit = (saving.reserved_bytes + named(curve, True).reserved_bytes) // 2
    limited = Scan(model, (WIDTH,), **STEP).checkpointing(limit)
    fitting = [each for each in limited if each.saved and each.fits]
    assert fitting
    assert all(each.reserved_bytes <= limit for each in fitting)


class TwoProducts(nn.Module):
    """A block with a small result that takes long to compute, and a large one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.mix = nn.Linear(WIDTH, 8 * HIDDEN), nn.Linear(8 * HIDDEN, HIDDEN)
        self.narrow = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(torch.relu(self.mix(torch.relu(self.wide(x)))))


def check_as_recorded(choices: Iterable[CheckpointChoice], scan: Callable[[Any], Scan]) -> None:
    """Compare choices with the steps that are recorded with their ``checkpoint``."""
    for each in choices:
        recorded = scan(each.checkpoint)
        assert each.peak_bytes == pytest.approx(recorded.memory.peak_bytes, rel=0.001)
        verdict = recorded.memory.verdict
        assert verdict is not None
        assert each.reserved_bytes == pytest.approx(verdict.reserved_bytes, rel=0.02)
        assert each.time_estimate == pytest.approx(recorded.roofline.time_estimate, rel=0.02)


def test_derived_steps_of_a_sequence_are_as_recorded(curve: CheckpointCurve) -> None:
    def scan(choice: Any) -> Scan:
        return Scan(Blocks(), (WIDTH,), checkpoint=choice, **STEP)

    check_as_recorded([each for each in curve if each.checkpoint != 3], scan)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16-mixed", "optimizer": "AdamW", "accumulation_steps": 2},
        {"compiled": True, "precision": "bf16"},
        {"lora": 4, "optimizer": "AdamW8bit", "optimizer_in_backward": True},
        {"float8": "tensorwise", "precision": "bf16", "device": "H100"},
    ],
)
@pytest.mark.few(1)
@pytest.mark.slow
def test_derived_steps_of_layers_are_as_recorded(options: dict[str, Any]) -> None:
    """Half of the choices, of which some save results by a policy."""

    def scan(choice: Any) -> Scan:
        asked = {**STEP, "batch_size": 16, **options}
        return Scan(Attending(), (256, 1024), checkpoint=choice, **asked)

    curve = scan(False).checkpointing()
    assert any(each.saved and not isinstance(each.checkpoint, list) for each in curve)
    check_as_recorded(curve.choices[1::2], scan)


def test_policies_are_those_of_torch() -> None:
    """A choice trains as the model without checkpoints, with gradients that are equal."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(TwoProducts() for _ in range(2))), torch.randn(4, WIDTH)
    limit = named(curve_of(model, (WIDTH,)), True).reserved_bytes
    limited = Scan(model, (WIDTH,), **STEP).checkpointing(limit + 2**24)
    policies = [each.checkpoint for each in limited if callable(each.checkpoint)]
    model(x).sum().backward()
    expected = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    for policy in [pickle.loads(pickle.dumps(each)) for each in policies]:
        model.zero_grad()
        y = x
        for block in model:
            y = checkpoint(
                block,
                y,
                use_reentrant=False,
                context_fn=lambda policy=policy: create_selective_checkpoint_contexts(policy),
            )
        y.sum().backward()
        gradients = [each.grad for each in model.parameters()]
        assert all(map(torch.equal, gradients, expected))


def test_policy_saves_what_it_names(curve: CheckpointCurve) -> None:
    from torchscan.recording.training.checkpoints import SavedCalls

    policy = SavedCalls(frozenset({("aten.mm.default", ((2, 3), (3, 4)))}))
    context = SelectiveCheckpointContext(is_recompute=False)
    mm, add = torch.ops.aten.mm.default, torch.ops.aten.add.Tensor
    x, y = torch.zeros(2, 3), torch.zeros(3, 4)
    assert policy(context, mm, x, y) is CheckpointPolicy.MUST_SAVE
    assert policy(context, mm, x.T, y.T) is CheckpointPolicy.PREFER_RECOMPUTE
    assert policy(context, add, x, y) is CheckpointPolicy.PREFER_RECOMPUTE


def test_table_page_and_data_show_the_choices(curve: CheckpointCurve) -> None:
    text = curve.to_text(width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, curve.to_text(width=50).splitlines())) <= 50
    for words in ("nothing", "all layers", "every 2nd layer", "selective", "all but wide"):
        assert words in " ".join(text.split())
        assert words in curve.to_markdown()
    assert "The step fits without checkpoints." in text
    data = json.loads(curve.to_json())
    assert [each["checkpoint"] for each in data["choices"] if each["saved"]] == [
        ["aten.addmm.default"]
    ]
    assert "recomputed_share" in curve.to_csv()
    assert "choices" in repr(curve)


def test_invalid_questions_are_refused() -> None:
    with pytest.raises(InputError, match=r"depends on the device: give device='NVIDIA H200'"):
        estimate_memory(model := Blocks(), (WIDTH,), training=True).checkpointing()
    with pytest.raises(InputError, match=r"belong to a training step: give training=True"):
        Scan(Blocks(), (WIDTH,), device="RTX 3090").checkpointing()
    with pytest.raises(InputError, match=r"needs equal layers in a torch.nn.ModuleList"):
        curve_of(nn.Linear(4, 4), (4,))
    with pytest.raises(InputError, match=r"max_memory is 'much': give a number of bytes"):
        Scan(Blocks(), (WIDTH,), **STEP).checkpointing("much")
    del model


class Checkpointed(Block):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def test_models_with_checkpoints_are_refused() -> None:
    with pytest.raises(InputError, match=r"has checkpoints itself"):
        curve_of(nn.Sequential(Checkpointed(), Checkpointed()), (WIDTH,))
