"""What changed between two inspected runs: times, and whether the change is more than the spread."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from tests.report.runs import NO_TIME, STEADY, Times, inspected, latency, on_device, run
from torchscan import InputError, compare, crawl_module
from torchscan.inspecting.call_run import Latency
from torchscan.inspecting.run import RunFacts
from torchscan.plain import from_plain

BEFORE = run({"a": ((1.0, 1.1, 1.2), (2.0, 2.1, 2.2)), "b": ((4.0, 5.0, 6.0), STEADY)}, steps=5)
#: a takes half as long again, forward; b a little longer, within its spread
AFTER = run({"a": ((1.6, 1.65, 1.7), (2.0, 2.1, 2.2)), "b": ((4.5, 5.5, 6.5), STEADY)}, steps=5)


def texts(comparison: Any) -> dict[str, list[str]]:
    return {row.cells[1].value: row.texts for row in comparison.table().rows}


def test_each_call_has_what_it_took_before_and_after_and_the_share() -> None:
    changes = {call.path: call for call in compare(BEFORE, AFTER).calls}
    forward = changes["a"].forward
    assert (forward.before, forward.after) == (BEFORE.calls[1].forward, AFTER.calls[1].forward)
    assert forward.share == pytest.approx(0.5)
    assert forward.difference == pytest.approx(0.55e-3)
    assert changes["b"].forward.share == pytest.approx(0.1)
    assert changes["a"].backward.share == 0


def test_what_changed_most_comes_first() -> None:
    """The model by 0.55 + 0.5 ms, a by 0.55, b by 0.5."""
    assert [call.path for call in compare(BEFORE, AFTER).calls] == ["", "a", "b"]
    assert [call.path for call in compare(AFTER, BEFORE).calls] == ["", "a", "b"]


def test_only_ranges_that_do_not_overlap_are_marked() -> None:
    comparison = compare(BEFORE, AFTER)
    assert [call.path for call in comparison.clear] == ["a"]
    rows = texts(comparison)
    assert rows["a"] == ["*", "a", "1.10 ms", "1.65 ms", "+50.0", "2.10 ms", "2.10 ms", "="]
    assert rows["b"] == ["", "b", "5.00 ms", "5.50 ms", "(+10.0)", "2.00 ms", "2.00 ms", "="]
    assert "(−9.1)" in texts(compare(AFTER, BEFORE))["b"]


@pytest.mark.parametrize("after", [(1.2, 1.3, 1.4), (0.5, 0.75, 1.0), (1.0, 1.1, 1.2)])
def test_ranges_that_touch_overlap(after: Times) -> None:
    one, other = (run({"a": (times, NO_TIME)}, steps=5) for times in ((1.0, 1.1, 1.2), after))
    assert compare(one, other).clear == ()


@pytest.mark.parametrize(
    ("steps", "chance"),
    [
        ((0, 5), "100 %"),
        ((1, 1), "100 %"),
        ((2, 2), "33 %"),  # 2 of 4! / (2! 2!) = 6 orders
        ((3, 3), "10 %"),
        ((4, 4), "2.9 %"),  # 2 of 70
        ((5, 4), "1.6 %"),
        ((2, 18), "1.1 %"),  # 2 of 190
        ((5, 5), None),  # 2 of 252
        ((4, 6), None),
        ((2, 19), None),  # 2 of 210
    ],
)
def test_nothing_is_marked_where_chance_would_do_the_same(
    steps: tuple[int, int], chance: str | None
) -> None:
    comparison = compare(replace(BEFORE, steps=steps[0]), replace(AFTER, steps=steps[1]))
    text = " ".join(str(comparison).split())
    assert [call.path for call in comparison.clear] == (["a"] if chance is None else [])
    often = f"with so few steps, ranges differ by chance in {chance} of cases"
    note = f"No change is marked: {often}. Measure 5 steps of each."
    assert (note in text, "beyond the variation" in text) == (chance is not None, chance is None)


def of_steps(*milliseconds: float) -> Any:
    """A run with one layer, whose forward pass took these times."""
    facts = run({"a": (STEADY, NO_TIME)}, steps=len(milliseconds))
    taken = Latency.of(round(1e6 * each) for each in milliseconds)
    calls = tuple(replace(call, forward=taken) for call in facts.calls)
    return replace(facts, calls=calls, forward=taken)


def test_one_slow_step_does_not_hide_a_change() -> None:
    """Of 14 steps, (14 - 1) // 4 = 3 are outside of each quartile."""
    steady, slower = [1.0 + 0.01 * number for number in range(14)], [5.0] * 14
    before, after = of_steps(*steady[:-1], 80.0), of_steps(*slower)
    assert before.forward[:3] == pytest.approx((0.001065, 0.001, 0.08))
    assert before.forward[3:] == pytest.approx((0.00103, 0.0011))
    changes = compare(before, after)
    assert [call.path for call in changes.clear] == ["", "a"]
    assert changes.totals["forward"].is_clear
    assert compare(after, before).totals["forward"].is_clear
    rule = "the interquartile ranges of the step times do not overlap."
    assert rule in " ".join(str(changes).split())
    assert not compare(of_steps(*steady), of_steps(*(each + 0.06 for each in steady))).clear
    assert compare(of_steps(*steady), of_steps(*(each + 0.071 for each in steady))).clear


