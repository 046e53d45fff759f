"""An inspection while it goes on, and its results once it is finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from os import PathLike
from types import TracebackType
from typing import Any

from torch import nn

from torchscan.analyses.memory_snapshot.snapshot_result import MemorySnapshot
from torchscan.errors import InputError, TorchscanError
from torchscan.expectation import Expectation, expectation_of
from torchscan.formatters import register_formatters
from torchscan.inspecting.checks import Check
from torchscan.inspecting.guarded_findings import GuardedFindings
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
from torchscan.inspecting.out_of_memory import describe_out_of_memory
from torchscan.inspecting.reactions import Reaction, alarm_listener, finding_listener
from torchscan.inspecting.run import Inspected, Names, RunFacts
from torchscan.inspecting.run_device import RunProvenance
from torchscan.inspecting.run_summary import run_of
from torchscan.inspecting.step_labels import StepCounts
from torchscan.notes import Note
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.module_calls import Begun
from torchscan.report.run_data import run_document
from torchscan.report.run_table import run_table
from torchscan.report.table import Table
from torchscan.results import RowsResult


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
        loop_iterations: int | None = None,
        guard: NonFiniteGuard | None = None,
    ) -> None:
        """Inspect ``module``.

        ``guard`` checks steps of all models of a script; without one, only this model is checked.
        """
        listener = finding_listener(on_nonfinite)
        self._guard = guard or NonFiniteGuard(listener, module)
        self._owns_guard = guard is None
        # In a script, timed steps report what the later ones would. A guard reads values of a CUDA
        # device after the step, when the inspection knows more.
        is_guard_first = guard is not None and not is_on_cuda(module)
        self._findings = GuardedFindings(listener, self._guard, is_guard_first=is_guard_first)
        #: None once enough steps are measured: it holds the model
        self._inspector: Inspector | None = Inspector(
            module,
            self._findings.hear,
            tuple(checks),
            alarm_listener(on_nonfinite),
            at_step=self._finish_after,
            warm_up=warm_up,
        )
        self._warm_up = warm_up
        self._steps = steps
        self._awaits_training = True
        self._device = device
        self._is_expected = expected
        self._loop_iterations = loop_iterations
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
        self._findings.follow(self._inspector)
        if self._owns_guard:
            self._guard.start()
        self._inspector.start(under_way)
        return self

    def finish(self) -> RunFacts:
        """Follow the model no longer, and return the results."""
        if self._inspector is not None and not self._inspector.is_started:
            raise InputError("this inspection has not started: enter its context, or call start()")
        try:
            self._finish_measuring()
        finally:
            if self._owns_guard:
                self._guard.finish()
        return self.facts

    def _finish_measuring(self) -> None:
        """Stop measuring; the guard goes on."""
        inspector, self._inspector = self._inspector, None
        if inspector is not None:
            try:
                inspector.finish()
                self._findings.release(inspector.counts)
            finally:  # a listener may raise an error
                self._facts = self._facts_of(inspector)

    def abandon(self) -> None:
        """Follow the model no longer, without results."""
        if self._owns_guard:
            self._guard.finish()
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
        self._findings.release(over)
        taken = over.trained if self._awaits_training else sum(over)
        if self._steps is not None and taken >= self._warm_up + self._steps:
            self._finish_measuring()

    def _facts_of(self, inspector: Inspector) -> RunFacts:
        watched = self._findings.refine(inspector.watched())
        expectation = Expectation()
        example = inspector.examples.find(watched.usual.calls)
        if example is not None:
            expectation = expectation_of(
                inspector.model,
                example,
                training=any(step.backward_span for step in watched.usual.steps),
                device=self._device,
                is_timed=self._is_expected,
                autocast=inspector.examples.autocast,
                loop_iterations=self._loop_iterations,
            )
        facts = run_of(
            watched,
            RunProvenance.of(inspector.model),
            costs=expectation.costs,
            roofline=expectation.roofline,
            inner=expectation.inner,
            others=tuple(self._guard.other_calls),
        )
        return replace(facts, out_of_memory=self._failure)

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
        return self._findings.add_checks(self._facts)

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
