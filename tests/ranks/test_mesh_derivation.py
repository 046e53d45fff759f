"""Steps that are derived from one rank, beside those recorded on their mesh and values by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan.analyses.pipeline_schedule import StageTimes
from torchscan.analyses.pipeline_times import passes_time, rank_orders, split_evenly
from torchscan.types import MeshChoice, MeshSearch

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("ignore")]

DEVICE, LENGTH, LAYERS, HIDDEN = "NVIDIA H100 80GB HBM3", 128, 2, 256


def llama(layers: int = LAYERS, **sizes: int) -> nn.Module:
    """Return a model whose vocabulary cannot be divided evenly."""
    small = {"hidden_size": HIDDEN, "intermediate_size": 704, "vocab_size": 1004}
    config = transformers.LlamaConfig(
        **{**small, **sizes},
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        )
    return model


def search(layers: int = LAYERS, **asked: Any) -> MeshSearch:
    shared = {"num_gpus": 16, "device": DEVICE, "length": LENGTH, "accumulation_steps": 1}
    return torchscan.parallel.search(llama(layers), **{**shared, **asked})


def choice_on(found: MeshSearch, mesh: dict[str, int], checkpoint: Any = False) -> MeshChoice:
    return next(
        each for each in found.choices if each.mesh == mesh and each.checkpoint is checkpoint
    )


#: a mesh, the precision and what is checkpointed
RECORDED: list[tuple[dict[str, int], Any, Any]] = [
    ({"replicate": 2, "dp": 8}, "bf16-mixed", True),
    ({"dp": 4, "tp": 4}, "bf16", "selective"),
    ({"dp": 8, "tp": 2}, "bf16", False),
    ({"dp": 16}, "bf16", "selective"),
    ({"replicate": 2, "dp": 2, "tp": 4}, "bf16-mixed", True),
    ({"dp": 16}, "bf16", False),
    ({"dp": 4, "tp": 4}, "bf16-mixed", True),
    ({"replicate": 2, "dp": 8}, "bf16", "selective"),
    ({"dp": 8, "cp": 2}, "bf16", True),
]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("mesh", "precision", "checkpoint"), RECORDED)
def test_derived_steps_are_those_recorded_on_their_mesh(
    mesh: dict[str, int], precision: Any, checkpoint: Any
) -> None:
    wide = llama(3, hidden_size=4096, intermediate_size=14336, vocab_size=128004)
    asked: dict[str, Any] = {"num_gpus": 16, "device": DEVICE, "length": 2048, "batch_size": 2}
    asked |= {"precision": precision, "checkpoint": checkpoint, "accumulation_steps": 1}
    (found,) = torchscan.parallel.search(wide, meshes=[mesh], **asked).choices
    assert found.is_recorded
    assert found.derived_sent_bytes == found.sent_bytes
    assert found.derived_time == pytest.approx(found.time_estimate, rel=0.02)
    assert found.derived_bytes == pytest.approx(found.needed_bytes, rel=0.25)


@pytest.mark.sweep
@pytest.mark.slow
def test_ranks_of_tensor_parallelism_have_parts_of_sequences_and_logits() -> None:
    """By hand: a checkpointed layer keeps its input, and the loss needs logits in 32 bits."""
    tokens, vocabulary, ranks = 4 * 4096, 32_000, 4
    asked: dict[str, Any] = {"num_gpus": ranks, "meshes": [{"tp": ranks}], "device": DEVICE}
    asked |= {"length": 4096, "batch_size": 1, "checkpoint": True, "accumulation_steps": 1}
    model = llama(vocab_size=vocabulary)
    (divided,), (whole,) = (
        torchscan.parallel.search(model, sequence_parallel=each, **asked).choices
        for each in (True, False)
    )
    inputs, logits = 2 * tokens * HIDDEN * LAYERS, 4 * tokens * vocabulary
    left_out = (inputs + logits) * (1 - 1 / ranks)
    assert whole.peak_bytes - divided.peak_bytes > left_out
    assert divided.peak_bytes < 0.35 * whole.peak_bytes
    # all logits are gathered on each rank otherwise
    gathered = 2 * tokens * vocabulary * (ranks - 1) // ranks
    assert whole.sent_bytes - divided.sent_bytes > gathered


@pytest.mark.slow
@pytest.mark.sweep
def test_asynchronous_collectives_run_behind_products() -> None:
    asked: dict[str, Any] = {"meshes": [{"dp": 4, "tp": 4}], "checkpoint": False, "compiled": True}
    (waiting,) = search(**asked, length=2048).choices
    (overlapping,) = search(**asked, length=2048, async_tp=True).choices
    assert overlapping.sent_bytes == waiting.sent_bytes
    assert overlapping.waiting < waiting.waiting
    assert overlapping.derived_time == pytest.approx(overlapping.time_estimate, rel=0.1)
    with pytest.raises(torchscan.InputError, match="only compiled steps have"):
        search(async_tp=True)


@pytest.mark.slow
@pytest.mark.sweep
def test_plans_that_cannot_divide_sequences_keep_them() -> None:
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 704, "num_hidden_layers": 2}
    config = transformers.Olmo2Config(**sizes, num_attention_heads=8, vocab_size=1024)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    asked: dict[str, Any] = {"num_gpus": 2, "device": DEVICE, "length": LENGTH}
    asked |= {"checkpoint": False, "accumulation_steps": 1}
    found = torchscan.parallel.search(model, meshes=[{"tp": 2}], **asked)
    assert "sequences-not-divided" in {each.code for each in found.assumptions}
    found = torchscan.parallel.search(model, meshes=[{"dp": 2}], **asked)
    assert "sequences-not-divided" not in {each.code for each in found.assumptions}
    with pytest.raises(torchscan.InputError, match="127 tokens cannot be divided into 2 parts"):
        search(num_gpus=2, meshes=[{"tp": 2}], length=127, checkpoint=False)


@pytest.mark.slow
@pytest.mark.sweep
def test_accumulated_micro_batches_are_recorded_once_and_counted_often() -> None:
    asked: dict[str, Any] = {"meshes": [{"dp": 16}], "batch_size": 4, "checkpoint": False}
    (one,), (four,) = (search(accumulation_steps=number, **asked).choices for number in (1, 4))
    assert (four.num_microbatches, four.batch_size) == (4, 1)
    assert four.sent_bytes == 4 * one.sent_bytes
    assert four.mfu * four.time_estimate == pytest.approx(one.mfu * one.time_estimate)
    assert four.by_kind["activations"] < one.by_kind["activations"]


@pytest.mark.slow
@pytest.mark.sweep
def test_every_second_layer_takes_half_of_the_time_that_all_take() -> None:
    asked: dict[str, Any] = {"num_gpus": 4, "meshes": [{"pp": 2, "dp": 2}], "batch_size": 4}
    none, half, full = (
        search(8, checkpoint=checkpoint, accumulation_steps=8, **asked).choices[0]
        for checkpoint in (False, 2, True)
    )
    assert half.checkpoint == 2
    assert none.time_estimate < half.time_estimate < full.time_estimate
    assert none.peak_bytes > half.peak_bytes > full.peak_bytes


@pytest.mark.slow
def test_shares_of_attention_that_mfu_counts() -> None:
    """Of the scores, a causal mask leaves (n + 1) / 2n."""
    asked: dict[str, Any] = {"meshes": [{"dp": 16}], "checkpoint": False}
    (dense,), (computed,) = (
        search(flops=flops, **asked).choices for flops in ("dense", "computed")
    )
    scores = 3 * 2 * LENGTH * LENGTH * HIDDEN * LAYERS * (1 - (LENGTH + 1) / (2 * LENGTH))
    peak = 989.4e12
    missing = (dense.mfu - computed.mfu) * dense.time_estimate * peak / 2
    assert missing == pytest.approx(scores, rel=1e-3)


@pytest.mark.slow
def test_pipelines_send_results_forward_and_gradients_back() -> None:
    """Two stages without data parallelism: only results of layers are sent."""
    asked: dict[str, Any] = {"num_gpus": 2, "meshes": [{"pp": 2}], "checkpoint": False}
    (found,) = search(accumulation_steps=8, global_batch_size=8, **asked).choices
    assert found.schedule is not None
    passed = LENGTH * HIDDEN * 2
    between = 2 * found.stages_per_rank - 1
    # the first rank sends results of all its stages, and gradients of all but its first one
    sent = [stage for stage in range(0, 2 * found.stages_per_rank, 2) if stage < between]
    assert found.sent_bytes >= 8 * passed * len(sent)
    assert found.sent_bytes <= 8 * passed * 2 * found.stages_per_rank
    assert not found.is_recorded
    assert found.bubble > 0


@pytest.mark.sweep
@pytest.mark.slow
def test_parts_of_sequences_gather_keys_and_values() -> None:
    """Keys and values are gathered in both passes; their gradients, in 32 bits, go round in a ring."""
    asked: dict[str, Any] = {"length": 4096, "global_batch_size": 16, "checkpoint": False}
    meshes = [{"dp": 8, "cp": 2}, {"dp": 16}]
    found = search(meshes=meshes, **asked)
    parts, whole = (choice_on(found, mesh) for mesh in meshes)
    # each rank has half of two sequences, with four key heads of eight query heads
    keys = 2 * 4096 * HIDDEN // 2 * 2
    gathered, rotated = 2 * (2 * keys) // 2, 2 * (2 * keys) // 2
    assert parts.sent_bytes - whole.sent_bytes == LAYERS * (gathered + rotated)
    assert parts.local_params == whole.local_params
    # attention over parts is recorded by itself, and on the mesh with all layers
    assert parts.is_recorded
    assert parts.derived_sent_bytes == parts.sent_bytes


def zero_bubble(ranks: int, microbatches: int) -> float:
    times = [StageTimes(1.0, 2.0, 0.0, 1.0)] * ranks
    return passes_time("InterleavedZeroBubble", ranks, microbatches, times)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 4), (8, 32)])
def test_gradients_of_parameters_fill_bubbles(ranks: int, microbatches: int) -> None:
    """With tasks of one second: (p − 1)(F + B − W) idle seconds, a third of those of 1F1B."""
    times = [StageTimes(1.0, 2.0, 0.0)] * ranks
    busy = 3.0 * microbatches
    assert passes_time("1F1B", ranks, microbatches, times) == busy + 3 * (ranks - 1)
    assert zero_bubble(ranks, microbatches) == busy + (ranks - 1)


def test_each_task_of_a_zero_bubble_schedule_runs_once() -> None:
    for rank, order in enumerate(rank_orders("InterleavedZeroBubble", 4, 8, 8)):
        expected = itertools.product((rank, rank + 4), ("forward", "backward", "weight"), range(8))
        assert sorted(order) == sorted(expected)
        assert len(set(order)) == len(order)


def test_stages_are_split_so_that_the_longest_is_shortest() -> None:
    times, first, last, stages = [1.0, 3.0, 2.0, 2.0, 1.0, 1.0], 1.5, 2.5, 3

    def longest(boundaries: tuple[int, ...]) -> float:
        limits = [0, *boundaries, len(times)]
        sums = [sum(times[begin:end]) for begin, end in itertools.pairwise(limits)]
        sums[0] += first
        sums[-1] += last
        return max(sums)

    best = min(map(longest, itertools.combinations(range(1, len(times)), stages - 1)))
    assert longest(tuple(split_evenly(times, first, last, stages))) == pytest.approx(best)
