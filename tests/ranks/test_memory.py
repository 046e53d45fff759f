"""Memory of one process by kind, against sums done by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from torchscan import parallel
from torchscan.types import Plan

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WIDTH, INNER, KEYS, VOCABULARY, HEAD, LAYERS, LENGTH, BYTES = (
    8192,
    28_672,
    1024,
    128_256,
    128,
    3,
    4096,
    2,
)
#: rows and columns of the weights of a layer of Llama 70B, and of what is outside of layers
LAYER = [
    (WIDTH, WIDTH),
    (KEYS, WIDTH),
    (KEYS, WIDTH),
    (WIDTH, WIDTH),
    (INNER, WIDTH),
    (INNER, WIDTH),
    (WIDTH, INNER),
]
LAYER += [(WIDTH, 1)] * 2
OUTSIDE = [(VOCABULARY, WIDTH), (VOCABULARY, WIDTH), (WIDTH, 1)]
PROCESSES = 64


def elements(tensors: list[tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in tensors)


def share(tensors: list[tuple[int, int]]) -> int:
    """Of the first process."""
    return sum(-(-rows // PROCESSES) * columns for rows, columns in tensors)


def build() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (*model.model.layers, model):
        fully_shard(each, mesh=mesh)


@pytest.fixture(scope="module")
def planned() -> Plan:
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    given = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    return parallel.plan(
        build,
        mesh={"dp": PROCESSES},
        apply=shard,
        kwargs=given,
        training=True,
        loss=lambda output: output.loss,
        optimizer="AdamW",
        device="NVIDIA H100 80GB HBM3",
    )


def test_what_is_always_there(planned: Plan) -> None:
    held = LAYERS * share(LAYER) + share(OUTSIDE)
    assert planned.params == LAYERS * elements(LAYER) + elements(OUTSIDE)
    assert planned.local_params == held
    assert planned.memory.by_kind["parameters"] == BYTES * held
    assert planned.memory.by_kind["optimizer"] == 2 * BYTES * held


def test_gradients_are_all_there_when_the_optimizer_takes_its_step(planned: Plan) -> None:
    begin = next(each for each in planned.memory.timeline if each.phase == "optimizer")
    assert begin.by_kind["gradients"] == BYTES * (LAYERS * share(LAYER) + share(OUTSIDE))


def test_at_the_peak_one_layer_and_what_is_outside_are_gathered(planned: Plan) -> None:
    assert planned.memory.by_kind["gathered"] == BYTES * (elements(LAYER) + elements(OUTSIDE))


def test_of_a_checkpointed_layer_its_input_is_kept(planned: Plan) -> None:
    """And of the last norm its input in 32 bits and both results; what the loss keeps of the logits in 32; angles."""
    hidden, logits, angles = LENGTH * WIDTH, LENGTH * VOCABULARY, LENGTH * HEAD
    kept = LAYERS * BYTES * hidden + (4 + 2 * BYTES) * hidden + 4 * logits + 2 * BYTES * angles
    forward = [each for each in planned.memory.timeline if each.phase == "forward"]
    assert forward[-1].by_kind["activations"] == pytest.approx(kept, rel=1e-4)


def test_it_fits_the_card_and_says_who_is_where(planned: Plan) -> None:
    assert planned.memory.verdict is not None
    assert planned.memory.verdict.fits
    processes = planned.ranks[0].trace.provenance.processes
    assert processes is not None
    assert (processes.rank, processes.mesh) == (0, {"dp": PROCESSES})
    assert processes.placements["model.layers.2.mlp.up_proj.weight"] == "dp: S(0)"