def test_few_steps_are_compared_by_their_ranges() -> None:
    """The quartiles of two runs of 13 steps differ by chance in 1.7 % of cases."""
    changes = compare(of_steps(*[1.0] * 12, 80.0), of_steps(*[5.0] * 13))
    assert not changes.clear
    advice = "One slow step widens a range: measure at least 14 steps of each run to compare"
    assert advice in " ".join(str(changes).split())
    assert compare(of_steps(*[1.0] * 10, 80.0), of_steps(*[5.0] * 11)).clear  # 0.9 %


def test_runs_without_quartiles_are_compared_by_their_ranges() -> None:
    before, after = of_steps(*[1.0] * 19, 80.0), of_steps(*[5.0] * 20)
    content = json.loads(json.dumps(before.to_dict()))
    for part in (content, *content["calls"]):
        for name in ("forward", "backward"):
            del part[name]["lower_quartile"], part[name]["upper_quartile"]
    old = from_plain(RunFacts, content)
    assert compare(before, after).clear
    assert not compare(old, after).clear
    assert "save both runs with this version of torchscan." in " ".join(
        str(compare(old, after)).split()
    )
    assert "the ranges of the steps, from min to max" in " ".join(str(compare(old, after)).split())


@pytest.mark.parametrize("width", range(30, 60))
def test_the_columns_of_a_pass_are_shown_or_hidden_together(width: int) -> None:
    text = compare(BEFORE, AFTER).to_text(width=width)
    (heading,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["Layer"]]
    assert ("Backward" in heading) == (heading.count("%") == 2) == (width >= 57)
    assert ("Hidden columns: Backward, now, %." in text) == (35 <= width < 57)


@pytest.mark.parametrize(
    ("share", "text"), [(1e-5, "(+<0.1)"), (-1e-5, "(−<0.1)"), (0.0006, "(+0.1)"), (0, "=")]
)
def test_a_small_change_is_not_zero(share: float, text: str) -> None:
    one = run({"a": ((9.0, 10.0, 11.0), NO_TIME)})
    other = run({"a": ((9.0, 10.0 * (1 + share), 11.0), NO_TIME)})
    assert texts(compare(one, other))["a"][-1] == text


