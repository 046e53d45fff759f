"""What one process of a mesh holds, computes and sends, against closed forms for a Llama of two layers."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from torchscan import InputError
from torchscan.analyses.plan_result import Plan
from torchscan.ranks.plan import plan

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WIDTH, INNER, HEADS, KEYS, HEAD, VOCABULARY, LAYERS = 1024, 2816, 16, 8, 64, 32_000, 2
BATCH, LENGTH, BYTES = 2, 16, 2
TOKENS = BATCH * LENGTH
#: weights of a layer's products, and all that is not in a layer
PRODUCTS = 2 * WIDTH * WIDTH + 2 * WIDTH * KEYS * HEAD + 3 * WIDTH * INNER
OUTSIDE = [(VOCABULARY, WIDTH), (VOCABULARY, WIDTH), (WIDTH, 1)]


def layer(tp: int) -> list[tuple[int, int]]:
    """Rows and columns of the tensors of a layer that one process of ``tp`` has a share of."""
    keys, inner = KEYS * HEAD // tp, INNER // tp
    attention = [(WIDTH // tp, WIDTH), (keys, WIDTH), (keys, WIDTH), (WIDTH, WIDTH // tp)]
    return [*attention, (inner, WIDTH), (inner, WIDTH), (WIDTH, inner), (WIDTH, 1), (WIDTH, 1)]


def share(tensors: list[tuple[int, int]], dp: int) -> int:
    """Elements that the first of ``dp`` processes has: where rows are left over, the first processes have one more."""
    return sum(-(-rows // dp) * columns for rows, columns in tensors)


def build(**others: int) -> nn.Module:
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "vocab_size": VOCABULARY,
    }
    config = transformers.LlamaConfig(**{**sizes, **others})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    columns = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    )
    for layer in model.model.layers:
        if mesh["tp"].size() > 1:
            ways: dict[str, Any] = {name: ColwiseParallel() for name in columns}
            parallelize_module(
                layer,
                mesh["tp"],
                {**ways, "self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()},
            )
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


@functools.cache
def planned(dp: int, tp: int, **options: Any) -> Plan:
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    given = {"kwargs": {"input_ids": tokens, "use_cache": False}, **options}
    return plan(build, mesh={"dp": dp, "tp": tp}, apply=shard, **given)


def sums(found: Plan, figure: str) -> dict[tuple[str, str, int], int]:
    totals: Counter[tuple[str, str, int]] = Counter()
    for each in found.collectives:
        totals[each.kind, each.group if each.kind == "all-reduce" else "", each.num_ranks] += (
            getattr(each, figure)
        )
    return dict(totals)


@pytest.mark.parametrize(("dp", "tp", "calls"), [(8, 1, {"dp": 1}), (8, 8, {"dp": 2, "tp": 1})])
def test_clipping_sums_a_scalar_along_each_dimension(
    dp: int, tp: int, calls: dict[str, int]
) -> None:
    """Norm layers are on the mesh of dp alone, so their part is a separate sum; it is in bf16."""
    found = planned(dp, tp, training=True, optimizer="SGD", clip_gradients=True)
    sent = [each for each in found.collectives if each.phase == "optimizer"]
    assert {each.kind for each in sent} == {"all-reduce"}
    assert {each.group: each.calls for each in sent} == calls
    assert {each.bytes / each.calls for each in sent} == {2}
    plain = planned(dp, tp, training=True, optimizer="SGD")
    assert not [each for each in plain.collectives if each.phase == "optimizer"]


@pytest.mark.few(3)
@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (8, 1), (8, 8), (128, 8)])
def test_a_step_of_a_llama(dp: int, tp: int) -> None:
    found = planned(dp, tp, training=True)
    assert found.params == LAYERS * (PRODUCTS + 2 * WIDTH) + 2 * VOCABULARY * WIDTH + WIDTH
    inside, outside = LAYERS * share(layer(tp), dp), share(OUTSIDE, dp)
    assert found.local_params == inside + outside
    gathers = (
        {("all-gather", "", dp): 2 * LAYERS + 1, ("reduce-scatter", "", dp): LAYERS + 1}
        if dp > 1
        else {}
    )
    reduces = {("all-reduce", "tp", tp): 7 * LAYERS} if tp > 1 else {}
    assert sums(found, "calls") == gathers | reduces
    sizes = sums(found, "bytes")
    if (
        dp > 1
    ):  # layers are gathered for the backward pass once more; what is left over is filled up
        assert sizes["all-gather", "", dp] == BYTES * dp * (2 * inside + outside)
        assert sizes["reduce-scatter", "", dp] == BYTES * dp * (inside + outside)
        assert sums(found, "sent_bytes")["reduce-scatter", "", dp] == BYTES * (dp - 1) * (
            inside + outside
        )
    if tp > 1:
        assert sizes["all-reduce", "tp", tp] == 7 * LAYERS * TOKENS * WIDTH * BYTES
        assert (
            sums(found, "sent_bytes")["all-reduce", "tp", tp]
            == 2 * 7 * LAYERS * TOKENS * WIDTH * BYTES * (tp - 1) // tp
        )


@pytest.mark.parametrize(("dp", "tp"), [(8, 1), (8, 8)])
def test_products_of_a_forward_pass_are_divided(dp: int, tp: int) -> None:
    attention = 2 * BATCH * HEADS * LENGTH * LENGTH * HEAD
    assert (
        planned(dp, tp).macs
        == LAYERS * (TOKENS * PRODUCTS + attention) // tp + TOKENS * VOCABULARY * WIDTH
    )


def test_counts_agree_with_those_of_torch() -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    from torchscan.recording.pretended_group import pretended

    with pretended({"dp": 2, "tp": 2}, 0) as mesh:
        # narrow, because it has data
        model: Any = build(hidden_size=128, intermediate_size=256, vocab_size=256)
        shard(model, mesh)
        with CommDebugMode() as seen:
            model(
                input_ids=torch.zeros(BATCH, LENGTH, dtype=torch.long), use_cache=False
            ).logits.sum().backward()
    found = planned(2, 2, training=True)
    assert sum(each.calls for each in found.collectives) == seen.get_total_counts()


def test_collectives_belong_to_layers_and_phases() -> None:
    found = planned(8, 8, training=True)
    of_layer = {
        (each.kind, each.phase): each.calls
        for each in found.collectives
        if each.layer == "model.layers.1"
    }
    assert of_layer["all-gather", "forward"] == 1
    assert {each.phase for each in found.collectives if each.kind == "reduce-scatter"} == {
        "backward"
    }


def test_nothing_is_left_behind() -> None:
    planned(2, 1)
    assert not distributed.is_initialized()
    with pytest.raises(InputError, match="apply"):
        plan(build, (4,), mesh={"dp": 2}, apply=lambda *_: 1 / 0)
    assert not distributed.is_initialized()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mesh": {}}, "give the size of each dimension"),
        ({"mesh": {"dp": 0}}, "give the size of each dimension"),
        ({"mesh": {"dp": 4}, "ranks": 4}, "give ranks from 0 to 3"),
        ({"module": lambda: 3}, r"module\(\) returned a int"),
        ({"apply": lambda model, mesh: mesh["nowhere"]}, r"apply\(model, mesh\) failed"),
    ],
)
def test_wrong_use_is_told(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(
            **{
                "module": lambda: nn.Linear(2, 2),
                "input_shape": (2,),
                "mesh": {"dp": 2},
                "apply": lambda *_: None,
                **options,
            }
        )


def test_a_group_that_is_there_already_is_left_alone() -> None:
    from torchscan.recording.pretended_group import pretended

    with pretended({"dp": 2}, 1):
        with pytest.raises(InputError, match="process group already"):
            planned(4, 1)
        assert distributed.get_rank() == 1
