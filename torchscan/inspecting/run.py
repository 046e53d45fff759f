"""The results of an inspection: times, memory and findings of real steps, by call."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from torchscan import units
from torchscan.errors import InputError
from torchscan.files import write_text
from torchscan.formatters import table_of
from torchscan.inspecting.call_run import (
    CallRun,
    DeviceRun,
    EvaluationRun,
    Latency,
    slowest_modules,
)
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
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.run_device import Expected, RunProvenance
from torchscan.inspecting.step_time import require_step_time
from torchscan.inspecting.step_timeline import Timeline
from torchscan.inspecting.verdicts import find_verdict
from torchscan.measured import Measured
from torchscan.notes import Note
from torchscan.observing.compiling import Compilation
from torchscan.plain import to_plain
from torchscan.results import RowsResult

if TYPE_CHECKING:
    from torchscan.report.table import Table

#: kind of the files, and the version of their schema: it grows where a reader of the version before
#: would misread them
KIND, SCHEMA = "torchscan/run", 2
#: the tool whose keys plain data has
Names = Literal["torchscan", "torch_inspector"]


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
class CheckedModule:
    """A module that trains, and the number of steps in which it was checked."""

    name: str
    steps: int
    #: True for the module whose steps are timed
    is_timed: bool = False


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
