"""Memory and time over ways to checkpoint a step: derived from two passes, as if each was recorded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
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

from tests.versions import needs
from torchscan import InputError, Scan, estimate_memory
from torchscan.recording.training.checkpoints import SavedCalls
from torchscan.report.checkpoint_table import describe_recomputed
from torchscan.types import CheckpointChoice, CheckpointCurve, SavedResult

pytestmark = needs("_C._autograd._top_saved_tensors_default_hooks")

BATCH, WIDTH, LAYERS = 2048, 512, 6
STEP: dict[str, Any] = {"device": "RTX 3090", "training": True, "batch_size": BATCH}
#: elements of what a block rectifies: of a wide layer, and of a product that takes longer
WIDE, MIXED = BATCH * 8 * WIDTH, BATCH * WIDTH
#: bytes of what a block saves and its checkpoint does not
HIDDEN_BYTES = 4 * (WIDE + MIXED)
#: what saves the results of these products: weights are transposed
MIX = SavedCalls(frozenset({("aten.mm.default", ((BATCH, 8 * WIDTH), (8 * WIDTH, WIDTH)))}))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        self.mix = nn.Linear(8 * WIDTH, WIDTH, bias=False)
        self.narrow = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(torch.relu(self.mix(torch.relu(self.wide(x)))))


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
    (result,) = named(curve, MIX).saved or ()
    assert result.modules == ("mix",)
    assert result.shapes == ((BATCH, 8 * WIDTH), (8 * WIDTH, WIDTH))
    assert result.size == LAYERS * 4 * MIXED


def test_flops_are_those_of_what_runs_again(curve: CheckpointCurve) -> None:
    """A checkpoint stops when it has what was saved: the narrow layer does not run again."""
    rectifying = WIDE + MIXED
    wide, mix = 2 * WIDTH * WIDE, 2 * 8 * WIDTH * MIXED
    assert named(curve, False).recomputed_flops == 0
    assert named(curve, True).recomputed_flops == LAYERS * (wide + mix + rectifying)
    assert named(curve, 2).recomputed_flops == 3 * (wide + mix + rectifying)
    assert named(curve, MIX).recomputed_flops == LAYERS * (wide + rectifying)
    # torchtitan's policy saves the first of every two products that have no bias
    assert named(curve, "selective").recomputed_flops == LAYERS * (mix + rectifying)


def test_share_of_flops_is_that_of_the_step_without_checkpoints(curve: CheckpointCurve) -> None:
    step = Scan(Blocks(), (WIDTH,), **STEP)
    flops = sum(cost.flops for cost in step.costs("operator").values())
    full = named(curve, True)
    assert full.recomputed_share == pytest.approx(full.recomputed_flops / flops, rel=0.01)


@pytest.mark.parametrize(("every", "saving_layers"), [(2, 2), (3, 1), (4, 1)])
def test_memory_is_that_of_hidden_units(
    curve: CheckpointCurve, every: int, saving_layers: int
) -> None:
    """The last layer has its hidden units in any case when the backward pass begins."""
    saved = named(curve, False).peak_bytes - named(curve, every).peak_bytes
    assert saved == pytest.approx(saving_layers * HIDDEN_BYTES, rel=0.1)


def test_memory_of_saved_results_is_theirs(curve: CheckpointCurve) -> None:
    """Torchtitan's policy saves wide products; what rectifies both products runs again."""
    saved = named(curve, False).peak_bytes - named(curve, "selective").peak_bytes
    assert saved == pytest.approx((LAYERS - 1) * 4 * MIXED, rel=0.1)


def test_saved_results_come_with_the_longest_first(curve: CheckpointCurve) -> None:
    """Of two products with as many FLOPs, the wide one writes eight times as many results."""
    (both,) = [each.saved for each in curve if each.saved and len(each.saved) > 1]
    assert [result.modules for result in both] == [("wide",), ("mix",)]
    wide, mix = both
    assert wide.seconds > mix.seconds


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
    none = estimate.checkpointing(max_memory="1 MiB")
    assert none.fastest is None
    del model
    marked = [row for row in limited.table().rows if row.cells[0].text.endswith(" *")]
    assert [row.values[1] for row in marked] == [fastest.reserved_bytes]
    assert limited.table().write("html").count('<tr class="best"') == 1
    assert not any("*" in row.cells[0].text for row in none.table().rows)


