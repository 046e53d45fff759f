"""A watched run as its readers see it, also while it is recorded."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from torchscan.errors import InputError
from torchscan.escapes import printable
from torchscan.files import path_of
from torchscan.formatters import formatters_of, table_of
from torchscan.measured import Measured
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import PlotSize, Result, draw
from torchscan.watching.curves import Curves, curves_of, merge_points
from torchscan.watching.lost_steps import LostSteps, lost_in, note_of_lost, settled_about
from torchscan.watching.merging import RankStep, measured_in, merge_steps_of_ranks
from torchscan.watching.missing_ranks import missing_in
from torchscan.watching.processes import single_thread
from torchscan.watching.run_files import is_rank_file, plain_rank_files, rank_of_file, ranks_in
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import KINDS, STATISTICS, Distribution, Kind, Phase, RunEvent, Series
from torchscan.watching.series_history import History, history_of
from torchscan.watching.sinks.sink import Sink, SinkData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchscan.report.table import Table
    from torchscan.watching.distributions_over_steps import OverSteps
    from torchscan.watching.layers_over_steps import LayersOverSteps

T = TypeVar("T")
#: distributions whose columns are in memory at once, when a page is made: the run is read once for
#: each so many
_AT_ONCE = 2048 * 160


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
        return tuple(
            dict.fromkeys(
                each
                for found in self._read(lambda reader: reader.series())
                for each in found.values()
            )
        )

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
        events: list[RunEvent] = []
        for path, found in self._read(lambda reader: (reader.path, reader.events())):
            rank = rank_of_file(path) if is_rank_file(path) else None
            if rank is not None:
                found = [replace(each, rank=rank) for each in found]
            events += found
        return tuple(sorted(events, key=lambda event: event.time))

    @property
    def written(self) -> float | None:
        """Time of the last written step in seconds since 1970, or None if there is none."""
        times = self._read(lambda reader: [*reader.times("train"), *reader.times("eval")])
        return max((when for found in times for _, when in found), default=None)

    def find(self, path: str = "*", kind: Kind | None = None) -> list[Series]:
        """Return series whose paths match a pattern: ``find("layer4.*", "output_grad")``."""
        if kind is not None and kind not in KINDS:
            raise InputError(f"kind is {kind!r}: choose from {', '.join(KINDS)}")
        return [
            each
            for each in self.series
            if fnmatch.fnmatchcase(each.path, path) and kind in (None, each.kind)
        ]

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
        from torchscan.watching.layers_over_steps import layers_over_steps

        with single_thread():
            ranks = [(each.layer_columns(phase), each.series()) for each in self._readers()]
            return layers_over_steps(ranks, phase, self._paths(), max_columns)

    def _paths(self) -> list[str]:
        """Return the paths of the modules with series, in the order of the model."""
        from torchscan.watching.layers_over_steps import order_paths

        graph = self.graph
        rows = [] if graph is None else graph["rows"]
        drawn = dict.fromkeys(str(row["path"]) for row in rows)
        recorded = {each.path for each in self.series}
        paths = {path: None for path in drawn if path in recorded}
        paths.update(dict.fromkeys(order_paths(self.series)))
        return list(paths)

    def history(self, series: Series | str, phase: Phase = "train") -> History:
        """Return a series over the steps, of all ranks together.

        A text is the label of a series (:attr:`Series.label`): ``"fc.weight gradient"``.
        """
        wanted = self._find_by_label(series) if isinstance(series, str) else series
        require_phase(phase)
        return self.histories([wanted], phase)[0]

    def histories(self, series: Sequence[Series], phase: Phase = "train") -> list[History]:
        """Return several series over the steps, reading the run once."""
        require_phase(phase)
        found: dict[Series, dict[tuple[int, int], list[Distribution]]] = {
            each: defaultdict(list) for each in series
        }
        with single_thread():
            for reader in self._readers():
                numbers = {
                    number: found[each] for number, each in reader.series().items() if each in found
                }
                for watched in reader.steps(phase):
                    place = watched.step, watched.number
                    for number in numbers.keys() & watched.distributions.keys():
                        numbers[number][place].append(watched.distributions[number])
        return [history_of(each, phase, steps) for each, steps in found.items()]

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
        phase = self.shown_phase
        newest = []
        for reader in self._readers():
            watched = reader.newest(phase)
            if watched is not None:
                newest.append(RankStep(watched, reader.series()))
        return measured_in(self.path, newest)

    def measured(self) -> Measured:
        """Return ``last()`` and the distributions over the steps, for ``html_report``."""
        from torchscan.watching.distributions_over_steps import MAX_COLUMNS

        series = self.series
        histories = []
        with single_thread():
            num_steps = max(1, len(self.steps(self.shown_phase)))
            size = max(1, _AT_ONCE // min(num_steps, MAX_COLUMNS))
            for at in range(0, len(series), size):
                part = frozenset(series[at : at + size])
                for each, columns in self._over_steps(part).columns_by_series():
                    call = [each.path, each.invocation]
                    about = {"call": call, "kind": each.kind, "name": each.what}
                    histories.append({**about, **columns})
        return replace(self.last(), histories=histories)

    def _over_steps(self, series: Collection[Series]) -> OverSteps:
        from torchscan.watching.distribution_columns import side_by_side
        from torchscan.watching.distributions_over_steps import OverSteps

        phase = self.shown_phase
        over = OverSteps(phase)
        for reader in self._readers():
            numbers = {number: each for number, each in reader.series().items() if each in series}
            for watched in reader.steps(phase):
                found = side_by_side(watched.distributions)
                over.add_sampled(watched.place, found, numbers)
        return over

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
        calls: list[Iterable[tuple[float, Callable[[], None]]]] = []
        for phase in get_args(Phase):
            show = partial(sink.on_curves, phase)
            points = merge_points(list(self._read(partial(Reader.curves, phase=phase))))
            calls.append([(point.time, partial(show, [point])) for point in points])
            calls.append((seen.time, partial(sink.on_data, seen)) for seen in self._seen(phase))
        notes = [event for event in self.events if event.note.code == "user-note"]
        calls.append([(event.time, partial(sink.on_note, event.note)) for event in notes])
        with contextlib.ExitStack() as last:
            last.callback(sink.on_close)
            sink.on_open(self.path)
            for _, call in heapq.merge(*calls, key=lambda timed: timed[0]):
                call()

    def _seen(self, phase: Phase) -> Iterator[SinkData]:
        """Yield the steps of all ranks together, as sinks get them."""
        with contextlib.ExitStack() as stack:
            readers = [Reader(file) for file in self._files]
            for reader in readers:
                stack.callback(reader.close)
            yield from merge_steps_of_ranks(readers, phase)

    def _rows(self, phase: Phase) -> Iterator[dict[str, Any]]:
        for seen in self._seen(phase):
            for each, found in seen.distributions.items():
                place = {
                    "step": seen.step,
                    "path": each.path,
                    "kind": each.kind,
                    "name": each.name,
                    "invocation": each.invocation,
                }
                yield {
                    **place,
                    **{name: getattr(found, name) for name in STATISTICS},
                    **found.custom,
                }

    def _find_by_label(self, label: str) -> Series:
        found = next((each for each in self.series if each.label == label), None)
        if found is None:
            labels = [each.label for each in self.series]
            near = difflib.get_close_matches(label, labels, 3, 0.5) or labels[:3]
            some = ", ".join(map(repr, near)) or "none"
            raise InputError(f"{label!r} is not a series: choose from {some}, …; find() lists all")
        return found

    def _readers(self) -> Iterator[Reader]:
        return readers_of(self._files)

    def _read(self, ask: Callable[[Reader], T]) -> Iterator[T]:
        for reader in self._readers():
            yield ask(reader)


def shown_phase(readers: Iterable[Reader]) -> Phase:
    """Return the phase that a page shows: evaluations only if no rank has a training step."""
    # To the end, so that each reader is closed.
    found = [reader.has_steps("train") for reader in readers]
    return "train" if any(found) else "eval"


def readers_of(files: Iterable[Path]) -> Iterator[Reader]:
    """Yield a reader of each file, which is open until the next one is asked for."""
    for file in files:
        with contextlib.closing(Reader(file)) as reader:
            yield reader


def require_phase(phase: str) -> None:
    """Raise an InputError for anything but "train" and "eval"."""
    if phase not in ("train", "eval"):
        raise InputError(f"phase is {phase!r}: give 'train' or 'eval'")


def _advice(path: Path) -> str:
    runs = [repr(str(each.path)) for each in runs_in(path)]
    if len(runs) > 5:
        runs[5:] = ["…"]
    if runs:
        return f"choose from {', '.join(runs)}"
    return f"record one with watch(model, {str(path)!r})"


def runs_in(folder: Path) -> list[WatchedRun]:
    """Return all runs in a folder and in the folders inside it."""
    folders = {file.parent for file in plain_rank_files(folder.rglob("rank*.sqlite"))}
    return [WatchedRun(each) for each in sorted(folders)]
