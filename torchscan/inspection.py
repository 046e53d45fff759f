"""``inspect``, which measures and checks a model in real steps, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from os import PathLike
from types import TracebackType
from typing import Any, Literal, get_args

from torch import nn

from torchscan.analyses.memory_snapshot.snapshot_result import MemorySnapshot
from torchscan.errors import (
    AlarmError,
    Argument,
    Give,
    InputError,
    NonFiniteError,
    TorchName,
    TorchscanError,
)
from torchscan.expectation import Expectation, expectation_of
from torchscan.formatters import register_formatters
from torchscan.hardware.device_specs import device_named
from torchscan.inspecting.checked_steps import add_checks
from torchscan.inspecting.checks import Check, CheckResult
from torchscan.inspecting.findings import FindingKey, NonFinite
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.kept_steps import Observations
from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
from torchscan.inspecting.out_of_memory import describe_out_of_memory
from torchscan.inspecting.root_call import RootCall
from torchscan.inspecting.run import Inspected, Names, RunFacts, RunProvenance
from torchscan.inspecting.run_summary import run_of
from torchscan.inspecting.step import StepCounts
from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.call_tree import Begun
from torchscan.recording.request import require_module
from torchscan.report.run_data import run_document
from torchscan.report.run_table import run_table
from torchscan.report.table import Table
from torchscan.results import RowsResult
from torchscan.user_warnings import (
    warn_user,
)
from torchscan.wrong_arguments import explain_wrong_types

Reaction = Literal["record", "warn", "raise"]


class Run(RowsResult, Inspected):
    """An inspection: started, finished, then full of facts. Printed, it is a table of them."""

    def __init__(
        self,
        module: nn.Module,
        *,
        warm_up: int,
        steps: int | None,
        on_nonfinite: Reaction,
        checks: Sequence[Check],
        device: str | None,
        expected: bool = True,
        guard: NonFiniteGuard | None = None,
    ) -> None:
        """Inspect ``module``.

        ``guard`` checks the steps of all models of a script; without one, only this model is
        checked.
        """
        self._listener = _listener(on_nonfinite)
        #: None once enough steps are measured: it holds the model
        self._inspector: Inspector | None = Inspector(
            module,
            self._hear,
            tuple(checks),
            _ALARM_LISTENERS[on_nonfinite],
            at_step=self._finish_after,
            warm_up=warm_up,
        )
        self._own_guard = NonFiniteGuard(self._listener, module) if guard is None else None
        self._guard = guard or self._own_guard
        #: True in a script: there timed steps report what the later ones would. A guard reads
        #: values of a CUDA device after the step, when the inspection knows more.
        self._is_guard_first = guard is not None and not is_on_cuda(module)
        #: the finding of the current step that is left to the guard, and the call of a root with it
        self._held: NonFinite | None = None
        self._held_call: RootCall | None = None
        #: findings that were reported after all, because no backward pass followed
        self._reported: set[FindingKey] = set()
        self._num_trained = 0
        #: findings as the guard has refined them, or None for values that are intended
        self._refined: dict[FindingKey, NonFinite | None] = {}
        self._warm_up = warm_up
        self._steps = steps
        self._awaits_training = True
        self._device = device
        self._is_expected = expected
        self._facts: RunFacts | None = None
        #: what held the GPU's memory when a step ran out of it, or None if none did
        self.out_of_memory: MemorySnapshot | None = None
        self._failure: Note | None = None

    def expect_evaluation(self) -> None:
        """Count forward passes as the requested steps: the model is known not to train."""
        self._awaits_training = False
        if self._inspector is not None:
            self._inspector.awaits_training = False

    def start(self, under_way: Begun | None = None) -> Run:
        """Follow the model from now on.

        A hook of a call of the model gives that call as ``under_way``.
        """
        if self._inspector is None:
            raise InputError("this inspection has ended: call inspect(model) again")
        if self._guard is not None:
            self._guard.inspection.follow(self._inspector, is_guard_first=self._is_guard_first)
            if self._guard is self._own_guard:
                self._guard.start()
        self._inspector.start(under_way)
        return self

    def _hear(self, found: NonFinite) -> None:
        """Report a finding, unless a GradScaler is looking for it or the guard reports it."""
        guard = self._guard
        if guard is None or not guard.is_started:
            self._listener(found)
            return
        if self._is_guard_first and guard.is_checking_here and not found.is_evaluation:
            self._held, self._held_call = found, guard.open_call()
            return
        if guard.is_scaled and found.phase in ("backward", "loss"):
            self._refined[found.key] = None
            return
        better = guard.refine(found)
        self._refined[found.key] = better
        if better is not None and found.phase != "loss":
            self._listener(better)

    def finish(self) -> RunFacts:
        """Follow the model no longer, and return the results."""
        if self._inspector is not None and not self._inspector.is_started:
            raise InputError("this inspection has not started: enter its context, or call start()")
        try:
            self._finish_measuring()
        finally:
            if self._own_guard is not None:
                self._own_guard.finish()
        return self.facts

    def _finish_measuring(self) -> None:
        """Stop measuring; the guard goes on."""
        inspector, self._inspector = self._inspector, None
        if inspector is not None:
            try:
                inspector.finish()
                self._release_held(inspector.counts)
            finally:  # a listener may raise an error
                self._facts = self._facts_of(inspector)

    def abandon(self) -> None:
        """Follow the model no longer, without results."""
        if self._own_guard is not None:
            self._own_guard.finish()
        inspector, self._inspector = self._inspector, None
        if inspector is not None:
            inspector.finish()

    @property
    def is_finished(self) -> bool:
        """True once enough steps are measured. Values are checked until :meth:`finish`."""
        return self._facts is not None

    def _finish_after(self, over: StepCounts) -> None:
        """Stop measuring after enough steps.

        An evaluation may come first, so its passes do not count unless the model is known not to
        train.
        """
        self._release_held(over)
        taken = over.trained if self._awaits_training else sum(over)
        if self._steps is not None and taken >= self._warm_up + self._steps:
            self._finish_measuring()

    def _release_held(self, over: StepCounts) -> None:
        """Report the finding that was left to the guard, unless it has checked a backward pass.

        A step may have several passes: one that the script has skipped, and the next.
        """
        is_checked = over.trained > self._num_trained
        self._num_trained = over.trained
        held, self._held = self._held, None
        call, self._held_call = self._held_call, None
        if call is not None and not call.is_reached:
            is_checked = False
        if held is not None and not is_checked:
            self._reported.add(held.key)
            self._listener(held)

    def _facts_of(self, inspector: Inspector) -> RunFacts:
        watched = inspector.watched()
        # Findings as the guard has refined them, without those that turned out to be intended.
        refined = [self._refined.get(found.key, found) for found in watched.nonfinite]
        kept = tuple(found for found in refined if found is not None)
        num_steps = watched.nonfinite_steps - (len(refined) - len(kept))
        watched = replace(watched, nonfinite=kept, nonfinite_steps=num_steps)
        expectation = self._expectation(inspector, watched)
        facts = run_of(
            watched,
            RunProvenance.of(inspector.model),
            costs=expectation.costs,
            roofline=expectation.roofline,
            inner=expectation.inner,
            others=() if self._guard is None else tuple(self._guard.other_calls),
        )
        return replace(facts, out_of_memory=self._failure)

    def _expectation(self, inspector: Inspector, watched: Observations) -> Expectation:
        example = inspector.example_of(watched)
        if example is None:
            return Expectation()
        training = any(step.backward_span for step in watched.usual.steps)
        return expectation_of(
            inspector.model,
            example,
            training=training,
            device=self._device,
            is_timed=self._is_expected,
            autocast=inspector.autocast,
        )

    def assert_step_time(
        self, max_step_time: float | str, *, device: str | None = None, tolerance: float | str = 0.0
    ) -> None:
        """Call :meth:`RunFacts.assert_step_time`."""
        __tracebackhide__ = True
        self.facts.assert_step_time(max_step_time, device=device, tolerance=tolerance)

    def __enter__(self) -> Run:
        """Start the inspection."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the inspection. Errors that it finds now do not replace one that is raised."""
        if error is not None:
            self.explain(error)
        try:
            self.finish()
        except TorchscanError:
            if error is None:
                raise

    def explain(self, error: BaseException) -> None:
        """Explain an exception that ends a step: if the GPU's memory was full, by its contents.

        A note is added at the end of the traceback. The exception is not changed otherwise.
        """
        if self._inspector is None:
            return
        found = self._inspector.explain(error)
        if found is None:
            return
        self.out_of_memory = found
        self._failure = describe_out_of_memory(found)
        error.add_note(f"torchscan: {self._failure}")

    @property
    def overhead(self) -> float:
        """Seconds that torchscan has spent in the current step so far.

        The times of the results do not contain them.
        """
        if self._inspector is None:
            return 0.0
        return self._inspector.looking * 1e-9

    @property
    def facts(self) -> RunFacts:
        """The results. Reading them during the inspection raises an InputError."""
        if self._facts is None:
            raise InputError(
                "this inspection has not finished: leave its context, or call finish()"
            )
        if self._guard is None:
            return self._facts
        return add_checks(
            self._facts,
            self._guard.facts(),
            is_guard_first=self._is_guard_first,
            reported=self._reported,
        )

    @property
    def verdict(self) -> Note | None:
        """The fact that limits the run most, with the next step, or None without a step."""
        return self.facts.verdict

    def table(self, *, max_depth: int | None = 3) -> Table:
        """Return modules with times and memory, down to ``max_depth`` (None: all)."""
        return self.facts.table(max_depth=max_depth)

    def to_dict(self, names: Names = "torchscan") -> dict[str, Any]:
        """Call :meth:`RunFacts.to_dict`."""
        return self.facts.to_dict(names)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the results as JSON, which :func:`open_run` reads.

        An existing file is replaced when all is written.
        """
        self.facts.save(path)

    def save_trace(self, path: str | PathLike[str]) -> None:
        """Write the last step as a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        self.facts.save_trace(path)

    def __str__(self) -> str:
        """Return the table once the inspection is finished."""
        return repr(self) if self._facts is None else str(self.facts)

    def __repr__(self) -> str:
        """Return a short description of the state, or of the results."""
        return "<Run: not finished>" if self._facts is None else f"<Run: {self.facts!r}>"

    def _repr_html_(self) -> str:
        if self._facts is None:
            return f"<pre>{escape(repr(self))}</pre>"
        return self.facts._repr_html_()

    @property
    def info(self) -> dict[str, Any]:
        """The calls, nested as the modules are."""
        return self.facts.info


