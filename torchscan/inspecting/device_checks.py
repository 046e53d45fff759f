"""Checks of values on a CUDA device. Nothing waits for them: they are read when they arrive."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchscan.inspecting.finding_log import FindingLog, StepMark, describe_values
from torchscan.inspecting.findings import Phase
from torchscan.inspecting.finiteness import NonFiniteCount, values_of
from torchscan.inspecting.root_names import RootNames
from torchscan.inspecting.trained_tensors import TrainedTensors
from torchscan.inspecting.value_peaks import HostCopy
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.recording.places import place_of_user
from torchscan.torch_versions import norms_of, without_tracing

_LATER = Note.of("read-after-step")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheck:
    """A check that has not been read."""

    phase: Phase
    #: largest magnitude of each tensor
    norms: HostCopy
    mark: StepMark
    #: parameter of each tensor, or None for a tensor such as a loss
    parameters: Sequence[weakref.ref[Tensor] | None]
    line: str | None
    is_scaled: bool
    #: the optimizer's step that computed the values, such as ``SGD.step()``, or None
    operator: str | None = None

    @property
    def is_intended(self) -> bool:
        """True if a GradScaler skips the step: scaled gradients may overflow."""
        return self.is_scaled and self.phase in ("backward", "gradient")


class DeviceChecks:
    """The checks of a run that are in flight."""

    def __init__(self, tensors: TrainedTensors, names: RootNames, log: FindingLog) -> None:
        self._tensors = tensors
        self._names = names
        self._log = log
        self._pending: deque[DeviceCheck] = deque()
        #: True from a finding to a step without one
        self.has_alarm = False
        self._num_bad_steps = 0

    def send(
        self,
        phase: Phase,
        pairs: Sequence[tuple[Tensor | None, Tensor]],
        *,
        is_scaled: bool,
        operator: str | None = None,
    ) -> None:
        """Have devices compute whether these values are finite.

        Args:
            phase: the part of the step that computed the values.
            pairs: the values, each with its parameter or None.
            is_scaled: True if a GradScaler has scaled the loss.
            operator: the optimizer's step that computed the values, if it is one.
        """
        by_device: dict[torch.device, list[tuple[weakref.ref[Tensor] | None, Tensor]]]
        by_device = defaultdict(list)
        with without_tracing():
            for parameter, values in pairs:
                if not is_readable(values):
                    continue
                part = values_of(values.detach())
                if is_plain(part) and part.numel():
                    reference = None if parameter is None else weakref.ref(parameter)
                    by_device[part.device].append((reference, part))
        mark, line = self._log.mark_step(), place_of_user()
        for parts in by_device.values():
            parameters = [reference for reference, _ in parts]
            tensors = [part for _, part in parts]
            with without_tracing():
                # In double precision: a magnitude that float32 cannot hold is finite.
                norms = [norm.double() for norm in norms_of(tensors, math.inf)]
                copied = HostCopy(torch.stack(norms))
            check = DeviceCheck(
                phase=phase,
                norms=copied,
                mark=mark,
                parameters=parameters,
                line=line,
                is_scaled=is_scaled,
                operator=operator,
            )
            self._pending.append(check)

    def read(self, *, waits: bool) -> None:
        """Report what has arrived of earlier checks, or all of them if it ``waits``."""
        while self._pending and (waits or self._pending[0].norms.has_arrived):
            check = self._pending.popleft()
            norms = check.norms.read()
            nan = [index for index, norm in enumerate(norms) if math.isnan(norm)]
            bad = [index for index, norm in enumerate(norms) if not math.isfinite(norm)]
            if check.phase == "update":  # infinities of buffers may be masks
                bad = nan
            if bad and not check.is_intended:
                self._explain(check, bad, is_nan=bool(nan))

    def note_checked_step(self) -> None:
        """End the alarm if the step, whose values were checked at once, has no finding.

        It also ends if parameters are not finite any more: then all steps have the same finding.
        """
        is_bad = self._log.num_bad_steps > self._num_bad_steps
        self.has_alarm = self.has_alarm and is_bad and not self._tensors.is_spoiled()
        self._num_bad_steps = self._log.num_bad_steps

    def forget(self) -> None:
        """Drop the checks that have not been read."""
        self._pending.clear()

    def _explain(self, check: DeviceCheck, bad: Sequence[int], *, is_nan: bool) -> None:
        """Report the first of the values that are not finite."""
        is_news = self._log.begin_finding(check.mark.steps, num_begun=check.mark.num_begun)
        tensors: list[Tensor | None] = []
        for index in bad:
            reference = check.parameters[index]
            tensors.append(None if reference is None else reference())
        alive = [each for each in tensors if each is not None]
        if check.phase in ("optimizer", "update"):
            self._tensors.note_bad(alive)
        if not is_news:
            return
        self.has_alarm = True
        self._num_bad_steps = self._log.num_bad_steps
        found = describe_values(
            check.phase,
            NonFiniteCount(int(is_nan), int(not is_nan)),
            0,
            checked=self._name_checked(check.phase, tensors[0]),
            line=check.line,
            operator=check.operator,
            unknown=_LATER if check.operator is None else None,
        )
        if alive:
            owner = self._tensors.find_owner(alive[0])
            root = self._names.find_name(owner.root)
            found = replace(found, path=owner.path, type_name=owner.type_name, root=root)
        self._log.report_marked(found, check.mark)

    def _name_checked(self, phase: Phase, tensor: Tensor | None) -> Note:
        """Return what was checked: the loss, a gradient or a parameter."""
        if phase == "loss":
            return Note.of("checked-loss")
        name = root = None
        if tensor is not None:
            owner = self._tensors.find_owner(tensor)
            name = ".".join(filter(None, (owner.path, owner.name)))
            root = self._names.find_name(owner.root)
        if phase in ("backward", "gradient"):
            return Note.of("checked-gradient", name=name, root=root)
        return Note.of("checked-parameter", name=name, root=root)
