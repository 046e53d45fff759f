"""The results of an inspection: times, memory and findings of real steps, by call."""

from __future__ import annotations

import json
import os
import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from torchscan import units
from torchscan._version import __version__
from torchscan.analyses.roofline import Roofline
from torchscan.errors import InputError
from torchscan.files import write_text
from torchscan.formatters import table_of
from torchscan.hardware.this_machine import cpu_name
from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.evidence import Evidence
from torchscan.inspecting.exchanges import Exchange, Process
from torchscan.inspecting.exports import (
    chrome_trace,
    describe_call,
    measure_calls,
    nest_calls,
    to_inspector_names,
)
from torchscan.inspecting.facts import InspectedCall
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.step_time import require_step_time
from torchscan.inspecting.step_timeline import Timeline
from torchscan.inspecting.verdicts import find_verdict
from torchscan.measured import Measured
from torchscan.notes import Note
from torchscan.observing.compiling import Compilation
from torchscan.plain import stored_as, to_plain
from torchscan.results import RowsResult

if TYPE_CHECKING:
    from torchscan.report.table import Table

_NANOSECONDS = 1e-9
#: modules that are named if a step takes too long
_MAX_LAYERS = 5
#: kind of the files, and the version of their schema: it grows where a reader of the version before
#: would misread them
KIND, SCHEMA = "torchscan/run", 2
#: the tool whose keys plain data has
Names = Literal["torchscan", "torch_inspector"]