register_formatters(
    Run,
    run_table,
    page_part=lambda run: run.facts._repr_html_(),
    document=lambda run: run_document(run.facts),
    plot=lambda run, **options: run.facts.plot(**options),
)


@explain_wrong_types
def inspect(
    module: nn.Module,
    *,
    warm_up: int = 1,
    steps: int | None = None,
    on_nonfinite: Reaction = "record",
    checks: Sequence[Check] = (),
    device: str | None = None,
    expected: bool = True,
) -> Run:
    """Measure and check each call of a module, forward and backward, in real steps.

    Steps in the context of the result are inspected. Nothing is put on the model, and its results
    are the same bit by bit.

    Args:
        module: the model. It is left unchanged.
        warm_up: of several steps, how many of the first are left out.
        steps: how many training steps are measured. In later ones the loss, the gradients and the
            parameters are checked for NaN and Inf, and the call at fault is repeated on a copy to
            find the operator. Forward passes without a backward pass, as in a validation, are
            measured separately and do not count. None: all are measured.
        on_nonfinite: what happens when a value is NaN or infinite that should not be, in any step:
            it is recorded, warned of as well, or :class:`NonFiniteError` is raised where it was
            made. The same goes for what ``checks`` raise an alarm at.
        checks: functions of a path, a kind ("output", "output_gradient", "parameter",
            "parameter_gradient") and a tensor. What they return is noted: a number, or an
            :class:`Alarm`; None is not.
        device: the name of the device whose roofline says what each call should take. None: the GPU
            that the model is on, or the CPU once that was measured
            (``torchscan devices --measure``).
        expected: estimate what each call should take on the device.
    """
    require_module(module)
    for name, number, least in (("warm_up", warm_up, 0), ("steps", steps, 1)):
        if number is not None and (type(number) is not int or number < least):
            raise InputError.of_value(name, number, f"give a whole number, {least} or more")
    if callable(checks) or not all(map(callable, checks)):
        raise InputError(
            Argument("checks"),
            " is not a list of functions: give ",
            Give("checks", [TorchName("check")]),
        )
    if device is not None:
        device_named(device)
    return Run(
        module,
        warm_up=warm_up,
        steps=steps,
        on_nonfinite=on_nonfinite,
        checks=checks,
        device=device,
        expected=expected,
    )


