"""Messages between the training process and the worker, and records of the store.

They contain neither models nor traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from torchscan.notes import Note
from torchscan.observing.steps import Phase as Phase

Kind = Literal[
    "input",
    "output",
    "input_grad",
    "output_grad",
    "param",
    "param_grad",
    "attached",
    "attached_grad",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: what is known of one series in one step, besides its counts and the user's own statistics
STATISTICS = (
    *("numel", "sampled", "nan", "inf", "zero", "mean", "std", "min", "max", "is_exact"),
    *("update", "saturated", "dead", "sample_norm", "norm"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One tensor of one call of a module, or one parameter, over time."""

    path: str
    type_name: str
    kind: Kind
    #: name of the parameter or attached tensor, else its number among the tensors of the call
    name: str
    #: 0 for the first call of the module in a step, 1 for the second, …
    invocation: int = 0

    @property
    def label(self) -> str:
        """The name of the series, for example ``fc.weight gradient``."""
        call = f" ({self.invocation + 1})" if self.invocation else ""
        has_name = self.kind.startswith(("param", "attached"))
        return f"{self.path or self.type_name}{call}{'.' if has_name else ' '}{self.what}"

    @property
    def what(self) -> str:
        """The name of the tensor, without the module and its call."""
        if self.kind in ("param", "attached"):
            return self.name
        if self.kind in ("param_grad", "attached_grad"):
            return f"{self.name} gradient"
        kind = self.kind.replace("_grad", " gradient")
        return kind if self.name == "0" else f"{kind} {self.name}"


class Announced(NamedTuple):
    """A series that comes over the line from now on."""

    series: Series
    #: between which its values are by the making of its module, if they are
    bounds: tuple[float, float] | None
    #: whether units of it may be dead
    can_die: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Statistics of one series in one step."""

    #: number of values
    numel: int
    #: number of sampled values, from which the other statistics are computed
    sampled: int
    #: NaN among the sampled values
    nan: int
    #: Inf among the sampled values
    inf: int
    #: zeros among the sampled values
    zero: int
    #: mean of the finite values
    mean: float
    #: standard deviation of the finite values
    std: float
    #: smallest value, of all values if ``is_exact``, else of the sampled ones
    min: float
    #: largest value, of all values if ``is_exact``, else of the sampled ones
    max: float
    is_exact: bool
    #: relative change of a parameter in the step; NaN if it is not known
    update: float
    #: share of an activation's outputs within a hundredth of its range from an end; NaN for others
    saturated: float
    #: share of a ReLU's units that are zero in the complete batch; NaN if it was not computed
    dead: float
    #: mean of the samples' L2 norms, for gradients of inputs and outputs; NaN if not computed
    sample_norm: float
    #: L2 norm of all values if it was computed, as for gradients of parameters; else an estimate
    #: from the sampled finite values. NaN if there are none
    norm: float
    #: custom statistics by name
    custom: Mapping[str, float]
    #: number of sampled values by bin; a bin is the upper ten bits of a value as a 32-bit float
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledStep:
    """A sampled step: distributions by the number of their series."""

    step: int
    phase: Phase
    #: 0 for the first pass of its kind, counted over the run
    number: int
    #: seconds since 1970
    time: float
    distributions: Mapping[int, Distribution]

    @property
    def place(self) -> int:
        """Position in time: the training step, or the number among the evaluation passes."""
        return self.step if self.phase == "train" else self.number


class CurvePoint(NamedTuple):
    """A training step or evaluation pass in the curves, sampled or not.

    A value is None if it is not known, and may be NaN or infinite.
    """

    #: training step, or the number of training steps before an evaluation pass
    step: int
    #: 0 for the first pass of its kind, counted over the run
    number: int
    #: seconds since 1970
    time: float
    #: value of the tensor that ``backward()`` was called on
    loss: float | None
    #: learning rate of the optimizer's first parameter group
    learning_rate: float | None
    #: L2 norm over all watched gradients, before clipping
    gradient_norm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """An event of a watched run, such as the first NaN. ``str(event)`` is its sentence."""

    #: seconds since 1970
    time: float
    #: rank of the event, or None if the file does not name one
    rank: int | None
    #: code of the event, with its values
    note: Note

    @property
    def step(self) -> int | None:
        """Training step of the event, or None."""
        step: Any = self.note.values.get("step")
        return step if type(step) is int else None

    def __str__(self) -> str:
        """Return the sentence."""
        return str(self.note)