@stored_as(min="least", max="most")
class Latency(NamedTuple):
    """Seconds that something took in several steps."""

    #: median over the steps, in seconds
    median: float
    #: minimum over the steps, in seconds
    min: float
    #: maximum over the steps, in seconds
    max: float

    @classmethod
    def of(cls, nanoseconds: Iterable[int]) -> Latency:
        """Return the latency over several steps."""
        seconds = [each * _NANOSECONDS for each in nanoseconds]
        if not seconds:
            return cls(0.0, 0.0, 0.0)
        return cls(statistics.median(seconds), min(seconds), max(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRun(InspectedCall):
    """A call over all steps, with everything inside it."""

    #: host times of the forward pass
    forward: Latency
    #: host times of the autograd nodes that the call created
    backward: Latency
    #: forward times on the device, or None without one; they may add up to more than the host's
    device_forward: Latency | None
    #: backward times on the device, or None without one
    device_backward: Latency | None
    #: MACs of the forward pass with everything inside it, or None if not known
    macs: int | None
    #: FLOPs of the forward pass with everything inside it, or None if not known
    flops: int | None
    #: expected seconds of the forward pass with everything inside it, or None
    expected_forward: float | None
    #: expected seconds of the backward pass with everything inside it, or None
    expected_backward: float | None

    @property
    def device_time(self) -> float | None:
        """Seconds on the device, forward and backward, in the median, or None without one."""
        latencies = (self.device_forward, self.device_backward)
        times = [each.median for each in latencies if each is not None]
        return sum(times) if times else None

    @property
    def time(self) -> float:
        """Seconds forward and backward, in the median: on the device or, without one, the host."""
        device_time = self.device_time
        return self.forward.median + self.backward.median if device_time is None else device_time

    @property
    def flops_per_second(self) -> float | None:
        """FLOP/s of the forward pass, on the device if there is one, else on the host."""
        latency = self.forward if self.device_forward is None else self.device_forward
        return None if self.flops is None or not latency.median else self.flops / latency.median

    @property
    def expected_time(self) -> float | None:
        """Expected seconds, forward and backward, or None if nothing is expected."""
        expected = (self.expected_forward, self.expected_backward)
        times = [each for each in expected if each is not None]
        return sum(times) if times else None

    def name_in(self, calls: Sequence[CallRun]) -> str:
        """Return the path of the module as seen from the call that it is in.

        The path of another part of the model is complete.
        """
        outer = "" if self.parent is None else calls[self.parent].path
        return self.path.removeprefix(f"{outer}." if outer else "") or self.type_name


class Inspected(ABC):
    """An object with the facts of a run: a finished inspection, or the facts themselves."""

    __slots__ = ()

    @property
    @abstractmethod
    def facts(self) -> RunFacts:
        """The results."""

    def measured(self) -> Measured:
        """Return the values by call, for a report of the model: ``html_report(scan, run=run)``."""
        return measure_calls(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRun:
    """The passes of a step on the device."""

    #: device times of the forward pass
    forward: Latency
    #: device times of the backward pass
    backward: Latency
    #: device times of accumulating gradients, in the backward pass
    storing_gradients: Latency
    #: device times of the backward pass outside modules
    outside_modules: Latency
    #: share of the time in which the device had finished all its work and waited for the host
    waiting: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRun:
    """Forward passes without a backward pass in a run that trains, for example of a validation."""

    #: number of passes
    passes: int
    #: number of timed passes: the most common kind and, of more than a thousand, a sample
    timed: int
    #: host times of the model's call
    forward: Latency
    #: device times of the model's call, or None without a device
    device_forward: Latency | None
    calls: tuple[CallRun, ...]

    @property
    def time(self) -> float:
        """Seconds of a pass, in the median: on the host or, if that takes longer, on the device."""
        on_device = 0.0 if self.device_forward is None else self.device_forward.median
        return max(self.forward.median, on_device)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModule:
    """A module that trains, and the number of steps in which it was checked."""

    name: str
    steps: int
    #: True for the module whose steps are timed
    is_timed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected time of a step by the roofline of its device."""

    device: str
    #: seconds of the forward pass
    forward: float
    #: seconds of the backward pass
    backward: float
    #: error margin, as a share
    error_share: float
    #: operations of the step's products, two per multiply-accumulate
    operations: int
    #: seconds that these products take at the device's dense peaks
    at_peak: float
    #: dense peaks of their formats, in FLOP/s
    peaks: dict[str, float]

    @classmethod
    def of(cls, roofline: Roofline) -> Expected:
        """Return the expected time of a complete step."""
        macs: Counter[str] = Counter()
        for load in roofline.operators:
            macs[load.precision] += load.macs
        formats = [name for name, number in macs.items() if number]
        peaks = {name: roofline.peak_flops[name] for name in formats if name in roofline.peak_flops}
        return cls(
            device=roofline.device,
            forward=roofline.time_by_phase.get("forward", 0.0),
            backward=roofline.time_by_phase.get("backward", 0.0),
            error_share=roofline.error_margin.share,
            operations=2 * macs.total(),
            at_peak=sum(2 * macs[name] / peak for name, peak in peaks.items()),
            peaks=peaks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProvenance:
    """On what a run was measured, and by what."""

    #: processor or GPU of the model; if there are several, all of them
    device: str
    #: threads of the host for one operator
    threads: int
    torch_version: str
    torchscan_version: str

    @classmethod
    def of(cls, model: nn.Module) -> RunProvenance:
        """Return the provenance of a run of this model on this machine."""
        tensors = chain(model.parameters(), model.buffers())
        devices = dict.fromkeys(tensor.device for tensor in tensors)
        names = dict.fromkeys(map(name_of_device, devices))
        return cls(
            device=", ".join(names) or cpu_name(),
            threads=torch.get_num_threads(),
            torch_version=str(torch.__version__),
            torchscan_version=__version__,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(RowsResult, Inspected):
    """The results of an inspection."""

    #: number of measured steps; training steps if any step has a backward pass, else forward passes
    steps: int
    #: number of steps before them, which are left out
    warm_up: int
    #: number of timed steps: the most common kind and, of more than a thousand, a sample; None if
    #: not saved
    timed: int | None = None
    #: passes that do not train, in a run that does, which no other value includes, or None
    evaluation: EvaluationRun | None = None
    #: True if gradients of the model's parameters were computed; None if not saved
    has_trained: bool | None = None
    calls: tuple[CallRun, ...]
    #: times of the model's forward pass
    forward: Latency
    #: times of the backward pass, from its first node to its last
    backward: Latency
    #: times of accumulating gradients, in the backward pass
    storing_gradients: Latency
    #: times of the backward pass outside modules: the loss, and autograd itself
    outside_modules: Latency
    #: times of optimizers, in the steps in which they ran (:attr:`optimizer_steps`)
    optimizer: Latency
    #: times from the start of one step to that of the next
    period: Latency
    #: times from the last event of a step to the next step, for example of loading data
    between: Latency
    #: times on the host within a step and outside forward, backward and optimizer, for example of
    #: the loss, or of waiting for other ranks after the last node; None if not saved
    rest: Latency | None = None
    #: number of timed steps in which an optimizer ran, or None if not saved
    optimizer_steps: int | None = None
    #: times on the device, or None without one
    device: DeviceRun | None = None
    #: number of measured steps that differ from most in their calls or input shapes
    num_differing: int
    provenance: RunProvenance
    #: source of the first NaN or Inf of each step that has any
    nonfinite: tuple[NonFinite, ...] = ()
    #: number of steps with NaN or Inf
    nonfinite_steps: int = 0
    #: number of training steps whose loss, gradients and parameters were checked, or None if not
    #: known
    checked_steps: int | None = None
    #: modules that train, if there are several, with the steps in which each was checked
    trained_modules: tuple[CheckedModule, ...] = ()
    #: names of threads that trained too and were not checked; only the first thread that trains is
    unchecked_threads: tuple[str, ...] = ()
    #: number of steps that a GradScaler skipped because scaled gradients overflowed
    skipped_steps: int = 0
    #: first of these steps, or None
    first_skipped: int | None = None
    #: expected time by the device's roofline, or None if not known
    expected: Expected | None = None
    #: results of the user's checks, in all steps
    checked: tuple[CheckResult, ...] = ()
    #: compilations by torch during the inspection, or None
    compilation: Compilation | None = None
    #: timeline of the last step
    timeline: Timeline = field(default_factory=Timeline)
    #: rank of this process, or None if it trained alone
    process: Process | None = None
    #: collectives of each step, in the order of this rank's arrivals
    exchanges: tuple[Exchange, ...] = ()
    #: why a step ran out of GPU memory, or None if none did
    out_of_memory: Note | None = None
    #: what the verdict is derived from, or None if not saved
    evidence: Evidence | None = None

    def table(self, *, max_depth: int | None = 3) -> Table:
        """Return modules with times and memory, down to ``max_depth`` (None: all)."""
        return table_of(self, max_depth=max_depth)

    def __repr__(self) -> str:
        """Return a short description: there may be thousands of calls."""
        return f"<RunFacts: {self.steps} steps, {len(self.calls)} calls>"

    @property
    def num_timed(self) -> int:
        """The number of steps that the times are of."""
        return self.steps - self.num_differing if self.timed is None else self.timed

    @property
    def trains(self) -> bool:
        """True if the measured steps train the model."""
        return self.has_backward if self.has_trained is None else self.has_trained

    @property
    def has_backward(self) -> bool:
        """True if the measured steps have a backward pass, perhaps to the inputs only."""
        return self.backward.median > 0

    @property
    def mfu(self) -> float | None:
        """MFU: time of the step's products at the device's dense peak, as a share of the step's."""
        took = self.period.median or self.forward.median + self.backward.median
        return None if self.expected is None or not took else self.expected.at_peak / took

    @property
    def verdict(self) -> Note | None:
        """The fact that limits the run most, with the next step, or None without a step."""
        return find_verdict(self)

    @property
    def facts(self) -> RunFacts:
        """The facts themselves."""
        return self

    @property
    def info(self) -> dict[str, Any]:
        """The calls as ``{name: {"info": {…}, "children": {…}}}``, nested as the modules are.

        The second call of a module has a number behind its name.
        """
        return nest_calls(self.calls, describe_call)

    def to_dict(self, names: Names = "torchscan") -> dict[str, Any]:
        """Return plain data for JSON.

        Args:
            names: ``"torch_inspector"``: the calls, nested, with the keys and units of Inspector
                Gadgets.
        """
        if names not in get_args(Names):
            raise InputError.of_choice("names", names, get_args(Names))
        if names == "torch_inspector":
            return nest_calls(self.calls, to_inspector_names)
        return {**to_plain(self), "verdict": to_plain(self.verdict)}

    @property
    def step_time(self) -> float:
        """Seconds of a step, forward and backward, in the median.

        They are those of the device if it takes longer than the host.
        """
        on_host = self.forward.median + self.backward.median
        if self.device is None:
            return on_host
        return max(on_host, self.device.forward.median + self.device.backward.median)

    def assert_step_time(
        self, max_step_time: float | str, *, device: str | None = None, tolerance: float | str = 0.0
    ) -> None:
        """Raise :class:`BudgetError` with the slowest modules if :attr:`step_time` is too long.

        Passes of an evaluation do not count, unless nothing else was measured.

        Args:
            max_step_time: seconds, or a text such as ``"120 ms"``.
            device: the device of the limit, by its name or words of it: ``"H100"``, ``"CPU"``. On
                any other nothing is checked, and a warning says so.
            tolerance: the share by which a step may take longer: ``0.1`` or ``"10%"``.
        """
        __tracebackhide__ = True  # pytest shows the test, and the message
        if not self.steps:
            raise InputError("the run has no measured step: run the model while it is inspected")
        if isinstance(max_step_time, int | float):
            units.checked_seconds("max_step_time", max_step_time)
        require_step_time(
            self.step_time,
            slowest_modules(self.calls),
            self.provenance.device,
            max_step_time=max_step_time,
            device=device,
            tolerance=tolerance,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, which :func:`open_run` reads.

        An existing file is replaced when all is written. If several ranks train together, ``path``
        is a folder, in which each rank has a file.
        """
        content = {"schema": f"{KIND}/{SCHEMA}", **self.to_dict()}
        write_text(self._file(path), json.dumps(content, allow_nan=False) + "\n")

    def _file(self, path: str | os.PathLike[str]) -> Path:
        if self.process is None:
            return Path(path)
        if any(Path(path).glob("rank*.sqlite")):
            raise InputError(f"{str(path)!r} contains a watched run: give another folder")
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            ranks = f"each of {self.process.num_ranks} ranks writes a file into it"
            raise InputError(
                f"the folder {str(path)!r} cannot be created, and {ranks}: {error}"
            ) from error
        return Path(path) / f"rank{self.process.rank}.json"

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the last step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        content = chrome_trace(self.calls, self.timeline, self.provenance)
        write_text(Path(path), json.dumps(content, allow_nan=False) + "\n")


def slowest_modules(calls: Sequence[CallRun]) -> list[tuple[str, float]]:
    """Return the modules that call no others and their times in seconds, the slowest first."""
    outer = {call.parent for call in calls}
    inner = [call for number, call in enumerate(calls) if number not in outer]
    times = [(f"{call.path or 'the model'} ({call.type_name})", call.time) for call in inner]
    return sorted(times, key=lambda each: -each[1])[:_MAX_LAYERS]


def name_of_device(device: torch.device) -> str:
    """Return the name of the GPU or processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else device.type
