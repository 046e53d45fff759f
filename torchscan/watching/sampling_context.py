"""The parts of sampling that all steps of a model share, and the choice of sampled steps."""

from __future__ import annotations

import torch
from torch import nn

from torchscan.observing.steps import Pass
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.torch_versions import GradientHook
from torchscan.watching.call_sites import CallSites, SeriesNumbers
from torchscan.watching.frequency import Frequency
from torchscan.watching.parameter_memory import ParameterMemory
from torchscan.watching.rows import Rows
from torchscan.watching.schema import Phase
from torchscan.watching.wanted import Wanted, is_chosen


class SamplingContext:
    """The parts of sampling that outlive a step."""

    def __init__(self, model: nn.Module, wanted: Wanted) -> None:
        self.kinds, self.sample_norms = wanted.kinds, wanted.sample_norms
        self._frequencies: dict[Phase, Frequency] = {
            phase: Frequency(wanted.every, wanted.overhead_budget) for phase in ("train", "eval")
        }
        devices = (tensor.device for tensor in tensors_of(model))
        self.rows = Rows(wanted.sample_n, next(devices, torch.device("cpu")))
        self.numbers = SeriesNumbers(wanted.whole)
        self.memory = ParameterMemory()
        self.gradient_hook = GradientHook()
        self.sites = CallSites(
            self.numbers, lambda path, each: is_chosen(wanted.modules, path, each)
        )

    @property
    def every(self) -> int:
        """Training steps from one sample to the next."""
        return self._frequencies["train"].every

    def is_due(self, begun: Pass) -> bool:
        """Return whether to sample a pass that has begun."""
        frequency = self._frequencies[begun.phase]
        if begun.phase == "train":
            return frequency.is_due(begun.step)
        return frequency.is_evaluation_due(begun.number, begun.place, begun.step + begun.number)

    def begin(self, phase: Phase) -> None:
        """Choose the rows of a pass with statistics of all values."""
        self.rows.turn, self.rows.period = self._frequencies[phase].turn

    def note_cost(self, phase: Phase, nanoseconds: int) -> None:
        """Note the time that the samples of a pass have taken."""
        self._frequencies[phase].note_cost(nanoseconds)
