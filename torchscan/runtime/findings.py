"""The source of a step's first non-finite value: module, operands and operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from torchscan.plain import stored_as
from torchscan.runtime.finiteness import check_values, range_of

#: in a module's forward pass; in the backward pass of what it made; in what the model was given; in the gradient that it was
#: given, by a loss; in gradients, between the backward pass and the optimizer's step; in parameters, by the optimizer; in
#: parameters and buffers after the step, by something else
Phase = Literal["forward", "backward", "input", "loss", "gradient", "optimizer", "update"]


#: what a check comes before or after
_WHEN = {
    "backward": " after backward()",
    "gradient": " before the optimizer's step",
    "optimizer": " after the optimizer's step",
    "update": " after the optimizer's step",
}


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
        """``input 0: -2.1 … 3.4, 2 NaN``."""
        finite = (
            [] if self.min is None or self.max is None else [f"{self.min:.3g} … {self.max:.3g}"]
        )
        return f"{self.name}: {', '.join([*finite, *_counted(self.nan, self.inf)])}"


class Bad(NamedTuple):
    """A parameter or buffer with values that are not finite."""

    name: str
    nan: int
    inf: int
    numel: int

    def __str__(self) -> str:
        """``weight: 1 NaN of 64``."""
        return f"{self.name}: {' and '.join(_counted(self.nan, self.inf))} of {self.numel:,}"


def ranges_of(named: Iterable[tuple[str, Tensor]]) -> tuple[Range, ...]:
    """Return the ranges of named tensors."""
    return tuple(_range(name, each) for name, each in named)


def _range(name: str, tensor: Tensor) -> Range:
    look, (least, most) = check_values(tensor), range_of(tensor) or (None, None)
    return Range(name, least, most, look.nan, look.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The first producer of values that are not finite in one step."""

    #: 0 is the first step that was watched, which may be one to warm up
    step: int
    phase: Phase
    path: str
    type_name: str
    invocation: int
    #: what it made: how many values are not finite, of how many; 0: they were not counted, and there is at least one
    nan: int
    inf: int
    numel: int
    #: what made them, where that could be found out, and the line of the user's that called it
    operator: str | None = None
    #: what made NaN of its infinities, if that is what happened
    then: str | None = None
    #: module and operator that wrote the infinities that became NaN, if they were intended, as in a mask
    mask: str | None = None
    #: True if the module ran in another thread: then its values were counted in the result of the module that started it
    in_thread: bool = False
    line: str | None = None
    #: why the operator is not known
    unknown: str | None = None
    #: what a device has checked, as ``the loss``, if it was read after its step: then no place is known
    checked: str | None = None
    #: True for a gradient that the script has given to ``backward()``
    is_given: bool = False
    #: why it may be another
    unsure: str | None = None
    #: what it was given just before
    inputs: tuple[Range, ...] = ()
    #: its parameters and buffers that are not finite
    weights: tuple[Bad, ...] = ()
    #: number of parameters or gradients besides the one in ``weights`` that are not finite
    others: int = 0
    #: the root module of the path, if it is not the one that is inspected
    root: str | None = None
    #: steps that the optimizer had taken, if that number differs from ``step``
    update: int | None = None
    #: what is known about the cause
    cause: str | None = None
    #: True if gradients were off: then ``step`` counts such passes
    is_evaluation: bool = False

    @property
    def key(self) -> FindingKey:
        """The step, the phase and the path."""
        return self.step, self.phase, self.path

    @property
    def is_placed(self) -> bool:
        """True if nothing about the place is unknown or unsure."""
        return self.checked is None and self.unknown is None and self.unsure is None

    @property
    def what(self) -> str:
        """``NaN``, or ``Inf`` if there is none."""
        return "NaN" if self.nan else "Inf"

    def __str__(self) -> str:
        """In a sentence or two."""
        updates = "" if self.update is None else f" (optimizer step {self.update})"
        return f"{'evaluation pass' if self.is_evaluation else 'step'} {self.step}{updates}: {self.description}"

    @property
    def description(self) -> str:
        """The finding without the step."""
        if self.checked is not None:
            by = "" if self.line is None else f" at {self.line}"
            return f"{self.checked} was {self.what}{_WHEN.get(self.phase, '')}{by}{self._reasons()}"
        if self.phase in ("gradient", "optimizer"):
            return f"{self._said_of_optimizer()}{self._reasons()}"
        counted = (
            f" ({' and '.join(_counted(self.nan, self.inf))} of {self.numel:,} values)"
            if self.numel
            else ""
        )
        head = f"the first {self.what} {self._where()}{counted}"
        by = "" if self.operator is None else f", by {self.operator}"
        by += "" if self.line is None else f" at {self.line}"
        by += "" if self.then is None else f", whose Inf became NaN in {self.then}"
        by += "" if self.mask is None else f", of infinities from {self.mask}"
        given = "" if not self.inputs else f"; given {'; '.join(map(str, self.inputs))}"
        return f"{head}{by}{self._reasons()}{given}"

    def _reasons(self) -> str:
        because = "" if self.cause is None else f"; {self.cause}"
        because += "" if self.unknown is None else f"; the operator is not known: {self.unknown}"
        return because + ("" if self.unsure is None else f"; not quite sure: {self.unsure}")

    def _said_of_optimizer(self) -> str:
        """Return a sentence about a parameter or its gradient, before or after the optimizer's step."""
        first = (
            self.weights[0] if self.weights else Bad("parameter", self.nan, self.inf, self.numel)
        )
        name = ".".join(filter(None, (self.path, first.name)))
        of_root = "" if self.root is None else f" of {self.root}"
        counted = f" ({' and '.join(_counted(first.nan, first.inf))} of {first.numel:,})"
        number = len(self.weights) - 1 + self.others
        more = f" and of {number} more" if self.phase == "gradient" else f" and {number} more"
        more = more if number > 0 else ""
        step = (
            f"{self.operator or 'the optimizer'}{'' if self.line is None else f' at {self.line}'}"
        )
        if self.phase == "gradient":
            since = "" if self.then is None else f" at {self.then}"
            if self.cause is not None:
                return (
                    f"the gradient of {name}{of_root}{counted}{more} was not finite before {step}"
                )
            return (
                f"the gradient of {name}{of_root}{counted}{more} was not finite before {step}, though backward(){since} "
                "produced finite ones: it was written to in between"
            )
        return f"parameter {name}{of_root}{counted}{more} became {self.what} in {step}, though its gradient is finite"

    def _name(self) -> str:
        call = f", call {self.invocation + 1}" if self.invocation else ""
        if self.root is None:
            return f"{self.path or 'the model'} ({self.type_name}{call})"
        return f"{self.path} ({self.type_name}{call}) of {self.root}" if self.path else self.root

    def _where(self) -> str:
        name, weights = (
            self._name(),
            " and its ".join(map(str, self.weights)) or "parameters or buffers",
        )
        if self.phase == "forward" and self.weights:
            return f"came from {name}, forward, through its {weights}"
        if self.phase == "update":
            return f"was in {name} after the step, in its {weights}"
        return {
            "forward": f"was made in {name}, forward{' in another thread' if self.in_thread else ''}",
            "backward": f"was made in {name}, backward",
            "input": f"was given to {'the model' if self.root is None else self.root}",
            "loss": self._where_in_loss(),
        }[self.phase]

    def _where_in_loss(self) -> str:
        if self.is_given:
            return "was in the gradient that backward() was given"
        if self.operator is None and self.unknown is None:
            return "came with the gradient, from what was computed from the model's result"
        module = f" in {self.type_name}," if self.type_name else ""
        return f"was made{module} between the model's result and the loss"


def _counted(nan: int, inf: int) -> list[str]:
    return [f"{number:,} {name}" for number, name in ((nan, "NaN"), (inf, "Inf")) if number]


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
    trained: tuple[CheckedModule, ...] = ()
    #: steps that a GradScaler skipped because scaled gradients overflowed, and the first of them
    skipped_steps: int = 0
    first_skipped: int | None = None
    findings: tuple[NonFinite, ...] = ()
    #: steps in which something was not finite
    nonfinite_steps: int = 0
    #: names of threads that trained as well and were not checked
    unchecked_threads: tuple[str, ...] = ()
