"""Saved runs: what is read is what was written, and anything else is refused in one clear line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.opening import inspected_run
from tests.recording.test_record import Calls
from tests.report.runs import STEADY, inspected, run
from tests.report.samples import HOSTILE, UNPRINTABLE, Chain
from tests.run_schema import PLACE, written
from torchscan import InputError, from_json, open_run
from torchscan.notes import Note
from torchscan.types import Latency, RunFacts

SCHEMA = torchscan.types.json_schema("run")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
X = torch.ones(2, 4)


def checkpointed() -> nn.Module:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return Calls(
        lambda self, x: self.last(checkpoint(self.block, x, use_reentrant=False)),
        block=block,
        last=nn.Linear(4, 1),
    )


RUNS: dict[str, Callable[[], RunFacts]] = {
    "training": lambda: inspected(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), X),
    "checkpoint": lambda: inspected(checkpointed(), X),
    "names": lambda: inspected(
        Chain({name: nn.Linear(4, 4) for name in (*HOSTILE, *UNPRINTABLE)}), X, steps=1
    ),
    "not finite": lambda: inspected(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), X * math.inf),
    "nothing": lambda: inspected(nn.ReLU(), X, steps=0),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_saved_is_opened_as_it_was(name: str, tmp_path: Path) -> None:
    facts, path = RUNS[name](), tmp_path / "a folder" / "run.json"
    facts.save(path)
    VALIDATOR.validate(json.loads(path.read_text()))
    assert open_run(path) == facts
    assert str(open_run(str(path))) == str(facts)


def test_a_run_saves_its_facts(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    with torchscan.inspect(model) as watched:
        model(X)
        with pytest.raises(InputError, match="not finished"):
            watched.save(tmp_path / "run.json")
    assert not list(tmp_path.iterdir())
    watched.save(tmp_path / "run.json")
    assert open_run(tmp_path / "run.json") == watched.facts


def test_it_says_where_it_was_measured() -> None:
    found = RUNS["training"]().provenance
    assert (found.torch_version, found.torchscan_version) == (
        str(torch.__version__),
        torchscan.__version__,
    )
    assert found.threads == torch.get_num_threads()
    assert found.device.startswith("CPU")


def test_the_schema_is_that_of_the_dataclasses() -> None:
    """``python scripts/run_schema.py`` writes it anew."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert PLACE.read_text() == written()


def test_numbers_that_are_not_finite_are_texts(tmp_path: Path) -> None:
    facts = replace(run({"a": (STEADY, STEADY)}), forward=Latency(math.nan, -math.inf, math.inf))
    facts.save(tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    content = json.loads(text, parse_constant=pytest.fail)
    VALIDATOR.validate(content)
    times = {"median": "NaN", "least": "-Infinity", "most": "Infinity"}
    assert content["forward"] == {**times, "lower_quartile": None, "upper_quartile": None}
    forward = inspected_run(tmp_path / "run.json").forward
    assert math.isnan(forward.median)
    assert forward[1:3] == (-math.inf, math.inf)


def saved(tmp_path: Path, change: Callable[[Any], object] = lambda content: None) -> Path:
    path = tmp_path / "run.json"
    run({"a": (STEADY, STEADY)}).save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def test_keys_that_a_later_version_adds_are_left_alone(tmp_path: Path) -> None:
    later = saved(
        tmp_path,
        lambda content: (content.update(energy=3), content["calls"][0].update(joule={"a": 1})),
    )
    assert len(inspected_run(later).calls) == 2


def test_what_has_a_default_may_be_missing(tmp_path: Path) -> None:
    assert (
        inspected_run(saved(tmp_path, lambda content: content.pop("timeline"))).timeline
        == torchscan.types.Timeline()
    )


def test_a_run_of_the_first_version_has_notes_and_the_new_keys(tmp_path: Path) -> None:
    found = {"step": 3, "path": "0", "type_name": "Linear", "invocation": 0, "nan": 1, "inf": 0}
    forward = {**found, "phase": "forward", "numel": 8, "unknown": "it is too large to be copied"}
    gradient = {**found, "phase": "gradient", "numel": 8, "then": "train.py:9 (in step)"}
    old = {"schema": "torchscan/run/1", "nonfinite": [forward, gradient]}

    def change(content: dict[str, Any]) -> None:
        content.update(old)
        for before, now in (("storing", "storing_gradients"), ("differing", "num_differing")):
            content[before] = content.pop(now)
        content["unowned"] = content.pop("outside_modules")

    facts = inspected_run(saved(tmp_path, change))
    expected = inspected_run(saved(tmp_path))
    assert (facts.num_differing, facts.outside_modules) == (
        expected.num_differing,
        expected.outside_modules,
    )
    first, second = facts.nonfinite
    assert first.unknown == Note.from_text("it is too large to be copied")
    assert "the operator is unknown: it is too large to be copied" in str(first)
    assert (second.nan_operator, str(second.cause)) == (
        None,
        "backward() at train.py:9 (in step) stored finite values, so code after it wrote to them",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda it: it.update(schema="torchscan/run/3"),
            "schema 3, and this torchscan reads up to 2: install a newer torchscan",
        ),
        (
            lambda it: it.update(schema="torchscan/info/1"),
            "it is not a run of torchscan, but a report: save one",
        ),
        (lambda it: it.update(schema="other/run/1"), "it is not a run of torchscan: save one"),
        (lambda it: it.pop("schema"), "it is not a run of torchscan: save one"),
        (lambda it: it.pop("calls"), "it is a broken run: the run has no 'calls'"),
        (
            lambda it: it.update(steps="3"),
            "it is a broken run: the run.steps is '3', not integer",
        ),
        (
            lambda it: it["calls"][1].update(parent=1),
            r"the run.calls\[1\].parent is 1, which is not an earlier call",
        ),
        (
            lambda it: it["calls"][1].update(parent=-1),
            r"the run.calls\[1\].parent is -1, which is not an earlier call",
        ),
        (
            lambda it: it["calls"][0]["forward"].update(most="much"),
            r"the run.calls\[0\].forward.most is 'much'",
        ),
        (
            lambda it: it["timeline"]["backward"][0].update(call=9),
            r"the run.timeline.backward\[0\].call is 9, which is no",
        ),
    ],
)
def test_what_is_broken_is_refused(
    change: Callable[[Any], object], said: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, change)
    with pytest.raises(InputError, match=said) as error:
        open_run(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[]", "it is not a run"),
        ("1e999", "not JSON"),
    ],
)
def test_another_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(InputError, match=said):
        open_run(tmp_path / "other.json")


def test_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the run '.*none\.json' cannot be read: .*No such file"):
        open_run(tmp_path / "none.json")
    with pytest.raises(InputError, match="has no watched run: "):
        open_run(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        run({"a": (STEADY, STEADY)}).save(tmp_path)


def test_a_run_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="it is not a report of torchscan, but a run: write one with to_json"
    ):
        from_json(saved(tmp_path).read_text())
