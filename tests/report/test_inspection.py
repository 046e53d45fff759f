"""The table of an inspection: what a reader sees of times that are known."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.marked import rows_of
from tests.recording.test_record import Calls
from tests.report.runs import NO_TIME, Times, inspected, latency, on_device, run
from torchscan import inspect
from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.run import CheckedModule
from torchscan.inspecting.run_device import Expected
from torchscan.observing.compiling import Compilation, CompiledFrame
from torchscan.report.table import FORMATS
from torchscan.types import RunFacts

#: a model of 10 ms, a tenth of it in the first layer, half of what that takes forward
TIMES: dict[str, tuple[Times, Times]] = {
    "first": ((0.4, 0.5, 0.6), (0.4, 0.5, 0.6)),
    "second": ((4.0, 4.5, 5.0), (4.0, 4.5, 5.0)),
}
X = torch.ones(2, 4)


def facts(**changes: Any) -> RunFacts:
    """Nothing between the steps, and nothing said about checks."""
    given = {"checked_steps": None, **changes}
    return replace(
        run(TIMES), period=latency(NO_TIME), between=latency(NO_TIME), expected=None, **given
    )


def columns(run: RunFacts) -> list[str]:
    return [column.heading for column in run.table().shown.columns]


def column(run: RunFacts, key: str) -> list[str]:
    table = run.table()
    (at,) = (number for number, each in enumerate(table.columns) if each.key == key)
    return [row.cells[at].text for row in table.rows]


def names(run: RunFacts) -> list[str]:
    return [row.name for row in run.table().rows]


# -- columns -------------------------------------------------------------------------------------------------------------


def test_the_columns_of_a_training_step() -> None:
    assert columns(facts()) == [
        "Layer",
        "Type",
        "Forward (µs)",
        "Backward (µs)",
        "of time",
        "FLOP/s",
        "Memory (B)",
    ]
    assert column(facts(), "forward") == ["5,000.0", "500.0", "4,500.0"]
    assert column(facts(), "share") == ["100 %", "10 %", "90 %"]


def test_what_does_not_train_has_no_backward() -> None:
    of_inference = facts(
        backward=latency(NO_TIME),
        calls=tuple(replace(each, macs=None, flops=None) for each in facts().calls),
    )
    assert columns(of_inference) == ["Layer", "Type", "Forward (µs)", "of time", "Memory (B)"]


def test_flops_per_second_are_those_of_the_forward_pass() -> None:
    calls = tuple(replace(each, flops=9_000_000) for each in facts().calls)
    assert column(facts(calls=calls), "flops_per_second") == ["1,800.0", "18,000.0", "2,000.0"]


def test_times_of_a_device_come_first_and_make_the_shares() -> None:
    """Its kernels take 20 ms, while the host is done after 10."""
    ms = {"": (10, 10), "first": (5, 5), "second": (5, 5)}
    found = on_device(
        facts(), {path: ((each[0],) * 3, (each[1],) * 3) for path, each in ms.items()}
    )
    found = replace(found, calls=tuple(replace(each, flops=1_000_000) for each in found.calls))
    assert columns(found)[2:7] == [
        "Forward (ms)",
        "Backward (ms)",
        "Forward on host (µs)",
        "Backward on host (µs)",
        "of time",
    ]
    assert column(found, "device_forward") == ["10.00", "5.00", "5.00"]
    assert column(found, "forward") == ["5,000.0", "500.0", "4,500.0"]
    assert column(found, "share") == ["100 %", "50 %", "50 %"]
    assert column(found, "flops_per_second") == ["100.0", "200.0", "200.0"]
    assert found.table().write("text", width=100).splitlines()[1].split()[-4:] == [
        "FLOP/s",
        "(M)",
        "Memory",
        "(B)",
    ]
    assert "on host" in found.table().write("text", width=120)
    narrow = found.table().write("text", width=80).replace("\n", " ")
    assert "on host" not in narrow.partition("Hidden columns")[0], "neither of the two"
    assert "Hidden columns: Forward on host (µs), Backward on host (µs)." in narrow
    assert "device times, as a share of forward and backward" in " ".join(str(found).split())


def test_counts_of_values_that_are_not_finite_are_there_if_there_are_any() -> None:
    whole, first, second = facts().calls
    found = facts(
        calls=(
            whole,
            replace(first, grad_out_inf=3),
            replace(second, forward_nan=1200, grad_in_nan=1),
        )
    )
    assert columns(found)[7:] == ["NaN", "Grad Inf"]
    assert column(found, "forward_nan") == ["–", "–", "1,200"]
    assert column(found, "grad_out_inf") == ["–", "3", "–"]


# -- what is expected ----------------------------------------------------------------------------------------------------

EXPECTED = Expected(
    device="CPU One",
    forward=0.001,
    backward=0.002,
    error_share=0.4,
    operations=2_000_000,
    at_peak=0.0005,
    peaks={"fp32": 1.5e12, "bf16": 3e12},
)


def expecting(seconds: Sequence[float | None], **changes: Any) -> RunFacts:
    calls = [
        replace(call, expected_forward=each and each / 2, expected_backward=each and each / 2)
        for call, each in zip(facts().calls, seconds, strict=True)
    ]
    return replace(facts(calls=tuple(calls)), expected=EXPECTED, **changes)


def test_a_layer_that_is_slower_than_it_should_be_is_marked() -> None:
    """The model and its second layer take more than 1.4 times what is expected, the first one 1.25 times."""
    found = expecting([0.005, 0.0008, 0.0042])
    assert columns(found)[5:7] == ["Expected (µs)", "×"]
    assert column(found, "expected") == ["5,000.0", "800.0", "4,200.0"]
    assert column(found, "ratio") == ["* 2.0", "1.2", "* 2.1"]
    assert (
        "Expected times are of the roofline of CPU One, ± 40 %; × is measured ÷ expected"
        in " ".join(str(found).split())
    )


def test_what_takes_hardly_any_time_is_not_marked() -> None:
    small = {"first": ((0.01, 0.01, 0.01), NO_TIME), "second": TIMES["second"]}
    calls = tuple(
        replace(call, expected_forward=1e-6, expected_backward=0.0) for call in run(small).calls
    )
    assert column(replace(run(small), calls=calls, expected=EXPECTED), "ratio") == [
        "* 9010",
        "10.0",
        "* 9000",
    ]


def test_where_nothing_is_expected_there_is_nothing_to_compare() -> None:
    assert column(expecting([0.005, None, 0.0]), "ratio") == ["* 2.0", "–", "–"]
    assert "Expected" not in str(facts())
    assert "MFU" not in str(facts())


def test_the_share_of_the_peak_is_said_with_the_peaks() -> None:
    """0.5 ms of 20 ms, from step to step; without the time between steps, of 10."""
    text = str(expecting([None] * 3, period=latency((19, 20, 21))))
    assert "MFU  2.5 %  of 1.5 TFLOP/s fp32, 3.0 TFLOP/s bf16, dense, on CPU One\n" in text
    assert "MFU  5.0 %" in str(expecting([None] * 3))
    assert "MFU  0.010 %" in str(
        replace(expecting([None] * 3), expected=replace(EXPECTED, at_peak=1e-6))
    )


# -- totals --------------------------------------------------------------------------------------------------------------


def totals(run: RunFacts) -> list[list[str]]:
    return [row.texts for row in run.table().totals[0].rows]


def test_an_optimizer_that_ran_in_some_steps_only() -> None:
    found = replace(facts(), steps=20, optimizer=latency((3, 3, 6)), optimizer_steps=5)
    assert ["Optimizer, in 5 of 20 steps", "3.00 ms", "3.00 ms … 6.00 ms"] in totals(found)
    # runs of older versions do not have the number
    assert totals(replace(found, optimizer_steps=None))[-1][0] == "Optimizer"


def test_the_totals_have_what_belongs_to_no_module() -> None:
    ms: dict[str, Any] = {
        name: latency((each, each, 2 * each))
        for name, each in (("storing_gradients", 1), ("outside_modules", 2), ("optimizer", 3))
    }
    found = replace(
        facts(),
        optimizer_steps=3,
        rest=latency((1, 1, 2)),
        between=latency((4, 5, 6)),
        period=latency((20, 21, 22)),
        **ms,
    )
    assert totals(found) == [
        ["Forward", "5.00 ms", "4.40 ms … 5.60 ms"],
        ["Backward", "5.00 ms", "4.40 ms … 5.60 ms"],
        ["of which storing gradients", "1.00 ms", "1.00 ms … 2.00 ms"],
        ["of which outside modules", "2.00 ms", "2.00 ms … 4.00 ms"],
        ["Optimizer", "3.00 ms", "3.00 ms … 6.00 ms"],
        ["Rest of the step", "1.00 ms", "1.00 ms … 2.00 ms"],
        ["Between steps", "5.00 ms", "4.00 ms … 6.00 ms"],
        ["Step to step", "21.0 ms", "20.0 ms … 22.0 ms"],
    ]


def test_the_totals_have_what_is_expected_of_both_passes() -> None:
    found = totals(expecting([None] * 3))
    assert [each[-1] for each in found] == ["1.00 ms", "2.00 ms", "", ""]


# -- names ---------------------------------------------------------------------------------------------------------------


def _blocks(self: Any, x: Tensor) -> Any:
    for block in [*self.h, *self.layers]:
        x = block(x)
    return self.h[0](x)


def test_names_are_paths_from_the_call_that_they_are_in() -> None:
    """A list of modules is never called, so its name is part of theirs."""
    one, other = (nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(2))
    found = inspected(Calls(_blocks, h=one, layers=other), X)
    assert names(found) == ["Calls", "h.0", "h.1", "layers.0", "layers.1", "h.0 (2)"]
    assert list(found.info["Calls"]["children"]) == [
        "h.0",
        "h.1",
        "layers.0",
        "layers.1",
        "h.0 (2)",
    ]


def test_a_module_of_another_part_has_its_full_path() -> None:
    inner = Calls(lambda self, x: self.others[0](x))
    outer = Calls(
        lambda self, x: self.inner(x) + self.head.fc(x),
        inner=inner,
        head=nn.ModuleDict({"fc": nn.Linear(4, 4)}),
    )
    inner.others = [outer.get_submodule("head.fc")]  # type: ignore[assignment] # a list hides it
    found = inspected(outer, X)
    assert names(found) == ["Calls", "inner", "head.fc", "head.fc (2)"]


def test_what_a_checkpoint_runs_again_says_so() -> None:
    model = Calls(
        lambda self, x: checkpoint(self.block, x, use_reentrant=False), block=nn.Linear(4, 4)
    )
    assert names(inspected(model, X)) == ["Calls", "block", "block (2, again)"]


def test_no_call_is_lost_where_names_are_alike() -> None:
    """A module in ``x`` and one outside of it, both by the name ``a.b`` there."""
    one, other = (nn.ModuleDict({"b": nn.Linear(4, 4)}) for _ in range(2))
    x = Calls(lambda self, value: self.a.b(value) + self.others[0](value), a=one)
    model = Calls(lambda self, value: self.x(value), x=x, a=other)
    x.others = [other["b"]]  # type: ignore[assignment] # a list hides it
    assert list(inspected(model, X).info["Calls"]["children"]["x"]["children"]) == [
        "a.b",
        "a.b (1)",
    ]


# -- remarks -------------------------------------------------------------------------------------------------------------


def remarks(**changes: Any) -> list[str]:
    """All but the last one, which is the verdict."""
    *others, verdict = facts(**changes).table().remarks
    assert verdict.startswith("Verdict: ")
    return others


def found_in(step: int, path: str = "second", **changes: Any) -> NonFinite:
    given: dict[str, Any] = {
        "phase": "forward",
        "type_name": "Linear",
        "invocation": 0,
        "nan": 1,
        "inf": 0,
        "numel": 8,
    }
    return NonFinite(step=step, path=path, **{**given, **changes})


def test_where_nothing_was_found_only_the_measuring_is_told() -> None:
    assert remarks() == [
        "Medians of 3 steps, on CPU One; host times, as a share of forward and backward."
    ]
    assert remarks(warm_up=1, steps=1, timed=1)[0].startswith(
        "Medians of 1 step after 1 warm-up step, on CPU One"
    )
    with inspect(nn.ReLU()) as nothing:
        pass
    assert str(nothing) == "No step was measured, because the model was not called."
    assert remarks(num_differing=1)[1] == (
        "Times are of the most common kind of step. 1 step left out: different calls or input shapes."
    )


def test_the_number_of_checked_steps_is_told() -> None:
    assert (
        remarks(checked_steps=50)[1]
        == "50 training steps checked for NaN and Inf: the loss, gradients and parameters."
    )
    assert (
        remarks(checked_steps=0)[1]
        == "No step trained, so only the measured steps were checked for NaN and Inf."
    )
    trained = (CheckedModule(name="G (Net)", steps=25), CheckedModule(name="D (Net)", steps=50))
    assert (
        remarks(checked_steps=50, trained_modules=trained)[2]
        == "Modules that train: G (Net), 25 steps; D (Net), 50 steps."
    )
    skipped = remarks(skipped_steps=2, first_skipped=0)[0]
    assert (
        skipped
        == "GradScaler skipped 2 steps (first step 0), in which scaled gradients overflowed."
    )


def test_each_finding_is_a_sentence() -> None:
    assert remarks(nonfinite=(found_in(3),))[0] == (
        "Step 3: first NaN in the output of second (Linear), forward pass: 1 of 8 values is NaN."
    )


def test_findings_that_are_alike_are_told_once_by_the_one_that_knows_the_operator() -> None:
    found = (
        found_in(2, numel=0),
        found_in(3, operator="aten.log"),
        found_in(4),
        found_in(4, phase="backward"),
    )
    assert remarks(nonfinite=found)[:2] == [
        "In 3 steps, first in step 2: first NaN in the output of second (Linear), forward pass: "
        "1 of 8 values is NaN; source: aten.log.",
        "Step 4: first NaN in a gradient of second (Linear), backward pass: 1 of 8 values is NaN.",
    ]


def test_of_many_findings_the_first_are_told() -> None:
    said = remarks(nonfinite=tuple(found_in(step, f"layer {step}") for step in range(7)))
    assert len(said) == 7
    assert said[5] == "2 more sources are in run.facts.nonfinite."


def test_steps_of_which_no_finding_was_kept_are_counted() -> None:
    assert (
        remarks(nonfinite=(found_in(3),), nonfinite_steps=4)[1]
        == "3 later steps also have NaN or Inf."
    )
    assert len(remarks(nonfinite=(found_in(3),), nonfinite_steps=1)) == 2


def test_alarms_are_told_and_values_are_not() -> None:
    given: dict[str, Any] = {"check": "norm", "path": "second", "kind": "output_gradient"}
    alarms = [CheckResult(step=step, **given, value=None, message="too large") for step in (1, 2)]
    said = remarks(checked=(CheckResult(step=0, **given, value=1.5, message=None), *alarms))
    assert said[:-1] == ["In 2 steps, first in step 1: norm of second, output gradient: too large."]


def test_what_was_compiled_and_why_again() -> None:
    frames = (
        CompiledFrame(place="Net.forward, net.py:3", path="_orig_mod", times=1, reasons=()),
        CompiledFrame(
            place="helper, net.py:9",
            path=None,
            times=3,
            reasons=("size mismatch\n at 0", "another type"),
        ),
    )
    assert remarks(compilation=Compilation(frames=frames, breaks=(("print", 1), ("item()", 4))))[
        :-1
    ] == [
        "Compiled: Net.forward, net.py:3 (_orig_mod).",
        "Compiled 3 times: helper, net.py:9; recompiled because size mismatch at 0; another type.",
        "Graph break, once: print.",
        "Graph break, 4 times: item().",
    ]


# -- how it fits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (
            110,
            [
                "Layer",
                "Type",
                "Forward (µs)",
                "Backward (µs)",
                "of time",
                "Expected (µs)",
                "×",
                "FLOP/s",
                "Memory (B)",
            ],
        ),
        (
            90,
            [
                "Layer",
                "Type",
                "Forward (µs)",
                "Backward (µs)",
                "of time",
                "Expected (µs)",
                "×",
                "FLOP/s",
            ],
        ),
        (80, ["Layer", "Type", "Forward (µs)", "Backward (µs)", "of time", "Expected (µs)", "×"]),
        (70, ["Layer", "Type", "Forward (µs)", "Backward (µs)", "of time", "×"]),
        (50, ["Layer", "Forward (µs)", "Backward (µs)", "of time"]),
        (10, ["Layer", "Forward (µs)"]),
    ],
)
def test_a_narrow_terminal_leaves_out_what_is_needed_least(width: int, headings: list[str]) -> None:
    text = expecting([0.005, 0.0008, 0.0042]).table().write("text", width=width)
    assert re.split(r" {2,}", text.splitlines()[1].strip()) == headings
    assert ("* 2.1" in text) == ("×" in headings)


def test_names_of_deep_layers_keep_their_branches() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for name in ("attention_output_projection", "encoder_block_with_adapters"):
        model = Calls(lambda self, x: next(self.children())(x), **{name: model})
    text = inspected(model, X).table().write("text", width=50)
    assert "├─" not in text
    assert re.search(r"^  └─…\w+ ", text, re.MULTILINE)
    assert max(map(len, text.splitlines()[:6])) <= 50


def test_calls_deeper_than_asked_are_said_to_be_in_those_above() -> None:
    found = inspected(nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), X)
    assert [row.depth for row in found.table(max_depth=1).rows] == [0, 1]
    assert (
        "2 calls below depth 1 are included in the rows above." in found.table(max_depth=1).remarks
    )
    assert len(found.table(max_depth=None).rows) == 4
    assert "below depth" not in str(found)


# -- for programs --------------------------------------------------------------------------------------------------------


def test_programs_get_every_column_and_the_number_of_the_call() -> None:
    model = Calls(lambda self, x: self.shared(self.shared(x)), shared=nn.Linear(4, 4))
    rows = list(csv.DictReader(inspected(model, X).table().write("csv").splitlines()))
    assert [(row["path"], row["invocation"]) for row in rows] == [
        ("", "0"),
        ("shared", "0"),
        ("shared", "1"),
    ]
    assert (rows[1]["device_forward"], rows[1]["expected"], rows[1]["forward_nan"]) == ("", "", "0")
    assert float(rows[1]["forward"]) > 0
    (_, first, second) = json.loads(inspected(model, X).table().write("json"))["rows"]
    assert (first["invocation"], second["invocation"], second["is_again"]) == (0, 1, False)


def test_people_do_not_see_what_is_for_programs() -> None:
    for style in set(FORMATS) - {"csv", "json"}:
        assert "invocation" not in facts().table().write(style)
    assert "invocation" not in facts()._repr_html_()


def test_a_page_has_all_calls_since_it_folds() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(5):
        model = nn.Sequential(model)
    found = inspected(model, X)
    assert found._repr_html_().count("<tr data-depth=") == 6
    assert "2 calls below depth 3" in str(found)


# -- the page about it ---------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "run-info.md"


def test_the_page_says_what_each_key_means() -> None:
    rows = rows_of(PAGE.read_text())
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(inspected(nn.Linear(4, 1), X).info["Linear"]["info"])