def test_calls_are_those_of_steps_that_are_alike() -> None:
    """Of seven steps, four had other calls."""
    comparison = compare(replace(BEFORE, steps=7, num_differing=4), AFTER)
    assert (comparison.steps, comparison.num_compared, comparison.clear) == ((7, 5), (3, 5), ())
    note = (
        "No call is marked: their times are of 3 and 5 steps with the same calls, and with so few"
    )
    assert f"{note} steps, ranges differ by chance in 3.6 % of cases." in " ".join(
        str(comparison).split()
    )
    faster = replace(AFTER, backward=latency(STEADY))
    assert compare(replace(BEFORE, steps=7, num_differing=4), faster).totals["backward"].is_clear


def test_totals() -> None:
    comparison = compare(BEFORE, AFTER)
    assert comparison.totals["forward"].share == pytest.approx((1.65 + 5.5) / (1.1 + 5.0) - 1)
    assert comparison.totals["backward"].difference == 0
    text = str(comparison)
    assert [line.split() for line in text.splitlines() if line.startswith("Forward")] == [
        ["Forward", "6.10", "ms", "7.15", "ms", "(+17.2)"]
    ]
    assert "storing" not in text  # which took no time


def test_calls_of_one_run_only() -> None:
    one, both = (run(dict.fromkeys(names, (STEADY, NO_TIME))) for names in ("a", "ab"))
    rows = texts(compare(one, both))
    assert rows["b"] == ["+", "b", "–", "2.00 ms", ""]
    assert texts(compare(both, one))["b"] == ["−", "b", "2.00 ms", "–", ""]
    assert [call.kind for call in compare(both, one).calls] == [
        "changed",
        "removed",
        "changed",
    ]


def test_each_call_of_a_module_is_compared_by_itself() -> None:
    shared = nn.Linear(2, 2)
    facts = inspected(nn.Sequential(shared, shared), torch.ones(1, 2))
    assert set(texts(compare(facts, facts))) == {"Sequential", "0", "0 (2)"}


def chain_of_linears(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths)))


@pytest.mark.parametrize("batch", [1, 3])
def test_an_inserted_layer_shifts_the_calls_behind_it(batch: int) -> None:
    before = inspected(chain_of_linears(2, 3, 5, 7), torch.ones(1, 2))
    after = inspected(chain_of_linears(2, 3, 3, 5, 7), torch.ones(batch, 2))
    comparison = compare(before, after)
    assert {call.path: call.kind for call in comparison.calls} == {
        "": "changed",
        "0": "changed",
        "1": "added",
        "2": "changed",
        "3": "changed",
    }
    last = next(call for call in comparison.calls if call.path == "3")
    times = (last.forward.before, last.forward.after)
    assert times == (before.calls[3].forward, after.calls[4].forward)
    assert comparison.moved == {"1": "2", "2": "3"}
    assert "Layers that moved: 1 … 2 → 2 … 3." in str(comparison)
    assert comparison.to_dict()["moved"] == {"1": "2", "2": "3"}
    assert "moved" not in compare(before, before).to_dict()


def test_without_a_backward_pass_it_has_no_columns() -> None:
    forward = run({"a": (STEADY, NO_TIME)})
    assert [column.key for column in compare(forward, forward).table().columns] == [
        *("change", "layer", "forward_before", "forward_after", "forward_change")
    ]


def test_another_device_is_said() -> None:
    other = replace(AFTER, provenance=replace(AFTER.provenance, device="CPU Two", threads=99))
    comparison = compare(BEFORE, other)
    assert set(comparison.provenance) == {"device", "threads"}
    text = " ".join(str(comparison).split())
    assert "The runs differ in device: CPU One before, CPU Two now." in text
    assert "99 now." in text
    assert "differ" not in str(compare(BEFORE, AFTER))


def test_other_inputs_are_said() -> None:
    small, large = (
        inspected(nn.Sequential(nn.ReLU()), torch.ones(size, 2, requires_grad=True))
        for size in (1, 2)
    )
    assert compare(small, large).num_reshaped == 2
    assert "2 calls had inputs of different shapes." in str(compare(small, large))
    assert compare(small, small).num_reshaped == 0