def test_results_to_save_are_chosen_for_the_limit(curve: CheckpointCurve) -> None:
    """What saves the most time and has room is among the choices."""
    limit = named(curve, MIX).reserved_bytes
    limited = Scan(Blocks(), (WIDTH,), **STEP).checkpointing(limit)
    fastest = limited.fastest
    assert fastest is not None
    assert fastest.checkpoint == MIX or fastest.time_estimate < named(curve, MIX).time_estimate


def check_as_recorded(choices: Iterable[CheckpointChoice], scan: Callable[[Any], Scan]) -> None:
    """Compare choices with the steps that are recorded with their ``checkpoint``."""
    for each in choices:
        recorded = scan(each.checkpoint)
        assert each.peak_bytes == pytest.approx(recorded.memory.peak_bytes, rel=0.02)
        verdict = recorded.memory.verdict
        assert verdict is not None
        # of few large blocks, one segment more or less
        assert each.reserved_bytes == pytest.approx(verdict.reserved_bytes, rel=0.04)
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


def test_gradients_with_a_policy_are_equal() -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(4, WIDTH)
    saved = SavedCalls(frozenset({("aten.mm.default", ((4, 8 * WIDTH), (8 * WIDTH, WIDTH)))}))
    policy = pickle.loads(pickle.dumps(saved))  # noqa: S301 - our own
    block(x).sum().backward()
    expected = [each.grad for each in block.parameters() if each.grad is not None]
    block.zero_grad()
    contexts = partial(create_selective_checkpoint_contexts, policy)
    checkpoint(block, x, use_reentrant=False, context_fn=contexts).sum().backward()
    gradients = [each.grad for each in block.parameters() if each.grad is not None]
    assert len(gradients) == len(expected) == 4
    assert all(map(torch.equal, gradients, expected))


def test_policy_saves_what_it_names() -> None:
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
    for words in ("nothing", "all layers", "every 2nd layer", "selective", "all but mix"):
        assert words in " ".join(text.split())
        assert words in curve.to_markdown()
    assert "The step fits without checkpoints." in text
    data = json.loads(curve.to_json())
    saving = {str(each["checkpoint"]): each["saved"] for each in data["choices"] if each["saved"]}
    assert saving.keys() == {"policy", "['aten.mm.default']"}
    assert saving["policy"][0]["operator"] == "aten.mm.default"
    assert "recomputed_share" in curve.to_csv()
    assert "choices" in repr(curve)


def test_several_saved_results_of_an_operator_are_counted(curve: CheckpointCurve) -> None:
    """Two of softmax, whose sizes differ, and one of GELU."""
    saved = []
    for name, size in (("_softmax", 2), ("gelu", 2), ("_softmax", 3)):
        result = SavedResult(f"aten.{name}.default", ("",), ((size,),), 4 * size, 0.0)
        saved.append(result)
    choice = replace(named(curve, MIX), saved=tuple(saved))
    described = describe_recomputed(choice, replace(curve, choices=(choice,)))
    assert described == "all but 2 softmax, gelu"


def test_rows_that_save_results_of_the_same_modules_differ(curve: CheckpointCurve) -> None:
    """Convolutions of three stages, of which more and more are saved, and one without a name."""
    kinds = [("conv1", 3), ("down.0", 3), ("conv1", 5), ("down.0", 5), ("conv1", 7), ("0", 7)]
    saved = [
        SavedResult("aten.convolution.default", (path,), ((size,),), 4 * size, 0.0)
        for path, size in kinds
    ]
    choices = [replace(named(curve, MIX), saved=tuple(saved[:number])) for number in range(1, 7)]
    of_these = replace(curve, choices=tuple(choices))
    assert [describe_recomputed(each, of_these) for each in choices] == [
        "all but conv1",
        "all but conv1, down.0",
        "all but 2 conv1, down.0",
        "all but 2 conv1, 2 down.0",
        "all but 3 conv1, 2 down.0",
        "all but products",
    ]


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
