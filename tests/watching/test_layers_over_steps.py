"""What each module did over the steps of a run, by hand."""

from __future__ import annotations

import math
import sqlite3
import struct
import zlib
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import torchscan
from tests.opening import watched_run
from tests.watching.test_distributions import of
from tests.watching.watching import watch
from torchscan import InputError
from torchscan.types import LayersOverSteps
from torchscan.watching.byte_planes import to_planes
from torchscan.watching.layers_over_steps import order_paths
from torchscan.watching.merging import merge
from torchscan.watching.run_database import StoreError
from torchscan.watching.schema import Distribution, Kind, SampledStep, Series
from torchscan.watching.store import Store


def series(path: str, kind: Kind, name: str = "0", invocation: int = 0) -> Series:
    return Series(path=path, type_name="Net", kind=kind, name=name, invocation=invocation)


@cache
def _of_ones() -> Distribution:
    return of(torch.ones(4))


def some(**figures: float) -> Distribution:
    return replace(_of_ones(), **figures)  # type: ignore[arg-type]


def write(path: Path, steps: list[dict[Series, Distribution]]) -> None:
    """Write steps several at once, as the worker does."""
    store = Store(path, {})
    sampled = []
    for step, found in enumerate(steps):
        numbered = {store.number_of(each): known for each, known in found.items()}
        sampled.append(
            SampledStep(step=step, phase="train", number=step, time=1.0, distributions=numbered)
        )
    for start in range(0, len(sampled), 32):
        store.write_steps(sampled[start : start + 32])
    store.close()


