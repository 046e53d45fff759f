"""What a mixture of experts reads: the experts that can be expected to be hit and, at least, those of one row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from tests.versions import needs, skip_before, skip_without
from torchscan import analyze_roofline, crawl_module, estimate_memory, record, register_device
from torchscan.analyses.generation.active_parameters import active_parameters
from torchscan.analyses.generation.serving_costs import Packed, Served, Serving
from torchscan.analyses.generation.stored import stored
from torchscan.analyses.module_costs import call_costs
from torchscan.analyses.roofline.expert_kernels import ExpertKernels, expert_kernels
from torchscan.analyses.roofline.near_bytes import find_near_bytes
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.analyses.totals import by_module, by_operator, total_cost
from torchscan.types import OpCost

MIB = 2**20


class Mixture(nn.Module):
    """A router, and one matrix for each expert: ``kind`` says how the picked ones are multiplied with."""

    def __init__(self, experts: int, picks: int, width: int, out: int, kind: str) -> None:
        super().__init__()
        if kind == "grouped":
            skip_without("_grouped_mm")
        self.picks, self.kind = picks, kind
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.Parameter(torch.zeros(experts, width, out))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(self.picks)[1]
        rows: Tensor = {"grouped": self.grouped, "gathered": self.gathered, "looped": self.looped}[
            self.kind
        ](x, chosen)
        return rows

    def grouped(self, x: Tensor, chosen: Tensor) -> Tensor:
        expert, order = chosen.flatten().sort()
        counts = torch.histc(
            expert.int() if x.is_meta else expert.float(),
            len(self.experts),
            0,
            len(self.experts) - 1,
        )
        return torch._grouped_mm(
            x[order // self.picks], self.experts, counts.cumsum(0, dtype=torch.int32)
        )

    def gathered(self, x: Tensor, chosen: Tensor) -> Tensor:
        return x.repeat_interleave(self.picks, 0)[:, None] @ self.experts[chosen.flatten()]

    def looped(self, x: Tensor, chosen: Tensor) -> Tensor:
        out = x.new_zeros(len(x), self.experts.shape[-1])
        for expert in range(len(self.experts)):
            row, _ = torch.where(chosen == expert)
            if len(row):
                out.index_add_(0, row, x[row] @ self.experts[expert])
        return out


def mixture(
    kind: str,
    experts: int = 16,
    picks: int = 2,
    width: int = 8,
    out: int = 8,
    dtype: Any = torch.bfloat16,
) -> Mixture:
    with torch.device("meta"):
        return Mixture(experts, picks, width, out, kind).to(dtype)


def cost_of_product(model: nn.Module, rows: int, operator: str) -> OpCost:
    return by_operator(record(model, (8,), dtype=torch.bfloat16, batch_size=rows))[
        f"aten.{operator}"
    ]


# -- by hand -------------------------------------------------------------------------------------------------------------


def test_one_row_reads_the_experts_that_it_picks() -> None:
    """8 of 128 matrices of 2048 · 1536 in 2 bytes, 6 MiB each; 8 rows of 4 KiB, and 128 ends of groups of 4 bytes."""
    model = mixture("grouped", 128, 8, 2048, 1536)
    cost = by_operator(record(model, (2048,), dtype=torch.bfloat16))["aten._grouped_mm"]
    assert cost.bytes_read == 48 * MIB + 8 * 4096 + 512
    assert cost.min_bytes_read == cost.bytes_read
    assert cost.elements_read == 8 * 2048 * 1536 + 8 * 2048 + 128
    assert cost.macs == 8 * 2048 * 1536


def test_several_rows_are_expected_to_share_experts_and_may_share_all_of_them() -> None:
    """An expert is left out by 3 rows of 2 picks with (14/16)³: 16 · (1 − 343/512) = 5.28125 of 128 bytes are read, at least 2.

    Besides, 6 rows of 16 bytes, and 16 ends of 4 bytes.
    """
    cost = cost_of_product(mixture("grouped"), 3, "_grouped_mm")
    assert cost.bytes_read == 676 + 6 * 16 + 64
    assert cost.min_bytes_read == 2 * 128 + 6 * 16 + 64
    assert cost.macs == 6 * 64


def test_gathered_experts_are_read_once_however_often_they_are_picked() -> None:
    """5.28125 experts of 128 bytes, at least 2; and 6 indices of 8 bytes. The copies of all 6 are written and read again."""
    model = mixture("gathered")
    gather = cost_of_product(model, 3, "index")
    assert (gather.bytes_read, gather.min_bytes_read, gather.bytes_written) == (
        676 + 48,
        2 * 128 + 48,
        6 * 128,
    )
    product = cost_of_product(model, 3, "matmul")
    assert product.bytes_read == product.min_bytes_read == 6 * 128 + 6 * 16


def test_a_loop_goes_through_as_many_experts_as_expected() -> None:
    """5 experts (of 5.28), with 6 rows of 16 bytes among them; they need be no more than 2: 2/5 of each, in whole bytes."""
    cost = cost_of_product(mixture("looped"), 3, "matmul")
    assert cost.bytes_read == 5 * 128 + 6 * 16
    assert cost.min_bytes_read == 5 * 51 + 6 * 16
    assert cost.macs == 6 * 64


def test_many_rows_read_all_experts() -> None:
    cost = cost_of_product(mixture("grouped"), 1000, "_grouped_mm")
    assert cost.bytes_read == 16 * 128 + 2000 * 16 + 64
    assert cost.min_bytes_read == 2 * 128 + 2000 * 16 + 64


@pytest.mark.parametrize("kind", ["grouped", "gathered", "looped"])
def test_no_expert_is_read_for_no_row(kind: str) -> None:
    trace = record(mixture(kind), args=(torch.zeros(0, 8, dtype=torch.bfloat16, device="meta"),))
    assert total_cost(trace).macs == 0
    assert total_cost(trace).bytes_read <= 64  # the ends of groups


@pytest.mark.parametrize("experts", [1, 2])
def test_all_experts_may_be_picked(experts: int) -> None:
    cost = cost_of_product(mixture("grouped", experts, experts), 3, "_grouped_mm")
    assert cost.bytes_read == cost.min_bytes_read == experts * 128 + 3 * experts * 16 + experts * 4


@needs("_grouped_mm")
def test_where_nobody_says_how_many_experts_a_row_picks_each_slot_is_a_row() -> None:
    """16 · (1 − (15/16)⁴) = 3.6406 experts of 128 bytes, at least one; 4 rows of 16 bytes, 16 ends of 4."""
    with torch.device("meta"):
        args = torch.zeros(4, 8, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.int32)
    experts = nn.Parameter(torch.zeros(16, 8, 8, dtype=torch.bfloat16, device="meta"))
    trace = record(
        Calls(lambda self, x, ends: torch._grouped_mm(x, self.experts, ends), experts=experts),
        args=args,
    )
    cost = total_cost(trace)
    assert (cost.bytes_read, cost.min_bytes_read) == (466 + 64 + 64, 128 + 64 + 64)


@needs("_grouped_mm")
def test_groups_of_columns_read_their_experts_too() -> None:
    """The same turned round: the experts come first, and 4 columns of 8 meet them."""
    with torch.device("meta"):
        args = torch.zeros(8, 4, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.int32)
    experts = nn.Parameter(torch.zeros(16, 8, 8, dtype=torch.bfloat16, device="meta"))
    trace = record(
        Calls(lambda self, x, ends: torch._grouped_mm(self.experts, x, ends), experts=experts),
        args=args,
    )
    cost = total_cost(trace)
    assert (cost.bytes_read, cost.min_bytes_read) == (466 + 64 + 64, 128 + 64 + 64)


def test_picks_that_are_not_all_used_promise_less() -> None:
    """Of 4 picks the first and third are used: at least one expert is read, and what else is certain nobody says.

    6 of the 16 experts get rows: a sixth of each of their 256 bytes, in whole bytes.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(4)[1].flatten()[::2].view(-1, 2)
        out = torch.zeros_like(x)
        for expert, matrix in enumerate(self.experts):
            row, _ = torch.where(chosen == expert)
            if len(row):
                out.index_add_(0, row, matrix(x[row]))
        return out

    experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(16))
    model = Calls(forward, router=nn.Linear(8, 16, bias=False), experts=experts)
    trace = record(model, (8,), batch_size=3)
    costs = [cost for name, cost in by_operator(trace).items() if name == "aten.linear"]
    router, rows = 16 * 8 * 4 + 3 * 8 * 4, 6 * 8 * 4
    assert [cost.min_bytes_read for cost in costs] == [router + 6 * 42 + rows]


