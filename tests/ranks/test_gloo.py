"""What real processes of a group record, beside what is planned for each of them in this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as distributed
from torch import nn

from tests.ranks.processes import in_processes
from tests.sweeps import some_of
from torchscan import InputError, RecordError, Scan, parallel
from torchscan.analyses.collectives import collectives_of
from torchscan.ranks.flat_parameters import flatten_parameters
from torchscan.ranks.plan import plan
from torchscan.trace.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:FSDP2-wrapped")]

WIDTH, INNER, BATCH = 16, 32, 4
#: ways to look at memory, of which torch needs others where tensors have no data
_VIEWS = frozenset({"aten.view", "aten.detach"})


def build() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, WIDTH))


def data_parallel(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (model[0], model[2], model):
        fully_shard(each, mesh=mesh["dp"])


def flat(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (model[0], model[2], model):
        flatten_parameters(each)
        fully_shard(each, mesh=mesh["dp"])


def tensor_parallel(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})


def in_both_ways(model: Any, mesh: Any) -> None:
    tensor_parallel(model, mesh)
    data_parallel(model, mesh)


def replicated(model: nn.Module, _: Any) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


class Case(NamedTuple):
    mesh: dict[str, int]
    apply: Callable[[Any, Any], nn.Module | None]

    @property
    def processes(self) -> int:
        return torch.Size(self.mesh.values()).numel()


CASES = {
    "fsdp": Case({"dp": 2}, data_parallel),
    "flat": Case({"dp": 2}, flat),
    "fsdp and tp": Case({"dp": 2, "tp": 2}, in_both_ways),
    "tp": Case({"tp": 4}, tensor_parallel),
    "ddp": Case({"dp": 2}, replicated),
    "ddp of four": Case({"dp": 4}, replicated),
}
SPREAD = ("fsdp", "fsdp and tp", "tp")


class Facts(NamedTuple):
    """What a process holds, computes and sends."""

    local_params: int
    operators: list[Any]
    collectives: list[Any]
    memory: dict[str, int]


def facts_of(trace: Trace, memory: Any) -> Facts:
    held = [each.local_numel for each in trace.parameters]
    operators = [
        (
            op.phase,
            op.signature.operator,
            trace.path_of(op),
            [each.shape for each in op.signature.outputs],
        )
        for op in trace.ops
        if op.signature.operator not in _VIEWS
    ]
    collectives = [
        (each.kind, each.num_ranks, each.phase, each.layer, each.calls, each.bytes)
        for each in collectives_of(trace)
    ]
    return Facts(sum(held), operators, collectives, dict(memory.by_kind))


# -- in each process -------------------------------------------------------------------------------------------------------


def spread(case: Case) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", tuple(case.mesh.values()), mesh_dim_names=tuple(case.mesh))
    model = build()
    return case.apply(model, mesh) or model


def asked(model: nn.Module) -> Scan:
    return Scan(model, (WIDTH,), batch_size=BATCH, training=True, optimizer="AdamW")


def record(rank: int, name: str) -> Facts:
    return lowest([asked(spread(CASES[name])) for _ in range(3)])


def lowest(scans: Sequence[Scan]) -> Facts:
    """Record the same step several times, and return the one with the lowest peak.

    A thread of gloo that the system interrupts lets go of a tensor some operators too late.
    """
    found = [facts_of(scan.steps, scan.memory) for scan in scans]
    return min(found, key=lambda facts: sum(facts.memory.values()))


def gather(rank: int, name: str) -> Any:
    """What is gathered in each process, and what is raised where one of them cannot be recorded."""
    options: dict[str, Any] = {"batch_size": BATCH, "training": True, "optimizer": "AdamW"}
    model = spread(CASES[name])
    found = parallel.gather(model, (WIDTH,), **options)
    with pytest.raises(RecordError if rank != 1 else InputError) as raised:
        parallel.gather(
            model, (WIDTH,), **({**options, "batch_size": -1} if rank == 1 else options)
        )
    facts = [
        (
            each.rank,
            dict(each.place),
            each.local_params,
            dict(each.memory.by_kind),
            each.collectives,
        )
        for each in found.ranks
    ]
    return (
        found.mesh,
        found.num_ranks,
        facts,
        str(raised.value),
        found.table().write("markdown"),
    )


def local(tensor: Any) -> torch.Tensor:
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach().clone()


def are_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def trained(model: nn.Module, rank: int) -> list[torch.Tensor]:
    """Losses and parameters of three steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        torch.manual_seed(100 * step + rank // 2)
        loss = model(torch.randn(BATCH, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    return [*losses, *map(local, model.parameters())]


def train_on(rank: int, name: str) -> dict[str, Any]:
    """Two models, one of which is recorded: before its first step, or in between, while it has gradients."""
    case, found = CASES[name], {}
    for when in ("before", "between"):
        twin, model = spread(case), spread(case)
        before = [local(each) for each in model.parameters()]
        if when == "between":
            for each in (model, twin):
                torch.manual_seed(5)
                each(torch.randn(BATCH, WIDTH)).sum().backward()
        grads = [None if each.grad is None else local(each.grad) for each in model.parameters()]
        torch.manual_seed(9 + rank)
        state = torch.get_rng_state().clone()
        trace = asked(model).steps
        found[f"{when}: random numbers"] = torch.equal(state, torch.get_rng_state())
        found[f"{when}: parameters"] = all(map(torch.equal, before, map(local, model.parameters())))
        now = [None if each.grad is None else local(each.grad) for each in model.parameters()]
        found[f"{when}: gradients"] = all(map(are_equal, grads, now))
        found[f"{when}: same group"] = (
            distributed.is_initialized() and distributed.get_rank() == rank
        )
        found[f"{when}: trains on"] = all(
            map(torch.equal, trained(twin, rank), trained(model, rank))
        )
        found[f"{when}: recorded"] = len(trace.ops) > 0
    return found


def record_alone(rank: int, name: str) -> str:
    """While the other process does not, and ends."""
    model = spread(CASES[name])
    if rank == 1:
        return ""
    with pytest.raises(RecordError) as raised:
        asked(model).steps  # noqa: B018 - it is worked out here
    return str(raised.value)


class Clipped(NamedTuple):
    """What clipping the norm of gradients sends in a step."""

    #: number of all-reduces that torch sends
    sent_by_torch: int
    recorded: Facts
    #: True if the model that is clipped after it was recorded has the norm of its twin
    has_same_norm: bool


def clip(rank: int) -> Clipped:
    from torch.distributed.tensor.debug import CommDebugMode

    norms = []
    model, twin = spread(CASES["fsdp"]), spread(CASES["fsdp"])
    options: dict[str, Any] = {"training": True, "optimizer": "AdamW", "clip_gradients": True}
    recorded = lowest([Scan(model, (WIDTH,), batch_size=BATCH, **options) for _ in range(3)])
    for each in (model, twin):
        torch.manual_seed(rank)
        each(torch.randn(BATCH, WIDTH)).square().mean().backward()
        with CommDebugMode() as sent:
            norm = torch.nn.utils.clip_grad_norm_(each.parameters(), 1.0)
        norms.append(local(norm))
    return Clipped(sent.get_total_counts(), recorded, torch.equal(*norms))


class OfTwo(NamedTuple):
    """What each of two processes finds in one group: its start takes longer than all the rest."""

    recorded: dict[str, Facts]
    trained_on: dict[str, Any]
    clipped: Clipped
    alone: str


def in_two(rank: int, _: None) -> OfTwo:
    recorded = {name: record(rank, name) for name in ("fsdp", "flat", "ddp")}
    trained_on, clipped = train_on(rank, "fsdp"), clip(rank)
    return OfTwo(recorded, trained_on, clipped, record_alone(rank, "fsdp"))  # one ends there


# -- in this one -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[OfTwo]:
    return in_processes(2, in_two, None, tmp_path_factory.mktemp("two"))


def test_two_processes_record_what_is_planned_for_them(two: list[OfTwo]) -> None:
    for name in ("fsdp", "flat"):
        expect_as_planned(name, [each.recorded[name] for each in two])


def test_clipping_sends_the_scalars_that_torch_sends(two: list[OfTwo]) -> None:
    """The norm of fp32 gradients is a number of 4 bytes."""
    case = CASES["fsdp"]
    options: dict[str, Any] = {"training": True, "optimizer": "AdamW", "clip_gradients": True}
    planned = plan(
        build, (WIDTH,), mesh=case.mesh, apply=case.apply, batch_size=BATCH, ranks=(0, 1), **options
    )
    for each, rank in zip(two, planned.ranks, strict=True):
        assert each.clipped.recorded == facts_of(rank.trace, rank.memory)
        assert each.clipped.has_same_norm
        (sent,) = [each for each in rank.collectives if each.phase == "optimizer"]
        assert (sent.kind, sent.calls, sent.bytes) == ("all-reduce", 1, 4)
        assert each.clipped.sent_by_torch == sent.calls


@pytest.mark.sweep
@pytest.mark.parametrize("name", some_of(SPREAD[1:], {"tp"}))
def test_four_processes_record_what_is_planned_for_them(name: str, tmp_path: Path) -> None:
    expect_as_planned(name, in_processes(4, record, name, tmp_path))


def expect_as_planned(name: str, found: list[Facts]) -> None:
    case = CASES[name]
    options: dict[str, Any] = {
        "training": True,
        "optimizer": "AdamW",
        "batch_size": BATCH,
        "ranks": range(case.processes),
    }
    planned = plan(build, (WIDTH,), mesh=case.mesh, apply=case.apply, **options)
    for each, rank in zip(found, planned.ranks, strict=True):
        assert each == facts_of(rank.trace, rank.memory)
        assert each.local_params == rank.local_params


@pytest.mark.sweep
def test_the_first_process_has_what_all_have_found(tmp_path: Path) -> None:
    case = CASES["fsdp and tp"]
    found = in_processes(case.processes, gather, "fsdp and tp", tmp_path)
    options: dict[str, Any] = {
        "training": True,
        "optimizer": "AdamW",
        "batch_size": BATCH,
        "ranks": range(case.processes),
    }
    planned = plan(build, (WIDTH,), mesh=case.mesh, apply=case.apply, **options).ranks
    expected = [
        (
            each.rank,
            dict(each.place),
            each.local_params,
            dict(each.memory.by_kind),
            each.collectives,
        )
        for each in planned
    ]
    for rank, (mesh, processes, facts, _, _) in enumerate(found):
        assert (mesh, processes) == (case.mesh, 4)
        assert facts == (expected if rank == 0 else expected[rank : rank + 1])
    assert "Range over 4 ranks" in found[0][-1]
    assert all(
        "recording failed in 1 of 4 ranks: rank 1: InputError: " in found[rank][3]
        for rank in (0, 2, 3)
    )
    assert "batch_size is -1" in found[1][3]


def test_a_recorded_model_trains_on_as_its_twin_does(two: list[OfTwo]) -> None:
    for each in two:
        expect_all(each.trained_on)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", some_of([each for each in CASES if each != "fsdp"], {"tp", "ddp of four"})
)
def test_other_recorded_models_train_on_as_their_twins_do(name: str, tmp_path: Path) -> None:
    for each in in_processes(CASES[name].processes, train_on, name, tmp_path):
        expect_all(each)


def expect_all(held: dict[str, Any]) -> None:
    assert all(held.values()), [what for what, is_so in held.items() if not is_so]


def test_of_ddp_its_model_is_recorded(two: list[OfTwo]) -> None:
    expect_as_alone([each.recorded["ddp"] for each in two])


@pytest.mark.sweep
def test_of_ddp_of_four_its_model_is_recorded(tmp_path: Path) -> None:
    expect_as_alone(in_processes(4, record, "ddp of four", tmp_path))


def expect_as_alone(found: list[Facts]) -> None:
    """Which talks to nobody, as the record says; a plan has what DDP does besides: copies to buckets and back, and one sum."""
    alone = Scan(build(), (WIDTH,), batch_size=BATCH, training=True, optimizer="AdamW")
    expected = facts_of(alone.steps, alone.memory)
    for each in found:
        assert each.local_params == expected.local_params
        assert each.collectives == []
        assert each.operators == expected.operators


def test_a_process_that_records_alone_is_told_to_do_so_with_the_others(two: list[OfTwo]) -> None:
    said = two[0].alone
    assert "call torchscan in all ranks of the group at once" in said
