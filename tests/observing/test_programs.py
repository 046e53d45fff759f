"""Observed training programs compute the same, and observers count what a reader counts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from tests.observing.outcomes import Observer, Outcome, outcome_of
from tests.observing.programs import PROGRAMS
from tests.versions import before

#: programs that are much like another one
SIMILAR = frozenset(
    {
        *("averaged weights", "cell called in a loop", "contrastive", "copies while training"),
        *("features of a frozen backbone", "gan in one module", "hooks of the program"),
        *("lazy layers", "list of losses", "optimizers of parts", "policy gradient"),
        *("pseudo labels before a step", "q learning", "recalibrated batch norm"),
        *("schedule free", "sharpness aware", "skipped optimizer steps", "sparse embedding"),
        *("spectral normalization", "validation with gradients on"),
    }
)

#: programs that run with each observer alone, too; the others run with both together
ALONE = frozenset(
    {
        *("closure of lbfgs", "compiled", "gan", "gradient accumulation", "mixed precision"),
        *("nanogpt", "plain loop", "reentrant checkpoint", "several backward passes"),
        *("steps skipped by a scaler", "truncated backpropagation"),
    }
)


def _programs(observers: Iterable[Observer | None]) -> Iterable[ParameterSet]:
    """Return the programs with each of the observers, or with None for both together."""
    for program in PROGRAMS.values():
        for observer in observers:
            is_covered = observer is not None and program.name not in ALONE
            marks = [pytest.mark.slow] if program.is_slow else []
            if program.name == "closure of lbfgs":
                marks.append(before("2.9", "LBFGS warns of its own code, once per process"))
            if program.name in SIMILAR or is_covered:
                marks.append(pytest.mark.sweep)
            values = [program.name] if observer is None else [program.name, observer]
            yield pytest.param(*values, id="-".join(values), marks=marks)


# A program runs once for all that is compared: a test for each comparison would run it again in
# each of the workers that share the tests.


@pytest.mark.parametrize("name", [*_programs([None])])
def test_both_observers_change_nothing_and_count_the_same(name: str) -> None:
    both: tuple[Observer, ...] = ("inspect", "watch")
    _require_unchanged(outcome_of(name), outcome_of(name, both))
    _require_counts(name, outcome_of(name, both), both)


@pytest.mark.parametrize("name", [*_programs([None])])
def test_steps_that_are_not_sampled_are_counted(name: str) -> None:
    found = outcome_of(name, ("watch seldom",))
    _require_unchanged(outcome_of(name), found)
    expected = {model: counts.training for model, counts in PROGRAMS[name].expected.items()}
    assert found.num_steps == expected


@pytest.mark.parametrize(("name", "observer"), [*_programs(["inspect", "watch"])])
def test_an_observer_alone_changes_nothing_and_counts_the_same(
    name: str, observer: Observer
) -> None:
    found = outcome_of(name, (observer,))
    _require_unchanged(outcome_of(name), found)
    _require_counts(name, found, (observer,))


def _require_unchanged(plain: Outcome, found: Outcome) -> None:
    """Compare values bit by bit, and what is left on models, in the process and on screen."""
    assert found.losses == plain.losses
    assert found.tensors.keys() == plain.tensors.keys()
    for key, tensor in plain.tensors.items():
        assert torch.equal(found.tensors[key], tensor), key

    assert found.attributes == plain.attributes
    assert found.process == plain.process

    assert list(found.findings) == []
    assert [each for each in found.messages if each not in plain.messages] == []


def _require_counts(name: str, found: Outcome, observers: tuple[Observer, ...]) -> None:
    program = PROGRAMS[name]
    for model, expected in program.expected.items():
        for observer in observers:
            assert found.counts[observer, model] == expected, (observer, model)
    if "inspect" in observers:  # steps that overflow are the only ones that a scaler skips
        assert set(found.skipped.values()) == {program.num_skipped}
