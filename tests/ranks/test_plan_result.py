"""The plan of a model of two linear layers, spread over eight processes: values by hand, as a table, as data, within limits."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
import torch.distributed as distributed
from matplotlib import pyplot as plt
from torch import nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import torchscan
from tests.ranks.models import build, divide, shard, sharded_linear
from tests.versions import before
from torchscan import BudgetError, InputError, MissingFormulaError, assert_budget
from torchscan.types import Plan

mpl.use("Agg")
#: weights and biases of the layers, of float32
LAYERS = (64 * 128 + 128, 128 * 64 + 64)
PARAMS, PROCESSES, BYTES, BATCH = sum(LAYERS), 8, 4, 4
LOCAL = PARAMS // PROCESSES
#: once forward and once backward, and the gradients
GATHERED, REDUCED = 2 * BYTES * PARAMS, BYTES * PARAMS
SENT = (GATHERED + REDUCED) * (PROCESSES - 1) // PROCESSES


@pytest.fixture(scope="module")
def made() -> Plan:
    return sharded_linear()


def test_what_a_process_holds(made: Plan) -> None:
    assert (made.num_ranks, made.params, made.local_params) == (PROCESSES, PARAMS, LOCAL)
    kinds = made.memory.by_kind
    assert 0 <= kinds["optimizer"] - 2 * LOCAL * BYTES < 64, (
        "two averages of each, and the number of the step"
    )
    assert kinds["parameters"] == LOCAL * BYTES
    assert kinds["gathered"] in [BYTES * each for each in (*LAYERS, PARAMS)]


def test_parts_of_tensors_are_held_once() -> None:
    """Those of the products' results and gradients: modules hand on what wraps them, which has the sizes of the whole."""
    found = torchscan.parallel.plan(
        build, (64,), mesh={"tp": PROCESSES}, apply=divide, training=True, batch_size=1024
    )
    assert found.memory.by_kind["buffers"] == 0
    inner, outer = 1024 * 128 // PROCESSES, 1024 * 64
    assert found.memory.peak_bytes < 4 * (4 * outer + 4 * inner) + 4 * BYTES * PARAMS // PROCESSES


def test_what_a_process_computes(made: Plan) -> None:
    """Two products of each layer backward, but the input of the first needs no gradient."""
    assert made.macs == BATCH * 64 * 128 * (2 + 3)
    assert sharded_linear(ranks=7).macs == made.macs


def test_what_a_process_sends(made: Plan) -> None:
    assert {each.group for each in made.collectives} == {"dp"}
    sizes = {
        kind: sum(each.bytes for each in made.collectives if each.kind == kind)
        for kind in ("all-gather", "reduce-scatter")
    }
    assert sizes == {"all-gather": GATHERED, "reduce-scatter": REDUCED}
    assert made.sent_bytes == SENT


def test_the_expected_time_has_what_waits_for_links(made: Plan) -> None:
    assert made.roofline is not None
    waits = made.roofline.time_by_limiter["links"]
    assert 0 < waits < sum(each.seconds or 0 for each in made.collectives), (
        "some of it passes while the device computes"
    )
    assert made.roofline.time_share("links") == waits / made.roofline.time_estimate


def test_errors_are_told_as_before() -> None:
    """Torch has them begin with the number of the process, once there was a group."""
    before = sys.excepthook
    torchscan.parallel.plan(build, (64,), mesh={"dp": 2}, apply=shard)
    assert sys.excepthook is before


def test_processes_may_hold_unequal_parts() -> None:
    """There are three rows, of which three of eight processes have one."""
    found = torchscan.parallel.plan(
        lambda: nn.Linear(5, 3), (5,), mesh={"dp": PROCESSES}, apply=_whole, ranks="ends"
    )
    assert [(each.rank, each.place, each.local_params) for each in found.ranks] == [
        (0, {"dp": 0}, 6),
        (4, {"dp": 4}, 0),
        (7, {"dp": 7}, 0),
    ]
    assert found.memory.peak_bytes == max(each.memory.peak_bytes for each in found.ranks)
    assert "Rank 4: dp 4" in str(found)


def _whole(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh)


