"""Memory and schedules of derived pipelines, by hand, and what is shared or compiled on a mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from tests.ranks.test_pipelines_on_gloo import LAYERS, LENGTH, VOCABULARY, WIDTH, Layer, Model
from torchscan.analyses.pipeline_moments import PassMoment, rank_moments

pytestmark = pytest.mark.filterwarnings("ignore")
DEVICE = "NVIDIA H100 80GB HBM3"
F32 = 4


def derive(microbatches: int, **asked: Any) -> Any:
    with torch.device("meta"):
        model = Model(LAYERS)
    shared: dict[str, Any] = {"num_gpus": 2, "meshes": [{"pp": 2}], "device": DEVICE}
    shared |= {"length": LENGTH, "precision": "fp32", "checkpoint": False, "schedule": "1F1B"}
    shared |= {"global_batch_size": microbatches, "accumulation_steps": microbatches}
    (choice,) = torchscan.parallel.search(model, **{**shared, **asked}).choices
    return choice


@pytest.mark.slow
def test_buffers_of_all_micro_batches_are_held_at_once() -> None:
    """A rank receives an input or a gradient of each; as many are in flight as there are ranks."""
    passed = LENGTH * WIDTH * F32
    few, many = (derive(number).peak_bytes for number in (4, 12))
    assert many - few == 8 * passed
    more, most = (
        derive(number, schedule="Interleaved1F1B", stages_per_rank=2).peak_bytes
        for number in (4, 12)
    )
    # three of four stages of a rank's neighbors send to it, and what it sends stays too
    assert most - more == 8 * 3 * passed + 8 * 3 * passed


def moments_of(schedule: Any, microbatches: int) -> tuple[PassMoment, ...]:
    first, *_ = rank_moments(schedule, 2, microbatches, 4)
    return first


def test_counts_of_a_moment_are_those_of_each_stage() -> None:
    moment = PassMoment(0, "forward", (1, 2, 3, 4, 5, 6, 7, 8))
    assert (moment.kept, moment.pending) == ((1, 2), (3, 4))
    assert (moment.results, moment.gradients) == ((5, 6), (7, 8))


def test_sent_tensors_of_several_stages_stay_until_the_end_of_the_step() -> None:
    last = max(moments_of("Interleaved1F1B", 6), key=lambda each: sum(each.gradients))
    # the last backward pass of a rank, after those of all other micro batches of both stages
    assert sum(last.gradients) == 2 * 6 - 1
    assert sum(last.results) == 2 * 6
    assert sum(last.pending) == 0


def test_graphs_of_micro_batches_wait_for_gradients_of_parameters() -> None:
    together, apart = (
        max(moments_of(schedule, 8), key=lambda each: sum(each.kept))
        for schedule in ("Interleaved1F1B", "InterleavedZeroBubble")
    )
    assert sum(apart.kept) >= sum(together.kept)
    assert any(sum(each.pending) for each in moments_of("InterleavedZeroBubble", 8))


def test_a_schedule_that_a_mesh_cannot_follow_is_refused() -> None:
    with pytest.raises(torchscan.InputError, match="schedule is 'Interleaved1F1B', for which pp 2"):
        derive(4, schedule="Interleaved1F1B", stages_per_rank=LAYERS)
    with pytest.raises(torchscan.InputError, match="schedule is 'ZB': choose from"):
        derive(4, schedule="ZB")
    with pytest.raises(torchscan.InputError, match="computes a checkpointed layer again"):
        derive(4, schedule="InterleavedZeroBubble", checkpoint=True)


class WithLoss(nn.Module):
    """A layer and a head whose loss is part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 64 * VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the cross entropy with the first class."""
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x), x.new_zeros(len(x), dtype=torch.long))


@pytest.mark.slow
def test_losses_outside_of_compiled_layers_are_not_compiled() -> None:
    """FSDP's hooks break the graph, so the loss keeps its log-softmax beside the scores."""

    def shard(model: Any, mesh: Any) -> None:
        for each in (*model.layers, model):
            fully_shard(each, mesh=mesh["dp"])

    with torch.device("meta"):
        model = WithLoss()
    step: dict[str, Any] = {"training": True, "batch_size": 256, "device": DEVICE}
    eager, compiled = (
        torchscan.parallel.plan(
            model, (WIDTH,), mesh={"dp": 2}, apply=shard, compiled=each, **step
        ).memory.peak_bytes
        for each in (False, True)
    )
    scores = 256 * 64 * VOCABULARY * F32
    assert compiled >= 2 * scores
    assert compiled == pytest.approx(eager, rel=0.05)
    alone = torchscan.estimate_memory(model, (WIDTH,), compiled=True, **step).peak_bytes
    assert alone < compiled


@pytest.mark.slow
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tied_weights_are_divided_once(sequence_parallel: bool) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 128, "head_dim": 16}
    config = transformers.GemmaConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4
    )
    with torch.device("meta"):
        model = transformers.GemmaForCausalLM(config)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    rank = torchscan.parallel.plan(
        model,
        mesh={"tp": 2},
        sequence_parallel=sequence_parallel,
        kwargs={"input_ids": tokens, "labels": tokens, "use_cache": False},
        loss=lambda output: output["loss"],
        training=True,
        device=DEVICE,
    ).ranks[0]
    divided = 128 * 64 + 4 * 64 * 64 + 3 * 64 * 96
    assert rank.local_params == divided // 2 + 3 * 64
