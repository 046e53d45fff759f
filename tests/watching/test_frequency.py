"""How often a step is looked at, on a clock that stands still unless it is set."""

from __future__ import annotations

from typing import Literal

import pytest

from torchscan.watching.frequency import Frequency


def looked_at(
    monkeypatch: pytest.MonkeyPatch,
    every: int | Literal["auto"],
    *,
    budget: float,
    cost: float,
    steps: int,
) -> list[int]:
    """Which steps, if each takes 10 ms, and looking at one ``cost`` ms more."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    frequency, found = Frequency(every, budget), []
    for step in range(steps):
        is_due = frequency.is_due(step)
        now[0] += 0.010
        if is_due:
            found.append(step)
            now[0] += cost / 1000
            frequency.note_cost(round(cost * 1e6))
    return found


def test_every_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked_at(monkeypatch, 4, budget=0.01, cost=1, steps=13) == [0, 4, 8, 12]
    assert looked_at(monkeypatch, 1, budget=0.01, cost=1, steps=3) == [0, 1, 2]


def test_as_often_as_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 ms spent on looking is 3 ms in all, which is 1 % of 30 steps of 10 ms: 32, the next power of two."""
    found = looked_at(monkeypatch, "auto", budget=0.01, cost=1, steps=2_000)
    assert [step for step in found if step >= 512] == list(range(512, 2_000, 32))


def test_eight_in_each_doubling_of_the_steps_whatever_they_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = looked_at(monkeypatch, "auto", budget=0.01, cost=1_000, steps=2_000)
    assert [step for step in found if 64 <= step < 128] == [64, 72, 80, 88, 96, 104, 112, 120]
    assert [step for step in found if step >= 1024] == list(range(1024, 2_000, 128))
    assert len(found) == 64


def test_a_larger_budget_and_a_smaller_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked_at(monkeypatch, "auto", budget=0.1, cost=0.1, steps=40)
    assert found == list(range(0, 40, 2)), (
        "every other step, since the others tell what a step takes"
    )


def test_the_time_of_sampled_steps_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of 10 ms alone counts: a cost of 1 ms is 3 ms in all, 1 % of 30 such steps."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    frequency = Frequency("auto", 0.01)
    for step, is_sampled, seconds in [(0, True, 1.0), (1, False, 0.010), (2, True, 1.0)]:
        assert frequency.is_due(step) == is_sampled
        now[0] += seconds
        frequency.note_cost(1_000_000)
    assert frequency.every == 32


def test_rows_with_extremes_of_all_values() -> None:
    """All rows have them if fifteen of sixteen steps are left out, else each row in turn."""
    seldom, often = Frequency(16, 0.01), Frequency(1, 0.01)
    assert seldom.turn[1] == 1
    seen: set[int] = set()
    for step in range(16):
        often.is_due(step)
        turn, period = often.turn
        rows = {row for row in range(32) if (row + turn) % period == 0}
        assert len(rows) == 2
        seen |= rows
    assert seen == set(range(32))


def evaluated(
    every: int | Literal["auto"], *, steps: int, passes: int, evaluations: int
) -> list[tuple[int, int]]:
    """Which passes of which evaluations are looked at, if there is one of so many passes after each so many steps."""
    frequency, found = Frequency(every, 0.01), []
    for evaluation in range(evaluations):
        for place in range(passes):
            number = evaluation * passes + place
            if frequency.is_evaluation_due(number, place, (evaluation + 1) * steps + number):
                found.append((evaluation, place))
    return found


def test_the_first_pass_of_each_evaluation() -> None:
    assert evaluated(100, steps=500, passes=30, evaluations=3) == [(0, 0), (1, 0), (2, 0)]
    assert evaluated(20, steps=500, passes=30, evaluations=2) == [(0, 0), (0, 20), (1, 0), (1, 20)]


def test_evaluations_that_follow_each_other_closely() -> None:
    """A pass in eval mode before each training step, as where an agent acts: there are two passes each time."""
    assert evaluated(100, steps=1, passes=1, evaluations=120) == [(0, 0), (50, 0), (100, 0)]
