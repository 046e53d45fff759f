"""The source of a step's first non-finite value: module, operands and operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from torchscan.inspecting.finiteness import check_values, range_of
from torchscan.inspecting.memory_log import MemoryTrend
from torchscan.notes import Note, describe
from torchscan.plain import stored_as

#: in a module's forward pass; in the backward pass of what it made; in what the model was given; in the gradient that it was
#: given, by a loss; in gradients, between the backward pass and the optimizer's step; in parameters, by the optimizer; in
#: parameters and buffers after the step, by something else
Phase = Literal["forward", "backward", "input", "loss", "gradient", "optimizer", "update"]


#: step, phase and path of a finding
FindingKey = tuple[int, str, str]


@stored_as(min="least", max="most")
class Range(NamedTuple):
    """The values of one tensor: the least and greatest finite ones, and how many are not finite."""

    name: str
    min: float | None
    max: float | None
    nan: int
    inf: int

    def __str__(self) -> str:
        """Return ``input 0: -2.1 … 3.4, 2 NaN``."""
        return describe(self)


class Bad(NamedTuple):
    """A parameter or buffer with values that are not finite."""

    name: str
    nan: int
    inf: int
    numel: int

    def __str__(self) -> str:
        """Return ``weight: 1 NaN of 64``."""
        return describe(self)


def ranges_of(named: Iterable[tuple[str, Tensor]]) -> tuple[Range, ...]:
    """Return the ranges of named tensors."""
    return tuple(_range(name, each) for name, each in named)


def _range(name: str, tensor: Tensor) -> Range:
    look, (least, most) = check_values(tensor), range_of(tensor) or (None, None)
    return Range(name, least, most, look.nan, look.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The first producer of values that are not finite in one step."""

    #: step of the inspection, from 0 on; the first steps may be warm-up
    step: int
    phase: Phase
    path: str
    type_name: str
    invocation: int
    #: number of NaN in the output of the source
    nan: int
    #: number of Inf in the output of the source
    inf: int
    #: number of values of the output; 0 if they were not counted, and at least one is not finite
    numel: int
    #: operator that produced the values, or None if it is not known
    operator: str | None = None
    #: source that is not an operator, such as a hook or a sum of gradients, or None
    origin: Note | None = None
    #: operator that turned infinities of ``operator`` into NaN, or None
    nan_operator: str | None = None
    #: module and operator that wrote the infinities that became NaN, if they were intended, or None
    mask: Note | None = None
    #: True if the module ran in another thread; its values were counted in the result of the module
    #: that started it
    in_thread: bool = False
    #: line of the user's code that called the operator, or None
    line: str | None = None
    #: reason why the operator is not known, or None
    unknown: Note | None = None
    #: values that a device has checked, if they were read after the step; then the place is not
    #: known
    checked: Note | None = None
    #: True for a gradient that the script passed to ``backward()``
    is_user_gradient: bool = False
    #: reason why the source may be another one, or None
    unsure: Note | None = None
    #: ranges of the inputs of the source
    inputs: tuple[Range, ...] = ()
    #: parameters and buffers of the source that are not finite
    weights: tuple[Bad, ...] = ()
    #: number of non-finite parameters or gradients besides the one in ``weights``
    num_others: int = 0
    #: root module of the path, or None if it is the inspected module
    root: str | None = None
    #: number of optimizer steps, or None if it equals ``step``
    update: int | None = None
    #: further facts about the cause, or None
    cause: Note | None = None
    #: True if gradients were off; then ``step`` counts such passes
    is_evaluation: bool = False

    @property
    def key(self) -> FindingKey:
        """The step, the phase and the path."""
        return self.step, self.phase, self.path

    @property
    def is_located(self) -> bool:
        """True if nothing about the place is unknown or unsure."""
        return self.checked is None and self.unknown is None and self.unsure is None

    @property
    def kind(self) -> str:
        """``NaN``, or ``Inf`` if there is none."""
        return "NaN" if self.nan else "Inf"

    def __str__(self) -> str:
        """Return the step and the description."""
        updates = "" if self.update is None else f" (optimizer step {self.update})"
        kind = "evaluation pass" if self.is_evaluation else "step"
        return f"{kind} {self.step}{updates}: {self.description}"

    @property
    def description(self) -> str:
        """The sentence about the finding, without the step."""
        return describe(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModule:
    """A module that trains, and the number of steps in which it was checked."""

    name: str
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFacts:
    """Checks and findings of a run's guard."""

    #: training steps whose loss, gradients and parameters were checked, of the module that was inspected, or else of all
    checked_steps: int = 0
    #: modules that train, if there are several
    trained_modules: tuple[CheckedModule, ...] = ()
    #: steps that a GradScaler skipped because scaled gradients overflowed, and the first of them
    skipped_steps: int = 0
    first_skipped: int | None = None
    findings: tuple[NonFinite, ...] = ()
    #: steps in which something was not finite
    nonfinite_steps: int = 0
    #: names of threads that trained as well and were not checked
    unchecked_threads: tuple[str, ...] = ()
    #: memory after optimizer steps, or None with too few
    memory: MemoryTrend | None = None