# -- as a table, and as data ---------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_kind_group_and_phase(made: Plan) -> None:
    rows = [
        {cell: each.value for cell, each in zip(_keys(made), row.cells, strict=True)}
        for row in made.table().rows
    ]
    assert [(row["kind"], row["phase"], row["calls"], row["bytes"]) for row in rows] == [
        ("all-gather", "forward", 2, GATHERED // 2),
        ("all-gather", "backward", 2, GATHERED // 2),
        ("reduce-scatter", "backward", 2, REDUCED),
    ]
    assert sum(row["sent_bytes"] for row in rows) == SENT


def _keys(made: Plan) -> list[str]:
    return [column.key for column in made.table().columns]


def test_the_text_says_what_was_asked(made: Plan) -> None:
    said = str(made).splitlines()
    assert said[0] == "8 ranks (dp 8): a training step of batch size 4 on each"
    assert "Rank 0: dp 0" in said
    assert "Parameters         2.07 k of 16.58 k" in said
    # the table itself shows the share of each rank
    assert not any(each.code == "rank-share" for each in made.assumptions)


def test_a_mesh_of_one_process_tells_nobody_anything() -> None:
    found = torchscan.parallel.plan(build, (64,), mesh={"dp": 1}, apply=shard)
    assert (found.sent_bytes, found.local_params) == (0, PARAMS)
    assert found.table().rows == []


def test_narrow_text_keeps_what_tells_rows_apart(made: Plan) -> None:
    said = made.table().write("text", width=50)
    assert max(map(len, said.splitlines())) <= 50
    assert all(
        word in said
        for word in (
            "forward",
            "backward",
            "Sent (KiB)",
            "Hidden columns: Time (µs),",
        )
    )


def test_the_rows_may_be_of_layers(made: Plan) -> None:
    table = made.table("layer")
    assert {row.cells[0].value for row in table.rows} >= {"0", "2"}
    assert sum(row.cells[-2].value for row in table.rows) == SENT
    with pytest.raises(InputError, match="by is 'rank': choose from 'group', 'layer'"):
        made.table("rank")


def test_without_a_device_there_are_no_times() -> None:
    found = torchscan.parallel.plan(build, (64,), mesh={"dp": PROCESSES}, apply=shard)
    assert found.roofline is None
    assert "seconds" not in _keys(found)
    assert all(each.seconds is None for each in found.collectives)
    assert "Expected time" not in str(found)


@pytest.mark.parametrize("form", ["text", "markdown", "github", "latex", "csv", "json", "html"])
def test_the_table_can_be_written_in_every_format(made: Plan, form: Any) -> None:
    assert "reduce-scatter" in made.table().write(form)


def test_a_plan_is_plain_data(made: Plan) -> None:
    plain = json.loads(json.dumps(made.to_dict()))
    assert (plain["mesh"], plain["num_ranks"], plain["params"]) == (
        {"dp": PROCESSES},
        PROCESSES,
        PARAMS,
    )
    (rank,) = plain["ranks"]
    assert (rank["rank"], rank["place"], rank["local_params"], rank["sent_bytes"]) == (
        0,
        {"dp": 0},
        LOCAL,
        SENT,
    )
    assert rank["memory"]["peak_bytes"] == made.memory.peak_bytes
    assert {each["kind"] for each in rank["collectives"]} == {"all-gather", "reduce-scatter"}


def test_a_plan_can_be_pickled(made: Plan) -> None:
    again = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
    assert again.to_dict() == made.to_dict()
    assert (
        repr(again)
        == f"<Plan of dp 8: 2.07 k of 16.58 k parameters, {_memory(made)} and 169.97 KiB sent per rank>"
    )


@pytest.mark.slow
@pytest.mark.sweep
def test_a_process_that_met_no_sharded_model_can_read_it(made: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan"
    file.write_bytes(pickle.dumps(made))
    code = f"import pickle, pathlib; print(pickle.loads(pathlib.Path({str(file)!r}).read_bytes()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == f"{made}\n"


def _memory(made: Plan) -> str:
    return f"{made.memory.peak_bytes / 1024:.2f} KiB"


# -- limits --------------------------------------------------------------------------------------------------------------


def test_limits_hold_to_the_last_byte(made: Plan) -> None:
    most = {"max_local_params": LOCAL, "max_sent": SENT, "max_peak_memory": made.memory.peak_bytes}
    assert_budget(made, **most)  # type: ignore[arg-type]
    for name, limit in most.items():
        with pytest.raises(BudgetError):
            assert_budget(made, **{name: limit - 1})  # type: ignore[arg-type]


def test_the_error_says_where_to_look(made: Plan) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_budget(
            made,
            max_local_params="1k",
            max_peak_memory="1 KiB",
            max_latency="1 us",
            max_waiting="1%",
        )
    said = str(caught.value).splitlines()
    assert said[:4] == [
        "Rank 0 of 8 exceeds its budget",
        "  Parameters per rank: 2.07 k, at most 1.00 k (+107.20 %)",
        "    0: 1.04 k",
        "    2: 1.03 k",
    ]
    heads = [line.partition(":")[0].strip() for line in said if not line.startswith("    ")]
    assert heads[2:] == ["Peak memory", "Latency (batch 4)", "Waiting for links"]
    assert {
        f"    gathered: {made.memory.by_kind['gathered'] / 1024:.2f} KiB",
        "    parameters: 8.09 KiB",
    } <= set(said)
    assert " ± " in next(line for line in said if "Latency" in line)


def test_times_and_shares_are_compared_as_they_are_estimated(made: Plan) -> None:
    assert made.roofline is not None
    time, share = made.roofline.time_estimate, made.roofline.time_share("links")
    assert_budget(made, max_latency=time, max_waiting=share)
    with pytest.raises(BudgetError):
        assert_budget(made, max_latency=0.99 * time)
    with pytest.raises(BudgetError):
        assert_budget(made, max_waiting=0.99 * share)


def test_what_is_only_a_bound_is_within_no_limit() -> None:
    class Unpriced(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(super().forward(x))

    found = torchscan.parallel.plan(
        lambda: Unpriced(*build().children()),
        (64,),
        mesh={"dp": 8},
        apply=shard,
        device="NVIDIA H200",
        batch_size=4,
    )
    with pytest.raises(
        MissingFormulaError, match=r"only a lower bound is known for Latency.*bessel_j0"
    ):
        assert_budget(found, max_latency="1 s")
    with pytest.warns(UserWarning, match=r"values are lower bounds.*bessel_j0"):
        assert_budget(found, max_latency="1 s", strict=False)


def test_what_the_card_has_no_memory_for_is_said() -> None:
    found = torchscan.parallel.plan(
        lambda: nn.Linear(64, 10**9), (64,), mesh={"dp": 8}, apply=_whole, device="NVIDIA H200"
    )
    with pytest.warns(UserWarning, match="the pass does not fit on NVIDIA H200: it needs"):
        assert_budget(found, max_local_params="10G")


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, "there is no limit for a plan: give one, such as max_peak_memory"),
        ({"max_macs": 1}, "max_macs is not a limit of a plan: give max_local_params, "),
        (
            {"max_peak_memory": "heavy"},
            "max_peak_memory is 'heavy', which is not a valid amount of memory",
        ),
        ({"max_latency": "1 s"}, "times need a device"),
        ({"max_waiting": "5%"}, "times need a device"),
    ],
)
def test_wrong_use_is_said_in_a_line(limits: Any, says: str) -> None:
    found = torchscan.parallel.plan(build, (64,), mesh={"dp": PROCESSES}, apply=shard)
    with pytest.raises(InputError, match=says) as caught:
        assert_budget(found, **limits)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="max_sent is not a limit of a model: give max_params, "):
        assert_budget(build(), (64,), max_sent=1)
    with pytest.raises(TypeError, match="did you mean 'max_sent'"):
        assert_budget(found, max_send=1)  # type: ignore[call-arg]


