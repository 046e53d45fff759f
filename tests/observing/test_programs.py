"""Observed training programs compute the same, and observers count what a reader counts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from tests.observing.outcomes import Observer, outcome_of
from tests.observing.programs import PROGRAMS, Program

OBSERVERS: tuple[tuple[Observer, ...], ...] = (("inspect",), ("watch",), ("inspect", "watch"))
#: programs, models and observers that count otherwise today
DIFFERENT: dict[tuple[str, str, Observer], str] = {}


def _marks_of(program: Program) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if program.is_slow else []


def _programs_and_observers() -> Iterable[ParameterSet]:
    for program in PROGRAMS.values():
        for observers in OBSERVERS:
            identifier = f"{program.name}-{' and '.join(observers)}"
            yield pytest.param(program.name, observers, id=identifier, marks=_marks_of(program))


def _models_and_observers() -> Iterable[ParameterSet]:
    for program in PROGRAMS.values():
        for model in program.expected:
            for observer in ("inspect", "watch"):
                reason = DIFFERENT.get((program.name, model, observer))
                wrong = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
                yield pytest.param(
                    program.name,
                    model,
                    observer,
                    id=f"{program.name}-{model}-{observer}",
                    marks=[*_marks_of(program), *wrong],
                )


every_way = pytest.mark.parametrize(("name", "observers"), _programs_and_observers())


@every_way
def test_losses_and_parameters_are_the_same_bit_by_bit(
    name: str, observers: tuple[Observer, ...]
) -> None:
    plain, observed = outcome_of(name), outcome_of(name, observers)
    assert observed.losses == plain.losses
    assert observed.tensors.keys() == plain.tensors.keys()
    for key, tensor in plain.tensors.items():
        assert torch.equal(observed.tensors[key], tensor), key


@every_way
def test_nothing_stays_on_models_or_in_the_process(
    name: str, observers: tuple[Observer, ...]
) -> None:
    plain, observed = outcome_of(name), outcome_of(name, observers)
    assert observed.attributes == plain.attributes
    assert observed.process == plain.process


@every_way
def test_healthy_training_has_no_findings_and_no_messages(
    name: str, observers: tuple[Observer, ...]
) -> None:
    plain, observed = outcome_of(name), outcome_of(name, observers)
    assert list(observed.findings) == []
    assert [each for each in observed.messages if each not in plain.messages] == []


@pytest.mark.parametrize(("name", "model", "observer"), _models_and_observers())
def test_steps_and_evaluations_are_those_of_the_program(
    name: str, model: str, observer: Observer
) -> None:
    counted = outcome_of(name, (observer,)).counts[observer, model]
    assert counted == PROGRAMS[name].expected[model]


@pytest.mark.parametrize(("name", "model", "observer"), _models_and_observers())
def test_steps_are_the_same_under_both_observers(name: str, model: str, observer: Observer) -> None:
    counted = outcome_of(name, ("inspect", "watch")).counts[observer, model]
    assert counted == PROGRAMS[name].expected[model]


def test_only_steps_with_overflow_are_skipped() -> None:
    for program in PROGRAMS.values():
        if not program.is_slow:
            skipped = outcome_of(program.name, ("inspect",)).skipped
            assert set(skipped.values()) == {program.num_skipped}, program.name
