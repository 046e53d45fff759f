"""Ways to spread a small model over processes: what each holds, sends and needs, worked out by hand; and wrong use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from torch import Tensor, nn

from tests.versions import before
from torchscan import InputError
from torchscan.analyses.plan_result import Plan
from torchscan.notes import Note
from torchscan.ranks.plan import plan

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, INNER, BATCH, FLOAT = 16, 32, 4, 4
#: parameters of the two layers
FIRST, SECOND = INNER * WIDTH + INNER, WIDTH * INNER + WIDTH
ALL = FIRST + SECOND
#: of each parameter, AdamW counts its steps
COUNTS = 4 * FLOAT


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, WIDTH))


def planned(apply: Any, mesh: dict[str, int] | None = None, **options: Any) -> Plan:
    inputs: dict[str, Any] = (
        {} if "args" in options else {"input_shape": (WIDTH,), "batch_size": BATCH}
    )
    given = {"module": build, "training": True, "optimizer": "AdamW", **inputs, **options}
    return plan(mesh=mesh or {"dp": 4}, apply=apply, progress=False, **given)


def fully_sharded(**options: Any) -> Callable[[Any, Any], None]:
    def apply(model: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        for each in (model[0], model[2], model):
            fully_shard(each, mesh=mesh, **options)

    return apply


def in_columns_and_rows(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})


def gradients(found: Plan) -> int:
    return sum(each.size for each in found.ranks[0].trace.storages if each.kind == "gradient")


def sizes(found: Plan, kind: str) -> list[tuple[str, int]]:
    return [(each.phase, each.bytes) for each in found.collectives if each.kind == kind]


# -- memory ----------------------------------------------------------------------------------------------------------------


def test_memory_of_tensor_parallelism() -> None:
    found = planned(in_columns_and_rows, {"tp": 4})
    held = FLOAT * (
        INNER * WIDTH // 4 + INNER // 4 + WIDTH * INNER // 4 + WIDTH
    )  # each has the whole bias of rows
    kinds = found.memory.by_kind
    assert kinds["parameters"] == held
    assert kinds["optimizer"] == 2 * held + COUNTS
    assert gradients(found) == held
    assert kinds["gathered"] == kinds["buffers"] == 0
    assert sizes(found, "all-reduce") == [("forward", FLOAT * BATCH * WIDTH)]


@pytest.mark.parametrize(
    ("options", "gathered"),
    [
        ({}, FLOAT * FIRST),  # the second layer is gone when the gradient of the first is computed
        ({"reshard_after_forward": False}, FLOAT * ALL),
        ({"mp_policy": "half"}, 2 * FIRST),
    ],
    ids=str,
)
def test_memory_of_shards(options: dict[str, Any], gathered: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policies = {"half": half}
    found = planned(
        fully_sharded(**{name: policies.get(value, value) for name, value in options.items()})
    )
    kinds = found.memory.by_kind
    assert kinds["parameters"] == gradients(found) == FLOAT * ALL // 4
    assert kinds["optimizer"] == 2 * FLOAT * ALL // 4 + COUNTS
    # At the peak itself it depends on the version: torch 2.15 releases the buffer of the last all-gather before the next copy.
    assert max(each.by_kind["gathered"] for each in found.memory.timeline) == gathered
    size = 2 if "mp_policy" in options else FLOAT
    again = 0 if "reshard_after_forward" in options else size * ALL
    assert (
        sum(each for phase, each in sizes(found, "all-gather") if phase == "forward") == size * ALL
    )
    assert sum(each for phase, each in sizes(found, "all-gather") if phase == "backward") == again
    assert sum(each for _, each in sizes(found, "reduce-scatter")) == FLOAT * ALL


def test_the_first_process_has_most_of_what_cannot_be_divided() -> None:
    def apply(model: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)

    found = planned(apply, module=lambda: nn.Linear(WIDTH, 10), ranks="ends")
    rows = {0: 3, 2: 3, 3: 1}  # of ten: three in each but the last
    assert {each.rank: each.local_params for each in found.ranks} == {
        rank: each * (WIDTH + 1) for rank, each in rows.items()
    }
    assert found.local_params == found.ranks[0].local_params


def test_gradients_in_another_place_are_brought_there_before_the_step() -> None:
    """Those of a norm that each process runs on its part of a sequence are summands, one of each process."""

    def apply(model: Any, mesh: Any) -> None:
        from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

        parallelize_module(model, mesh, {"0": SequenceParallel()})

    tokens = torch.zeros(BATCH, 8, WIDTH)
    found = planned(
        apply, {"tp": 4}, module=lambda: nn.Sequential(nn.LayerNorm(WIDTH)), args=[tokens]
    )
    assert sizes(found, "all-reduce") == [("optimizer", 2 * FLOAT * WIDTH)]


# -- DDP -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_mesh", [False, True])
def test_ddp_sums_up_all_gradients(has_mesh: bool) -> None:
    def apply(model: nn.Module, mesh: Any) -> nn.Module:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, **({"device_mesh": mesh["dp"]} if has_mesh else {}))

    found = planned(apply)
    assert found.local_params == found.params == ALL
    assert sizes(found, "all-reduce") == [("backward", FLOAT * ALL)]
    assert (
        gradients(found) == found.memory.by_kind["buffers"] == FLOAT * ALL
    )  # of which buckets are copies
    assert found.macs == BATCH * WIDTH * INNER * (2 + 2 + 1)  # the input has no gradient


# -- experts ---------------------------------------------------------------------------------------------------------------

EXPERTS, PICKS, TOKENS, PLACES = 8, 2, 24, 4


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER))
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        up, down = (
            each.to_local() if hasattr(each, "to_local") else each for each in (self.up, self.down)
        )
        return torch.bmm(torch.relu(torch.bmm(rows, up)), down)


class Mixture(nn.Module):
    """Each token goes to two of the experts; all of these get as many, and are in another process as a rule."""

    group: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()

    def exchanged(self, rows: Tensor) -> Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        return all_to_all_single_autograd(rows, None, None, self.group)

    def forward(self, tokens: Tensor) -> Tensor:
        weights, chosen = self.router(tokens).softmax(-1).topk(PICKS, -1)
        order = chosen.flatten().argsort(stable=True)
        rows = self.exchanged(tokens[order // PICKS])
        own = EXPERTS // PLACES
        rows = rows.view(PLACES, own, -1, WIDTH).transpose(0, 1).reshape(own, -1, WIDTH)
        made = self.experts(rows).view(own, PLACES, -1, WIDTH).transpose(0, 1).reshape(-1, WIDTH)
        made = self.exchanged(made) * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, order // PICKS, made)


def slice_experts(model: Any, mesh: Any) -> None:
    model.group = mesh.get_group("ep")
    own, rank = EXPERTS // PLACES, mesh.get_local_rank()
    for name in ("up", "down"):
        part = getattr(model.experts, name).detach()[rank * own : (rank + 1) * own].clone()
        setattr(model.experts, name, nn.Parameter(part))


def distribute_experts(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    model.group = mesh.get_group("ep")
    for name in ("up", "down"):
        setattr(
            model.experts,
            name,
            nn.Parameter(distribute_tensor(getattr(model.experts, name), mesh, [Shard(0)])),
        )


@pytest.mark.parametrize("apply", [slice_experts, distribute_experts])
def test_experts_in_several_processes(apply: Any) -> None:
    options: dict[str, Any] = {
        "module": Mixture,
        "args": [torch.zeros(TOKENS, WIDTH)],
        "optimizer": None,
    }
    found = planned(apply, {"ep": PLACES}, training=False, **options)
    assert found.local_params == WIDTH * EXPERTS + 2 * EXPERTS * WIDTH * INNER // PLACES
    assert found.macs == TOKENS * WIDTH * EXPERTS + 2 * TOKENS * PICKS * WIDTH * INNER
    there = FLOAT * TOKENS * PICKS * WIDTH
    assert sizes(found, "all-to-all") == [("forward", 2 * there)]  # there and back
    assert found.sent_bytes == 2 * there * (PLACES - 1) // PLACES
    trained = planned(apply, {"ep": PLACES}, **options)
    assert sizes(trained, "all-to-all") == [
        ("forward", 2 * there),
        ("backward", there),
    ]  # the input has no gradient


# -- wrong use -------------------------------------------------------------------------------------------------------------


class Asking(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.scale = self.weight.sum().item()


class Deciding(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, source: Tensor) -> Tensor:
        made = super().forward(source)
        return made if made.sum() > 0 else -made


class Heads(nn.Sequential):
    """Attention's way to divide: into eight heads, whatever a process has."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Identity(), nn.Linear(WIDTH, WIDTH))

    def forward(self, source: Tensor) -> Tensor:
        made: Tensor = self[2](self[0](source).view(BATCH, 8, 2).flatten(1))
        return made