# -- as a picture --------------------------------------------------------------------------------------------------------


@pytest.fixture
def figures() -> Iterator[None]:
    yield
    plt.close("all")


def _draw(plan: Plan, **options: Any) -> Any:
    return plan.plot(**options)


class Checked(nn.Module):
    """A layer with a check of its result, which returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the result of the layer."""
        result: torch.Tensor = self.layer(given)
        torch._assert_async(result.sum() > 0)
        return result


def test_a_call_without_results_runs_on_a_rank() -> None:
    """64 products of two FLOPs, 7 additions and a comparison."""
    found = torchscan.parallel.plan(Checked(), (8,), mesh={"dp": 2}, apply=_whole)
    assert found.ranks[0].flops == 2 * 64 + 7 + 1


def test_dimensions_of_a_mesh_that_torchscan_shards_are_named() -> None:
    with pytest.raises(InputError, match="dimension ddp: choose from replicate, dp, cp, ep, tp,"):
        torchscan.parallel.plan(Checked(), (8,), mesh={"ddp": 2})


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("AdamW8bit", "'AdamW8bit': give one of torch.optim, whose states ZeRO-1 divides"),
        (torch.optim.SGD([torch.zeros(1, requires_grad=True)]), "is a SGD: give its name or its"),
        (lambda given: torch.optim.SGD(given), "is a function: give its name or its class"),
    ],
)
def test_zero1_divides_the_states_of_optimizers_of_torch(optimizer: Any, message: str) -> None:
    asked: dict[str, Any] = {"mesh": {"dp": 2}, "sharding": "zero1", "training": True}
    with pytest.raises(InputError, match=message):
        torchscan.parallel.plan(Checked(), (8,), optimizer=optimizer, **asked)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("in_8_bits", "forward"),
    [
        (False, {"all-gather": 2 * 1024}),
        # the largest values of both weights, in their type, from which scales follow
        (True, {"all-reduce": 2 * 2, "all-gather": 1024}),
    ],
)
def test_weights_are_gathered_in_8_bits_with_a_scale(
    *, in_8_bits: bool, forward: dict[str, int]
) -> None:
    """Two weights of 16 × 32 elements of 16 bits; gradients are reduced as they are."""
    layers = [nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)]
    asked: dict[str, Any] = {"mesh": {"dp": 2}, "training": True, "batch_size": 16}
    asked |= {"float8": "tensorwise", "float8_skip": (), "float8_all_gather": in_8_bits}
    found = torchscan.parallel.plan(nn.Sequential(*layers).bfloat16(), (16,), **asked)
    sent: dict[str, dict[str, int]] = {"forward": {}, "backward": {}}
    for each in found.ranks[0].collectives:
        sent[each.phase][each.kind] = each.bytes
    assert sent == {"forward": forward, "backward": {"reduce-scatter": 2 * 1024}}


