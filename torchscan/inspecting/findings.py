"""The source of a step's first non-finite value: module, operands and operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from torchscan.inspecting.finiteness import check_values, range_of
from torchscan.notes import Note, describe
from torchscan.plain import stored_as

#: where a source is: the forward pass of a module, the backward pass of its nodes, the input of the
#: model, the gradient that the loss gives the model, gradients between the backward pass and the
#: optimizer's step, parameters after the optimizer's step, or parameters and buffers that something
#: else has written to
Phase = Literal["forward", "backward", "input", "loss", "gradient", "optimizer", "update"]
#: step, phase and path of a finding
FindingKey = tuple[int, str, str]


@stored_as(min="least", max="most")
class Range(NamedTuple):
    """The minimum and maximum of a tensor's finite values, and the number of others."""

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
    ranges = []
    for name, tensor in named:
        counts = check_values(tensor)
        smallest, largest = range_of(tensor) or (None, None)
        ranges.append(Range(name, smallest, largest, counts.nan, counts.inf))
    return tuple(ranges)


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
