"""Small, seeded training programs: what each trains, and how many steps and evaluations it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

#: the name of the model in programs that have only one
MODEL = "model"


class Counts(NamedTuple):
    """The training steps and evaluation passes of a model.

    A training step ends with an optimizer's step, or with the next forward pass after gradients of
    parameters. An evaluation pass is a call in ``eval`` mode or without gradients that is not in
    the middle of a training step.
    """

    training: int
    evaluations: int = 0


class Training(NamedTuple):
    """Models, and a function that trains them and returns the losses."""

    models: Mapping[str, nn.Module]
    run: Callable[[], list[float]]


Build = Callable[[int], Training]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training program."""

    name: str
    build: Build
    #: how many times its loop runs
    num_steps: int
    #: what a reader of the program counts, by model
    expected: Mapping[str, Counts]
    #: optimizer steps that a GradScaler skips
    num_skipped: int = 0
    is_slow: bool = False
    #: distributions that must be installed
    needs: tuple[str, ...] = ()

    def __call__(self, num_steps: int) -> list[float]:
        """Train without an observer, and return the losses."""
        return self.prepare(num_steps).run()

    def prepare(self, num_steps: int | None = None) -> Training:
        """Return models with their initial weights, or skip the test if a package is missing."""
        if self.needs:
            import tests.torchvision_cpu  # noqa: F401 - these packages import torchvision
        for name in self.needs:
            pytest.importorskip(name)
        torch.manual_seed(0)
        return self.build(self.num_steps if num_steps is None else num_steps)


PROGRAMS: dict[str, Program] = {}


def program(
    num_steps: int,
    expected: Counts | Mapping[str, Counts],
    *,
    num_skipped: int = 0,
    is_slow: bool = False,
    needs: tuple[str, ...] = (),
) -> Callable[[Build], Build]:
    """Register a function that builds a program, under the function's name."""
    counts = {MODEL: expected} if isinstance(expected, Counts) else expected

    def register(build: Build) -> Build:
        name = build.__name__.replace("_", " ")
        PROGRAMS[name] = Program(
            name=name,
            build=build,
            num_steps=num_steps,
            expected=counts,
            num_skipped=num_skipped,
            is_slow=is_slow,
            needs=needs,
        )
        return build

    return register