GATHERS: dict[str, Any] = {
    "argsort": lambda scores, experts: experts[scores.argsort(-1)[:, :2]],
    "sort": lambda scores, experts: experts[scores.sort(-1, descending=True)[1][:, :2]],
    "topk of all": lambda scores, experts: experts[scores.topk(16)[1][:, :2]],
    "embedding": lambda scores, experts: nn.functional.embedding(scores.topk(2)[1], experts),
    "select": lambda scores, experts: experts.index_select(0, scores.topk(2)[1].flatten()),
    "gather": lambda scores, experts: experts.gather(
        0, scores.topk(2)[1].flatten()[:, None].expand(-1, 64)
    ),
    "along": lambda scores, experts: torch.take_along_dim(
        experts, scores.topk(2)[1].flatten()[:, None], 0
    ),
}


@pytest.mark.parametrize("way", GATHERS)
def test_however_experts_are_picked_and_gathered(way: str) -> None:
    """3 rows pick 2 of 16 rows of 256 bytes: 5.28125 expected, 2 at least; and 6 indices of 8 bytes."""
    model = Calls(
        lambda self, x: GATHERS[way](self.router(x), self.w),
        router=nn.Linear(8, 16),
        w=nn.Parameter(torch.zeros(16, 64)),
    )
    costs = [
        cost
        for cost in by_operator(record(model, (8,), batch_size=3)).values()
        if cost.avoidable_bytes_read
    ]
    assert [(cost.bytes_read, cost.min_bytes_read) for cost in costs] == [(1352 + 48, 512 + 48)]


