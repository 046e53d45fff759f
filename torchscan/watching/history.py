"""A watched run as its readers see it, also while it is recorded."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchscan.errors import InputError
from torchscan.escapes import printable
from torchscan.files import path_of
from torchscan.formatters import formatters_of, table_of
from torchscan.measured import Measured
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import PlotSize, Result, draw
from torchscan.watching.curves import Curves, curves_of
from torchscan.watching.lost_steps import LostSteps, lost_in, note_of_lost, settled_about
from torchscan.watching.merging import last_measured
from torchscan.watching.missing_ranks import missing_in
from torchscan.watching.processes import single_thread
from torchscan.watching.rank_readers import events_of, readers_of, require_phase, shown_phase
from torchscan.watching.run_files import ranks_in, run_folders_in
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import KINDS, Kind, Phase, RunEvent, Series
from torchscan.watching.series_history import History, find_by_label, read_histories
from torchscan.watching.sinks.run_export import export_run
from torchscan.watching.sinks.sink import Sink

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchscan.report.table import Table
    from torchscan.watching.layers_over_steps import LayersOverSteps

T = TypeVar("T")


class WatchedRun(Result):
    """A watched run. Data are read on access, also while the run is recorded."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """``path`` is the folder of a run, or the file of one of its ranks."""
        self.path = path_of(path)
        if not self._files:
            raise InputError(f"{str(self.path)!r} has no watched run: {_advice(self.path)}")

    @property
    def _files(self) -> list[Path]:
        """The files of all ranks that have started."""
        return ranks_in(self.path)

    def __repr__(self) -> str:
        missing = "".join(f"; {each}" for each in self.missing)
        steps = "evaluations only" if self.has_only_evaluations else f"{len(self.steps())} steps"
        about = f"{steps}, {len(self.series)} series{printable(missing)}"
        return f"<WatchedRun {str(self.path)!r}: {about}>"

    @property
    def about(self) -> dict[str, Any]:
        """Facts about the model and the process that recorded it."""
        return next(self._read(lambda reader: settled_about(reader.path, reader.about())))

    @property
    def graph(self) -> dict[str, Any] | None:
        """The module graph for the page, traced in the first recorded step, or None."""
        return next(filter(None, self._read(lambda reader: reader.graph())), None)

    @property
    def ranks(self) -> int:
        """Number of ranks that trained."""
        return int(self.about.get("ranks", len(self._files)))

    @property
    def missing(self) -> tuple[Note, ...]:
        """Notes on ranks that recorded nothing or left the run open, and on lost sampled steps."""
        if not self.path.is_file():
            return tuple(missing_in(self._files))
        merged = self.about.get("missing")
        if merged is not None:
            return tuple(map(Note.from_data, merged))
        lost = note_of_lost(self.lost)
        return () if lost is None else (lost,)

    @property
    def lost(self) -> tuple[LostSteps, ...]:
        """Sampled steps that are not in the run: which ones, how many, and why."""
        found = self._read(lambda reader: lost_in(settled_about(reader.path, reader.about())))
        return tuple(each for lost in found for each in lost)

    @property
    def series(self) -> tuple[Series, ...]:
        """All series that were recorded."""
        found: dict[Series, None] = {}
        for reader in self._readers():
            found |= dict.fromkeys(reader.series().values())
        return tuple(found)

    @property
    def findings(self) -> tuple[Note, ...]:
        """Problems of the training, such as vanishing gradients, dead layers or a loss that spikes.

        ``str(finding)`` is the sentence that the page shows.
        """
        find = formatters_of(self).findings
        return () if find is None else find(self)

    @property
    def events(self) -> tuple[RunEvent, ...]:
        """Events of the run, such as its first NaN, in the order of time."""
        return events_of(self._readers())

    @property
    def written(self) -> float | None:
        """Time of the last written step in seconds since 1970, or None if there is none."""
        times = self._read(lambda reader: [*reader.times("train"), *reader.times("eval")])
        return max((when for found in times for _, when in found), default=None)

    def find(self, path: str = "*", kind: Kind | None = None) -> list[Series]:
        """Return series whose paths match a pattern: ``find("layer4.*", "output_grad")``."""
        if kind is not None and kind not in KINDS:
            raise InputError(f"kind is {kind!r}: choose from {', '.join(KINDS)}")
        found = [each for each in self.series if fnmatch.fnmatchcase(each.path, path)]
        return [each for each in found if kind in (None, each.kind)]

    def steps(self, phase: Phase = "train") -> list[int]:
        """Return the training steps that are kept, or those at which evaluations ran."""
        steps: set[int] = set()
        for times in self._read(lambda reader: reader.times(phase)):
            steps.update(step for step, _ in times)
        return sorted(steps)

    @property
    def num_steps(self) -> int:
        """Number of training steps that ran, recorded or not."""
        nums = [0, *(step + 1 for step in self.steps()[-1:])]
        for reader in self._readers():
            nums += [point.step + 1 for point in reader.curves("train")[-1:]]
            reached = settled_about(reader.path, reader.about()).get("reached")
            if type(reached) is int:
                nums.append(reached)
        return max(nums)

    def curves(self, phase: Phase = "train") -> Curves:
        """Return loss and learning rate of each step, and the gradient norm of sampled ones."""
        require_phase(phase)
        return curves_of(phase, list(self._read(lambda reader: reader.curves(phase))))

    def layers_over_steps(self, phase: Phase = "train", max_columns: int = 320) -> LayersOverSteps:
        """Return quantities of each module over the steps, in columns of equal width.

        There are at most ``max_columns`` columns.
        """
        require_phase(phase)
        if max_columns < 1:
            raise InputError(f"max_columns is {max_columns}: give at least 1")
        from torchscan.watching.layers_over_steps import layers_over_steps, paths_of_modules

        with single_thread():
            ranks = [(each.layer_columns(phase), each.series()) for each in self._readers()]
            paths = paths_of_modules(self.series, self.graph)
            return layers_over_steps(ranks, phase, paths, max_columns)

    def history(self, series: Series | str, phase: Phase = "train") -> History:
        """Return a series over the steps, of all ranks together.

        A text is the label of a series (:attr:`Series.label`): ``"fc.weight gradient"``.
        """
        wanted = find_by_label(self.series, series) if isinstance(series, str) else series
        require_phase(phase)
        return self.histories([wanted], phase)[0]

    def histories(self, series: Sequence[Series], phase: Phase = "train") -> list[History]:
        """Return several series over the steps, reading the run once."""
        require_phase(phase)
        with single_thread():
            return read_histories(self._readers(), series, phase)

    @property
    def shown_phase(self) -> Phase:
        """The phase that a page shows: evaluations only if the run has no training step."""
        return shown_phase(self._readers())

    @property
    def has_only_evaluations(self) -> bool:
        """True if evaluation passes were recorded and no training step."""
        return not self.steps() and bool(self.steps("eval"))

    def last(self) -> Measured:
        """Return what the last training step measured, by call; else the last evaluation pass."""
        return last_measured(self.path, self._readers(), self.shown_phase)

    def measured(self) -> Measured:
        """Return ``last()`` and the distributions over the steps, for ``html_report``."""
        from torchscan.watching.distributions_over_steps import read_columns

        histories = []
        phase = self.shown_phase
        with single_thread():
            num_steps = len(self.steps(phase))
            for each, columns in read_columns(self._readers, self.series, phase, num_steps):
                call = [each.path, each.invocation]
                about = {"call": call, "kind": each.kind, "name": each.what}
                histories.append({**about, **columns})
        return replace(self.last(), histories=histories)

    def table(self, phase: Phase | None = None) -> Table:
        """Return one row per series, with the statistics of its last sampled step.

        ``phase`` is "train" or "eval"; by default training, unless only evaluations were recorded.
        """
        return table_of(self, phase=phase)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        series: str | Sequence[str] | None = None,
        statistic: str = "mean",
        phase: Phase | None = None,
        size: PlotSize = "screen",
    ) -> Axes:
        """Draw a statistic over the steps.

        Args:
            ax: where to draw; by default in a new figure.
            series: labels of series; by default the outputs of the outermost modules.
            statistic: name of a statistic in :class:`Distribution`, or of a custom one.
            phase: "train" or "eval".
            size: size of a new figure.
        """
        return draw(self, ax=ax, series=series, statistic=statistic, phase=phase, size=size)

    def to_dict(self) -> dict[str, Any]:
        """Return facts about the run. Statistics are in ``to_pandas``."""
        facts: dict[str, Any] = {
            "path": str(self.path),
            "about": self.about,
            "steps": self.steps(),
            "evaluations": self.steps("eval"),
        }
        facts["series"] = [each.label for each in self.series]
        facts["events"] = [to_plain(each) for each in self.events]
        facts["missing"] = [each.to_data() for each in self.missing]
        return facts

    def export(self, sink: Sink) -> None:
        """Send the run to a sink, in the order of time: ``run.export(TensorBoard("board"))``.

        The sink runs in this process. It receives the steps of all ranks together, the curves and
        the user's notes, but no sampled values, which are not kept. Its ``frequency`` and
        ``timeout`` are ignored.
        """
        export_run(self.path, self._files, self.events, sink)

    def _readers(self) -> Iterator[Reader]:
        return readers_of(self._files)

    def _read(self, ask: Callable[[Reader], T]) -> Iterator[T]:
        for reader in self._readers():
            yield ask(reader)


def _advice(path: Path) -> str:
    runs = [repr(str(each)) for each in run_folders_in(path)]
    if len(runs) > 5:
        runs[5:] = ["…"]
    if runs:
        return f"choose from {', '.join(runs)}"
    return f"record one with watch(model, {str(path)!r})"


def runs_in(folder: Path) -> list[WatchedRun]:
    """Return all runs in a folder and in the folders inside it."""
    return [WatchedRun(each) for each in run_folders_in(folder)]
