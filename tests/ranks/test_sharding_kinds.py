"""Kinds of sharding by name, against closed forms for a Llama of two layers."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from tests.ranks.test_plan import (
    BYTES,
    HEAD,
    HEADS,
    KEYS,
    LAYERS,
    PRODUCTS,
    VOCABULARY,
    WIDTH,
    build,
)
from torchscan import InputError
from torchscan.analyses.plan_result import RankPlan
from torchscan.ranks.plan import plan

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BATCH, LENGTH = 2, 64
#: of each layer, with its two norms, and of the embedding, the head and the last norm
LAYER = PRODUCTS + 2 * WIDTH
OUTSIDE = 2 * VOCABULARY * WIDTH + WIDTH
PARAMS = LAYERS * LAYER + OUTSIDE
#: bytes of the states between products
STATES = BYTES * BATCH * LENGTH * WIDTH


def planned(mesh: dict[str, int], **options: Any) -> RankPlan:
    return _planned(tuple(mesh.items()), **options)


@functools.cache
def _planned(mesh: tuple[tuple[str, int], ...], **options: Any) -> RankPlan:
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    given: dict[str, Any] = {
        "kwargs": {"input_ids": tokens, "labels": tokens, "use_cache": False},
        "training": True,
        "loss": lambda output: output["loss"],
        "optimizer": "AdamW",
        "device": "H100",
    }
    return plan(build, mesh=dict(mesh), **{**given, **options}).ranks[0]


def sent(rank: RankPlan) -> dict[tuple[str, str, int], int]:
    """Bytes of the tensors of all collectives, by kind, phase and number of ranks."""
    found: Counter[tuple[str, str, int]] = Counter()
    for each in rank.collectives:
        found[each.kind, each.phase, each.num_ranks] += each.bytes
    return dict(found)


def test_zero2_gathers_parameters_once() -> None:
    """FSDP gathers layers in both passes, and what is outside of them once."""
    fsdp, zero2 = planned({"dp": 4}), planned({"dp": 4}, sharding="zero2")
    whole = BYTES * PARAMS
    assert sent(fsdp) == {
        ("all-gather", "forward", 4): whole,
        ("all-gather", "backward", 4): BYTES * LAYERS * LAYER,
        ("reduce-scatter", "backward", 4): whole,
    }
    assert sent(zero2) == {
        ("all-gather", "forward", 4): whole,
        ("reduce-scatter", "backward", 4): whole,
    }
    assert zero2.local_params == fsdp.local_params
    largest = max(sum(each.by_kind.values()) for each in fsdp.memory.timeline)
    assert largest <= max(sum(each.by_kind.values()) for each in zero2.memory.timeline)


@pytest.mark.sweep
def test_fsdp1_divides_the_elements_of_a_layer_whatever_their_rows() -> None:
    """Over 3 ranks, each layer of FSDP1 is padded once, and each parameter of FSDP2."""
    flat = planned({"dp": 3}, sharding="fsdp1")
    layer, outside = -(-LAYER // 3), -(-OUTSIDE // 3)
    assert flat.local_params == LAYERS * layer + outside
    whole = BYTES * 3 * (LAYERS * layer + outside)
    assert sent(flat) == {
        ("all-gather", "forward", 3): whole,
        ("all-gather", "backward", 3): BYTES * 3 * LAYERS * layer,
        ("reduce-scatter", "backward", 3): whole,
    }
    macs = planned({"dp": 3}).macs
    assert flat.macs == macs


@pytest.mark.sweep
@pytest.mark.parametrize("weights", ["nf4", "int8", "gptq"])
@pytest.mark.few(1)
def test_packed_weights_count_as_the_parameters_in_them(weights: str) -> None:
    """FSDP divides all parameters evenly between two ranks."""
    plain, packed = planned({"dp": 2}, lora=4), planned({"dp": 2}, lora=4, weights=weights)
    assert plain.local_params > PARAMS // 2
    assert packed.local_params == plain.local_params
    shares = [note for note in packed.memory.assumptions if note.code == "rank-share"]
    assert [note.values["params"] for note in shares] == [2 * plain.local_params]


def test_zero1_divides_optimizer_states_alone() -> None:
    """Whole parameters are dealt out, the largest first: rank 0 of 4 has the embedding."""
    zero1 = planned({"dp": 4}, sharding="zero1")
    assert zero1.local_params == PARAMS
    found = sent(zero1)
    assert found["all-reduce", "backward", 4] == BYTES * PARAMS
    assert found["broadcast", "optimizer", 4] == BYTES * PARAMS
    largest: Counter[str] = Counter()
    for each in zero1.memory.timeline:
        for kind, size in each.by_kind.items():
            largest[kind] = max(largest[kind], size)
    assert largest["parameters"] == BYTES * PARAMS
    assert largest["optimizer"] == 2 * BYTES * VOCABULARY * WIDTH


@pytest.mark.sweep
def test_ddp_of_several_passes_sends_buffers_and_gradients_in_each() -> None:
    """DDP fits its buckets once per job, before the second pass, which is not part of a step."""
    one = sent(planned({"dp": 4}, sharding="zero1"))
    four = sent(planned({"dp": 4}, sharding="zero1", accumulation_steps=4))
    assert four.keys() == one.keys()
    for (kind, phase, ranks), size in one.items():
        times = 1 if phase == "optimizer" else 4
        assert four[kind, phase, ranks] == times * size


def test_hsdp_copies_what_is_sharded() -> None:
    """Shards of 2 ranks are reduced over 2 copies."""
    rank = planned({"replicate": 2, "dp": 2})
    assert sent(rank)["all-reduce", "backward", 2] == BYTES * PARAMS // 2


@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [4, 2])
def test_sequence_parallelism_gathers_and_scatters_instead_of_reducing(tp: int) -> None:
    """Two blocks of each layer, and the embedding and the head. Logits are gathered completely."""
    alone, divided = planned({"tp": tp}), planned({"tp": tp}, sequence_parallel=True)
    blocks = 2 * LAYERS + 1
    logits = BYTES * BATCH * LENGTH * VOCABULARY
    found = sent(divided)
    assert found["all-gather", "forward", tp] == blocks * STATES + logits
    assert found["reduce-scatter", "forward", tp] == blocks * STATES
    assert found["all-gather", "backward", tp] == blocks * STATES
    assert found["reduce-scatter", "backward", tp] == blocks * STATES
    assert not any(kind == "all-reduce" and phase == "forward" for kind, phase, _ in found)
    assert divided.macs == alone.macs
    kept, less = (
        max(each.by_kind["activations"] for each in rank.memory.timeline)
        for rank in (alone, divided)
    )
    # the input of each norm, and in 32 bits what it is scaled by
    assert kept - less >= 2 * LAYERS * 3 * STATES * (tp - 1) // tp


@pytest.mark.few(1)
@pytest.mark.parametrize("cp", [4, 2])
def test_context_parallelism_sends_keys_and_values_around(cp: int) -> None:
    """Of ``cp`` parts of a causal sequence, a rank attends to its own and half of each other one."""
    whole, rank = planned({"dp": 1}), planned({"cp": cp})
    keys = 2 * BYTES * BATCH * KEYS * HEAD * LENGTH
    gathered = BYTES * PARAMS
    found = sent(rank)
    assert found["all-gather", "forward", cp] == gathered + LAYERS * keys
    assert found["all-gather", "backward", cp] == BYTES * LAYERS * LAYER + LAYERS * keys
    assert found["reduce-scatter", "backward", cp] == gathered
    # gradients of a part take ``cp`` steps around the ring, in single precision
    assert found["all-to-all", "backward", cp] == LAYERS * cp * 2 * keys // cp
    products = LAYERS * PRODUCTS + VOCABULARY * WIDTH
    scores = 2 * BATCH * HEADS * HEAD * (LENGTH // cp) ** 2
    steps = 1 + (cp - 1) / 2
    assert whole.macs - 3 * BATCH * LENGTH * products == pytest.approx(
        LAYERS * 3.5 * 2 * BATCH * HEADS * HEAD * LENGTH**2
    )
    assert rank.macs - 3 * BATCH * LENGTH // cp * products == LAYERS * 3.5 * scores * steps


EXPERTS, PICKS, EXPERT_WIDTH, NARROW = 8, 2, 128, 256


def build_experts() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=NARROW,
        moe_intermediate_size=EXPERT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=1000,
        num_experts=EXPERTS,
        num_experts_per_tok=PICKS,
        use_cache=False,
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def test_expert_parallelism_sends_tokens_to_experts_and_back() -> None:
    """Each pick of a token is a row that travels there and back, in both passes."""
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    options: dict[str, Any] = {
        "kwargs": {"input_ids": tokens, "labels": tokens},
        "training": True,
        "loss": lambda output: output["loss"],
    }
    meshes: tuple[dict[str, int], ...] = ({"dp": 8}, {"dp": 1, "ep": 4}, {"dp": 2, "ep": 4})
    whole, alone, both = (plan(build_experts, mesh=mesh, **options).ranks[0] for mesh in meshes)
    rows = BYTES * BATCH * LENGTH * PICKS * NARROW
    experts = 2 * EXPERTS * 3 * NARROW * EXPERT_WIDTH
    for rank in (alone, both):
        found = sent(rank)
        assert found["all-to-all", "forward", 4] == 2 * 2 * rows
        assert found["all-to-all", "backward", 4] == 2 * 2 * rows
        assert rank.macs == whole.macs
    # experts of a rank are gathered along dp, all other parameters along both
    assert sent(both)["all-gather", "forward", 2] == BYTES * experts // 4
    assert both.local_params == whole.local_params


@pytest.mark.sweep
def test_asynchronous_collectives_run_behind_products() -> None:
    """Each waits as long as without, but for three quarters of its product at most."""
    options: dict[str, Any] = {"sequence_parallel": True, "compiled": True}
    waiting, overlapped = (
        planned({"tp": 4}, **options),
        planned({"tp": 4}, async_tp=True, **options),
    )
    assert sent(waiting) == sent(overlapped)
    assert waiting.roofline is not None
    assert overlapped.roofline is not None
    plain, hidden = (
        [each.time_estimate for each in roofline.operators if each.limiter == "links"]
        for roofline in (waiting.roofline, overlapped.roofline)
    )
    assert all(less <= more for less, more in zip(hidden, plain, strict=True))
    products = sum(
        each.time_estimate for each in waiting.roofline.operators if each.operator == "aten.mm"
    )
    assert 0 < sum(plain) - sum(hidden) <= 0.75 * products
    saved = waiting.roofline.time_estimate - overlapped.roofline.time_estimate
    assert saved == pytest.approx(sum(plain) - sum(hidden))


def test_layers_of_fsdp_are_compiled_one_by_one() -> None:
    """The sum at the end of a layer joins the next norm where the whole model is one graph."""

    def kernels(rank: RankPlan) -> int:
        assert rank.roofline is not None
        return sum(each.bytes_read > 0 for each in rank.roofline.operators if not each.macs)

    eager, whole = planned({"tp": 1}), planned({"tp": 1}, compiled=True)
    layers = planned({"dp": 2}, compiled=True)
    assert eager.roofline is not None
    assert whole.roofline is not None
    assert layers.roofline is not None
    assert whole.roofline.time_estimate < eager.roofline.time_estimate / 2
    assert layers.roofline.compiled
    assert kernels(whole) < kernels(layers)
    written = [
        {
            each.layer: each.bytes_written
            for each in rank.roofline.operators
            if each.phase == "forward" and each.operator == "aten.add" and each.bytes_written
        }
        for rank in (whole, layers)
        if rank.roofline is not None
    ]
    assert written[1].keys() >= written[0].keys()


@pytest.mark.parametrize(
    ("mesh", "options", "message"),
    [
        ({"dp": 2}, {"sharding": "zero3"}, "sharding is 'zero3'"),
        ({"ddp": 2}, {}, "a dimension ddp: choose from replicate, dp, cp, ep, tp"),
        ({"dp": 2}, {"async_tp": True}, "give sequence_parallel=True"),
        ({"tp": 2}, {"async_tp": True, "sequence_parallel": True}, "give compiled=True"),
        ({"dp": 2, "tp": 2}, {"sharding": "zero1"}, "data parallelism alone"),
        ({"dp": 2}, {"sharding": "zero1", "optimizer": lambda given: None}, "give its name"),
        ({"cp": 3}, {}, "cannot be divided among cp 3: give a multiple of 6"),
        ({"ep": 2}, {}, "give a size of dp"),
        ({"dp": 1, "ep": 2}, {}, "LlamaForCausalLM has no experts"),
        ({"dp": 2}, {"apply": lambda model, mesh: model, "sharding": "zero2"}, "both given"),
        ({"tp": 2}, {"lora": 4}, "adapters have no plan for tensor parallelism"),
        ({"tp": 2}, {"cross_entropy": "liger"}, "cross_entropy is 'liger', which tensor"),
        ({"tp": 2}, {"offload": "activations"}, "'activations'"),
        ({"dp": 1, "ep": 2, "tp": 2}, {}, "has ep and tp"),
        ({"dp": 2, "ep": 2}, {"sharding": "zero1"}, "whose experts FSDP2 shards"),
        ({"dp": 2}, {"sharding": "zero1", "optimizer_in_backward": True}, "at once on its GPU"),
        ({"dp": 2}, {"sharding": "zero1", "offload": "optimizer"}, "leave out offload"),
        ({"dp": 2}, {"sharding": "zero1", "optimizer": "AdamW8bit"}, "give one of torch.optim"),
    ],
)
def test_what_contradicts_is_refused(
    mesh: dict[str, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        planned(mesh, **options)


def test_context_parallelism_of_grouped_queries_needs_16_bits() -> None:
    """Torch's ring attention has a kernel of 32 bits, but that takes as many keys as queries."""
    tokens = torch.zeros(1, 256, dtype=torch.long)
    given: dict[str, Any] = {"kwargs": {"input_ids": tokens}, "device": "H100"}
    with pytest.raises(InputError) as raised:
        plan(lambda: build().float(), mesh={"cp": 2}, **given)
    assert str(raised.value) == (
        "attention with grouped queries is in float32 over sharded sequences (cp), and torch has "
        "a kernel for 16 bits only: give precision='bf16-mixed', or convert the model to bfloat16"
    )
    mixed = plan(lambda: build().float(), mesh={"cp": 2}, **given, precision="bf16-mixed")
    assert mixed.ranks[0].collectives


def test_context_parallelism_takes_no_mask() -> None:
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    mask = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    with pytest.raises(InputError, match="an input has 4 dimensions"):
        plan(
            build,
            mesh={"cp": 2},
            kwargs={"input_ids": tokens, "labels": tokens, "attention_mask": mask},
            training=True,
            loss=lambda output: output["loss"],
        )
