"""Language models spread over GPUs as inference engines do it, against values derived by hand."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchscan import InputError, analyze_generation
from torchscan.ops.routing import Routing
from torchscan.recording.engine_plan import EnginePlan

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

LAYERS, WIDTH, HEADS, KEY_HEADS, HEAD_DIM, VOCABULARY = 2, 128, 8, 4, 16, 256
EXPERTS, PICKS, INNER = 8, 2, 64
#: the expected largest of four normal values, as of Blom
LARGEST_OF_FOUR = 1.049


def _model(kind: str, **values: Any) -> Any:
    pytest.importorskip("tests.torchvision_cpu")  # transformers imports torchvision
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "num_experts_per_tok": PICKS,
        "num_local_experts": EXPERTS,
    }
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **values})
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@functools.cache
def _qwen() -> Any:
    return _model("qwen3_moe", num_experts=EXPERTS, moe_intermediate_size=INNER)


@functools.cache
def _deepseek() -> Any:
    return _model(
        "deepseek_v3",
        num_key_value_heads=HEADS,
        moe_intermediate_size=INNER,
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        intermediate_size=4 * INNER,
        q_lora_rank=48,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
    )


def _asked(model: Any, *, mesh: dict[str, int] | None = None, **options: Any) -> Any:
    """Return an answer that tests share."""
    return _answer(model, None if mesh is None else tuple(mesh.items()), **options)


@functools.cache
def _answer(model: Any, mesh: tuple[tuple[str, int], ...] | None, **options: Any) -> Any:
    given = {"device": "H100 SXM", "engine": "vllm", "progress": False, **options}
    given["mesh"] = None if mesh is None else dict(mesh)
    return analyze_generation(model, 60, 20, batch_size=16, **given)


def _held(model: Any, **options: Any) -> int:
    """Return the parameters of one GPU; buffers are those of a single GPU."""
    alone, found = _asked(model), _asked(model, **options)
    assert found.params == alone.params == sum(each.numel() for each in model.parameters())
    assert found.active_params == alone.active_params
    buffers = alone.weights_bytes - 2 * alone.params
    assert (found.weights_bytes - buffers) % 2 == 0
    return int(found.weights_bytes - buffers) // 2


def _products_of_experts(found: Any, layer: int = 1) -> list[Any]:
    return [
        each
        for each in found.decode.operators
        if "grouped_mm" in each.operator and f"layers.{layer}." in each.layer
    ]


def _collectives(found: Any, layer: int = 1) -> list[str]:
    return [
        f"{each.layer.rpartition(f'layers.{layer}')[2]} {each.operator.rpartition('.')[2]}"
        for each in found.decode.operators
        if "c10d" in each.operator and f"layers.{layer}" in each.layer
    ]


# -- tensor parallelism --------------------------------------------------------------------------

EMBEDDINGS = 2 * VOCABULARY * WIDTH
QUERIES, KEYS = HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM
ROUTER = EXPERTS * WIDTH
ALL_EXPERTS = EXPERTS * 3 * WIDTH * INNER


def _expected_qwen(tp: int, groups: int) -> int:
    """Return the parameters of one GPU if ``groups`` of them divide the experts."""
    attention = (2 * QUERIES + 2 * KEYS) * WIDTH // tp + 2 * HEAD_DIM
    layer = attention + 2 * WIDTH + ROUTER + ALL_EXPERTS // groups
    return LAYERS * layer + WIDTH + EMBEDDINGS // tp


@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [2, 4])
def test_a_plan_of_transformers_is_kept(tp: int) -> None:
    model = _qwen()
    assert _held(model, mesh={"tp": tp}) == _expected_qwen(tp, tp)
    found = _asked(model, mesh={"tp": tp})
    slots = 16 * PICKS
    up, down = _products_of_experts(found)
    assert (up.macs, down.macs) == (
        slots * WIDTH * 2 * INNER // tp,
        slots * INNER // tp * WIDTH,
    )
    assert _collectives(found) == [".self_attn.o_proj allreduce_", ".mlp.experts allreduce_"]


@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [2, 4])
def test_experts_with_biases_and_sinks_are_divided_without_a_plan(tp: int) -> None:
    model = _model("gpt_oss", intermediate_size=INNER)
    attention = (2 * QUERIES + 2 * KEYS) * WIDTH // tp + (QUERIES + 2 * KEYS) // tp + WIDTH
    first = EXPERTS * 2 * INNER * (WIDTH + 1) // tp
    second = EXPERTS * (INNER * WIDTH // tp + WIDTH)
    layer = attention + HEADS // tp + 2 * WIDTH + ROUTER + EXPERTS + first + second
    expected = LAYERS * layer + WIDTH + EMBEDDINGS // tp
    assert _held(model, mesh={"tp": tp}) == expected
    found = _asked(model, mesh={"tp": tp})
    assert found.cache_bytes == _asked(model).cache_bytes // tp
    up, down = _products_of_experts(found)
    assert up.macs + down.macs == 16 * PICKS * 3 * WIDTH * INNER // tp
    assert _collectives(found) == [".self_attn.o_proj allreduce_", ".mlp.experts allreduce_"]


@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [8, 2])
def test_norms_over_all_heads_are_divided_and_reduced_once(tp: int) -> None:
    """With 8 GPUs, two of them have the same key head."""
    model = _model("minimax_m2")
    keys = max(KEYS // tp, HEAD_DIM)
    attention = 2 * QUERIES // tp * WIDTH + 2 * keys * WIDTH + QUERIES // tp + keys
    layer = attention + 2 * WIDTH + ROUTER + ALL_EXPERTS // tp
    assert _held(model, mesh={"tp": tp}) == LAYERS * layer + WIDTH + EMBEDDINGS // tp
    found = _asked(model, mesh={"tp": tp})
    assert found.cache_bytes == LAYERS * 80 * 2 * keys * 2
    reduced = [".self_attn.q_norm", ".self_attn.o_proj", ".mlp.experts"]
    assert _collectives(found) == [f"{each} allreduce_" for each in reduced]


def _expected_deepseek(tp: int, groups: int) -> int:
    whole = (48 + 32 + 16) * WIDTH + 48 + 32
    heads = (HEADS * 32 * 48 + HEADS * 32 * 32 + WIDTH * HEADS * 16) // tp
    attention = whole + heads + 2 * WIDTH
    dense = 3 * WIDTH * 4 * INNER // tp
    mixture = ROUTER + ALL_EXPERTS // groups + 3 * WIDTH * INNER // tp
    return LAYERS * attention + dense + (LAYERS - 1) * mixture + WIDTH + EMBEDDINGS // tp


@pytest.mark.sweep
@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [2, 4])
def test_latent_attention_is_divided_by_heads(tp: int) -> None:
    model = _deepseek()
    assert _held(model, mesh={"tp": tp}) == _expected_deepseek(tp, tp)
    found, alone = _asked(model, mesh={"tp": tp}), _asked(model)
    assert found.cache_bytes == alone.cache_bytes == LAYERS * 80 * (32 + 16) * 2
    assert _collectives(found) == [".self_attn.o_proj allreduce_", ".mlp allreduce_"]


@pytest.mark.sweep
def test_embeddings_that_are_scaled_are_divided() -> None:
    model = _model("gemma3_text", tie_word_embeddings=True)
    attention = (2 * QUERIES + 2 * KEYS) * WIDTH // 2 + 2 * HEAD_DIM
    layer = attention + 4 * WIDTH + 3 * WIDTH * INNER // 2
    expected = LAYERS * layer + WIDTH + VOCABULARY * WIDTH // 2
    assert _held(model, mesh={"tp": 2}) == expected


def test_a_model_without_plan_and_known_heads_is_refused() -> None:
    model = _model("opt")
    with pytest.raises(InputError, match="OPTForCausalLM has no plan for tensor parallelism"):
        _asked(model, mesh={"tp": 2})


# -- expert parallelism --------------------------------------------------------------------------


@pytest.mark.sweep
def test_experts_apart_are_whole_and_the_busiest_gpu_counts() -> None:
    model = _qwen()
    options: dict[str, Any] = {"mesh": {"tp": 4}, "expert_parallel": True}
    assert _held(model, **options) == _expected_qwen(4, 4)
    found = _asked(model, **options)
    mean = 16 * PICKS / 4
    slots = -(-(mean + LARGEST_OF_FOUR * mean**0.5) // 1)
    assert slots == 11
    up, down = _products_of_experts(found)
    assert (up.macs, down.macs) == (slots * WIDTH * 2 * INNER, slots * INNER * WIDTH)
    hit = 1 - (1 - PICKS / EXPERTS) ** 16
    most = min(1.0, hit + LARGEST_OF_FOUR * (hit * (1 - hit) / 2) ** 0.5)
    matrices = round(most * (EXPERTS // 4) * 2 * INNER * WIDTH * 2)
    assert up.bytes_read == pytest.approx(matrices, abs=2 * 16 * WIDTH * 2)
    assert _collectives(found) == [".self_attn.o_proj allreduce_", ".mlp.experts allreduce_"]
    assert "experts-divided" in [note.code for note in found.assumptions]


@pytest.mark.sweep
def test_groups_with_batches_of_their_own_exchange_tokens() -> None:
    model = _deepseek()
    options: dict[str, Any] = {"mesh": {"dp": 4}, "expert_parallel": True}
    assert _held(model, **options) == _expected_deepseek(1, 4)
    found = _asked(model, **options)
    mean = 4 * 16 * PICKS / 4
    slots = -(-(mean + LARGEST_OF_FOUR * mean**0.5) // 1)  # 38 of the 64 tokens of all groups
    up, down = _products_of_experts(found)
    assert up.macs + down.macs == slots * 3 * WIDTH * INNER
    assert _collectives(found) == [
        ".mlp.experts all_gather_into_tensor_coalesced",
        ".mlp.experts reduce_scatter_tensor",
    ]
    assert found.cache_bytes == _asked(model).cache_bytes


@pytest.mark.sweep
def test_groups_of_several_gpus_send_each_token_once() -> None:
    model = _deepseek()
    options: dict[str, Any] = {"mesh": {"dp": 2, "tp": 2}, "expert_parallel": True}
    assert _held(model, **options) == _expected_deepseek(2, 4)
    assert _collectives(_asked(model, **options)) == [
        ".self_attn.o_proj allreduce_",
        ".mlp.experts all_gather_into_tensor_coalesced",
        ".mlp.experts reduce_scatter_tensor",
        ".mlp.experts all_gather_into_tensor_coalesced",
        ".mlp.shared_experts.down_proj allreduce_",
    ]


def test_exchanged_bytes_are_those_of_all_groups() -> None:
    """Over a slow network, the time of a collective is that of its bytes."""
    model = _qwen()
    slow: dict[str, Any] = {"per_machine": 1, "network_gbs": 1e-6}
    found = _asked(model, mesh={"dp": 4}, expert_parallel=True, **slow)
    summed = _asked(model, mesh={"tp": 4}, **slow)
    times = {
        each.operator.rpartition(".")[2]: each.time_estimate
        for each in (*summed.decode.operators, *found.decode.operators)
        if "c10d" in each.operator and "mlp.experts" in each.layer
    }
    # three quarters of all rows; an all-reduce of one group's rows sends twice their part
    row = WIDTH * 2
    gathered, scattered = 4 * 16 * (row + PICKS * (8 + 2)), 4 * 16 * row
    reduced = 2 * 16 * row
    by_bytes = times["allreduce_"] / reduced
    gather = times["all_gather_into_tensor_coalesced"]
    assert gather == pytest.approx(gathered * by_bytes, rel=1e-3)
    assert times["reduce_scatter_tensor"] == pytest.approx(scattered * by_bytes, rel=1e-3)


@pytest.mark.parametrize(("rows", "picks", "experts", "devices"), [(4, 2, 16, 4), (64, 8, 128, 8)])
def test_the_busiest_of_random_routings(rows: int, picks: int, experts: int, devices: int) -> None:
    """Draw picks at random, and count those of the device with the most, and its experts."""
    drawn = torch.Generator().manual_seed(0)
    routing = Routing(experts // devices, picks, rows, devices)
    slots, hit = [], []
    for _ in range(400):
        scores = torch.rand(rows, experts, generator=drawn)
        per_expert = torch.bincount(scores.topk(picks)[1].flatten(), minlength=experts)
        per_device = per_expert.view(devices, -1)
        slots.append(int(per_device.sum(1).max()))
        hit.append(int((per_device > 0).sum(1).max()))
    assert routing.slots == pytest.approx(sum(slots) / 400, rel=0.05, abs=1)
    assert routing.expected == pytest.approx(sum(hit) / 400, rel=0.08)


def test_experts_need_devices_that_divide_them() -> None:
    with pytest.raises(InputError, match="8 experts cannot be divided among 3 devices"):
        _asked(_qwen(), mesh={"dp": 3}, expert_parallel=True)
    with pytest.raises(InputError, match=r"expert_parallel divides .* give mesh="):
        _asked(_qwen(), expert_parallel=True)
    for mesh, other in (({"tp": 2, "pp": 2}, "pp"), ({"ep": 2}, "ep")):
        with pytest.raises(InputError, match=f"along dp and tp, .* is '{other}': give mesh="):
            _asked(_qwen(), mesh=mesh, expert_parallel=True)
    with pytest.raises(InputError, match="has no experts that can be divided"):
        _asked(_model("qwen3"), mesh={"tp": 2}, expert_parallel=True)
    given: dict[str, Any] = {
        "mesh": {"tp": 2},
        "expert_parallel": True,
        "apply": lambda model, _mesh: model,
    }
    with pytest.raises(InputError, match="expert_parallel and apply are both given"):
        _asked(_qwen(), **given)


# -- what plans lack -----------------------------------------------------------------------------


def test_a_style_that_is_unknown_leaves_the_model_to_transformers() -> None:
    """Key-value heads are repeated once only, and experts are not divided before."""
    model = copy.deepcopy(_qwen())
    model._tp_plan = {**model._tp_plan, "model.layers.*.mlp.gate": "moe_identity_expert"}
    attention = (2 * QUERIES // 8 + 2 * HEAD_DIM) * WIDTH + 2 * HEAD_DIM
    layer = attention + 2 * WIDTH + ROUTER + ALL_EXPERTS // 8
    assert _held(model, mesh={"tp": 8}) == LAYERS * layer + WIDTH + EMBEDDINGS // 8
    assert _asked(model, mesh={"tp": 8}).cache_bytes == LAYERS * 80 * 2 * HEAD_DIM * 2
    with pytest.raises(InputError, match="'moe_identity_expert', which is not known with expert"):
        _asked(model, mesh={"tp": 4}, expert_parallel=True)


@pytest.mark.sweep
@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [8, 2])
def test_attention_that_counts_its_key_heads_is_divided(tp: int) -> None:
    model = _model("stablelm")
    keys = max(KEYS // tp, HEAD_DIM)
    layer = (2 * QUERIES // tp + 2 * keys) * WIDTH + 3 * WIDTH * INNER // tp + 4 * WIDTH
    assert _held(model, mesh={"tp": tp}) == LAYERS * layer + 2 * WIDTH + EMBEDDINGS // tp
    assert _asked(model, mesh={"tp": tp}).cache_bytes == LAYERS * 80 * 2 * keys * 2


def test_models_that_cannot_run_in_parts_are_refused() -> None:
    refused = r"layers.0.self_attn.attn_sub_norm norms what several GPUs compute.* give apply="
    with pytest.raises(InputError, match=refused):
        _asked(_model("bitnet", bos_token_id=0, eos_token_id=1), mesh={"tp": 2})
    model = _model("stablelm")
    model._tp_plan = {"model.layers.*.self_attn.q_proj": "colwise"}  # and no style of keys
    cannot = r"one device cannot run its part of StableLm.*self_attn.* give apply="
    with pytest.raises(InputError, match=cannot):
        _asked(model, mesh={"tp": 2})


@pytest.mark.sweep
def test_sizes_that_gpus_do_not_divide_are_rounded_up() -> None:
    """Of 50 rows of a gate and of what it gates, each of 4 GPUs has 13 of both."""
    model = _model("glm4", intermediate_size=50, pad_token_id=0, attention_bias=False)
    attention = (2 * QUERIES + 2 * KEYS) * WIDTH // 4
    layer = attention + 4 * WIDTH + 3 * WIDTH * 13
    assert _held(model, mesh={"tp": 4}) == LAYERS * layer + WIDTH + EMBEDDINGS // 4


@pytest.mark.sweep
@pytest.mark.few(1)
@pytest.mark.parametrize("tp", [8, 2])
def test_gates_of_heads_are_divided_with_them(tp: int) -> None:
    """With 8 GPUs, two of them have the same key head."""
    model = _model("afmoe", num_dense_layers=LAYERS, layer_types=["full_attention"] * LAYERS)
    keys = max(KEYS // tp, HEAD_DIM)
    queries_gates_outputs = 3 * QUERIES // tp
    attention = (queries_gates_outputs + 2 * keys) * WIDTH + 2 * HEAD_DIM
    layer = attention + 4 * WIDTH + 3 * WIDTH * INNER // tp
    assert _held(model, mesh={"tp": tp}) == LAYERS * layer + WIDTH + EMBEDDINGS // tp
    assert _asked(model, mesh={"tp": tp}).cache_bytes == LAYERS * 80 * 2 * keys * 2


def _planned(module: nn.Module, **children: nn.Module) -> dict[str, str]:
    """Return the styles of a mixture, with more modules in it."""
    for name, child in children.items():
        module.add_module(name, child)
    model: Any = nn.Module()
    model.config = SimpleNamespace(hidden_size=WIDTH, get_text_config=lambda: model.config)
    model.add_module("mlp", module)
    model.tp_plan = {"mlp.shared_experts.up_proj": "colwise"}
    model._expand_parallel_plan = dict
    plan = EnginePlan(model, None)
    plan.join_sums()
    return plan.styles


def test_each_of_several_shared_experts_is_summed_once() -> None:
    mixture = copy.deepcopy(_deepseek().model.layers[1].mlp)
    styles = _planned(mixture, shared_expert_2=copy.deepcopy(mixture.shared_experts))
    assert styles["mlp"] == "all_reduce"
    for name in ("experts", "shared_experts.down_proj", "shared_expert_2.down_proj"):
        assert styles[f"mlp.{name}"] == "replicate"


def test_biases_of_stacked_experts_are_divided_by_outputs() -> None:
    """They have the shape [experts, outputs], however the matrices lie."""
    mixture = copy.deepcopy(_qwen().model.layers[0].mlp)
    bias = nn.Parameter(torch.empty(EXPERTS, 2 * INNER, device="meta"))
    mixture.experts.register_parameter("gate_up_proj_bias", bias)
    styles = _planned(mixture)
    assert styles["mlp.experts.gate_up_proj"] == "packed_colwise"
    assert styles["mlp.experts.gate_up_proj_bias"] == "packed_rowwise"  # along the last dimension


def test_transformers_follows_its_own_plan() -> None:
    """The plan of DeepSeek leaves attention whole, which engines divide by heads."""
    model = _deepseek()
    eager: dict[str, Any] = {"engine": "transformers"}
    of_heads = LAYERS * (HEADS * 32 * 48 + HEADS * 32 * 32 + WIDTH * HEADS * 16)
    expected = _expected_deepseek(2, 2) + of_heads // 2
    assert _held(model, mesh={"tp": 2}, **eager) == expected
    with pytest.raises(InputError, match="as inference engines do, and not transformers: give"):
        _asked(_qwen(), mesh={"tp": 2}, expert_parallel=True, **eager)


@pytest.mark.sweep
def test_matrices_that_stay_whole_are_named() -> None:
    """The plan of Falcon-H1 divides its MLPs and attention, and not its state spaces."""
    model = _model("falcon_h1", bos_token_id=0, eos_token_id=1, pad_token_id=0)
    notes = {note.code: note for note in _asked(model, mesh={"tp": 2}).assumptions}
    names = notes["layers-not-divided"].values["names"]
    assert names == "mamba.conv1d, mamba.in_proj, mamba.out_proj"
    for divided in (_qwen(), _deepseek()):
        codes = [note.code for note in _asked(divided, mesh={"tp": 2}).assumptions]
        assert "layers-not-divided" not in codes
