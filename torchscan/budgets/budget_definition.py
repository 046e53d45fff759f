"""The budget of a model: its target, its inputs, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from torchscan.analyses.generation.engines import EngineName
from torchscan.analyses.generation.serving_costs import Compute
from torchscan.budgets.file_spelling import FileSpelling
from torchscan.precisions import Precision
from torchscan.recording.request import Mode
from torchscan.targets.inputs import InputSpec
from torchscan.targets.parsing import Target

#: the metrics compared with a baseline, which may have a tolerance
BASELINE_METRICS = ("params", "model_size", "macs", "flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimit:
    """The most that a real step may take, on one device."""

    #: seconds
    most: float
    #: name of the device, or words of it
    measured_on: str
    #: share by which the step may take longer
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationBudget:
    """The budget of generating text with a model."""

    prompt: int
    new: int
    #: the formats in which weights, and keys and values, are stored; None: as they are
    weights: str | None = None
    cache: str | None = None
    compute: Compute | None = None
    engine: EngineName = "cuda-graph"
    #: metric -> its limit
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget of one model."""

    name: str
    #: the model, or None if a test provides it
    target: Target | None = None
    inputs: tuple[InputSpec, ...] = ()
    dtype: str | None = None
    batch_size: int = 1
    mode: Mode | None = None
    training: bool = False
    optimizer: str | None = None
    #: iterations of each loop whose end depends on data, or None
    loop_iterations: int | None = None
    precision: Precision | None = None
    device: str | None = None
    #: True if limits of costs, latency and step time are per sample of the batch
    per_sample: bool = False
    #: True to refuse operators without a cost formula if costs are limited
    strict: bool = True
    #: limits by metric
    limits: Mapping[str, float] = field(default_factory=dict)
    baseline: Path | None = None
    #: by metric the share by which it may exceed the baseline
    tolerance: Mapping[str, float] = field(default_factory=dict)
    #: limit of a real step, which is checked only if timings are requested
    step_time: StepLimit | None = None
    #: limits of text generation, on the device, in the precision and for the batch size above
    generation: GenerationBudget | None = None
    #: where the budget is defined, for messages and relative paths
    place: str = ""
    folder: Path | None = None


#: fields of a budget that are not keys of a budget file
_NOT_KEYS = ("name", "limits", "step_time", "place", "folder")
#: keys of a budget file for the limit of a real step
STEP_TIME_KEYS = ("max_step_time", "measured_on", "step_time_tolerance")
#: all keys of a budget file but limits
KEYS = [*STEP_TIME_KEYS, *(each.name for each in fields(Budget) if each.name not in _NOT_KEYS)]
KEYS[KEYS.index("inputs")] = "input"

#: the words of a budget file for arguments
BUDGET_FILE = FileSpelling({*KEYS, *(each.name for each in fields(GenerationBudget))})
