"""The ways in which FSDP2 shards, gathers and reduces, as the user sets it up: what goes over links, against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchscan import InputError, parallel
from torchscan.types import Plan

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:FSDP2-wrapped")]

N, WIDTH, LAYERS = 8, 64, 4
#: of all parameters, in 32 bits
WHOLE = LAYERS * WIDTH * WIDTH * 4


def build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def shard(model: Any, devices: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (*model.layers, model):
        fully_shard(each, mesh=devices["dp"])


def planned(then: Any = lambda _: None, mesh: Any = None, along: Any = "dp", **how: Any) -> Plan:
    from torch.distributed.fsdp import fully_shard

    def apply(model: Any, devices: Any) -> None:
        for each in (*model, model):
            fully_shard(each, mesh=devices[along], **how)
        then(model)

    return parallel.plan(
        build,
        (WIDTH,),
        mesh=mesh or {"dp": N},
        apply=apply,
        training=True,
        optimizer="AdamW",
        batch_size=2,
    )


def sent(made: Plan) -> dict[tuple[str, str], int]:
    """What each process sends, by kind and phase."""
    found: dict[tuple[str, str], int] = {}
    for each in made.collectives:
        key = each.kind, each.phase
        found[key] = found.get(key, 0) + each.sent_bytes
    return found


SHARE = (N - 1) * WHOLE // N


def test_parameters_gradients_and_state_in_parts() -> None:
    """ZeRO-3: gathered forward and backward, gradients reduced: ``3 (n − 1)/n p``."""
    assert sent(made := planned()) == {
        ("all-gather", "forward"): SHARE,
        ("all-gather", "backward"): SHARE,
        ("reduce-scatter", "backward"): SHARE,
    }
    assert made.local_params * 4 == WHOLE // N


def test_parameters_that_stay_gathered_until_the_backward_pass_is_over() -> None:
    """ZeRO-2: ``2 (n − 1)/n p``, and the whole of them in memory."""
    made = planned(reshard_after_forward=False)
    assert sent(made) == {("all-gather", "forward"): SHARE, ("reduce-scatter", "backward"): SHARE}
    assert max(each.by_kind["gathered"] for each in made.memory.timeline) >= WHOLE


def test_gradients_that_are_not_reduced_yet_stay_whole() -> None:
    """Accumulation without synchronizing: nothing is reduced, and what is added to is not sharded."""
    made = planned(lambda model: model.set_requires_gradient_sync(False))
    assert sent(made) == {("all-gather", "forward"): SHARE, ("all-gather", "backward"): SHARE}


def test_copies_of_what_is_sharded() -> None:
    """HSDP: sharded among 4, and gradients of each part summed up among two copies: ``2 (c − 1)/c p/n`` more."""
    made = planned(mesh={"replicate": 2, "dp": 4}, along=("replicate", "dp"))
    share = 3 * WHOLE // 4
    assert sent(made) == {
        ("all-gather", "forward"): share,
        ("all-gather", "backward"): share,
        ("reduce-scatter", "backward"): share,
        ("all-reduce", "backward"): 2 * (WHOLE // 4) // 2,
    }


@pytest.mark.parametrize(("reduced_in", "times"), [(torch.float32, 2), (torch.bfloat16, 1)])
def test_what_is_gathered_and_reduced_in_other_types(reduced_in: torch.dtype, times: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    made = planned(
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced_in)
    )
    assert sent(made) == {
        ("all-gather", "forward"): SHARE // 2,
        ("all-gather", "backward"): SHARE // 2,
        ("reduce-scatter", "backward"): SHARE // 2 * times,
    }


def copied(made: Plan, name: str) -> int:
    trace = made.ranks[0].trace
    return sum(
        trace.tensors[op.inputs[0]].spec.numel * 4
        for op in trace.ops
        if op.signature.operator == f"torchscan.{name}"
    )


def test_shards_on_the_host_are_copied_for_each_all_gather() -> None:
    """Parameters, gradients and two states of AdamW of a rank, 1/n each, are on the host."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    made = planned(offload_policy=CPUOffloadPolicy())
    assert sent(made) == sent(planned())
    assert copied(made, "copy_to_device") == 2 * WHOLE // N
    assert copied(made, "copy_to_host") == WHOLE // N
    for moment in made.memory.timeline:
        assert moment.by_kind["parameters"] == moment.by_kind["optimizer"] == 0
        # a gradient on the host is represented by one element
        assert moment.by_kind["gradients"] <= LAYERS * 4
    (note,) = [each for each in made.assumptions if each.code == "optimizer-on-host"]
    assert note.values["size"] == 2 * WHOLE // N + 4 * LAYERS


def test_parameters_are_offloaded_by_name() -> None:
    """The plan passes FSDP2's policy; an ``apply`` must do so itself."""
    step: dict[str, Any] = {"mesh": {"dp": N}, "training": True, "offload": "parameters"}
    made = parallel.plan(Chain(), (WIDTH,), **step)
    assert copied(made, "copy_to_device") == 2 * WHOLE // N
    with pytest.raises(InputError, match="keeps them on the device: give fully_shard"):
        parallel.plan(Chain(), (WIDTH,), apply=shard, **step)
    with pytest.raises(InputError, match="which DDP keeps on the device"):
        parallel.plan(Chain(), (WIDTH,), sharding="zero1", **step)


def test_gathered_weights_are_cast_by_autocast() -> None:
    """Products in 16 bits of weights in 32, which are gathered as they are."""
    made = parallel.plan(
        Chain(), (WIDTH,), mesh={"dp": N}, training=True, precision="bf16-mixed", checkpoint=True
    )
    products = [op for op in made.ranks[0].trace.ops if op.signature.operator == "aten.mm"]
    assert {op.signature.outputs[0].dtype for op in products} == {torch.bfloat16}
    # forward, again for the backward pass, and two for gradients; the last layer is not computed
    # again, and the input needs no gradient
    assert len(products) == 4 * LAYERS - 1 - LAYERS
    assert sent(made)["all-gather", "forward"] == SHARE


def test_gradients_of_an_earlier_batch_are_added_to() -> None:
    """What is sent is that of one batch, whose gradients are added."""
    once = sent(planned())
    from torch.distributed.fsdp import fully_shard

    def apply(model: Any, devices: Any) -> None:
        for each in (*model, model):
            fully_shard(each, mesh=devices["dp"])

    twice = parallel.plan(
        build,
        (WIDTH,),
        mesh={"dp": N},
        apply=apply,
        training=True,
        optimizer="AdamW",
        batch_size=2,
        accumulate=True,
    )
    assert sent(twice) == once