@pytest.mark.parametrize(
    "pick",
    [lambda scores: scores.argmin(-1), lambda scores: scores.min(-1)[1]],
    ids=["argmin", "min"],
)
def test_the_nearest_entry_is_picked_too(pick: Any) -> None:
    """As of a codebook below: 4 rows each pick one of 16 entries of 32 bytes."""
    model = Calls(
        lambda self, x: self.entries.weight[pick(self.entries(x))],
        entries=nn.Linear(8, 16, bias=False),
    )
    cost = by_operator(record(model, (8,), batch_size=4))["aten.index"]
    assert (cost.bytes_read, cost.min_bytes_read) == (116 + 32, 32 + 32)


def test_each_row_of_scores_has_its_own() -> None:
    """The scores of 2 picks in each of 3 rows are 6 numbers of 4 bytes, whoever picks; indices of 8 bytes."""
    model = Calls(
        lambda self, x: (scores := self.router(x)).gather(1, scores.topk(2)[1]),
        router=nn.Linear(8, 16),
    )
    cost = by_operator(record(model, (8,), batch_size=3))["aten.gather"]
    assert cost.bytes_read == cost.min_bytes_read == 6 * 4 + 6 * 8


@pytest.mark.parametrize(
    "order", [lambda s: s.argsort(-1), lambda s: s.sort(-1)[1], lambda s: s.topk(s.shape[-1])[1]]
)
@pytest.mark.parametrize(
    ("experts", "picks", "rows"), [(16, 2, 3), (64, 4, 8), (64, 1, 30), (128, 8, 8), (8, 2, 100)]
)
def test_the_first_of_an_order_are_balanced_however_many(
    order: Any, experts: int, picks: int, rows: int
) -> None:
    """As many experts of 8 · 8 are run as expected, give or take two; they get all rows."""

    def forward(self: Any, x: Tensor) -> Tensor:
        chosen = order(self.router(x))[:, :picks]
        for expert, matrix in enumerate(self.experts):
            row, _ = torch.where(chosen == expert)
            if len(row):
                matrix(x[row])
        return x

    layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(experts))
    trace = record(
        Calls(forward, router=nn.Linear(8, experts, bias=False), experts=layers),
        (8,),
        batch_size=rows,
    )
    expected = experts * (1 - (1 - picks / experts) ** rows)
    assert len(
        [call for call in trace.modules if call.path.startswith("experts.")]
    ) == pytest.approx(expected, abs=2)
    assert total_cost(trace).macs == rows * 8 * experts + rows * picks * 64


