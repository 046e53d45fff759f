"""What tensor parallelism sends in 8 bits, against closed forms for a Llama of one layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan.analyses.plan_result import RankPlan

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WIDTH, INNER, RANKS, BATCH, LENGTH = 64, 128, 2, 2, 16
ACTIVATION = BATCH * LENGTH * WIDTH
PHASES = ("forward", "backward")


@cache
def planned(recipe: str | None) -> RankPlan:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).bfloat16()
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    options: dict[str, Any] = {"float8": recipe, "progress": False}
    return torchscan.parallel.plan(
        model,
        mesh={"tp": RANKS},
        sequence_parallel=True,
        kwargs={"input_ids": tokens, "labels": tokens, "use_cache": False},
        training=True,
        loss=lambda output: output["loss"],
        **options,
    ).ranks[0]


def gathered(rank: RankPlan) -> dict[str, int]:
    """Bytes of all-gathers of a layer's activations, by phase."""
    found = dict.fromkeys(PHASES, 0)
    for each in rank.collectives:
        if each.kind == "all-gather" and each.bytes in (ACTIVATION, 2 * ACTIVATION):
            found[each.phase] += each.bytes
    return found


def test_inputs_and_gradients_are_gathered_in_8_bits() -> None:
    """Of attention and the feed-forward layer. The head and the embedding gather 16 bits."""
    wide, narrow = planned(None), planned("tensorwise")
    others = 2 * ACTIVATION
    assert gathered(wide) == dict.fromkeys(PHASES, 4 * ACTIVATION + others)
    assert gathered(narrow) == dict.fromkeys(PHASES, 2 * ACTIVATION + others)
    assert narrow.macs == wide.macs


def test_rows_with_scales_of_their_own_are_gathered_in_16_bits() -> None:
    assert gathered(planned("rowwise")) == gathered(planned(None))
