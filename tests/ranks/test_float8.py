"""What ranks that train in 8 bits send, against closed forms for two layers of a Llama."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch

from tests.ranks.test_plan import (
    BATCH,
    BYTES,
    LAYERS,
    LENGTH,
    PRODUCTS,
    WIDTH,
    build,
    shard,
)
from torchscan import InputError
from torchscan.analyses.plan_result import RankPlan
from torchscan.ranks.plan import plan

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: in a layer: q, k, v, o, gate, up and down
LINEAR = 7
#: torchao computes scales in double precision, and torch reduces after the conversion
DOUBLE = 8


@functools.cache
def planned(dp: int, tp: int, recipe: str | None, *, all_gather: bool = False) -> RankPlan:
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    options: dict[str, Any] = {
        "kwargs": {"input_ids": tokens, "labels": tokens},
        "training": True,
        "loss": lambda output: output["loss"],
        "float8": recipe,
        "float8_all_gather": all_gather,
    }
    return plan(build, mesh={"dp": dp, "tp": tp}, apply=shard, **options).ranks[0]


def sent(rank: RankPlan, kind: str, num_ranks: int) -> Counter[str]:
    """Bytes of the tensors of a kind of collective, by the phase."""
    found: Counter[str] = Counter()
    for each in rank.collectives:
        if each.kind == kind and each.num_ranks == num_ranks:
            found[each.phase] += each.bytes
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [2, 1])
def test_an_all_gather_in_8_bits_halves_the_weights_of_products(tp: int) -> None:
    """They are gathered in both passes. The scales of all weights are one all-reduce before."""
    wide, narrow = planned(4, tp, "tensorwise"), planned(4, tp, "tensorwise", all_gather=True)
    saved = sent(wide, "all-gather", 4) - sent(narrow, "all-gather", 4)
    assert saved == {"forward": LAYERS * PRODUCTS // tp, "backward": LAYERS * PRODUCTS // tp}
    assert sent(narrow, "reduce-scatter", 4) == sent(wide, "reduce-scatter", 4)
    amax = sent(narrow, "all-reduce", 4)
    assert amax == {"forward": BYTES * LINEAR * LAYERS}
    assert narrow.local_params == wide.local_params
    assert narrow.macs == wide.macs
    in_flight = {each: rank.memory.by_kind["gathered"] for each, rank in ((0, wide), (1, narrow))}
    assert in_flight[1] <= in_flight[0]


@pytest.mark.parametrize(
    ("recipe", "forward"),
    [
        # one number for each of the 7 weights, and for the two inputs that are divided
        ("tensorwise", DOUBLE * (LINEAR + 2)),
        # one number for each row of these two inputs, and of their weights
        ("rowwise", DOUBLE * (2 * BATCH * LENGTH + 2 * WIDTH)),
        # blocks lie within a rank
        ("mx", 0),
    ],
)
@pytest.mark.few(1)
def test_tensor_parallelism_reduces_the_largest_values(recipe: str, forward: int) -> None:
    wide, narrow = planned(1, 4, None), planned(1, 4, recipe)
    more = sent(narrow, "all-reduce", 4) - sent(wide, "all-reduce", 4)
    assert more["forward"] == LAYERS * forward
    assert narrow.macs == wide.macs


@pytest.mark.sweep
def test_products_of_a_rank_are_in_8_bits() -> None:
    """Of the weights of a layer, each rank of tensor parallelism has a quarter."""
    rank = planned(1, 4, "rowwise")
    macs: Counter[str] = Counter()
    for op in rank.trace.ops:
        if op.signature.operator == "aten._scaled_mm":
            left, right = op.signature.inputs[:2]
            macs[op.phase] += left.shape[0] * left.shape[1] * right.shape[1]
    each = BATCH * LENGTH * LAYERS * PRODUCTS // 4
    assert macs == {"forward": each, "backward": 2 * each}


def test_weights_with_scales_of_rows_are_gathered_in_16_bits() -> None:
    with pytest.raises(InputError, match="give float8='tensorwise'"):
        planned(4, 1, "rowwise", all_gather=True)