def test_each_of_two_picks_may_be_any_expert() -> None:
    """Of 100 rows with 2 picks of 4 experts, each expert is the first one of 25."""
    sizes = []

    def forward(self: Any, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(2)[1]
        sizes.extend(chosen[:, :1].flatten().bincount(minlength=4).tolist())
        sizes.extend(chosen.flatten().bincount(minlength=4).tolist())
        return x

    record(Calls(forward, router=nn.Linear(8, 4)), (8,), batch_size=100)
    assert sizes == [25] * 4 + [50] * 4


def test_experts_that_are_called_without_rows_read_nothing() -> None:
    """One row picks 2 of 4 modules of 64 weights; it is 32 bytes, and so is each of their results."""

    def forward(self: Any, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(2)[1]
        out = torch.zeros_like(x)
        for expert, matrix in enumerate(self.experts):
            row, _ = torch.where(chosen == expert)
            out.index_add_(0, row, matrix(x[row]))
        return out

    experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
    model = Calls(forward, router=nn.Linear(8, 4, bias=False), experts=experts)
    read = {path: cost.bytes_read for path, cost in by_module(record(model, (8,))).items()}
    assert sorted(read[f"experts.{expert}"] for expert in range(4)) == [0, 0, 256 + 32, 256 + 32]


def test_experts_without_weights_read_their_rows_alone() -> None:
    """One row of 32 bytes picks 2 of 4 experts, each of which rectifies it."""

    def forward(self: Any, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(2)[1]
        out = torch.zeros_like(x)
        for expert in range(4):
            row, _ = torch.where(chosen == expert)
            out.index_add_(0, row, x[row].relu())
        return out

    model = Calls(forward, router=nn.Linear(8, 4, bias=False))
    rectified = by_operator(record(model, (8,)))["aten.relu"]
    assert rectified.bytes_read == rectified.min_bytes_read == 2 * 32


@needs("_grouped_mm")
def test_several_routers_promise_less() -> None:
    """A row picks once by either router, so one expert may be all: 6 slots, 16 · (1 − (15/16)⁶) = 5.1369."""

    def forward(self: Any, x: Tensor) -> Tensor:
        chosen = (
            torch.stack([self.router(x).argmax(-1), self.other(x).argmax(-1)], 1)
            .flatten()
            .sort()[0]
        )
        ends = (chosen[None] <= torch.arange(16)[:, None]).sum(1, dtype=torch.int32)
        return torch._grouped_mm(x.repeat_interleave(2, 0), self.experts, ends)

    experts = nn.Parameter(torch.zeros(16, 8, 8))
    model = Calls(
        forward, router=nn.Linear(8, 16), other=nn.Linear(8, 16), experts=experts
    ).bfloat16()
    cost = cost_of_product(model, 3, "_grouped_mm")
    assert (cost.bytes_read, cost.min_bytes_read) == (658 + 6 * 16 + 64, 128 + 6 * 16 + 64)


def test_the_masks_of_a_loop_may_be_fewer_too() -> None:
    """A mask has 6 picks in a byte each. All 16 are looked at, and only 2/5 of those of the 5 experts with rows must be."""
    cost = cost_of_product(mixture("looped"), 3, "nonzero")
    assert cost.bytes_read == 16 * 6
    assert cost.min_bytes_read == 11 * 6 + 5 * 2


# -- laws ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "picks", "rows"), [(3, 1, 4), (4, 2, 2), (4, 2, 3), (5, 3, 2)])
def test_what_is_expected_is_the_mean_of_all_routings_and_the_bound_their_least(
    experts: int, picks: int, rows: int
) -> None:
    ways = list(itertools.product(itertools.combinations(range(experts), picks), repeat=rows))
    hit = [len(set().union(*way)) for way in ways]
    cost = cost_of_product(mixture("grouped", experts, picks), rows, "_grouped_mm")
    others = rows * picks * 16 + experts * 4
    assert cost.bytes_read - others == pytest.approx(128 * sum(hit) / len(hit), abs=0.5)
    assert cost.min_bytes_read - others == 128 * min(hit)


@pytest.mark.parametrize("kind", ["grouped", "gathered", "looped"])
@pytest.mark.parametrize("seed", range(5))
def test_a_pass_on_data_promises_no_less(kind: str, seed: int) -> None:
    """Whatever random scores pick, the least is that of a pass on shapes alone (a loop has whole bytes for each expert)."""
    if kind == "grouped":
        skip_before("2.9", "grouped products run on GPUs only")
    torch.manual_seed(seed)
    model = Mixture(16, 2, 8, 8, kind).bfloat16()
    nn.init.normal_(model.router.weight)
    operator = {"grouped": "_grouped_mm", "gathered": "index", "looped": "matmul"}[kind]
    args = (torch.randn(3, 8, dtype=torch.bfloat16),)
    real, abstract = (
        by_operator(record(model, args=args, execute=how))[f"aten.{operator}"]
        for how in ("real", "abstract")
    )
    assert real.min_bytes_read == pytest.approx(
        abstract.min_bytes_read, abs=6 if kind == "looped" else 0
    )
    assert real.macs == abstract.macs


def test_gradients_of_the_rows_read_the_hit_experts_too() -> None:
    """Forward, and for the gradient of the rows, 5.28125 experts of 128 bytes, 6 rows of 16, and 16 ends of 4.

    For the gradient of the experts, which is written whole, 6 rows of 16 bytes on either side, and the ends.
    """
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), mixture("grouped")).bfloat16()
    grouped = by_operator(
        record(model, (8,), torch.bfloat16, batch_size=3, training=True, mode="eval")
    )["aten._grouped_mm"]
    assert grouped.bytes_read == 2 * (676 + 6 * 16 + 64) + 2 * 6 * 16 + 64
    assert grouped.min_bytes_read == 2 * (2 * 128 + 6 * 16 + 64) + 2 * 6 * 16 + 64


def in_parts(self: Any, x: Tensor) -> Tensor:
    chosen = self.router(x).topk(2)[1].flatten()
    parts = x[chosen.argsort() // 2].split(chosen.bincount(minlength=16).tolist())
    return torch.cat([matrix(part) for part, matrix in zip(parts, self.experts, strict=True)])


def in_a_loop(self: Any, x: Tensor) -> Tensor:
    chosen = self.router(x).topk(2)[1]
    rows = [torch.where(chosen == expert)[0] for expert in range(16)]
    return torch.cat([matrix(x[row]) for row, matrix in zip(rows, self.experts, strict=True)])


@pytest.mark.parametrize(
    ("way", "rows", "is_told"), [(in_parts, 3, True), (in_parts, 1, False), (in_a_loop, 3, False)]
)
def test_a_bound_says_where_it_is_that_of_the_pass(way: Any, rows: int, is_told: bool) -> None:
    """Sorted rows that are split by counts: whose they are nobody knows. One row reads no fewer experts, whichever."""
    experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(16))
    model = Calls(way, router=nn.Linear(8, 16, bias=False), experts=experts)
    result = analyze_roofline(model, (8,), batch_size=rows, device="H100 SXM")
    codes = [each.code for each in result.assumptions]
    assert ("routing-of-this-pass" in codes) == is_told


def test_picks_of_another_type_are_picks() -> None:
    """Three rows pick two of 16 experts of 8 × 8 in two bytes, 5.28 in all; indices have 4 bytes."""
    experts = nn.Parameter(torch.zeros(16, 8, 8, dtype=torch.bfloat16))
    router = nn.Linear(8, 16, bias=False, dtype=torch.bfloat16)

    def gathered(self: Any, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(2)[1].to(torch.int32).flatten()
        out: Tensor = x.repeat_interleave(2, 0)[:, None] @ self.experts[chosen]
        return out

    cost = cost_of_product(Calls(gathered, router=router, experts=experts), 3, "index")
    assert cost.bytes_read == pytest.approx(16 * (1 - (14 / 16) ** 3) * 128 + 6 * 4, abs=1)


@pytest.mark.parametrize("kind", ["grouped", "gathered", "looped"])
def test_a_bound_of_all_routings_says_nothing(kind: str) -> None:
    result = analyze_roofline(
        mixture(kind), (8,), batch_size=3, dtype=torch.bfloat16, device="H100 SXM"
    )
    assert not any(each.code == "routing-of-this-pass" for each in result.assumptions)


@pytest.mark.parametrize("kind", ["grouped", "gathered", "looped"])
def test_a_bound_that_holds_for_any_routing_says_nothing(kind: str) -> None:
    result = analyze_roofline(
        mixture(kind), (8,), dtype=torch.bfloat16, batch_size=3, device="H100 SXM"
    )
    assert not any(each.code == "routing-of-this-pass" for each in result.assumptions)


# -- what follows --------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_memory(monkeypatch: pytest.MonkeyPatch) -> str:
    """1 GB/s, so that nothing else matters."""
    from torchscan.hardware import device_catalog

    monkeypatch.setattr(device_catalog, "_registered", {})
    register_device(
        "slow", memory_gb=64, bandwidth_gbs=1, dense_tflops={"fp32": 1000, "bf16": 1000}
    )
    return "slow"


def test_bound_and_estimate_differ_by_what_another_routing_spares(slow_memory: str) -> None:
    """3 rows of 2 picks: 2 of 16 matrices of 2 MiB at least, 5.28125 expected; 6 rows each way, and the ends."""
    model = mixture("grouped", 16, 2, 1024, 1024)
    result = analyze_roofline(
        model, (1024,), dtype=torch.bfloat16, batch_size=3, device=slow_memory
    )
    (load,) = (each for each in result.operators if each.operator == "aten._grouped_mm")
    assert load.time_bound == pytest.approx((4 * MIB + 2 * 6 * 2048 + 64) / 1e9)
    assert load.bytes_read == round(5.28125 * 2 * MIB) + 6 * 2048 + 64
    assert load.time_estimate >= (load.bytes_read + load.bytes_written) / 1e9
    assert load.limiter == "memory"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["grouped", "gathered", "looped"])
def test_no_time_is_below_its_bound(kind: str, compiled: bool, slow_memory: str) -> None:
    for rows in (1, 3, 50):
        options: dict[str, Any] = {
            "dtype": torch.bfloat16,
            "batch_size": rows,
            "device": slow_memory,
            "compiled": compiled,
        }
        result = analyze_roofline(mixture(kind), (8,), **options)
        assert all(0 <= load.time_bound <= load.time_estimate for load in result.operators)


def test_experts_that_are_not_read_leave_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 of 64 experts of 2 MiB fit into 48 MiB, with the rest of the model: the second pass finds them there.

    The result of 2 rows of 2 KiB goes to memory.
    """
    from torchscan.hardware import device_catalog

    monkeypatch.setattr(device_catalog, "_registered", {})
    rates: dict[str, Any] = {"memory_gb": 64, "bandwidth_gbs": 1, "dense_tflops": {"bf16": 1000}}
    register_device("cached", l2_mb=48, multiprocessors=100, boost_mhz=1000, **rates)
    result = analyze_roofline(
        mixture("grouped", 64, 2, 1024, 1024), (1024,), dtype=torch.bfloat16, device="cached"
    )
    (load,) = (each for each in result.operators if each.operator == "aten._grouped_mm")
    assert load.limiter in ("cache", "launch")
    assert load.time_bound == pytest.approx(2 * 2048 / 1e9)


def test_the_cache_is_followed_for_the_fewest_reads_as_well() -> None:
    """Between two uses of 64 bytes, 4,000 are expected to be read, but 100 might do.

    Of a cache of 1,000 bytes, the 64 are still there in the second case. A sum of 4 bytes, which
    is read at once, is there in both.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x.relu()
        return rows + self.table.sum()

    trace = record(Calls(forward, table=nn.Parameter(torch.zeros(1000))), (16,))
    table = OpCost(bytes_read=4000, avoidable_bytes_read=3900)
    costs = (OpCost(bytes_read=64), table, OpCost(bytes_read=68))
    near = find_near_bytes(trace, 1000, Served(costs, (Packed(),) * 3), (), [0] * 3)
    read, min_read = near[-1].cached[0], near[-1].cached_at_least[0]
    assert (read, min_read) == (4, 64 + 4)


def test_products_read_rows_in_the_order_of_tokens_not_their_copies() -> None:
    """Of 1,000 bytes, 600 are 300 numbers of copies, in 8 bits half of that.

    Numbers are quantized where they are once: in the 200 bytes that the copies were made of.
    """
    kernels = ExpertKernels(gathered={0: (600, 200)})
    served = Served((OpCost(bytes_read=1000),), (Packed(quantized=600),))
    wide, narrow = kernels.served(served, None), kernels.served(served, "fp8")
    assert (wide.costs[0].bytes_read, wide.packed[0].quantized) == (400, 600)
    assert (narrow.costs[0].bytes_read, narrow.packed[0].quantized) == (700, 200)


@pytest.mark.parametrize("rows", [3, 20])
def test_picks_are_sorted_and_counted_in_one_kernel(rows: int) -> None:
    """They are fewer than the 16 experts, or more: 6 or 40. Another kernel has found them."""
    trace = record(mixture("grouped"), (8,), dtype=torch.bfloat16, batch_size=rows)
    kernels = expert_kernels(trace, call_costs(trace), RoutedCalls(trace))
    names = [op.signature.operator for op in trace.ops]
    heads = {names[index]: names[head] for index, head in kernels.head_of.items()}
    assert heads["aten.topk"] == "aten.topk"
    assert {heads[f"aten.{name}"] for name in ("sort", "histc", "cumsum")} == {"aten.cumsum"}


@pytest.mark.parametrize(("rows", "used"), [(16, 2), (32, 32)])
def test_a_token_uses_part_of_what_has_a_row_for_each_choice(rows: int, used: int) -> None:
    """Two of 16 rows; of a larger table, rows that cannot be picked here have some other use."""
    model = Calls(
        lambda self, x: self.table[self.router(x).topk(2)[1]],
        router=nn.Linear(8, 16, bias=False),
        table=nn.Parameter(torch.zeros(rows, 4)),
    )
    assert active_parameters(record(model, (8,)), {}) == 8 * 16 + used * 4


@pytest.mark.parametrize(
    ("weights", "compute", "expected"),
    [
        ("mxfp4", "fp8", True),
        ("nvfp4", "fp4", True),
        ("mxfp4", None, False),  # unpacked to 16 bits first
        ("fp8", "fp8", False),
        (None, "fp8", False),
    ],
)
def test_products_of_experts_are_fused_with_weights_in_4_bits(
    weights: str | None, compute: Any, *, expected: bool
) -> None:
    packed = None if weights is None else stored(weights, "weights")
    assert Serving(weights=packed, compute=compute).fuses_experts == expected


def test_the_weights_of_all_experts_take_memory() -> None:
    """16 of 64 numbers in 2 bytes, and a router of 8 · 16."""
    memory = estimate_memory(mixture("grouped"), (8,), dtype=torch.bfloat16)
    assert memory.by_kind["parameters"] == 16 * 128 + 8 * 16 * 2


def test_tables_show_what_is_expected() -> None:
    info = crawl_module(mixture("grouped"), (8,), torch.bfloat16, batch_size=3)
    assert (
        info["overall"]["bytes_read"]
        == total_cost(record(mixture("grouped"), (8,), torch.bfloat16, batch_size=3)).bytes_read
    )
    assert any(each["code"] == "balanced-routing" for each in info["provenance"]["assumptions"])


def test_positions_of_picks_are_no_picks() -> None:
    """Sorted by expert, all 16 rows of 16 bytes are read, by 16 positions of 8, although there are 16 experts too."""
    gather = cost_of_product(mixture("grouped", picks=1), 16, "index")
    assert gather.bytes_read == gather.min_bytes_read == 16 * 16 + 16 * 8


def test_entries_of_a_codebook_are_read_once() -> None:
    """4 vectors each pick one of 16 entries of 32 bytes: 16 · (1 − (15/16)⁴) = 3.6406 of them, by 4 indices of 8 bytes."""
    model = Calls(
        lambda self, x: self.entries.weight[self.entries(x).argmax(-1)],
        entries=nn.Linear(8, 16, bias=False),
    )
    cost = by_operator(record(model, (8,), batch_size=4))["aten.index"]
    assert (cost.bytes_read, cost.min_bytes_read) == (116 + 32, 32 + 32)
