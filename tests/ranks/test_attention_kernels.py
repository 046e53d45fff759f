"""Kernels on a simulated mesh: those of the card that was named, though its tensors are on no card."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CARD = "NVIDIA H100 80GB HBM3"
WIDTH, HEADS, LENGTH = 512, 8, 256
FLASH = "aten._scaled_dot_product_flash_attention"


class MultiQueryAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key_and_value = nn.Linear(WIDTH, 2 * WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = self.key_and_value(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(2, 1)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return F.dropout(seen.transpose(1, 2).flatten(2), 0.1, self.training)


def saves_attention(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    is_attention = op is torch.ops.aten._scaled_dot_product_flash_attention.default
    return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE


class Checkpointed(MultiQueryAttention):
    def forward(self, x: Tensor) -> Tensor:
        contexts = partial(create_selective_checkpoint_contexts, saves_attention)
        return checkpoint(super().forward, x, use_reentrant=False, context_fn=contexts)


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh["dp"])


def operators_of(build: Any, device: str | None) -> Counter[str]:
    plan = torchscan.parallel.plan(
        lambda: build().bfloat16(),
        (LENGTH, WIDTH),
        torch.bfloat16,
        mesh={"dp": 4},
        apply=shard,
        device=device,
        training=True,
        progress=False,
    )
    return Counter(op.signature.operator for op in plan.ranks[0].trace.ops)


def test_a_plan_records_the_kernels_of_the_card_that_is_named() -> None:
    found = operators_of(MultiQueryAttention, CARD)
    assert found[FLASH] == found[f"{FLASH}_backward"] == found["aten.native_dropout"] == 1
    assert not any("softmax" in name or "for_cpu" in name for name in found)
    assert f"{FLASH}_for_cpu" in operators_of(MultiQueryAttention, None)


class Masked(MultiQueryAttention):
    """Grouped queries with a mask, which no fused kernel of the card takes."""

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = self.key_and_value(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(2, 1)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)


def test_attention_that_no_kernel_of_the_card_takes_is_computed_in_pieces() -> None:
    found = operators_of(Masked, CARD)
    assert found["aten._safe_softmax"] == 1
    assert not any("attention" in name for name in found)


def test_a_checkpoint_policy_that_names_operators_of_cards_is_followed() -> None:
    found = operators_of(Checkpointed, CARD)
    assert found[FLASH] == 1  # saved, so that it does not run again
    assert found["aten.addmm"] == 2 * 2


def test_a_recurrent_layer_runs_in_the_kernel_of_the_card() -> None:
    found = operators_of(lambda: nn.LSTM(WIDTH, 64, 2, batch_first=True), CARD)
    assert found["aten._cudnn_rnn"] == found["aten._cudnn_rnn_backward"] == 1


def test_generating_on_a_mesh_of_one_takes_as_long_as_without_a_mesh() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=512,
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    alone, on_mesh = (
        torchscan.analyze_generation(
            model, 64, 8, batch_size=16, device=CARD, mesh=mesh, progress=False
        )
        for mesh in (None, {"tp": 1})
    )
    assert on_mesh.per_token == pytest.approx(alone.per_token)
    assert on_mesh.first_token == pytest.approx(alone.first_token)
    assert FLASH in on_mesh.decode.by_kind


class InParts(MultiQueryAttention):
    """A model whose sequences lie on several cards, in parts."""

    mesh: Any = None

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed.tensor.experimental import context_parallel

        with context_parallel(self.mesh, buffers=[x], buffer_seq_dims=[1]):
            query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            return F.scaled_dot_product_attention(query, query, query, is_causal=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, on newer Pythons
def test_attention_over_sequences_in_parts_needs_a_card() -> None:
    pytest.importorskip("torch.distributed.tensor.experimental")

    def apply(model: Any, mesh: Any) -> None:
        model.mesh = mesh["cp"]

    def macs_of_attention(device: str | None) -> int:
        plan = torchscan.parallel.plan(
            lambda: InParts().bfloat16(),
            (LENGTH, WIDTH),
            torch.bfloat16,
            mesh={"cp": 4},
            apply=apply,
            device=device,
        )
        products = 2 * WIDTH * WIDTH * LENGTH // 4 // 2  # that the query is made by
        return plan.macs - products

    with pytest.raises(InputError, match=r"\(context parallelism\) .* give device="):
        macs_of_attention(None)
    # of 4 · 4 pairs of parts, each card computes one and three halves, whole
    assert macs_of_attention(CARD) == 2 * (LENGTH // 4) ** 2 * WIDTH * 5 // 2
