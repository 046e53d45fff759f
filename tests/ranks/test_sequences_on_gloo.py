"""A small Llama whose sequences are divided between two real processes, beside one process."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from tests.ranks.processes import in_processes
from torchscan.analyses.collectives import collectives_of
from torchscan.ranks.plan import plan
from torchscan.ranks.sharding_kinds import ShardingPlan
from torchscan.recording.sequence_parallel import dividing_loss, shard_sequences

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def build() -> Any:
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def step(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the gradient of the embedding."""
    tokens = (torch.arange(32) * 7 % 64).reshape(2, 16)
    loss = model(input_ids=tokens, labels=tokens)["loss"]
    loss.backward()
    gradient = model.get_input_embeddings().weight.grad
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return loss.detach(), whole


def kinds(trace: Any) -> list[Any]:
    found = collectives_of(trace)
    return [(each.kind, each.num_ranks, each.phase, each.layer, each.bytes) for each in found]


class Trained(NamedTuple):
    """What a process of the group finds."""

    loss: torch.Tensor
    gradient: torch.Tensor
    collectives: list[Any]
    #: with logits divided by vocabulary
    divided_loss: torch.Tensor
    divided_gradient: torch.Tensor


def train(_rank: int, _: None) -> Trained:
    from torch.distributed.device_mesh import init_device_mesh

    from torchscan import Scan

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    loss, gradient = step(shard_sequences(build(), mesh))
    recorded = shard_sequences(build(), mesh)
    tokens = torch.zeros(2, 16, dtype=torch.long)
    kwargs = {"input_ids": tokens, "labels": tokens}
    scan = Scan(recorded, kwargs=kwargs, training=True, loss=lambda output: output["loss"])
    found = kinds(scan.steps)
    with dividing_loss():
        divided: Any
        divided, part = step(shard_sequences(build(), mesh, divides_logits=True))
    return Trained(loss, gradient, found, divided.full_tensor(), part)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Trained]:
    return in_processes(2, train, None, tmp_path_factory.mktemp("two"))


def test_divided_logits_have_the_loss_of_whole_ones(trained: list[Trained]) -> None:
    loss, gradient = step(build())
    for each in trained:
        torch.testing.assert_close(each.divided_loss, loss)
        torch.testing.assert_close(each.divided_gradient, gradient)


def test_divided_sequences_train_as_whole_ones_and_as_planned(trained: list[Trained]) -> None:
    loss, gradient = step(build())
    tokens = torch.zeros(2, 16, dtype=torch.long)
    planned = plan(
        build,
        mesh={"tp": 2},
        apply=ShardingPlan(sequence_parallel=True),
        kwargs={"input_ids": tokens, "labels": tokens},
        training=True,
        loss=lambda output: output["loss"],
    )
    for each in trained:
        torch.testing.assert_close(each.loss, loss)
        torch.testing.assert_close(each.gradient, gradient)
        assert each.collectives == kinds(planned.ranks[0].trace)
