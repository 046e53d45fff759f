"""Kinds of sharding, experts in parts and every n-th checkpoint, derived and beside recorded plans."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan import InputError
from torchscan.types import MeshChoice

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DEVICE, RANKS, HIDDEN, VOCABULARY, LAYERS = "NVIDIA H100 80GB HBM3", 16, 4096, 32_000, 2
SIZES: dict[str, int] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
}


def dense(**sizes: Any) -> nn.Module:
    return build(transformers.LlamaConfig(**{**SIZES, **sizes}))


def mixture() -> nn.Module:
    experts = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 2048}
    return build(transformers.Qwen3MoeConfig(**SIZES, **experts, mlp_only_layers=[]))


def build(config: Any) -> nn.Module:
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        )
    return model


@functools.cache
def searched(make: Any, mesh: tuple[tuple[str, int], ...], **asked: Any) -> MeshChoice:
    """Return the only choice on a mesh; several tests read the same ones."""
    shared: dict[str, Any] = {"num_gpus": RANKS, "device": DEVICE, "length": 2048, "batch_size": 4}
    shared |= {"checkpoint": False, "accumulation_steps": 1, "progress": False}
    (choice,) = torchscan.parallel.search(
        make(), meshes=[dict(mesh)], **{**shared, **asked}
    ).choices
    return choice


ALONG_DP = (("dp", RANKS),)
WITH_EXPERTS = (("dp", 4), ("ep", 4))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "mesh", "asked"),
    [
        # 16 sequences in a pass: of few, most kernels would wait for their launch
        (dense, (("dp", 4), ("tp", 4)), {"float8": "tensorwise"}),
        (dense, ALONG_DP, {"sharding": "zero2"}),
        (mixture, WITH_EXPERTS, {}),
        (dense, ALONG_DP, {"float8": "tensorwise", "float8_all_gather": True}),
        (dense, (("dp", 8), ("tp", 2)), {"float8": "tensorwise", "float8_all_gather": True}),
        (dense, ALONG_DP, {"sharding": "fsdp1", "precision": "bf16-mixed"}),
        (mixture, (("dp", 1), ("ep", 16)), {"sharding": "zero2", "checkpoint": True}),
        (dense, (("replicate", 2), ("dp", 8)), {"sharding": "zero2"}),
    ],
)
def test_derived_steps_are_those_recorded_on_their_mesh(make: Any, mesh: Any, asked: Any) -> None:
    found = searched(make, mesh, **asked)
    assert found.is_recorded
    assert found.sharding == asked.get("sharding", "fsdp2")
    assert found.derived_sent_bytes == found.sent_bytes
    assert found.derived_time == pytest.approx(found.time_estimate, rel=0.015)
    assert found.derived_bytes == pytest.approx(found.needed_bytes, rel=0.14)


def test_parameters_that_stay_complete_are_gathered_and_reduced_once() -> None:
    """By hand: (n - 1)/n of the bytes of all parameters, twice."""
    found = searched(dense, ALONG_DP, sharding="zero2")
    params = sum(each.numel() for each in dense().parameters())
    assert found.sent_bytes == 2 * 2 * params * (RANKS - 1) // RANKS


def test_rows_travel_to_experts_and_back() -> None:
    """By hand: each of four picks of a token is a row that goes there and back, in both passes.

    Experts of a rank are gathered along "dp", twice, and reduced; all else along both dimensions.
    """
    found = searched(mixture, WITH_EXPERTS)
    rows = 4 * 4 * 2048
    travel = LAYERS * 4 * 2 * rows * HIDDEN * 3 // 4
    numel = {name: each.numel() for name, each in mixture().named_parameters()}
    experts = sum(each for name, each in numel.items() if ".experts." in name)
    layers = sum(each for name, each in numel.items() if ".layers." in name) - experts
    outside = sum(numel.values()) - experts - layers
    along_both = 2 * (3 * layers + 2 * outside) * (RANKS - 1) // RANKS
    along_dp = 2 * 3 * (experts // 4) * 3 // 4
    assert found.sent_bytes == travel + along_both + along_dp


@pytest.mark.sweep
def test_every_second_layer_is_checkpointed_as_in_a_plan() -> None:
    tokens = torch.zeros(4, 2048, dtype=torch.long)
    found = searched(dense, ALONG_DP, checkpoint=2)
    planned = torchscan.parallel.plan(
        dense(),
        mesh={"dp": RANKS},
        kwargs={"input_ids": tokens, "labels": tokens, "use_cache": False},
        training=True,
        loss=lambda output: output.loss,
        optimizer="AdamW",
        device=DEVICE,
        checkpoint=2,
    )
    assert planned.roofline is not None
    assert planned.memory.verdict is not None
    assert found.sent_bytes == planned.sent_bytes
    assert found.time_estimate == pytest.approx(planned.roofline.time_estimate, rel=0.01)
    verdict = planned.memory.verdict
    needed = verdict.reserved_bytes + verdict.cuda_context_bytes
    assert found.needed_bytes == pytest.approx(needed, rel=0.14)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"sharding": "zero1"}, "sharding is 'zero1'"),
        ({"sharding": ["fsdp2", "ddp"]}, "sharding is 'ddp'"),
        ({"sharding": None}, "sharding is None"),
        ({"sharding": "zero2", "apply": print}, "sharding and apply are both given"),
        ({"optimizer": "Adamm"}, "Adamm"),
        ({"meshes": [{"ep": 2, "cp": 8}]}, "give ep beside dp and pp alone"),
        ({"meshes": [{"ep": 16}]}, "LlamaForCausalLM has no experts to divide"),
    ],
)
def test_wrong_options_are_named(asked: dict[str, Any], error: str) -> None:
    model = dense(num_hidden_layers=1, hidden_size=64, intermediate_size=64, vocab_size=64)
    shared: dict[str, Any] = {"num_gpus": RANKS, "device": DEVICE, "length": 64}
    with pytest.raises(InputError, match=error):
        torchscan.parallel.search(model, **{**shared, **asked})


@pytest.mark.sweep
def test_mixtures_are_compared_with_experts_in_parts() -> None:
    asked: dict[str, Any] = {"num_gpus": 4, "device": DEVICE, "length": 64, "checkpoint": False}
    found = torchscan.parallel.search(
        mixture(), **asked, sharding=["fsdp2", "zero2"], per_machine=2, accumulation_steps=1
    )
    meshes = [dict(each.mesh) for each in found.choices]
    assert {"dp": 2, "ep": 2} in meshes
    assert not any(each.get("ep", 1) > 2 for each in meshes)  # experts stay in a machine
    assert {each.sharding for each in found.choices} <= {"fsdp2", "zero2"}