@pytest.fixture
def group() -> Iterator[None]:
    """Return the group of a job with one rank."""
    store: Any = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@before("2.7", "torch shards parameters fully on GPUs only")
@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
def test_the_ranks_of_a_job_have_places_in_its_mesh() -> None:
    """Two products with 16 × 64 weights, biases, and 64 values between them."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    parts = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], parts)
    fully_shard(model, mesh=mesh["dp"])
    found = torchscan.parallel.gather(model, (16,))
    assert (found.mesh, found.num_ranks) == ({"dp": 1, "tp": 1}, 1)
    (rank,) = found.ranks
    assert (rank.rank, rank.place) == (0, {"dp": 0, "tp": 0})
    assert rank.local_params == 2 * 16 * 64 + 64 + 16
    assert rank.flops == 2 * 2 * 16 * 64 + 64


@pytest.mark.usefixtures("figures")
def test_bars_are_as_long_as_the_memory_of_processes(made: Plan) -> None:
    ax = _draw(made)
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches]
    assert [begin for begin, _ in ends] == pytest.approx([0, *(end for _, end in ends[:-1])])
    assert ends[-1][1] == pytest.approx(made.memory.peak_bytes / 1024)
    held = {kind for kind, size in made.memory.by_kind.items() if size}
    assert {text.get_text() for text in ax.get_legend().get_texts()} == held
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["Rank 0\ndp 0"]
    assert ax.get_title("right") == "137.47 GiB on NVIDIA H200, beyond the axis"
    assert ax.get_lines() == []


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("width", [10**9, 10**8])
def test_a_line_is_what_the_device_has(width: int) -> None:
    """Of which 256 or 26 GB are gathered."""
    found = torchscan.parallel.plan(
        lambda: nn.Linear(64, width), (64,), mesh={"dp": 8}, apply=_whole, device="L4", ranks=[0, 7]
    )
    ax = _draw(found, size="column")
    verdict = found.memory.verdict
    assert verdict is not None
    (line,) = ax.get_lines() or [None]
    room = (verdict.capacity_bytes - verdict.cuda_context_bytes) / 2**30
    assert line.get_xdata() == pytest.approx([room, room])
    assert [text.get_text() for text in ax.texts][-1] == f"{room:.2f} GiB for tensors on NVIDIA L4"
    assert len(ax.get_yticklabels()) == 2
