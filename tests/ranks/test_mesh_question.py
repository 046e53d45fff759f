"""The arguments of a search for meshes, and the passes that they ask for; none is recorded here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import InputError
from torchscan.ranks.mesh_options import MeshOptions
from torchscan.ranks.mesh_question import MeshQuestion, require_tokens
from torchscan.ranks.parameter_shapes import StorageSizes
from torchscan.ranks.short_models import LayeredModel


class Language(nn.Module):
    """A language model without a plan of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return a loss, which is the mean of the embeddings."""
        return {"loss": self.embedding(input_ids).mean()}


class Cached(Language):
    """One that would keep keys and values."""

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, use_cache: bool = True
    ) -> dict[str, Tensor]:
        return super().forward(input_ids, labels)


class Open(nn.Module):
    """One that takes anything by name."""

    def forward(self, **given: Any) -> Any:
        return {"loss": given["input_ids"].float().mean()}


class Vision(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return image


class Unlabeled(nn.Module):
    def forward(self, input_ids: Tensor) -> Tensor:
        return input_ids


USUAL: dict[str, Any] = {
    "num_gpus": 2,
    "device": "H100",
    "length": 32,
    "batch_size": 3,
    "global_batch_size": None,
    "meshes": None,
    "precision": "bf16-mixed",
    "optimizer": "AdamW",
    "checkpoint": None,
    "accumulation_steps": None,
    "sharding": "fsdp2",
    "sequence_parallel": True,
    "async_tp": False,
    "flops": "dense",
    "per_machine": 8,
    "link_gbs": None,
    "network_gbs": 50.0,
    "changes": {},
}


def question(module: nn.Module | None = None, **options: Any) -> MeshQuestion:
    model = LayeredModel(module or Language())
    return MeshQuestion.of(model, MeshOptions(**{**USUAL, **options}))


def test_a_search_has_the_length_and_the_sequences_of_all_devices() -> None:
    asked = question()
    assert (asked.length, asked.sequences) == (32, 6)
    assert asked.device.name == "NVIDIA H100 80GB HBM3"
    assert question(batch_size=1, global_batch_size=16).sequences == 16


@pytest.mark.parametrize(
    ("precision", "stored", "local", "sizes"),
    [
        ("bf16", torch.bfloat16, torch.bfloat16, StorageSizes()),
        ("fp32", torch.float32, torch.float32, StorageSizes()),
        (
            "bf16-mixed",
            torch.float32,
            torch.bfloat16,
            StorageSizes(stored=4, gathered=2, reduced=4),
        ),
    ],
)
def test_mixed_precision_stores_32_bits_and_computes_with_16(
    precision: str, stored: torch.dtype, local: torch.dtype, sizes: StorageSizes
) -> None:
    asked = question(precision=precision)
    assert asked.dtype == stored
    passes = asked.local((False,))
    assert (passes.dtype, passes.sizes) == (local, sizes)


def test_the_peak_is_that_of_the_format_of_products() -> None:
    """The data sheet of H100 SXM has 989.4 teraflops in 16 bits, and 66.9 in 32."""
    assert question(precision="bf16").peak == question(precision="bf16-mixed").peak
    assert question(precision="bf16").peak == pytest.approx(989.4e12, rel=0.01)
    assert question(precision="fp32").peak == pytest.approx(66.9e12, rel=0.01)


def test_a_pass_trains_on_as_many_tokens_as_asked() -> None:
    asked = question().local((False,)).step(5)
    assert asked.kwargs is not None
    assert set(asked.kwargs) == {"input_ids", "labels"}
    for tokens in asked.kwargs.values():
        assert (tokens.shape, tokens.dtype) == ((5, 32), torch.long)
    assert asked.training
    assert (asked.device, asked.optimizer) == ("NVIDIA H100 80GB HBM3", "AdamW")
    assert asked.loss is not None
    assert asked.loss({"loss": torch.tensor(3.0)}) == 3


@pytest.mark.parametrize("module", [Cached(), Open()])
def test_models_that_can_keep_keys_and_values_do_not(module: nn.Module) -> None:
    asked = question(module).local((False,)).step(1)
    assert asked.kwargs is not None
    assert asked.kwargs["use_cache"] is False


def test_activations_are_not_divided_by_sequence_without_a_plan_for_it() -> None:
    asked = question()
    assert (asked.sequence_parallel, asked.keeps_sequences) == (False, True)
    off = question(sequence_parallel=False)
    assert (off.sequence_parallel, off.keeps_sequences) == (False, False)
    by_user = question(apply=lambda model, devices: model)
    assert (by_user.asks_sequence_parallel, by_user.keeps_sequences) == (False, False)


def test_losses_that_tensor_parallelism_lacks_are_refused() -> None:
    asked = question()
    for kind in ("liger", "chunked"):
        recipe: Any = replace(asked.recipe, cross_entropy=kind)
        local = replace(asked, recipe=recipe).local((False,))
        with pytest.raises(InputError, match=f"cross_entropy is '{kind}', and tensor parallelism"):
            local.divide(nn.Linear(2, 2), None)


def test_a_search_needs_a_language_model() -> None:
    for module in (Language(), Cached(), Open()):
        require_tokens(module)
    with pytest.raises(
        InputError,
        match=r"Vision does not take input_ids and labels: give a language model; "
        r"torchscan\.parallel\.plan shards models of any kind",
    ):
        require_tokens(Vision())
    with pytest.raises(InputError, match="Unlabeled does not take labels: give"):
        require_tokens(Unlabeled())
