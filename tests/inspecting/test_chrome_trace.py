"""The last step as a trace: events of Chrome's format, nested as the calls were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.opening import inspected_run
from tests.recording.test_record import Calls
from torchscan.inspecting.call_run import CallRun
from torchscan.inspecting.exports import chrome_trace
from torchscan.inspecting.run import RunFacts
from torchscan.inspecting.run_device import RunProvenance
from torchscan.inspecting.step_timeline import Slice, Timeline

X = torch.ones(2, 4)
HERE = RunProvenance(device="CPU One", threads=1, torch_version="2", torchscan_version="1")


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 1)
    )


def checkpointed(*, reentrant: bool) -> nn.Module:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = Calls(
        lambda self, x: self.last(checkpoint(self.block, x, use_reentrant=reentrant)), block=block
    )
    model.add_module("last", nn.Linear(4, 1))
    return model


def train(model: nn.Module) -> None:
    model(X.clone().requires_grad_()).sum().backward()


def infer(model: nn.Module) -> None:
    with torch.no_grad():
        model(X)


MODELS: dict[str, tuple[Any, Any]] = {
    "training": (mlp, train),
    "inference": (mlp, infer),
    "checkpoint": (lambda: checkpointed(reentrant=False), train),
    "reentrant checkpoint": (lambda: checkpointed(reentrant=True), train),
    "two backward passes": (
        mlp,
        lambda model: [(model(X).sum() + model(X).sum()).backward() for _ in range(2)],
    ),
}


def watched(name: str) -> RunFacts:
    make, step = MODELS[name]
    model = make()
    with torchscan.inspect(model) as run:
        for _ in range(2):
            step(model)
    return run.facts


def events(facts: RunFacts, track: str) -> list[dict[str, Any]]:
    """The slices of a track, in microseconds, in the order of the file."""
    trace = chrome_trace(facts.calls, facts.timeline, facts.provenance)["traceEvents"]
    numbers = {each["args"]["name"]: each["tid"] for each in trace if each["name"] == "thread_name"}
    return [each for each in trace if each["ph"] == "X" and each["tid"] == numbers.get(track)]


def with_enclosing_slices(
    slices: list[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Each slice with the innermost one that it is in; slices that overlap otherwise are an error."""
    open_: list[dict[str, Any]] = []
    for each in slices:
        while open_ and open_[-1]["ts"] + open_[-1]["dur"] <= each["ts"] + 1e-6:
            open_.pop()
        assert not open_ or each["ts"] + each["dur"] <= open_[-1]["ts"] + open_[-1]["dur"] + 1e-6
        yield each, open_[-1] if open_ else None
        open_.append(each)


def key(event: dict[str, Any] | None) -> tuple[str, int] | None:
    return None if event is None else (event["args"]["path"], event["args"]["invocation"])