def rows(found: LayersOverSteps, name: str) -> dict[str, list[float]]:
    return {path: list(row) for path, row in zip(found.paths, getattr(found, name), strict=True)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "rank0.sqlite"


def test_quantities_of_a_step(path: Path) -> None:
    step = {
        series("a", "param_grad", "weight"): some(norm=3.0),
        series("a", "param_grad", "bias"): some(norm=4.0),
        series("a", "param", "weight"): some(norm=4.0, update=0.5),
        series("a", "param", "bias"): some(norm=3.0, update=0.0),
        series("a", "output"): some(std=0.25, dead=0.5),
        series("a", "output", "1"): some(std=9.0),
        series("a", "output", "0", 1): some(std=9.0, dead=0.75),
        series("b", "output"): some(nan=1, numel=40, std=0.5),
        series("b", "input"): some(inf=1),
        series("b", "input", "1"): some(nan=1, numel=1, sampled=1),
    }
    write(path, [step])
    found = watched_run(path).layers_over_steps()
    assert (found.paths, found.types) == (("a", "b"), ("Net", "Net"))
    assert (found.first, found.last, found.num_steps, found.width) == ((0,), (0,), (1,), 1)
    # the weight of norm 4 changed by 2, the bias of norm 3 by 0
    assert rows(found, "gradient")["a"] == [5.0]
    assert rows(found, "update")["a"] == [pytest.approx(2 / 5)]
    assert rows(found, "std") == {"a": [0.25], "b": [0.5]}
    assert rows(found, "dead")["a"] == [0.75]
    # 1 of 4 sampled values of 40, 1 of 4, and the only one
    assert rows(found, "nonfinite") == {"a": [0.0], "b": [12.0]}
    assert all(math.isnan(rows(found, name)["b"][0]) for name in ("gradient", "update", "dead"))


def test_a_column_has_the_largest_of_its_steps_and_the_mean_deviation(path: Path) -> None:
    gradient, output = series("a", "param_grad", "weight"), series("a", "output")
    write(path, [{gradient: some(norm=norm), output: some(std=norm)} for norm in (1, 8, 3, 6, 5)])
    found = watched_run(path).layers_over_steps(max_columns=3)
    assert (found.width, found.first, found.last) == (2, (0, 2, 4), (1, 3, 4))
    assert found.num_steps == (2, 2, 1)
    assert found.gradient == ((8.0, 6.0, 5.0),)
    assert found.std == ((4.5, 4.5, 5.0),)
    with pytest.raises(InputError, match="max_columns is 0: give at least 1"):
        watched_run(path).layers_over_steps(max_columns=0)


def test_a_column_has_the_modules_of_all_its_steps(path: Path) -> None:
    """A model may call a layer in some steps only; sums of other steps are 0 for it."""
    steps = []
    for name, norm in (("a", 1.0), ("b", 2.0), ("a", 4.0)):
        output, gradient = series(name, "output"), series(name, "param_grad", "weight")
        steps.append({output: some(std=norm), gradient: some(norm=norm)})
    write(path, steps)
    found = watched_run(path).layers_over_steps(max_columns=1)
    assert found.num_steps == (3,)
    assert rows(found, "gradient") == {"a": [4.0], "b": [2.0]}
    assert rows(found, "std") == {"a": [2.5], "b": [2.0]}


@pytest.mark.sweep
def test_an_extreme_of_a_step_that_is_no_longer_kept_stays(path: Path) -> None:
    """Of 2,000 steps about 700 are kept; step 37 is not among them."""
    gradient = series("a", "param_grad", "weight")
    write(path, [{gradient: some(norm=99.0 if step == 37 else 1.0)} for step in range(2000)])
    run = watched_run(path)
    assert 37 not in run.steps()
    found = run.layers_over_steps()
    assert (sum(found.num_steps), found.first[0], found.last[-1]) == (2000, 0, 1999)
    (place,) = (at for at, value in enumerate(found.gradient[0]) if value == 99.0)
    assert found.first[place] <= 37 <= found.last[place]
    assert len(found.first) == 250
    assert set(found.num_steps) == {8}


def test_from_a_checkpoint_on_columns_come_again(path: Path) -> None:
    gradient = series("a", "param_grad", "weight")
    write(path, [{gradient: some(norm=float(step))} for step in range(1, 6)])
    store = Store(path, {})
    store.forget_from(3)
    store.close()
    assert watched_run(path).layers_over_steps().gradient == ((1.0, 2.0, 3.0),)


def test_older_files_are_read_step_by_step(path: Path) -> None:
    gradient = series("a", "param_grad", "weight")
    write(path, [{gradient: some(norm=float(step))} for step in range(1, 6)])
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("DELETE FROM layers WHERE first < 4")
    assert watched_run(path).layers_over_steps().gradient == ((1.0, 2.0, 3.0, 4.0, 5.0),)


def test_gradients_whose_squares_are_zero_with_32_bits_have_a_norm(path: Path) -> None:
    """Four values of 1e-25 have the norm 2e-25, which the device computed as 0."""
    tiny = replace(of(torch.full((4,), 1e-25)), norm=0.0)
    write(path, [{series("a", "param_grad", "weight"): tiny}])
    assert watched_run(path).layers_over_steps().gradient[0][0] == pytest.approx(2e-25, abs=1e-28)


def test_columns_with_fewer_quantities_open(path: Path) -> None:
    """They had gradient, update, the sum and the number of deviations, dead and non-finite."""
    write(path, [{series("a", "output"): some(std=0.5)}, {series("a", "output"): some(std=0.25)}])
    values = torch.tensor([[1.0], [2.0], [6.0], [2.0], [0.5], [7.0]])
    data = to_planes(torch.tensor([1])) + to_planes(values)
    with closing(sqlite3.connect(path)) as old, old:
        packed = struct.pack("<I", 1) + zlib.compress(data)
        old.execute("UPDATE layers SET data = ? WHERE first = 0", [packed])
    found = watched_run(path).layers_over_steps()
    assert (found.gradient[0][0], found.update[0][0], found.dead[0][0]) == (1.0, 2.0, 0.5)
    assert found.std == ((3.0, 0.25),)
    assert found.nonfinite == ((7.0, 0.0),)


def test_ranks_have_the_largest_norms_and_the_dead_units_of_all(tmp_path: Path) -> None:
    gradient, output = series("a", "param_grad", "weight"), series("a", "output")
    for rank, (norm, std, dead, nan) in enumerate([(2.0, 1.0, 0.5, 1), (3.0, 2.0, 0.25, 2)]):
        step = {gradient: some(norm=norm), output: some(std=std, dead=dead, nan=nan)}
        write(tmp_path / "run" / f"rank{rank}.sqlite", [step])
    merge(tmp_path / "run", tmp_path / "merged.sqlite")
    for place in ("run", "merged.sqlite"):
        found = watched_run(tmp_path / place).layers_over_steps()
        quantities = (found.gradient, found.std, found.dead, found.nonfinite)
        assert quantities == (((3.0,),), ((1.5,),), ((0.25,),), ((3.0,),))
        assert found.num_steps == (1,)


@pytest.mark.parametrize(
    "change",
    [
        ("data = x''", None),
        ("data = 7", None),
        ("data = ?", (2**31, 0)),
        ("data = ?", (0, 200_000_000)),
        ("last = 'x'", None),
    ],
)
def test_broken_columns_are_refused(path: Path, change: tuple[str, tuple[int, int] | None]) -> None:
    """Packed columns are their length, and compressed bytes."""
    write(path, [{series("a", "output"): some()}])
    statement, column = change
    values = []
    if column is not None:
        length, size = column
        values = [struct.pack("<I", length) + zlib.compress(bytes(size), 1)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE layers SET {statement}", values)  # noqa: S608
    with pytest.raises(StoreError, match="column of layers"):
        watched_run(path).layers_over_steps()


def test_modules_are_in_the_order_of_the_model() -> None:
    """Weights are known before outputs, and a module ends after its children."""
    found = [
        *(series(path, "param", "weight") for path in ("b.conv", "a")),
        *(series(path, "output") for path in ("a", "b.act", "b.conv", "b", "")),
    ]
    assert order_paths(found) == ["", "a", "b", "b.act", "b.conv"]


def test_a_real_run(tmp_path: Path) -> None:
    """The output is the loss: a weight of 2 has the input of 3 as its gradient, and changes by 0.3."""
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 2.0)
    model = torch.nn.Sequential(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, tmp_path / "run", every=1, graph=False):
        model(torch.tensor([[3.0]])).sum().backward()
        optimizer.step()
    run = torchscan.open_run(tmp_path / "run")
    assert isinstance(run, torchscan.types.WatchedRun)
    found = run.layers_over_steps()
    assert found.paths == ("", "0")
    assert found.gradient[1] == (3.0,)
    assert found.update[1][0] == pytest.approx(0.15)
