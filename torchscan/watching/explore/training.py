"""The training of a run as its page shows it, read once or again and again."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchscan.notes import Note
from torchscan.report.paging.training_data import find_all, training_data
from torchscan.report.paging.training_packing import pack_losses, thin_out
from torchscan.report.paging.training_record import (
    CurveData,
    LayerData,
    NanData,
    RowData,
    TrainingRecord,
)
from torchscan.watching.curves import Curves
from torchscan.watching.distributions_over_steps import ends_of_columns
from torchscan.watching.explore.layer_tree import LayerTree, RowFolder
from torchscan.watching.explore.nan_source import describe_nan, first_nan
from torchscan.watching.history import WatchedRun
from torchscan.watching.layer_columns import (
    ColumnOfLayers,
    Span,
    merge_columns,
    renumber,
    width_of_columns,
)
from torchscan.watching.layers_over_steps import quantities_of
from torchscan.watching.processes import single_thread
from torchscan.watching.rank_readers import readers_of
from torchscan.watching.run_files import has_worker, ranks_in
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Series

#: values of rows that are kept for a page: more rows have fewer columns
_MAX_VALUES = 160_000
_MAX_COLUMNS, _MIN_COLUMNS = 1024, 64
#: quantities of the heat map
_SHOWN = ("gradient", "update", "std", "dead")


class FollowedTraining:
    """The training of a run, for any number of readers. Each column of layers is read once."""

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._series: dict[Path, dict[int, Series]] = {}
        self._tree = LayerTree(())
        self._folder = RowFolder(self._tree)
        #: columns of rows by their steps, of each rank
        self._columns: dict[Path, dict[Span, ColumnOfLayers]] = {}
        #: number of the newest step of each rank in its file, and when it was written
        self._newest: dict[Path, tuple[int, float]] = {}
        self._nan: NanData | None = None

    def data(self) -> dict[str, Any] | None:
        """Return the training part of the page, or None if the run has no training step."""
        record = self.read()
        return None if record is None else training_data(record)

    def read(self) -> TrainingRecord | None:
        """Return what is known of the training, or None if the run has no training step."""
        with self._lock, single_thread():
            self._update()
            if self._run.shown_phase == "eval":
                return None
            train = self._run.curves()
            layers = _layer_data(self._tree, list(self._columns.values()))
            if not train.steps and not layers.first:
                return None
            return self._record(train, layers)

    def _record(self, train: Curves, layers: LayerData) -> TrainingRecord:
        run = self._run
        events = run.events
        if self._nan is None and (event := first_nan(events)) is not None:
            self._nan = describe_nan(run, event.note)
        num_dropped = sum(lost.count for lost in run.lost)
        notes = [event.note for event in events]
        evaluation = _curve_data(run.curves("eval"))
        # first, as a worker writes how the run ended before it ends
        is_recording = any(map(has_worker, ranks_in(run.path)))
        about = run.about
        is_closed = about.get("closed", True) and about.get("raised") is None
        state = "finished" if is_closed else "stopped"
        return TrainingRecord(
            run=run.path.name,
            state="recording" if is_recording else state,
            about=about,
            num_dropped=num_dropped,
            train=_curve_data(train),
            evaluation=evaluation,
            layers=layers,
            notes=notes,
            nan=self._nan,
        )

    def _update(self) -> None:
        """Read new columns; read all again if there are new series, or if steps were replaced."""
        files = ranks_in(self._run.path)
        series = {reader.path: reader.series() for reader in readers_of(files)}
        written = {reader.path: reader.written("train") for reader in readers_of(files)}
        is_same = series == self._series
        for path, (number, when) in self._newest.items():
            # the newest step that was read may have been removed or replaced
            if written.get(path, {}).get(number) != when:
                is_same = False
        if not is_same:
            every: dict[Series, None] = {}
            for found in series.values():
                every |= dict.fromkeys(found.values())
            self._tree = LayerTree(every)
            self._folder = RowFolder(self._tree)
            self._series, self._columns, self._nan = series, {}, None
        for reader in readers_of(files):
            self._columns[reader.path] = self._read_columns(reader)
        self._newest = {path: max(steps.items()) for path, steps in written.items() if steps}

    def _read_columns(self, reader: Reader) -> dict[Span, ColumnOfLayers]:
        """Return the columns of a rank, of which only new ones are read."""
        known = self._columns.get(reader.path, {})
        rows = self._tree.row_by_path
        numbers = {}
        for number, series in self._series[reader.path].items():
            if series.path in rows:
                numbers[number] = rows[series.path]
        spans = reader.layer_spans("train")
        columns = {span: known[span] for span in spans if span in known}
        for column in renumber(reader.layer_columns("train", columns), numbers):
            columns[column.span] = self._folder.fold(column)
        return columns


def training_of(run: WatchedRun) -> dict[str, Any] | None:
    """Return the training part of the page, or None if the run has no training step."""
    return FollowedTraining(run).data()


def losses_of(run: WatchedRun, name: str) -> dict[str, Any]:
    """Return the training losses of a run, for the page of another one."""
    curve = thin_out(_curve_data(run.curves()))
    return pack_losses(name, curve)


def findings_of(run: WatchedRun) -> tuple[Note, ...]:
    """Return the findings that the page of a run names, in the same order."""
    record = FollowedTraining(run).read()
    return () if record is None else tuple(find_all(record, thin_out(record.train)))


def _curve_data(curves: Curves) -> CurveData:
    return CurveData(
        steps=curves.steps,
        times=curves.times,
        losses=curves.losses,
        learning_rates=curves.learning_rates,
        gradient_norms=curves.gradient_norms,
    )


def _layer_data(tree: LayerTree, ranks: Sequence[Mapping[Span, ColumnOfLayers]]) -> LayerData:
    """Return the rows of the heat map, with the columns of all ranks in at most so many."""
    budget = _MAX_VALUES // (max(1, len(tree)) * len(_SHOWN))
    max_columns = max(_MIN_COLUMNS, min(_MAX_COLUMNS, budget))
    ordered: list[list[ColumnOfLayers]] = []
    for rank in ranks:
        spans = sorted(rank)
        ordered.append([rank[span] for span in spans])
    starts = [column.first for rank_columns in ordered for column in rank_columns]
    width = width_of_columns(starts, max_columns)
    columns = merge_columns(ordered, width)
    quantities = quantities_of(columns, len(tree))
    not_finite = quantities["places"].nan_to_num(0).long()
    firsts = [column.first for column in columns]
    lasts = [column.last for column in columns]
    rows = [RowData(**asdict(row)) for row in tree.rows]
    num_sampled = sum(column.num_steps for column in columns)
    return LayerData(
        rows=rows,
        first=firsts,
        last=lasts,
        until=ends_of_columns(firsts, max(lasts, default=0)),
        num_sampled=num_sampled,
        values={name: quantities[name].tolist() for name in _SHOWN},
        not_finite=not_finite.tolist(),
    )