def guard_of(on_nonfinite: Reaction) -> NonFiniteGuard:
    """Return the guard that checks the steps of all models of a script."""
    return NonFiniteGuard(_listener(on_nonfinite))


def inspect_within(
    guard: NonFiniteGuard, module: nn.Module, *, steps: int, on_nonfinite: Reaction
) -> Run:
    """Return an inspection of a model in a script whose steps a guard checks."""
    return Run(
        module,
        warm_up=1,
        steps=steps,
        on_nonfinite=on_nonfinite,
        checks=(),
        device=None,
        guard=guard,
    )


def _listener(reaction: Reaction) -> Callable[[NonFinite], None]:
    """Return the function that gets each finding, which is in the results in any case."""
    if reaction not in get_args(Reaction):
        raise InputError.of_choice("on_nonfinite", reaction, get_args(Reaction))
    if reaction == "raise":
        return _raising(NonFiniteError)
    if reaction == "warn":
        return _warn_once()
    return lambda _: None


def _warn_once() -> Callable[[NonFinite], None]:
    """Return a function that warns once per source."""
    reported: set[tuple[str, str]] = set()

    def warn(found: NonFinite) -> None:
        source = found.phase, found.path
        if source not in reported:
            reported.add(source)
            warn_user(str(found))

    return warn


def _raising(kind: type[TorchscanError]) -> Callable[[object], None]:
    """Return a function that raises an error with the text of a finding."""

    def raise_error(found: object) -> None:
        raise kind(str(found))

    return raise_error


#: functions that get each alarm of a check
_ALARM_LISTENERS: Mapping[Reaction, Callable[[CheckResult], None]] = {
    "record": lambda _: None,
    "warn": lambda found: warn_user(str(found)),
    "raise": _raising(AlarmError),
}
