"""Loops of torch's control flow are recorded by iteration, with the modules in them."""

from __future__ import annotations

import importlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from tests.recording.test_record import Calls
from torchscan import (
    InputError,
    Scan,
    analyze_roofline,
    assert_budget,
    crawl_module,
    estimate_memory,
    inspect,
    parallel,
    record,
    summary,
)
from torchscan.analyses.module_costs import call_costs
from torchscan.cli.main import main
from torchscan.errors import NeedsValuesError, RecordError
from torchscan.torch_versions import control_flow
from torchscan.user_warnings import TorchscanWarning

pytestmark = pytest.mark.skipif(
    not control_flow(), reason="this version of torch compiles the functions in another way"
)


def _verb(module: str, name: str) -> Callable[..., Any]:
    verb: Callable[..., Any] = getattr(
        importlib.import_module(f"torch._higher_order_ops.{module}"), name
    )
    return verb


while_loop, scan, mapped, associative_scan = (
    _verb("while_loop", "while_loop"),
    _verb("scan", "scan"),
    _verb("map", "map"),
    _verb("associative_scan", "associative_scan"),
)


class Loop(nn.Module):
    """A layer of 64 weights for 4 rows, as often as a condition holds."""

    def __init__(self, goes_on: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self._goes_on = goes_on

    def forward(self, x: Tensor) -> Any:
        """Return the result of the last iteration."""
        steps = torch.zeros((), dtype=torch.int64)
        carried = (steps, x)
        return while_loop(self._goes_on, lambda steps, x: (steps + 1, self.layer(x)), carried)[1]


class Converging(Loop):
    """A loop whose end depends on data."""

    def __init__(self, limit: float = 1e-3) -> None:
        super().__init__(lambda _, x: x.norm() > limit)


MACS = 4 * 64
NO_EFFECT = "loop_iterations=7 has no effect on .*, which has no while_loop whose end depends"
GIVEN = [{"code": "given-iterations", "values": {"iterations": 7}}]


def test_a_loop_runs_as_often_as_its_counter_says() -> None:
    """A number of iterations is for loops that data ends."""
    model = Loop(lambda steps, _: steps < 5)
    with pytest.warns(TorchscanWarning, match=NO_EFFECT):
        info = crawl_module(model, (4, 8), loop_iterations=7)
    assert [layer["macs"] for layer in info["layers"] if layer["path"]] == [MACS] * 5
    assert info["provenance"]["assumptions"] == []
    assert record(model, (4, 8), training=True, loss=torch.sum).provenance.execution == "abstract"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_loop_that_data_ends_has_the_given_number_of_iterations(device: str) -> None:
    with torch.device(device):
        model = Converging()
    info = crawl_module(model, (4, 8), loop_iterations=7)
    assert info["provenance"]["execution"] == "abstract"
    assert [layer["macs"] for layer in info["layers"] if layer["path"]] == [MACS] * 7
    assert info["provenance"]["assumptions"] == GIVEN


def test_generated_inputs_do_not_end_a_loop_with_a_given_number_of_iterations() -> None:
    """The norm of random numbers is above the limit, and that of the data is not."""
    model = Converging(limit=0.0)
    options: Any = {"loop_iterations": 7, "execute": "real"}
    assert crawl_module(model, (4, 8), **options)["overall"]["macs"] == 7 * MACS
    data = (torch.zeros(4, 8),)
    with pytest.warns(TorchscanWarning, match=NO_EFFECT):
        assert crawl_module(model, args=data, **options)["overall"]["macs"] == 0


def test_loop_iterations_warn_for_a_model_without_loops(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.warns(TorchscanWarning, match=NO_EFFECT) as caught:
        crawl_module(nn.Linear(8, 8), (4, 8), loop_iterations=7)
    assert len(caught) == 1
    target = f"{Path(__file__).parents[2] / 'docs' / 'examples' / 'models.py'}:Net"
    assert main(["summary", target, "--input", "3,32,32", "--loop-iterations", "7"]) == 0
    assert capsys.readouterr().err.startswith(
        "torchscan: note: --loop-iterations 7 has no effect on "
    )


def test_generated_integers_do_not_end_a_loop_with_a_given_number_of_iterations() -> None:
    """Generated integers are zero, which this loop would never change."""
    layer = nn.Linear(8, 8)

    def forward(_: Calls, ids: Tensor, x: Tensor) -> Any:
        return while_loop(
            lambda ids, _: (ids != 5).any(), lambda ids, x: (ids.clone(), layer(x)), (ids, x)
        )[1]

    model = Calls(forward)
    model.add_module("layer", layer)
    shapes, types = [(4,), (4, 8)], [torch.long, None]
    info = crawl_module(model, shapes, types, loop_iterations=3)
    assert (info["overall"]["macs"], info["provenance"]["execution"]) == (12 * 64, "abstract")


class Counted(nn.Module):
    """A loop with as many iterations as an input says, after an embedding of that input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, num_iterations: Tensor, extra: int = 2) -> Any:
        """Return the result of the last iteration, of which there are at least ``extra``."""
        end = num_iterations * 1 + extra
        carried = (torch.zeros((), dtype=torch.int64), x + self.embedding(num_iterations))
        return while_loop(
            lambda steps, _: steps < end, lambda steps, x: (steps + 1, self.layer(x)), carried
        )[1]


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_a_loop_that_generated_integers_end_is_an_assumption(
    execute: Literal["abstract", "real"],
) -> None:
    """Generated integers are zero, so there are two iterations."""
    model, inputs = Counted(), ([(4, 8), ()], [torch.float32, torch.int64])
    info = crawl_module(model, *inputs, execute=execute)
    assert info["overall"]["macs"] == 2 * MACS
    assert info["provenance"]["execution"] == execute
    (note,) = info["provenance"]["assumptions"]
    (read,) = note["values"]["reads"]
    assert (note["code"], read["function"]) == ("typical-inputs", "while_loop")
    assert read["place"].startswith("test_loops.py:")
    assert read["place"].endswith("(in Counted.forward)")

    own = (torch.rand(4, 8), torch.tensor(3))
    info = crawl_module(model, args=own, execute=execute)
    assert info["overall"]["macs"] == 5 * MACS
    assert info["provenance"]["assumptions"] == []


def test_a_loop_that_generated_integers_end_may_have_a_given_number_of_iterations() -> None:
    inputs = ([(4, 8), ()], [torch.float32, torch.int64])
    info = crawl_module(Counted(), *inputs, loop_iterations=7)
    assert info["overall"]["macs"] == 7 * MACS
    assert info["provenance"]["assumptions"] == GIVEN


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_generated_integers_that_end_no_loop_are_not_an_assumption(
    execute: Literal["abstract", "real"],
) -> None:
    """An embedding and a counted loop leave them alone."""
    layer, embedding = nn.Linear(8, 8), nn.Embedding(4, 8)

    def forward(_: Calls, ids: Tensor) -> Any:
        carried = (torch.zeros((), dtype=torch.int64), embedding(ids))
        return while_loop(
            lambda steps, _: steps < 5, lambda steps, x: (steps + 1, layer(x)), carried
        )[1]

    info = crawl_module(Calls(forward), (4,), torch.int64, execute=execute)
    assert info["overall"]["macs"] == 5 * MACS
    assert info["provenance"]["assumptions"] == []


def test_a_loop_that_generated_integers_do_not_end_is_refused() -> None:
    def forward(_: Calls, ids: Tensor) -> Any:
        return while_loop(lambda ids: (ids != 5).any(), lambda ids: (ids.clone(),), (ids,))[0]

    with pytest.raises(RecordError, match="not ended after 1,000 iterations"):
        record(Calls(forward), (4,), torch.int64)


def test_a_number_of_iterations_counts_in_a_training_step() -> None:
    """The gradients of an iteration take two products; the first input needs no gradient."""
    trace = record(Converging(), (4, 8), training=True, loss=torch.sum, loop_iterations=3)
    assert sum(cost.macs for cost in call_costs(trace)) == (3 + 3 + 2) * MACS


def test_all_verbs_take_a_number_of_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    model, shape = Converging(), (4, 8)
    options: Any = {"loop_iterations": 7}
    summary(model, shape, width=80, **options)
    assert "7 iterations (given) count" in capsys.readouterr().out

    scan_of_model = Scan(model, shape, **options)
    assert scan_of_model.forward.counts["overall"]["macs"] == 7 * MACS
    # each iteration keeps its result for the backward pass
    training: Any = {"training": True, "loss": torch.sum, "optimizer": "SGD"}
    peaks = [
        estimate_memory(model, shape, loop_iterations=number, **training).peak_bytes
        for number in (7, 8)
    ]
    assert peaks[1] - peaks[0] >= 4 * 8 * 4
    peak = analyze_roofline(model, shape, device="RTX 3090", **options).to_dict()
    assert sum(row["macs"] for row in peak["operators"] if row["macs"]) == 7 * MACS
    assert_budget(model, shape, max_macs=7 * MACS, **options)
    with pytest.raises(AssertionError):
        assert_budget(model, shape, max_macs=7 * MACS - 1, **options)
    plan = parallel.plan(model, shape, mesh={"dp": 1}, apply=lambda model, _: model, **options)
    assert plan.ranks[0].macs == 7 * MACS


def test_an_inspection_expects_the_given_number_of_iterations() -> None:
    """On data, the loop has one iteration."""
    model = Converging(limit=1e9)
    with inspect(model, warm_up=0, expected=False, loop_iterations=7) as run:
        run.expect_evaluation()
        model(torch.rand(4, 8))
    assert run.facts.calls[0].macs == 7 * MACS


@pytest.mark.parametrize("number", [0, -1, True, "3", 2.5])
def test_a_number_of_iterations_is_a_positive_integer(number: Any) -> None:
    with pytest.raises(InputError) as refused:
        crawl_module(Converging(), (4, 8), loop_iterations=number)
    assert str(refused.value) == f"loop_iterations is {number!r}: give a positive integer"


def test_a_loop_without_data_asks_for_its_number_of_iterations() -> None:
    with torch.device("meta"):
        model = Converging()
    expected = (
        "the number of iterations of a while_loop depends on data\n"
        "  try: loop_iterations=10, for example"
    )
    with pytest.raises(NeedsValuesError) as refused:
        record(model, (4, 8))
    assert str(refused.value).endswith(expected)
    with pytest.raises(NeedsValuesError) as refused:
        estimate_memory(model, (4, 8), training=True, loss=torch.sum)
    assert str(refused.value).endswith(expected)


def test_a_loop_that_generated_inputs_never_end_is_refused_in_one_line() -> None:
    with pytest.raises(RecordError) as refused:
        record(Converging(limit=-1.0), (4, 8))
    (line,) = str(refused.value).splitlines()
    assert line.endswith(
        "a while_loop whose end depends on data has not ended after 1,000 iterations: give "
        "loop_iterations=10, for example"
    )


def test_a_long_loop_says_so() -> None:
    model = Calls(
        lambda _, x: (
            x
            + while_loop(
                lambda steps: steps < 10_001,
                lambda steps: (steps + 1,),
                (x.new_ones((), dtype=torch.long) - 1,),
            )[0]
        )
    )
    with pytest.warns(TorchscanWarning) as warned:
        record(model, (4, 8))
    (warning,) = warned
    assert str(warning.message) == (
        "a while_loop has not ended after 10,000 iterations, each of which is recorded: "
        "if your inputs decide its end, interrupt it and give others"
    )


@pytest.mark.parametrize(("is_certain", "advises"), [(True, False), (False, True)])
def test_a_number_of_iterations_is_advice_only_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch, *, is_certain: bool, advises: bool
) -> None:
    monkeypatch.setattr("torchscan.recording.loops._MANY_ITERATIONS", 3)
    options: dict[str, Any] = {"args": (torch.ones(4, 8),), "execute": "real"}
    model: nn.Module = Loop(lambda steps, x: (steps < 5) & (x == x).all())
    if not is_certain:
        model, options = Converging(), {"input_shape": (4, 8), "loop_iterations": 4}
    with pytest.warns(TorchscanWarning) as warned:
        record(model, **options)
    (warning,) = warned
    assert ("give loop_iterations=10, for example" in str(warning.message)) is advises


def _scanned(model: Calls, x: Tensor) -> Any:
    def combine(carried: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        both = model.get_submodule("layer")(carried) + row
        return both, both.clone()

    return scan(combine, torch.zeros(8), x)[1]


@pytest.mark.parametrize(
    "function",
    [_scanned, lambda model, x: mapped(lambda row: model.get_submodule("layer")(row), x)],
    ids=["scan", "map"],
)
def test_a_loop_over_rows_runs_for_each_row(function: Callable[..., Any]) -> None:
    """On data, the result is that of torch."""
    results: list[Tensor] = []
    keeps_results = False

    def forward(model: Calls, x: Tensor) -> Any:
        result = function(model, x)
        if keeps_results:
            results.append(result.detach())
        return result

    model = Calls(forward)
    model.add_module("layer", nn.Linear(8, 8))
    x = torch.rand(4, 8)
    operators = Counter(op.signature.operator for op in record(model, args=(x,)).ops)
    assert (operators["aten.linear"], operators["aten.select"], operators["aten.stack"]) == (
        4,
        4,
        1,
    )

    keeps_results = True
    record(model, args=(x,), execute="real")
    with torch.no_grad():
        model(x)
    recorded, own = results
    torch.testing.assert_close(recorded, own)


def test_a_map_stacks_nested_results() -> None:
    """One product of 64 MACs per row, in the containers that the function returns."""
    results: list[Any] = []
    keeps_results = False

    def forward(model: Calls, x: Tensor) -> Tensor:
        def function(row: Tensor) -> Any:
            return {"product": model.get_submodule("layer")(row), "others": (row.sum(), [row + 1])}

        result = mapped(function, x)
        if keeps_results:
            results.append(_pytree.tree_map(Tensor.detach, result))
        total: Tensor = result["product"].sum()
        return total

    model = Calls(forward)
    model.add_module("layer", nn.Linear(8, 8))
    x = torch.rand(4, 8)
    assert crawl_module(model, args=(x,))["overall"]["macs"] == MACS
    keeps_results = True
    assert crawl_module(model, args=(x,), execute="real")["overall"]["macs"] == MACS
    model(x)
    recorded, own = results
    assert recorded.keys() == {"product", "others"}
    torch.testing.assert_close(recorded, own)


# -- associative scans ---------------------------------------------------------------------------


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


def _polynomial(left: Tensor, right: Tensor) -> Tensor:
    return left * right + left


@pytest.mark.parametrize(
    ("num_rows", "num_pairs"),
    [
        (1, 0),
        (2, 1),  # one pair
        (3, 2),  # one pair, and its result with the third row
        (5, 2 + 1 + 2),  # two pairs, both together, and two results with the rows after them
        (8, 4 + (2 + 1 + 1) + 3),  # four pairs, a scan of four, three results with other rows
    ],
)
def test_an_associative_scan_combines_as_torch_does(num_rows: int, num_pairs: int) -> None:
    """Torch combines neighbors, scans the results, and combines these with every second row."""
    model = Calls(lambda _, x: associative_scan(_product, x, 0, combine_mode="generic"))
    x = torch.rand(num_rows, 8, 8)
    for execute in ("abstract", "real"):
        macs = crawl_module(model, args=(x,), execute=execute)["overall"]["macs"]
        assert macs == num_pairs * 8**3


def test_gradients_of_an_associative_scan_are_two_products_per_pair() -> None:
    """Five rows have five pairs, and empty ones."""
    model = Calls(lambda _, x: associative_scan(_product, x, 0, combine_mode="generic"))
    x = torch.rand(5, 8, 8, requires_grad=True)
    trace = record(model, args=(x,), training=True, loss=torch.sum)
    assert sum(cost.macs for cost in call_costs(trace)) == 3 * 5 * 8**3


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_pointwise_associative_scan_combines_once_less_than_it_has_rows(device: str) -> None:
    """Two operations for each of 3 numbers; torch runs it on a GPU only."""
    model = Calls(lambda _, x: associative_scan(_polynomial, x, 1, reverse=True))
    x = torch.rand(3, 5, device=device)
    info = crawl_module(model, args=(x,))
    assert info["overall"]["flops"] == 4 * 3 * 2
    assert info["provenance"]["assumptions"] == [{"code": "fewest-combinations", "values": {}}]


def test_a_pointwise_associative_scan_takes_and_returns_containers() -> None:
    def combine(left: Any, right: Any) -> Any:
        return {"sum": left["sum"] + right["sum"], "max": torch.maximum(left["max"], right["max"])}

    def forward(_: Calls, x: Tensor) -> Tensor:
        scanned = associative_scan(combine, {"sum": x, "max": x}, 0)
        total: Tensor = scanned["sum"] * scanned["max"]
        return total

    x = torch.rand(5, 3, requires_grad=True)
    assert crawl_module(Calls(forward), args=(x,))["overall"]["flops"] == 4 * 3 * 2 + 15
    trace = record(Calls(forward), args=(x,), training=True, loss=torch.sum)
    assert trace.provenance.execution == "abstract"


@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize("training", [False, True])
def test_a_pointwise_associative_scan_has_its_values_on_data(
    num_rows: int, *, training: bool
) -> None:
    """Torch's operator runs on a CPU, other than the function around it."""
    results: list[Tensor] = []

    def forward(_: Calls, x: Tensor) -> Tensor:
        result: Tensor = _verb("associative_scan", "associative_scan_op")(_polynomial, [x], ())
        results.append(result.detach().clone())
        return result

    x = torch.rand(num_rows, 3, requires_grad=True)
    record(Calls(forward), args=(x,), execute="real", training=training)
    carried, expected = x[0], [x[0]]
    for row in x[1:]:
        carried = _polynomial(carried, row)
        expected.append(carried)
    # combined in another order, and not associative: torch's own order is what counts
    own = _verb("associative_scan", "generic_associative_scan")(_polynomial, [x])
    torch.testing.assert_close(results[0], own[0].detach())


def test_another_thread_scans_with_its_own_values() -> None:
    scanned: list[Tensor] = []
    rows = torch.arange(1.0, 6.0)

    def forward(_: Calls, x: Tensor) -> Tensor:
        operator = _verb("associative_scan", "associative_scan_op")  # as torch looks it up
        thread = threading.Thread(target=lambda: scanned.append(operator(torch.add, [rows], ())))
        thread.start()
        thread.join()
        return x * 1

    record(Calls(forward), (4, 8))
    assert scanned[0].tolist() == [1.0, 3.0, 6.0, 10.0, 15.0]


# -- on the command line and in budget files -------------------------------------------------------

_MODEL = """
import importlib
import torch
from torch import nn

while_loop = importlib.import_module("torch._higher_order_ops.while_loop").while_loop

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return while_loop(lambda x: x.norm() > 1e-3, lambda x: (self.layer(x),), (x,))[0]
"""


def test_a_number_of_iterations_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(_MODEL)
    target = [f"{tmp_path}/model.py:Net", "--input", "4,8"]
    assert main(["summary", *target, "--loop-iterations", "7", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["macs"] == 7 * MACS
    assert main(["summary", *target]) != 0
    assert "give --loop-iterations 10, for example" in capsys.readouterr().err


def test_a_number_of_iterations_in_a_budget_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(_MODEL)
    file = tmp_path / "torchscan.toml"
    budget = '[budgets.net]\ntarget = "model.py:Net"\ninput = "4,8"\n'
    file.write_text(f"{budget}loop_iterations = 7\nmax_macs = {7 * MACS}\n")
    assert main(["check", "--config", str(file)]) == 0
    file.write_text(f"{budget}loop_iterations = 7\nmax_macs = {7 * MACS - 1}\n")
    assert main(["check", "--config", str(file)]) == 1
    file.write_text(f"{budget}loop_iterations = 0\nmax_macs = 1\n")
    capsys.readouterr()
    assert main(["check", "--config", str(file)]) == 2
    assert "loop_iterations: it is 0: give a positive number" in capsys.readouterr().err
