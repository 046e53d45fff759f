"""Measurements of real steps by call, without the first steps, which warm up."""

from __future__ import annotations

import json
import os
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from torchscan import units
from torchscan.analyses.roofline import Roofline
from torchscan.errors import InputError
from torchscan.files import write_text
from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.chrome_trace import chrome_trace
from torchscan.inspecting.evidence import Evidence, Interval, evidence_of
from torchscan.inspecting.exchanges import Exchange, Process
from torchscan.inspecting.expected import Expected, ExpectedTimes, expected_of, expected_times
from torchscan.inspecting.facts import COUNTED, InspectedCall, StepFacts
from torchscan.inspecting.findings import CheckedModule, FindingKey, GuardFacts, NonFinite
from torchscan.inspecting.inspector_names import to_inspector_names
from torchscan.inspecting.provenance import RunProvenance
from torchscan.inspecting.step_time import require_step_time
from torchscan.inspecting.timeline import Timeline
from torchscan.inspecting.verdicts import find_verdict
from torchscan.measured import Figure, Key, Measured, Verdict
from torchscan.notes import Note
from torchscan.observing.compiling import Compilation
from torchscan.ops import OpCost
from torchscan.plain import stored_as, to_plain
from torchscan.results import RowsResult, table_of

if TYPE_CHECKING:
    from torchscan.report.table import Table

