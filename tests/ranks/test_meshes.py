"""Training on several meshes: what follows from few layers is what a record of all of them says."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from torchscan import InputError
from torchscan.types import MeshChoice, MeshSearch, Plan

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LAYERS, LENGTH, DEVICE = 6, 64, "NVIDIA H100 80GB HBM3"


def llama(layers: int = LAYERS) -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1024,
        max_position_embeddings=256,
    )
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        )
    return model


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (*model.model.layers, model):
        fully_shard(each, mesh=mesh["dp"])


def searched(layers: int = LAYERS, **asked: Any) -> MeshSearch:
    shared = {"num_gpus": 8, "device": DEVICE, "length": LENGTH}
    asked = {**shared, "checkpoint": False, "accumulation_steps": 1, **asked}
    return torchscan.parallel.search(llama(layers), **asked)


def the_one(layers: int = LAYERS, **asked: Any) -> MeshChoice:
    (found,) = searched(layers, **asked).choices
    return found


@functools.cache
def on_eight() -> MeshChoice:
    """Return what several tests compare theirs with, which are not about many layers."""
    return the_one(2, meshes=[{"dp": 8}])


@functools.cache
def sharded_and_copied() -> MeshSearch:
    return searched(meshes=[{"dp": 8}, {"replicate": 8}], batch_size=2)


@functools.cache
def plan_of_all_layers() -> Plan:
    return planned(llama().bfloat16(), 8, 2)


def planned(model: Any, ranks: int, batch_size: int, **options: Any) -> Plan:
    tokens = torch.zeros(batch_size, LENGTH, dtype=torch.long)
    return torchscan.parallel.plan(
        model.train(),
        mesh={"dp": ranks},
        apply=shard,
        kwargs={"input_ids": tokens, "labels": tokens, "use_cache": False},
        training=True,
        loss=lambda output: output.loss,
        optimizer="AdamW",
        device=DEVICE,
        **options,
    )


@pytest.mark.sweep
def test_few_layers_tell_what_all_of_them_take() -> None:
    whole = plan_of_all_layers()
    found = sharded_and_copied().choices[0]
    assert found.mesh == on_eight().mesh
    assert whole.roofline is not None
    assert (found.local_params, found.sent_bytes) == (whole.local_params, whole.sent_bytes)
    assert found.peak_bytes == whole.memory.peak_bytes
    assert found.by_kind == {kind: size for kind, size in whole.memory.by_kind.items() if size}
    assert found.time_estimate == pytest.approx(whole.roofline.time_estimate, rel=1e-3)
    assert found.tokens_per_second == pytest.approx(8 * 2 * LENGTH / found.time_estimate)


@pytest.mark.sweep
def test_products_of_the_model_are_its_use_of_the_cards() -> None:
    """Three times those of the forward pass, wherever they are computed; what checkpoints compute again is none of it."""
    plain, again = on_eight(), the_one(2, meshes=[{"dp": 8}], checkpoint=True)
    assert again.mfu * again.time_estimate == pytest.approx(plain.mfu * plain.time_estimate)
    assert again.time_estimate > plain.time_estimate
    assert again.peak_bytes < plain.peak_bytes


def test_all_meshes_that_make_sense_the_fastest_first() -> None:
    found = searched(2, num_gpus=4, per_machine=2)
    meshes = [dict(each.mesh) for each in found.choices]
    assert {"dp": 4} in meshes
    assert {"replicate": 2, "dp": 2} in meshes  # a copy in each machine
    assert {"dp": 2, "tp": 2} in meshes or "dp 2 × tp 2" in found.refused
    assert not any(each.get("tp", 1) > 2 for each in meshes)
    times = [each.time_estimate / each.tokens_per_second for each in found.choices]
    assert times == sorted(times)
    assert found.best == found.choices[0]
    names = [row.cells[0].text for row in found.table().rows]
    assert [name.endswith(" *") for name in names] == [True] + [False] * (len(names) - 1)
    assert "* marks the fastest step that fits." in str(found)


@pytest.mark.sweep
def test_weights_in_32_bits_take_twice_the_memory() -> None:
    half, mixed = on_eight(), the_one(2, meshes=[{"dp": 8}], precision="bf16-mixed")
    for kind in ("parameters", "optimizer"):
        assert mixed.by_kind[kind] == 2 * half.by_kind[kind]


def test_the_model_is_left_unchanged() -> None:
    model: Any = llama(2)
    before = (model.config.to_dict(), [name for name, _ in model.named_parameters()])
    asked: dict[str, Any] = {"num_gpus": 8, "device": DEVICE, "length": LENGTH}
    torchscan.parallel.search(model, meshes=[{"dp": 8}], checkpoint="selective", **asked)
    assert (model.config.to_dict(), [name for name, _ in model.named_parameters()]) == before
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"num_gpus": 0}, "num_gpus is 0: give a positive integer"),
        (
            {"length": "1k"},
            "256 positions, fewer than sequences of 1,024 tokens need: give length=256",
        ),
        ({"meshes": [{"dp": 4}]}, "the mesh dp 4 has 4 devices, not 8: give num_gpus=4"),
        ({"meshes": [{"xp": 8}]}, "choose from pp, replicate, dp, cp, ep and tp"),
        ({"meshes": [{"ep": 8}]}, "LlamaForCausalLM has no experts to divide"),
        ({"flops": "sparse"}, "flops is 'sparse'"),
        ({"link_gbs": 0.0}, "link_gbs is 0: give the bandwidth of the links"),
        ({"precision": "int4"}, "precision is 'int4'"),
        ({"offload": "parameters"}, "offload has 'parameters'"),
        (
            {"optimizer_in_backward": True, "accumulation_steps": 4},
            "accumulation_steps needs the gradients of all parameters",
        ),
        ({"meshes": [{"tp": 3, "dp": 8}], "num_gpus": 24}, "no mesh is possible"),
        (
            {"cross_entropy": "liger", "meshes": [{"tp": 8}]},
            "^cross_entropy is 'liger', and tensor",
        ),
        ({"device": "H1000"}, r"`torchscan devices` lists all\), or register it"),
    ],
)
def test_wrong_use_is_told_in_one_line(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as raised:
        torchscan.parallel.search(
            llama(), **{"num_gpus": 8, "device": DEVICE, "length": LENGTH, **asked}
        )
    assert "\n" not in str(raised.value)


@pytest.mark.sweep
def test_copies_hold_all_of_a_model() -> None:
    copied, sharded = (the_one(meshes=[mesh]) for mesh in ({"replicate": 8}, {"dp": 8}))
    assert copied.local_params == sum(each.numel() for each in llama().parameters())
    assert copied.mesh == {"replicate": 8, "dp": 1}
    assert copied.peak_bytes > sharded.peak_bytes


@pytest.mark.sweep
def test_few_layers_are_sharded_and_checkpointed_too() -> None:
    plain, again = (
        the_one(meshes=[{"dp": 8}], checkpoint=checkpoint) for checkpoint in (False, True)
    )
    assert again.peak_bytes < plain.peak_bytes


@pytest.mark.sweep
def test_what_a_slow_network_leaves_to_wait_for_is_not_that_of_few_layers() -> None:
    slow: dict[str, Any] = {"num_gpus": 16, "network_gbs": 0.05, "meshes": [{"dp": 16}]}
    found = the_one(**slow)
    whole = planned(llama().bfloat16(), 16, 1, network_gbs=0.05)
    assert whole.roofline is not None
    assert found.waiting == pytest.approx(whole.roofline.time_by_limiter["links"], rel=1e-3)


@pytest.mark.sweep
def test_what_is_gathered_in_16_bits_is_so_without_fsdp_too() -> None:
    """Weights in 32 bits, of which the products are in 16: MFU is that of 16 bits."""
    asked: dict[str, Any] = {"num_gpus": 4, "meshes": [{"tp": 4}]}
    half, mixed, single = (
        the_one(precision=each, **asked) for each in ("bf16", "bf16-mixed", "fp32")
    )
    assert (
        mixed.by_kind["parameters"]
        == single.by_kind["parameters"]
        == 2 * half.by_kind["parameters"]
    )
    assert mixed.peak_bytes < single.peak_bytes


def test_what_takes_no_tokens_is_told() -> None:
    with pytest.raises(InputError, match="Linear does not take input_ids and labels"):
        torchscan.parallel.search(nn.Linear(8, 8), num_gpus=8, device=DEVICE)


@pytest.mark.sweep
def test_adapters_are_what_is_trained() -> None:
    """Of rank 8, beside seven linear layers of 256, 128 and 704 features in each of eight layers, all else frozen."""
    rank, heads, inner = 8, 128, 704
    adapters = LAYERS * rank * (2 * (256 + 256) + 2 * (256 + heads) + 3 * (256 + inner))
    whole, adapted = the_one(meshes=[{"dp": 8}]), the_one(meshes=[{"dp": 8}], lora=rank)
    assert adapted.local_params == whole.local_params + adapters / 8
    assert adapted.by_kind["optimizer"] == pytest.approx(
        adapters / 8 * 2 * 4, rel=0.05
    )  # two states of 32 bits
    assert adapted.by_kind["optimizer"] < whole.by_kind["optimizer"]
    found = searched(lora=rank)
    assert "adapters have no plan for tensor parallelism" in str(found.refused["dp 4 × tp 2"])
    assert "adapters of rank 8" in str(found)


@pytest.mark.sweep
def test_adapters_take_what_those_of_peft_take() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear")
    adapted = peft.get_peft_model(llama(2).bfloat16(), config).base_model.model
    theirs = planned(adapted, 8, 2)
    asked: dict[str, Any] = {"num_gpus": 8, "device": DEVICE, "length": LENGTH, "batch_size": 2}
    asked |= {"checkpoint": False, "accumulation_steps": 1}
    found = torchscan.parallel.search(llama(2), meshes=[{"dp": 8}], lora=8, **asked)
    (ours,) = found.choices
    assert (ours.local_params, ours.sent_bytes) == (theirs.local_params, theirs.sent_bytes)
    assert ours.peak_bytes == theirs.memory.peak_bytes
    assert theirs.roofline is not None
    assert ours.time_estimate == pytest.approx(theirs.roofline.time_estimate, rel=0.02)
    assert any(each.code == "adapters-as-in-peft" for each in found.assumptions)


@pytest.mark.sweep
def test_memory_of_the_best_mesh_is_that_of_all_layers() -> None:
    verdict = plan_of_all_layers().memory.verdict
    assert verdict is not None
    found = sharded_and_copied()
    best = found.choices[0]
    assert best.is_replayed
    assert best.needed_bytes == verdict.reserved_bytes + verdict.cuda_context_bytes
    # that of all recorded steps is, so it does not depend on the other meshes
    assert [each.is_replayed for each in found.choices] == [True, True]
    alone = searched(meshes=[found.choices[1].mesh], batch_size=2).choices[0]
    assert alone.needed_bytes == found.choices[1].needed_bytes


class Plain(nn.Module):
    """Its layers are linear ones themselves, of which two are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))
        self.attention = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(8)
        )

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, use_cache: bool = False
    ) -> dict[str, torch.Tensor]:
        hidden = self.embed(input_ids)
        for layer in (*self.layers, *self.attention):
            hidden = layer(hidden)
        return {
            "loss": nn.functional.cross_entropy(
                (hidden @ self.embed.weight.T).flatten(0, 1), labels.flatten()
            )
        }


