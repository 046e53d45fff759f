"""Checks of values on a CUDA device: nothing waits for them, and they are read when they have arrived."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchscan.recording.places import place_of_user
from torchscan.runtime.finding_log import FindingLog, describe_values
from torchscan.runtime.findings import Bad, Phase
from torchscan.runtime.finiteness import Look, is_plain
from torchscan.runtime.root_calls import ModuleSteps
from torchscan.runtime.root_names import RootNames
from torchscan.runtime.trained_tensors import TrainedTensors
from torchscan.torch_versions import norms_of, unseen

_LATER = "values were read after the step, as they are on a device"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheck:
    """A check that has not been read."""

    phase: Phase
    #: the largest magnitude of each tensor
    norms: Tensor
    event: torch.cuda.Event
    steps: ModuleSteps | None
    #: None for a tensor that is not a parameter's, as a loss
    parameters: Sequence[weakref.ref[Tensor] | None]
    line: str | None
    is_scaled: bool


class DeviceChecks:
    """The checks that are in flight."""

    def __init__(self, tensors: TrainedTensors, names: RootNames, log: FindingLog) -> None:
        self._tensors = tensors
        self._names = names
        self._log = log
        self._waiting: deque[DeviceCheck] = deque()

    def send(self, phase: Phase, pairs: Sequence[tuple[Tensor | None, Tensor]], *, is_scaled: bool) -> None:
        """Have a device compute whether these values are finite. Each comes with its parameter, or None."""
        plain = [(parameter, values) for parameter, values in pairs if is_plain(values)]
        if not plain:
            return
        with unseen():
            norms = norms_of([values.detach() for _, values in plain], math.inf)
            sent = torch.stack([norm.float() for norm in norms])
            arrived = torch.empty_like(sent, device="cpu", pin_memory=True)
            arrived.copy_(sent, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        check = DeviceCheck(
            phase=phase,
            norms=arrived,
            event=event,
            steps=self._log.find_steps(),
            parameters=[None if parameter is None else weakref.ref(parameter) for parameter, _ in plain],
            line=place_of_user(),
            is_scaled=is_scaled,
        )
        self._waiting.append(check)

    def read(self, *, waits: bool) -> None:
        """Report what has arrived of earlier checks, or all of them if it ``waits``."""
        while self._waiting and (waits or self._waiting[0].event.query()):
            check = self._waiting.popleft()
            check.event.synchronize()
            bad = [index for index, norm in enumerate(check.norms.tolist()) if not math.isfinite(norm)]
            # scaled gradients may overflow
            is_intended = check.is_scaled and check.phase in ("backward", "gradient")
            if bad and not is_intended:
                self._explain(check, bad)

    def forget(self) -> None:
        """Drop the checks that have not been read."""
        self._waiting.clear()

    def _explain(self, check: DeviceCheck, bad: Sequence[int]) -> None:
        """Report the first of the values that are not finite."""
        if not self._log.begin_finding(check.steps):
            return
        is_nan = any(math.isnan(check.norms[index].item()) for index in bad)
        look = Look(int(is_nan), int(not is_nan))
        reference = check.parameters[bad[0]]
        parameter = None if reference is None else reference()
        if parameter is None:
            found = describe_values(check.phase, look, 0, line=check.line, unknown=_LATER)
        else:
            owner = self._tensors.find_owner(parameter)
            self._tensors.note_bad([parameter])
            found = describe_values(
                check.phase,
                look,
                0,
                path=owner.path,
                type_name=owner.type_name,
                line=check.line,
                unknown=_LATER,
                weights=(Bad(owner.name, look.nan, look.inf, parameter.numel()),),
                root=self._names.find_name(owner.root),
            )
        self._log.report_step(found, check.steps)