def test_text_shows_the_most_changed_of_many_calls() -> None:
    many = run({f"layer{number}": (STEADY, STEADY) for number in range(60)})
    text = compare(many, many).to_text()
    assert "… and 21 more calls" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(compare(many, many).table().rows) == 61


def test_markdown_is_a_comment() -> None:
    text = compare(BEFORE, AFTER).to_markdown(details=True)
    assert text.startswith(
        "|  | before | now | % |\n| :-- | --: | --: | --: |\n| Forward | 6.10 ms |"
    )
    assert "<details><summary>3 calls</summary>" in text


def test_as_plain_data(as_json: Any) -> None:
    data = as_json(compare(BEFORE, AFTER).to_dict())
    assert data["calls"][1]["forward"]["after"] == {
        "median": 0.00165,
        "least": 0.0016,
        "most": 0.0017,
        "lower_quartile": None,  # of a run that was stored without
        "upper_quartile": None,
    }
    assert data["calls"][1]["forward"]["is_clear"] is True
    assert data["steps"] == data["num_compared"] == [5, 5]


def test_times_that_are_no_numbers_are_valid_json() -> None:
    nothing = float("nan")
    broken = run({"a": ((nothing, nothing, nothing), (1.0, float("inf"), float("inf")))})
    table = compare(broken, BEFORE).table()
    assert json.loads(table.write("json"), parse_constant=pytest.fail)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_run_and_a_report_are_not_compared(is_swapped: bool) -> None:
    sides: list[Any] = [BEFORE, crawl_module(nn.Linear(2, 2), (2,))]
    with pytest.raises(
        InputError, match=r"^a run cannot be compared with a report: give two runs, or two reports$"
    ):
        compare(*(reversed(sides) if is_swapped else sides))


def test_paths_and_watched_runs_name_what_to_give_instead(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with torchscan.watch(model, tmp_path / "run"):
        model(torch.ones(1, 2)).sum().backward()
    watched = torchscan.open_run(tmp_path / "run")
    paths: list[Any] = ["a.json", Path("b.json")]
    cases: list[tuple[Any, str]] = [((watched, watched), "before"), ((BEFORE, watched), "after")]
    for sides, name in cases:
        with pytest.raises(
            InputError, match=rf"^{name} is a watched run, .* give both paths to serve"
        ):
            compare(*sides)
    with pytest.raises(
        InputError, match=r"^before is 'a\.json': give open_run\(path\) for an insp"
    ):
        compare(*paths)
    with pytest.raises(
        InputError, match=r"^before is 'b\.json': give .* or from_json\(text\) for a"
    ):
        compare(*reversed(paths))


def test_inspections_are_compared_by_what_they_found() -> None:
    model = nn.Linear(2, 2)
    runs = []
    for _ in range(2):
        with torchscan.inspect(model) as watched:
            model(torch.ones(1, 2))
        runs.append(watched)
    assert compare(*runs) == compare(*(watched.facts for watched in runs))
    assert runs[0].table() == runs[0].facts.table()
    with torchscan.inspect(model) as unfinished, pytest.raises(InputError, match="not finished"):
        compare(runs[0], unfinished)


def test_times_of_a_device_are_compared_where_there_is_one() -> None:
    card = on_device(
        BEFORE, {"": (STEADY, STEADY), "a": ((0.8, 1.0, 1.1), STEADY), "b": (STEADY, STEADY)}
    )
    changes = {call.path: call for call in compare(card, card).calls}
    assert changes["a"].forward.before == card.calls[1].device_forward
    assert "Times of calls are device times; the totals are host times." in " ".join(
        str(compare(card, card)).split()
    )
    mixed = compare(BEFORE, card)
    assert mixed.on_device == (False, True)
    assert texts(mixed)["a"][2:4] == ["1.10 ms", "1.00 ms"]
    assert "Times of calls are device times now; the totals are host times." in " ".join(
        str(mixed).split()
    )
    assert "device" not in str(compare(BEFORE, AFTER))