@pytest.mark.parametrize("name", MODELS)
def test_the_file_has_what_the_format_requires(name: str, tmp_path: Path) -> None:
    watched(name).save_trace(tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)
    assert content["displayTimeUnit"] == "ms"
    for event in content["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "args"} <= set(event)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert event["ts"] >= 0 <= event["dur"]
            assert isinstance(event["cat"], str)


@pytest.mark.parametrize("name", MODELS)
def test_slices_of_a_track_nest_and_come_in_order(name: str) -> None:
    facts = watched(name)
    for track in ("forward", "backward"):
        slices = events(facts, track)
        assert [each["ts"] for each in slices] == sorted(each["ts"] for each in slices)
        list(with_enclosing_slices(slices))


@pytest.mark.parametrize("name", MODELS)
def test_calls_are_inside_the_calls_that_they_are_in(name: str) -> None:
    facts = watched(name)
    parents = {
        (call.path, call.invocation): None if call.parent is None else facts.calls[call.parent]
        for call in facts.calls
    }
    found = {
        key(each): key(parent) for each, parent in with_enclosing_slices(events(facts, "forward"))
    }
    first = [call for call in facts.calls if not call.is_again]
    assert set(found) == {(call.path, call.invocation) for call in first}
    for call in first:
        parent: CallRun | None = parents[call.path, call.invocation]
        assert found[call.path, call.invocation] == (
            None if parent is None else (parent.path, parent.invocation)
        )


def test_a_call_is_named_by_path_and_type_and_says_what_it_was_given_and_cost() -> None:
    """2 rows through 4 × 8 weights."""
    facts = watched("training")
    names = [each["name"] for each in events(facts, "forward")]
    assert names == ["Sequential", "0 Linear", "1 Sequential", "1.0 ReLU", "1.1 Linear", "2 Linear"]
    said = events(facts, "forward")[1]["args"]
    assert (said["input_shapes"], said["output_shapes"], said["macs"]) == (
        [[2, 4]],
        [[2, 8]],
        2 * 4 * 8,
    )
    assert said["flops_per_second"] == facts.calls[1].flops_per_second


def test_the_backward_pass_is_one_slice_for_each_run_of_nodes() -> None:
    """From the last module to the first; what stores gradients runs between, and no two neighbours are of one call."""
    slices = [each["name"] for each in events(watched("training"), "backward")]
    modules = [name for name, _ in groupby(name for name in slices if name != "storing gradients")]
    assert modules == ["2 Linear", "1.1 Linear", "1.0 ReLU", "0 Linear"]
    assert slices.count("storing gradients") >= 1
    assert all(one != other for one, other in pairwise(slices))
    assert "macs" not in events(watched("training"), "backward")[0]["args"]


def test_without_gradients_there_is_no_slice_backward() -> None:
    assert events(watched("inference"), "backward") == []


def test_what_a_checkpoint_runs_again_is_inside_the_backward_pass() -> None:
    again = [
        each["name"] for each in events(watched("checkpoint"), "backward") if "(2)" in each["name"]
    ]
    assert again == ["block (2) Sequential", "block.0 (2) Linear", "block.1 (2) Tanh"]


@pytest.mark.slow
def test_the_track_begins_with_the_step() -> None:
    for name in MODELS:
        assert events(watched(name), "forward")[0]["ts"] == 0


def test_times_are_in_microseconds() -> None:
    timeline = Timeline(forward=(Slice(None, 1_000, 4_500),))
    (event,) = [
        each for each in chrome_trace([], timeline, HERE)["traceEvents"] if each["ph"] == "X"
    ]
    assert (event["ts"], event["dur"]) == (1.0, 3.5)


def test_what_ran_in_several_threads_has_several_tracks() -> None:
    """Slices of one track must nest: 0 … 10, 5 … 15 and 6 … 9, 20 … 30."""
    slices = (Slice(None, 0, 10), Slice(None, 5, 15), Slice(None, 6, 9), Slice(None, 20, 30))
    trace = chrome_trace([], Timeline(backward=slices), HERE)["traceEvents"]
    names = {each["tid"]: each["args"]["name"] for each in trace if each["name"] == "thread_name"}
    placed = [(names[each["tid"]], each["ts"]) for each in trace if each["ph"] == "X"]
    assert placed == [
        ("backward", 0.0),
        ("backward", 0.006),
        ("backward", 0.02),
        ("backward (2)", 0.005),
    ]


def test_a_call_that_an_exception_left_holds_what_ran_in_it() -> None:
    def fail(self: Any, x: Tensor) -> Tensor:
        self.inner(x)
        raise ValueError

    model = Calls(fail, inner=nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"^$"), torchscan.inspect(model) as run:
        model(X)
    assert [key(parent) for _, parent in with_enclosing_slices(events(run.facts, "forward"))] == [
        None,
        ("", 0),
    ]


def test_an_opened_run_has_its_trace_too(tmp_path: Path) -> None:
    facts = watched("training")
    facts.save(tmp_path / "run.json")
    inspected_run(tmp_path / "run.json").save_trace(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written == json.loads(
        json.dumps(chrome_trace(facts.calls, facts.timeline, facts.provenance))
    )
