"""Checks of values on a CUDA device: nothing waits for them, and they are read when they have arrived."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchscan.inspecting.finding_log import FindingLog, StepMark, describe_values
from torchscan.inspecting.findings import Phase
from torchscan.inspecting.finiteness import NonFiniteCount, values_of
from torchscan.inspecting.root_names import RootNames
from torchscan.inspecting.trained_tensors import TrainedTensors
from torchscan.notes import Note
from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.recording.places import place_of_user
from torchscan.torch_versions import norms_of, without_tracing

_LATER = Note.of("read-after-step")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheck:
    """A check that has not been read."""

    phase: Phase
    #: the largest magnitude of each tensor
    norms: Tensor
    #: None for values of a CPU, which are there at once
    event: torch.cuda.Event | None
    mark: StepMark
    #: None for a tensor that is not a parameter's, as a loss
    parameters: Sequence[weakref.ref[Tensor] | None]
    line: str | None
    is_scaled: bool

    @property
    def is_intended(self) -> bool:
        """True if a GradScaler skips the step: scaled gradients may overflow."""
        return self.is_scaled and self.phase in ("backward", "gradient")

    def find_bad(self) -> list[int]:
        """Return the indices of what is not finite. Infinities of buffers may be masks."""
        norms = self.norms.tolist()
        is_bad = math.isnan if self.phase == "update" else _is_nonfinite
        return [index for index, norm in enumerate(norms) if is_bad(norm)]


class DeviceChecks:
    """The checks that are in flight."""

    def __init__(self, tensors: TrainedTensors, names: RootNames, log: FindingLog) -> None:
        self._tensors = tensors
        self._names = names
        self._log = log
        self._waiting: deque[DeviceCheck] = deque()

    def send(
        self, phase: Phase, pairs: Sequence[tuple[Tensor | None, Tensor]], *, is_scaled: bool
    ) -> None:
        """Have devices compute whether these values are finite. Each comes with its parameter, or None."""
        by_device: dict[torch.device, list[tuple[Tensor | None, Tensor]]] = {}
        with without_tracing():
            for parameter, values in pairs:
                if is_readable(values):
                    part = values_of(values.detach())
                    by_device.setdefault(part.device, []).append((parameter, part))
        mark, line = self._log.mark_step(), place_of_user()
        for device, parts in by_device.items():
            checked = [
                (parameter, part) for parameter, part in parts if is_plain(part) and part.numel()
            ]
            if not checked:
                continue
            norms, event = _send_norms([part for _, part in checked], device)
            check = DeviceCheck(
                phase=phase,
                norms=norms,
                event=event,
                mark=mark,
                parameters=[None if each is None else weakref.ref(each) for each, _ in checked],
                line=line,
                is_scaled=is_scaled,
            )
            self._waiting.append(check)

    def read(self, *, waits: bool) -> None:
        """Report what has arrived of earlier checks, or all of them if it ``waits``."""
        while self._waiting:
            event = self._waiting[0].event
            if event is not None and not (waits or event.query()):
                return
            check = self._waiting.popleft()
            if event is not None:
                event.synchronize()
            bad = check.find_bad()
            if bad and not check.is_intended:
                self._explain(check, bad)

    def forget(self) -> None:
        """Drop the checks that have not been read."""
        self._waiting.clear()

    def _explain(self, check: DeviceCheck, bad: Sequence[int]) -> None:
        """Report the first of the values that are not finite."""
        is_news = self._log.begin_finding(check.mark.steps, num_begun=check.mark.num_begun)
        references = [check.parameters[index] for index in bad]
        tensors = [None if each is None else each() for each in references]
        alive = [each for each in tensors if each is not None]
        if check.phase in ("optimizer", "update"):
            self._tensors.note_bad(alive)
        if not is_news:
            return
        is_nan = any(math.isnan(check.norms[index].item()) for index in bad)
        found = describe_values(
            check.phase,
            NonFiniteCount(int(is_nan), int(not is_nan)),
            0,
            checked=self._name_checked(check.phase, tensors[0]),
            line=check.line,
            unknown=_LATER,
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
        owner = None if tensor is None else self._tensors.find_owner(tensor)
        name = root = None
        if owner is not None:
            name = ".".join(filter(None, (owner.path, owner.name)))
            root = self._names.find_name(owner.root)
        if phase in ("backward", "gradient"):
            return Note.of("checked-gradient", name=name, root=root)
        return Note.of("checked-parameter", name=name, root=root)


def _send_norms(
    tensors: list[Tensor], device: torch.device
) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return the largest magnitudes of tensors of one device, and what tells that they have arrived."""
    with without_tracing():
        # in double precision: a magnitude that float32 cannot hold is finite
        norms = torch.stack([norm.double() for norm in norms_of(tensors, math.inf)])
        if device.type != "cuda":
            return norms, None
        arrived = torch.empty_like(norms, device="cpu", pin_memory=True)
        arrived.copy_(norms, non_blocking=True)
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
    return arrived, event


def _is_nonfinite(norm: float) -> bool:
    return not math.isfinite(norm)