@pytest.mark.sweep
def test_adapters_stand_beside_layers_of_all_sorts() -> None:
    with torch.device("meta"):
        model = Plain()
    asked: dict[str, Any] = {"num_gpus": 2, "device": DEVICE, "length": 16, "meshes": [{"dp": 2}]}
    asked["checkpoint"] = False
    (found,) = torchscan.parallel.search(model, lora=2, **asked).choices
    (whole,) = torchscan.parallel.search(model, **asked).choices
    # of a layer of attention the product of its result, which torch computes by its weight, and the two of its perceptron
    beside = 8 * 2 * (32 + 32) + 8 * 2 * ((32 + 32) + 2 * (32 + 64))
    assert found.local_params == whole.local_params + beside / 2


def test_adapters_without_linear_layers_are_refused() -> None:
    class Convolved(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.LayerNorm(32) for _ in range(8))
            self.attention = nn.ModuleList()

    with torch.device("meta"):
        model = Convolved()
    with pytest.raises(InputError, match=r"no linear layer .* to put adapters beside"):
        torchscan.parallel.search(
            model, num_gpus=2, device=DEVICE, length=16, meshes=[{"dp": 2}], lora=2
        )


@pytest.mark.sweep
def test_sequences_of_all_devices_are_shared_by_the_copies_of_the_model() -> None:
    meshes = [{"dp": 8}, {"dp": 4, "tp": 2}]
    found = searched(meshes=meshes, global_batch_size=16)
    assert found == searched(meshes=meshes, batch_size=2)
    assert "16 sequences of 64 tokens" in str(found)
    odd = searched(meshes=meshes, global_batch_size=4)
    assert [each.mesh for each in odd.choices] == [{"dp": 4, "tp": 2}]
    texts = {mesh: str(reason) for mesh, reason in odd.refused.items()}
    assert texts == {
        "dp 8": "4 sequences cannot be divided among 8 copies of the model: "
        "give a multiple as global_batch_size"
    }


def test_a_picture_has_a_bar_for_each_mesh() -> None:
    found = sharded_and_copied()
    ax = found.plot()
    assert [each.get_text() for each in ax.get_yticklabels()] == [
        " × ".join(f"{n} {s}" for n, s in c.mesh.items()) for c in found.choices
    ]
    bars: list[Any] = list(ax.patches)
    widths = [bars[2 * place].get_width() + bars[2 * place + 1].get_width() for place in range(2)]
    assert widths == pytest.approx([each.tokens_per_second for each in found.choices])
