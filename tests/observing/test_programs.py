"""Observed training programs compute the same, and observers count what a reader counts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from tests.observing.outcomes import Observer, outcome_of
from tests.observing.programs import PROGRAMS, Program

OBSERVERS: tuple[tuple[Observer, ...], ...] = (
    ("inspect",),
    ("watch",),
    ("watch seldom",),
    ("inspect", "watch"),
)
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


def _marks_of(program: Program, observers: tuple[Observer, ...]) -> list[pytest.MarkDecorator]:
    slow = [pytest.mark.slow] if program.is_slow else []
    is_covered = observers in (("inspect",), ("watch",)) and program.name not in ALONE
    if program.name in SIMILAR or is_covered:
        slow.append(pytest.mark.sweep)
    return slow


def _programs_and_observers() -> Iterable[ParameterSet]:
    for program in PROGRAMS.values():
        for observers in OBSERVERS:
            yield pytest.param(
                program.name,
                observers,
                id=f"{program.name}-{' and '.join(observers)}",
                marks=_marks_of(program, observers),
            )


def _models_and_observers(*, alone: bool) -> Iterable[ParameterSet]:
    both: tuple[Observer, ...] = ("inspect", "watch")
    for program in PROGRAMS.values():
        for model in program.expected:
            for observer in both:
                yield pytest.param(
                    program.name,
                    model,
                    observer,
                    id=f"{program.name}-{model}-{observer}",
                    marks=_marks_of(program, (observer,) if alone else both),
                )


observed = pytest.mark.parametrize(("name", "observers"), [*_programs_and_observers()])


@pytest.mark.few(40)
@observed
def test_losses_and_parameters_are_the_same_bit_by_bit(
    name: str, observers: tuple[Observer, ...]
) -> None:
    plain, found = outcome_of(name), outcome_of(name, observers)
    assert found.losses == plain.losses
    assert found.tensors.keys() == plain.tensors.keys()
    for key, tensor in plain.tensors.items():
        assert torch.equal(found.tensors[key], tensor), key


@pytest.mark.few(40)
@observed
def test_nothing_stays_on_models_or_in_the_process(
    name: str, observers: tuple[Observer, ...]
) -> None:
    plain, found = outcome_of(name), outcome_of(name, observers)
    assert found.attributes == plain.attributes
    assert found.process == plain.process


@pytest.mark.few(40)
@observed
def test_healthy_training_has_no_findings_and_no_messages(
    name: str, observers: tuple[Observer, ...]
) -> None:
    plain, found = outcome_of(name), outcome_of(name, observers)
    assert list(found.findings) == []
    assert [each for each in found.messages if each not in plain.messages] == []


@pytest.mark.parametrize(("name", "model", "observer"), [*_models_and_observers(alone=True)])
def test_steps_and_evaluations_are_those_of_the_program(
    name: str, model: str, observer: Observer
) -> None:
    counted = outcome_of(name, (observer,)).counts[observer, model]
    assert counted == PROGRAMS[name].expected[model]


@pytest.mark.few(40)
@pytest.mark.parametrize(("name", "model", "observer"), [*_models_and_observers(alone=False)])
def test_steps_are_the_same_under_both_observers(name: str, model: str, observer: Observer) -> None:
    counted = outcome_of(name, ("inspect", "watch")).counts[observer, model]
    assert counted == PROGRAMS[name].expected[model]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(
            each.name,
            model,
            id=f"{each.name}-{model}",
            marks=_marks_of(each, ("watch seldom",)),
        )
        for each in PROGRAMS.values()
        for model in each.expected
    ],
)
def test_steps_that_are_not_sampled_are_counted(name: str, model: str) -> None:
    found = outcome_of(name, ("watch seldom",)).num_steps[model]
    assert found == PROGRAMS[name].expected[model].training


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each.name, marks=_marks_of(each, ("inspect", "watch")))
        for each in PROGRAMS.values()
    ],
)
def test_only_steps_with_overflow_are_skipped(name: str) -> None:
    skipped = outcome_of(name, ("inspect", "watch")).skipped
    assert set(skipped.values()) == {PROGRAMS[name].num_skipped}
