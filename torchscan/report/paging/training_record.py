"""Records of the training of a run, as its page shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchscan.notes import Note

#: bit of weights in ``LayerData.not_finite``
_IN_WEIGHTS = 4


@dataclass(frozen=True, kw_only=True)
class CurveData:
    """The curve of one phase. A value is None where it is not known."""

    steps: Sequence[int] = ()
    times: Sequence[float] = ()
    losses: Sequence[float | None] = ()
    learning_rates: Sequence[float | None] = ()
    gradient_norms: Sequence[float | None] = ()


@dataclass(frozen=True, kw_only=True)
class RowData:
    """A row of the heat map: a module, or a range of neighboring modules."""

    path: str
    name: str
    type_name: str
    parent: int | None
    depth: int
    #: number of modules in a range; 0 for a module
    num_folded: int


@dataclass(frozen=True, kw_only=True)
class LayerData:
    """Values of rows in columns of steps; NaN where there is none."""

    rows: Sequence[RowData]
    first: Sequence[int]
    last: Sequence[int]
    until: Sequence[int]
    num_sampled: int
    #: quantity -> row -> values by column
    values: Mapping[str, Sequence[Sequence[float]]]
    #: where values are not finite: 1 for outputs, 2 for gradients, 4 for weights, added up
    not_finite: Sequence[Sequence[int]]

    def is_inner(self, row: int) -> bool:
        """Return whether a row has rows inside it."""
        return row + 1 < len(self.rows) and self.rows[row + 1].depth > self.rows[row].depth

    def has_nonfinite_weights(self, step: int) -> bool:
        """Return whether weights are not finite in the column of a step."""
        columns = (column for column, last in enumerate(self.last) if last >= step)
        column = next(columns, None)
        if column is None:
            return False
        return any(bits[column] & _IN_WEIGHTS for bits in self.not_finite)


@dataclass(frozen=True, kw_only=True)
class NanData:
    """The first value that is not finite."""

    step: int
    series: str
    path: str
    invocation: int
    #: estimated number of such values in the tensor, and its size; None if they are not known
    count: int | None = None
    numel: int | None = None
    #: largest absolute value of the input in this step, and some steps before it
    input_largest: float | None = None
    input_before: float | None = None
    before_step: int | None = None
    is_input_finite: bool | None = None
    #: True if the weights inside the module were finite before this step, or if it has none
    were_weights_finite: bool | None = None

    @property
    def is_producer(self) -> bool:
        """True if the module produced the value: its input and its weights were finite."""
        return bool(self.is_input_finite and self.were_weights_finite)


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """Everything that the page shows of the training of a run."""

    run: str
    #: "finished", "stopped" or "recording"
    state: str
    about: Mapping[str, Any] = field(default_factory=dict)
    num_dropped: int = 0
    train: CurveData = CurveData()
    evaluation: CurveData = CurveData()
    layers: LayerData
    notes: Sequence[Note] = ()
    nan: NanData | None = None
