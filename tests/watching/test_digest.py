"""Steps in the shared memory, and what the worker makes of them, by hand."""

from __future__ import annotations

import math
import mmap
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from torchscan.notes import Note
from torchscan.watching.digest import Digest, Digested
from torchscan.watching.guests import Guest, Guests
from torchscan.watching.schema import Announced, Series
from torchscan.watching.step_samples import AllValues, StepSamples, read_header

NAMES = ("fc", "act", "out")
SERIES = [
    Series(path=name, type_name="Linear", kind="output", name="0") for name in (*NAMES, "last")
]
#: tanh's bounds for the second
ANNOUNCED = {
    10: Announced(SERIES[0], None, can_die=False),
    11: Announced(SERIES[1], (-1.0, 1.0), can_die=True),
    12: Announced(SERIES[2], None, can_die=False),
    13: Announced(SERIES[3], (0.0, 100.0), can_die=False),
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A digest leaves its process with one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def reports() -> Guests:
    """Nothing is expected to fail."""

    def refuse(note: Note) -> None:
        pytest.fail(str(note))

    return Guests(refuse)


def samples_of(
    rows: Sequence[Sequence[float]],
    series: Sequence[tuple[int, int]],
    *,
    exact: Mapping[int, float] | None = None,
    pairs: Sequence[tuple[int, int]] = (),
    wholes: Sequence[tuple[int, Tensor]] = (),
    step: int = 0,
) -> StepSamples:
    """Rows of values, all of them sampled, and the numbers of series with their rows."""
    exact = exact or {}
    sizes = [len(row) for row in rows]
    integers = [each for pair in series for each in pair] + sizes + sizes + list(exact)
    integers += [each for pair in pairs for each in pair]
    values = [*exact.values(), *(value for row in rows for value in row)]
    return StepSamples(
        step=step,
        phase="train",
        number=step,
        time=0.0,
        num_series=len(series),
        num_rows=len(rows),
        num_exact=len(exact),
        num_pairs=len(pairs),
        integers=array("q", integers),
        values=torch.tensor(values, dtype=torch.float32),
        wholes=tuple(AllValues(number, each) for number, each in wholes),
    )


def read(steps: Sequence[StepSamples], digest: Digest | None = None) -> list[Digested]:
    """Write steps into memory, one behind the other, and read them."""
    memory = mmap.mmap(-1, sum(step.nbytes for step in steps) + mmap.PAGESIZE)
    records, at = [], 0
    for step in steps:
        step.write(memory, at)
        records.append((read_header(step.header()), at))
        at += step.nbytes
    return (digest or Digest(reports())).read(memory, records, ANNOUNCED)


def test_a_step_has_the_distributions_of_its_series_in_their_order() -> None:
    (found,) = read([samples_of([[1, 2, 6], [0, 0.5]], [(12, 1), (10, 0)])])
    assert (found.numbers, found.series) == ([12, 10], [SERIES[2], SERIES[0]])
    out, fc = found.found[0], found.found[1]
    assert (out.numel, out.mean, out.zero, out.max) == (2, 0.25, 1, 0.5)
    assert (fc.numel, fc.mean, fc.min, fc.max, fc.is_exact) == (3, 3, 1, 6, False)
    assert math.isnan(fc.saturated)
    assert math.isnan(fc.update)
    assert fc.custom == {}


def test_steps_of_several_layouts_come_back_in_their_order() -> None:
    """The first, third and fourth are read together."""
    steps = [
        samples_of([[1, 3]], [(10, 0)]),
        samples_of([[5], [7]], [(10, 0), (11, 1)]),
        samples_of([[2, 6]], [(10, 0)]),
        samples_of([[9, 9]], [(10, 0)]),
        samples_of([[4, 8]], [(12, 0)]),
    ]
    found = read(steps)
    means = [[each.mean for each in one.found.values()] for one in found]
    assert means == [[2], [5, 7], [4], [9], [6]]
    assert [one.numbers for one in found] == [[10], [10, 11], [10], [10], [12]]


def test_a_layout_is_found_again_after_others() -> None:
    """Seventeen layouts are one more than are kept; those of the first and last are known or not."""
    digest = Digest(reports())
    for _ in range(2):
        for size in range(1, 18):
            (found,) = read([samples_of([[size] * size], [(10, 0)])], digest)
            distribution = found.found[0]
            assert (distribution.numel, distribution.mean) == (size, size)


def test_layouts_differ_by_series_sizes_and_pairs() -> None:
    digest = Digest(reports())
    rows = [[3.0, 4.0], [3.0, 5.0]]
    (plain,) = read([samples_of(rows, [(10, 1)])], digest)
    (paired,) = read([samples_of(rows, [(10, 1)], pairs=[(0, 1)])], digest)
    (moved,) = read([samples_of(rows, [(10, 0)])], digest)
    (other,) = read([samples_of([[3.0], [4.0, 5.0, 9.0]], [(10, 1)])], digest)
    assert math.isnan(plain.found[0].update)
    assert paired.found[0].update == pytest.approx(1 / 5)  # of a vector of length 5
    assert [each.found[0].mean for each in (plain, paired, moved, other)] == [4, 4, 3.5, 6]


def test_rows_that_only_updates_need_are_not_among_the_distributions() -> None:
    rows = [[1.0], [3.0, 4.0], [3.0, 5.0]]
    (found,) = read([samples_of(rows, [(12, 2), (10, 2), (11, 0)], pairs=[(1, 2)])])
    assert len(found.found.columns.sizes) == 2
    assert list(found.found.rows) == [0, 0, 1]
    assert [each.mean for each in found.found.values()] == [4, 4, 1]


def test_values_of_all_elements_are_those_of_the_device() -> None:
    """The columns of a row are minimum, maximum, dead units, norm of samples and norm."""
    exact = {5: -2.0, 6: 8.0, 7: 0.25, 8: 1.5, 9: 10.0}
    (found,) = read([samples_of([[0.5], [0.5, 1.5]], [(10, 0), (11, 1)], exact=exact)])
    sampled, complete = found.found[0], found.found[1]
    assert (sampled.min, sampled.max, sampled.is_exact) == (0.5, 0.5, False)
    assert (complete.min, complete.max, complete.is_exact) == (-2, 8, True)
    assert (complete.dead, complete.sample_norm, complete.norm) == (0.25, 1.5, 10)
    assert math.isnan(sampled.dead)


def test_values_within_a_hundredth_of_the_range_from_an_end_are_saturated() -> None:
    """Of [−1, 1], those below −0.98 and above 0.98; of [0, 100], below 1 and above 99."""
    tanh = [-1.0, -0.985, -0.97, 0.0, 0.97, 0.985, 0.99, 1.0]
    percent = [0.0, 0.9, 1.0, 99.0, 99.5]
    rows = [tanh, percent, [1.0]]
    (found,) = read([samples_of(rows, [(10, 2), (11, 0), (13, 1)])])
    shares = [each.saturated for each in found.found.values()]
    assert math.isnan(shares[0])
    assert shares[1:] == pytest.approx([5 / 8, 3 / 5])


def test_saturated_shares_are_of_each_step() -> None:
    steps = [samples_of([[0.0, 1.0]], [(11, 0)]), samples_of([[1.0, -1.0]], [(11, 0)])]
    assert [each.found[0].saturated for each in read(steps)] == [0.5, 1.0]


def test_dead_units_are_known_of_series_that_can_die() -> None:
    rows, series = [[0.0, 1.0]], [(10, 0), (11, 0)]
    (found,) = read([samples_of(rows, series, exact={2: 0.5})])
    assert [each.dead for each in found.found.values()] == [
        pytest.approx(math.nan, nan_ok=True),
        0.5,
    ]


def test_statistics_of_the_user_get_the_values_of_each_series() -> None:
    guests = reports()
    guests.admit(Guest(custom={"largest": lambda values: float(values.max())}))
    whole = torch.tensor([[1.0, 2.0], [3.0, 40.0]])
    step = samples_of([[1, 5], [3, 2]], [(11, 1), (10, 0)], wholes=[(10, whole)])
    (found,) = read([step], Digest(guests))
    assert found.found.custom == {"largest": [3, 40]}
    assert found.found[1].custom == {"largest": 40}


def test_a_statistic_that_fails_is_nan_and_reported_once() -> None:
    said: list[Note] = []
    guests = Guests(said.append)
    guests.admit(Guest(custom={"wrong": lambda values: 1 / 0}))
    (found,) = read([samples_of([[1], [2]], [(10, 0), (11, 1)])], Digest(guests))
    assert all(math.isnan(each) for each in found.found.custom["wrong"])
    (note,) = said
    text = "statistic 'wrong' is disabled: it raised ZeroDivisionError: division by zero"
    assert str(note) == text


def test_sinks_get_distributions_and_copies_of_values_by_series() -> None:
    times: dict[str, Any] = {"step": 3, "phase": "train", "number": 3, "time": 0.5}
    (found,) = read([samples_of([[1, 2]], [(12, 0), (10, 0)], step=3)])
    seen = found.seen(times)
    assert (seen.step, seen.phase, seen.number, seen.time) == (3, "train", 3, 0.5)
    assert list(seen.distributions) == [SERIES[2], SERIES[0]]
    assert {each.mean for each in seen.distributions.values()} == {1.5}
    assert list(seen.values) == [SERIES[2], SERIES[0]]
    assert len(seen.values) == 2
    seen.values[SERIES[0]].zero_()
    assert seen.values[SERIES[0]].tolist() == [1, 2]


def test_distributions_get_the_numbers_of_the_file() -> None:
    (found,) = read([samples_of([[1], [2]], [(12, 0), (10, 1)])])
    numbered = found.numbered([5, 4])
    assert {number: each.mean for number, each in numbered.items()} == {5: 1, 4: 2}


def test_a_digest_uses_one_thread() -> None:
    torch.set_num_threads(2)
    Digest(reports())
    assert torch.get_num_threads() == 1
