"""All training programs, by name."""

from __future__ import annotations

from tests.observing import (
    autograd_programs,
    frameworks,
    loops,
    several_models,
    unusual_programs,
)
from tests.observing.training_program import PROGRAMS, Counts, Program, Training

__all__ = [
    "PROGRAMS",
    "Counts",
    "Program",
    "Training",
    "autograd_programs",
    "frameworks",
    "loops",
    "several_models",
    "unusual_programs",
]