_NANOSECONDS = 1e-9
#: named where a step takes too long
_MAX_LAYERS = 5
#: what files say that they are, and the version of their schema: it grows where a reader of the
#: one before would misread them
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
        return (
            cls(statistics.median(seconds), min(seconds), max(seconds))
            if seconds
            else cls(0.0, 0.0, 0.0)
        )


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
        """Seconds on the device, forward and backward, in the median; None: there is none."""
        times = [
            each.median for each in (self.device_forward, self.device_backward) if each is not None
        ]
        return sum(times) if times else None

    @property
    def time(self) -> float:
        """Seconds forward and backward, in the median: on the device, where there is one, else on the host."""
        return (
            self.forward.median + self.backward.median
            if self.device_time is None
            else self.device_time
        )

    @property
    def flops_per_second(self) -> float | None:
        """FLOP/s of the forward pass, on the device if there is one, else on the host."""
        took = (self.forward if self.device_forward is None else self.device_forward).median
        return None if self.flops is None or not took else self.flops / took

    @property
    def expected_time(self) -> float | None:
        """Seconds that it should take, forward and backward; None: nothing is expected."""
        times = [
            each for each in (self.expected_forward, self.expected_backward) if each is not None
        ]
        return sum(times) if times else None

    def name_in(self, calls: Sequence[CallRun]) -> str:
        """The path of its module as seen from the call that it is in; that of another part of the model is in full."""
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
        return _measured_by(self.facts)


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
    """Forward passes without a backward pass, in a run that also trains: those of a validation, for example."""

    #: number of passes, and of those that are timed: with the same calls, without those that warm up and, of more than a
    #: thousand, some of them
    passes: int
    timed: int
    #: of the model's call, and the same on the device, where there is one
    forward: Latency
    device_forward: Latency | None
    calls: tuple[CallRun, ...]

    @property
    def time(self) -> float:
        """Seconds of a pass, in the median: on the host or, if that takes longer, on the device."""
        on_device = 0.0 if self.device_forward is None else self.device_forward.median
        return max(self.forward.median, on_device)


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
    #: times of optimizers, in the steps in which they ran
    optimizer: Latency
    #: times from the start of one step to that of the next
    period: Latency
    #: times from the last event of a step to the next step, for example of loading data
    between: Latency
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
    #: what the verdict is derived from, or None if not saved
    evidence: Evidence | None = None

    def table(self, *, max_depth: int | None = 3) -> Table:
        """Return modules with times and memory, down to ``max_depth`` (None: all)."""
        return table_of(self, max_depth=max_depth)

    def _with_checks(
        self,
        checked: GuardFacts,
        *,
        is_guard_first: bool = False,
        reported: Collection[FindingKey] = (),
    ) -> RunFacts:
        """Return these facts with what the cheap check of every step has found.

        If the guard is first, a training step that it has checked has its finding or none, except
        for findings of the inspection that were ``reported`` because no check followed.
        """
        if is_guard_first:
            close = [
                found
                for found in self.nonfinite
                if found.key in reported or not _is_superseded(found, checked)
            ]
            checked_steps = {found.step for found in checked.findings if found.root is None}
            more = sum(found.is_evaluation or found.step not in checked_steps for found in close)
            nonfinite_steps = checked.nonfinite_steps + more
        else:
            close = list(self.nonfinite)
            nonfinite_steps = max(self.nonfinite_steps, checked.nonfinite_steps)
        evidence = None if self.evidence is None else replace(self.evidence, memory=checked.memory)
        return replace(
            self,
            evidence=evidence,
            nonfinite=_first_in_each_step(close, checked.findings),
            nonfinite_steps=nonfinite_steps,
            checked_steps=checked.checked_steps,
            trained_modules=checked.trained_modules,
            unchecked_threads=checked.unchecked_threads,
            skipped_steps=checked.skipped_steps,
            first_skipped=checked.first_skipped,
        )

    def __repr__(self) -> str:
        """A short one: there may be thousands of calls."""
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
        """MFU: the time that the step's products would take at the device's dense peak, of the time that the step took."""
        took = self.period.median or self.forward.median + self.backward.median
        return None if self.expected is None or not took else self.expected.at_peak / took

    @property
    def verdict(self) -> Note | None:
        """The fact that limits the run most, with the next step, or None without a step."""
        return find_verdict(self)

    @property
    def facts(self) -> RunFacts:
        """These."""
        return self

    @property
    def info(self) -> dict[str, Any]:
        """Nested: ``{name: {"info": {…}, "children": {…}}}``; the second call of a module has a number behind its name."""
        return self._nest(_plain)

    def _nest(self, describe: Callable[[CallRun], dict[str, Any]]) -> dict[str, Any]:
        """Return the calls, nested as the modules are."""
        nested: list[dict[str, Any]] = [
            {"info": describe(call), "children": {}} for call in self.calls
        ]
        top: dict[str, Any] = {}
        for call, entry in zip(self.calls, nested, strict=True):
            siblings = top if call.parent is None else nested[call.parent]["children"]
            siblings[_name(call, call.name_in(self.calls), siblings)] = entry
        return top

    def to_dict(self, names: Names = "torchscan") -> dict[str, Any]:
        """Return plain data for JSON.

        Args:
            names: ``"torch_inspector"``: the calls, nested, with the keys and units of Inspector
                Gadgets.
        """
        if names not in get_args(Names):
            raise InputError.of_choice("names", names, get_args(Names))
        if names == "torch_inspector":
            return self._nest(to_inspector_names)
        return {**to_plain(self), "verdict": to_plain(self.verdict)}

    @property
    def step_time(self) -> float:
        """Seconds of a step, forward and backward, in the median: on the host or, if that takes longer, on the device."""
        on_device = (
            0.0 if self.device is None else self.device.forward.median + self.device.backward.median
        )
        return max(self.forward.median + self.backward.median, on_device)

    def assert_step_time(
        self, max_step_time: float | str, *, device: str | None = None, tolerance: float | str = 0.0
    ) -> None:
        """Raise :class:`BudgetError`, with the slowest modules, if :attr:`step_time` exceeds its limit.

        Passes of an evaluation do not count, unless nothing else was measured.

        Args:
            max_step_time: seconds, or a text such as ``"120 ms"``.
            device: the device that this holds for, by its name or words of it: ``"H100"``, ``"CPU"``. On any other nothing is
                checked, and a warning says so.
            tolerance: the share by which a step may take longer: ``0.1`` or ``"10%"``.
        """
        __tracebackhide__ = True  # pytest shows the test, and the message
        if not self.steps:
            raise InputError("the run has no measured step: run the model while it is inspected")
        if isinstance(max_step_time, int | float):
            units.checked_seconds("max_step_time", max_step_time)
        slowest = slowest_modules(self.calls)
        where = self.provenance.device
        require_step_time(
            self.step_time,
            slowest,
            where,
            max_step_time=max_step_time,
            device=device,
            tolerance=tolerance,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, which :func:`open_run` reads; what is there is replaced when all is written.

        Of processes that train together, ``path`` is a folder, in which each has a file of its own.
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
        """Write the last step as a trace, to be opened in Perfetto (ui.perfetto.dev) or chrome://tracing."""
        content = chrome_trace(self.calls, self.timeline, self.provenance)
        write_text(Path(path), json.dumps(content, allow_nan=False) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSteps:
    """The steps of one kind: those that train, or forward passes without a backward pass."""

    #: of all steps, and of those before the measured ones; and how many calls of the model they have in all
    number: int
    warm_up: int
    num_passes: int
    #: those that are like most, with the same calls, and how many others there were, as far as they were kept
    steps: Sequence[StepFacts] = ()
    num_differing: int
    #: of the last of them
    calls: Sequence[InspectedCall] = ()
    timeline: Timeline | None = None
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observations of a model: its usual steps, evaluations and findings."""

    #: True if gradients of the model's parameters were computed
    trains: bool
    #: that train, if any does; else all there were
    usual: WatchedSteps
    #: forward passes without a backward pass; None: there was none, or nothing else
    evaluation: WatchedSteps | None = None
    nonfinite: Sequence[NonFinite] = ()
    nonfinite_steps: int = 0
    checked: Sequence[CheckResult] = ()
    process: Process | None = None
    compilation: Compilation | None = None


def _is_superseded(found: NonFinite, checked: GuardFacts) -> bool:
    """Return whether the guard has checked this step, and has found nothing or knows the place."""
    if found.is_evaluation or found.step >= checked.checked_steps:
        return False
    own = [other for other in checked.findings if other.root is None]
    if found.phase == "update":  # it may have been written after the last check
        return any(other.step >= found.step for other in own)
    return all(other.is_located for other in own if other.step == found.step)


def _first_in_each_step(
    close: Sequence[NonFinite], cheap: Sequence[NonFinite]
) -> tuple[NonFinite, ...]:
    """Return one finding for each step: that of the close inspection, unless it only saw the consequences."""
    evaluated = [found for found in close if found.is_evaluation]
    close = [found for found in close if not found.is_evaluation]
    late = {found.step: found for found in close if found.phase in ("loss", "update")}
    sure = {found.step: found for found in close if found.step not in late}
    of_others = [found for found in cheap if found.root is not None]
    own = {found.step: found for found in cheap if found.root is None}
    every = [*{**late, **own, **sure}.values(), *of_others, *evaluated]
    return tuple(sorted(every, key=lambda found: found.step))


def run_of(
    watched: Observations,
    provenance: RunProvenance,
    *,
    costs: Mapping[Key, OpCost] = MappingProxyType({}),
    roofline: Roofline | None = None,
    inner: str = "",
    others: Sequence[Interval] = (),
) -> RunFacts:
    """The facts of several steps together.

    Costs and the roofline are those of the module at ``inner``: they know nothing of what wraps it.
    """
    usual = watched.usual
    calls, measured = usual.calls, usual.steps
    paths = [_path_in(inner, call.path) for call in calls]
    expected = (
        [None] * len(calls)
        if roofline is None
        else expected_times(roofline, paths, [call.parent for call in calls])
    )
    return RunFacts(
        steps=usual.number - usual.warm_up,
        warm_up=usual.warm_up,
        timed=len(measured),
        has_trained=watched.trains,
        evaluation=None if watched.evaluation is None else _evaluation_run(watched.evaluation),
        calls=tuple(
            _call_run(
                call, index, measured, costs.get((paths[index], call.invocation)), expected[index]
            )
            for index, call in enumerate(calls)
        ),
        forward=Latency.of(step.of_model(step.forward) for step in measured),
        backward=Latency.of(step.backward_span for step in measured),
        storing_gradients=Latency.of(step.leaves for step in measured),
        outside_modules=Latency.of(
            step.backward_span - step.leaves - step.owned for step in measured
        ),
        optimizer=Latency.of(step.optimizer for step in measured if step.optimizer),
        period=Latency.of(step.period for step in measured if step.period is not None),
        between=Latency.of(step.between for step in measured if step.between is not None),
        device=_device_run(measured),
        num_differing=usual.num_differing,
        nonfinite=tuple(watched.nonfinite),
        nonfinite_steps=watched.nonfinite_steps,
        expected=None if roofline is None else expected_of(roofline),
        checked=tuple(watched.checked),
        compilation=watched.compilation,
        provenance=provenance,
        timeline=usual.timeline or Timeline(),
        process=watched.process,
        exchanges=usual.exchanges,
        evidence=evidence_of(measured, others),
    )


def _path_in(inner: str, path: str) -> str:
    return (
        path[len(inner) + 1 :]
        if inner and (path == inner or path.startswith(f"{inner}."))
        else path
    )


_NONE_COUNTED = (0,) * len(COUNTED)


def _call_run(
    call: InspectedCall,
    index: int,
    steps: Sequence[StepFacts],
    cost: OpCost | None,
    expected: ExpectedTimes | None,
) -> CallRun:
    """One call in several steps: the most that was counted in any, and how long it took in all."""
    device = [step.device for step in steps if step.device is not None]
    counts: dict[str, Any] = dict(zip(COUNTED, _most_of(steps, index), strict=True))
    return CallRun(
        **{
            each.name: getattr(call, each.name)
            for each in fields(InspectedCall)
            if each.name not in COUNTED
        },
        **counts,
        forward=Latency.of(step.forward[index] for step in steps),
        backward=Latency.of(step.backward[index] for step in steps),
        device_forward=Latency.of(each.forward[index] for each in device) if device else None,
        device_backward=Latency.of(each.backward[index] for each in device) if device else None,
        macs=None if cost is None else cost.macs,
        flops=None if cost is None else cost.flops,
        expected_forward=None if expected is None else expected.forward,
        expected_backward=None if expected is None else expected.backward,
    )


def _most_of(steps: Sequence[StepFacts], index: int) -> list[int | None]:
    """Return the counts of a call, each the most of any step; a 0 becomes None if a step was not counted."""
    by_step = [step.counts.get(index, _NONE_COUNTED) for step in steps]
    most = [max(each) for each in zip(*by_step, strict=True)]
    are_complete = all(step.is_counted for step in steps)
    return [each if each or are_complete else None for each in most]


def _evaluation_run(watched: WatchedSteps) -> EvaluationRun:
    """Return the times of a pass. Only the next step ends such a step, so it may have more than one pass."""
    steps = watched.steps
    num_passes = sum(call.parent is None for call in watched.calls)
    device = [(step, step.device) for step in steps if step.device is not None]
    on_device = [step.of_model(each.forward) // num_passes for step, each in device]
    return EvaluationRun(
        passes=watched.num_passes,
        timed=len(steps) * num_passes,
        forward=Latency.of(step.of_model(step.forward) // num_passes for step in steps),
        device_forward=Latency.of(on_device) if device else None,
        calls=tuple(
            _call_run(call, index, steps, None, None) for index, call in enumerate(watched.calls)
        ),
    )


def _device_run(steps: Sequence[StepFacts]) -> DeviceRun | None:
    device = [(step, step.device) for step in steps if step.device is not None]
    if not device:
        return None
    whole = sum(each.whole for _, each in device)
    return DeviceRun(
        forward=Latency.of(step.of_model(each.forward) for step, each in device),
        backward=Latency.of(each.backward_span for _, each in device),
        storing_gradients=Latency.of(each.leaves for _, each in device),
        outside_modules=Latency.of(
            each.backward_span - each.leaves - each.owned for _, each in device
        ),
        waiting=sum(each.waiting for _, each in device) / whole if whole else 0.0,
    )


def slowest_modules(calls: Sequence[CallRun]) -> list[tuple[str, float]]:
    """Return the modules that call no others and their times in seconds, the slowest first."""
    outer = {call.parent for call in calls}
    inner = [call for number, call in enumerate(calls) if number not in outer]
    times = [(f"{call.path or 'the model'} ({call.type_name})", call.time) for call in inner]
    return sorted(times, key=lambda each: -each[1])[:_MAX_LAYERS]


def _plain(call: CallRun) -> dict[str, Any]:
    """Times as dicts; :func:`asdict` leaves named tuples as they are."""
    return {
        name: value._asdict() if isinstance(value, Latency) else value
        for name, value in asdict(call).items()
    }


def _name(call: CallRun, name: str, siblings: dict[str, Any]) -> str:
    numbered = (f"{name} ({number})" for number in count(call.invocation + 1))
    return name if name not in siblings else next(each for each in numbered if each not in siblings)


# -- by call, for a page ---------------------------------------------------------------------------------------------------


def _measured_by(facts: RunFacts) -> Measured:
    """The calls of a step; what checkpoints ran again belongs to the calls that they run again."""
    figures: dict[Key, dict[Figure, float]] = {}
    originals = _originals(facts.calls)
    for call in facts.calls:
        of_call = figures.setdefault(
            originals.get((call.path, call.invocation), (call.path, call.invocation)), {}
        )
        for name, value in _figures_of(call):
            of_call[name] = of_call.get(name, 0) + value
    steps = _counted(facts.steps, "step")
    first = facts.nonfinite[0] if facts.nonfinite else None
    producer = (
        None
        if first is None
        else originals.get((first.path, first.invocation), (first.path, first.invocation))
    )
    return Measured(
        source=f"{steps} measured on {facts.provenance.device}",
        figures=figures,
        types={call.path: call.type_name for call in facts.calls},
        verdicts=[
            *_time_of(facts, steps),
            *_nonfinite_of(facts, producer),
            *_limit_of(facts.verdict),
        ],
        producers={} if first is None or producer is None else {producer: first.description},
    )


def _counted(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun == "pass" else "s"
    return f"{units.exact(number)} {noun}{ending}"


def _originals(calls: Sequence[CallRun]) -> dict[Key, Key]:
    """Return the original call of each call that a checkpoint repeated.

    The last call is repeated first.
    """
    first: dict[str, list[Key]] = {}
    again: dict[str, list[Key]] = {}
    for call in calls:
        (again if call.is_again else first).setdefault(call.path, []).append(
            (call.path, call.invocation)
        )
    return {
        key: first[path][-1 - at % len(first[path])]
        for path, keys in again.items()
        if path in first
        for at, key in enumerate(keys)
    }


def _figures_of(call: CallRun) -> Iterator[tuple[Figure, float]]:
    yield "latency", call.time
    counted = [getattr(call, name) for name in COUNTED]
    if any(each is not None for each in counted):
        yield "nonfinite", sum(each or 0 for each in counted)


def _time_of(facts: RunFacts, steps: str) -> Iterator[Verdict]:
    passes = "forward and backward" if facts.backward.median else "forward"
    if facts.steps:
        yield "Measured", units.duration(facts.step_time), f"{passes}, the median of {steps}", None
    if facts.evaluation is not None:
        passes = _counted(facts.evaluation.timed, "pass")
        yield (
            "Evaluation",
            units.duration(facts.evaluation.time),
            f"forward only, the median of {passes}",
            None,
        )


def _nonfinite_of(facts: RunFacts, producer: Key | None) -> Iterator[Verdict]:
    for first in facts.nonfinite[:1]:
        yield f"First {first.kind}", first.path or first.type_name, str(first), producer


def _limit_of(verdict: Note | None) -> Iterator[Verdict]:
    """Yield the verdict, unless it is the source of a NaN, which is shown anyway."""
    if verdict is None or verdict.code in ("verdict-too-few-steps", "verdict-nonfinite"):
        return
    name = str(Note.of("verdict-name", verdict=verdict.code))
    key = None
    if "path" in verdict.values:
        key = verdict.values["path"], 0
    yield "Verdict", name, str(verdict), key