def shard_first(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], mesh=mesh)


def shard_whole(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh)


@before("2.9", "collectives do not run on shapes")
@pytest.mark.parametrize(
    ("apply", "mesh", "options", "said"),
    [
        (
            in_columns_and_rows,
            {"tp": 3},
            {},
            r"rank 0 cannot .*\n.*not evenly divided: 0.weight \[32, 16\], 0.bias \[32\]",
        ),
        (
            in_columns_and_rows,
            {"tp": 4},
            {"module": Heads},
            r"shape '\[4, 8, 2\]' is invalid.*\n.*sizes of one rank",
        ),
        (shard_first, {"dp": 2}, {}, r"2 of 4 parameters \(2.weight, 2.bias, …\) are not sharded"),
        (
            lambda *_: 3,
            {"dp": 2},
            {},
            r"apply\(model, mesh\) returned a int: return a model, or nothing",
        ),
        (lambda *_: None, {"dp": 2}, {}, "apply did not shard the model"),
        (
            lambda model, mesh: shard_whole(model, mesh["tp"]),
            {"dp": 2},
            {},
            r"failed: .*'tp'.*\['dp'\]",
        ),
        (
            shard_whole,
            {"dp": 2},
            {"module": Asking},
            r"module\(\) reads values, .*build the model before",
        ),
        (shard_whole, {"dp": 2}, {"module": Deciding}, r"forward\(\) reads a value"),
    ],
)
def test_what_cannot_be_planned_is_told(
    apply: Any, mesh: dict[str, int], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        planned(apply, mesh, **options)
    assert not distributed.is_initialized()


def test_a_dimension_of_the_mesh_that_is_silent_is_told() -> None:
    found = planned(in_columns_and_rows, {"dp": 2, "tp": 2})
    assert found.warnings == (Note.of("no-collective", dimension="dp"),)
    assert (
        planned(in_columns_and_rows, {"dp": 2, "tp": 2}, training=False, optimizer=None).warnings
        == ()
    )


def test_no_collective_is_left_waiting() -> None:
    from torch._C._distributed_c10d import _get_work_registry_size

    def with_data(_: nn.Module, mesh: Any) -> nn.Module:
        model = build()
        in_columns_and_rows(model, mesh)
        return model

    before = _get_work_registry_size()
    planned(with_data, {"tp": 4}, training=False, optimizer=None)
    assert _get_work_registry_size() == before
