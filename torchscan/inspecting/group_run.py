"""An inspected run of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torchscan.errors import InputError
from torchscan.formatters import table_of
from torchscan.inspecting.run import RunFacts
from torchscan.inspecting.stragglers import Straggler, lateness, stragglers
from torchscan.inspecting.verdicts import find_group_verdict
from torchscan.measured import Measured
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import RowsResult

if TYPE_CHECKING:
    from torchscan.report.table import Table

#: seconds within which all ranks take their first step
_MAX_DELAY = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun(RowsResult):
    """The results of inspections on several ranks."""

    #: number of ranks
    num_ranks: int
    #: runs of the ranks that have saved one, by rank
    runs: tuple[RunFacts, ...]
    #: ranks that have saved no run
    missing: tuple[int, ...]
    #: seconds per step by which each rank's own work exceeds that of the others, or None with too
    #: few steps
    lags: tuple[float | None, ...]
    #: ranks that the others wait for, the largest lag first
    stragglers: tuple[Straggler, ...]

    @property
    def verdict(self) -> Note | None:
        """The fact that limits the run most, with the next step, or None without a step."""
        return find_group_verdict(self)

    def table(self, by: str = "process") -> Table:
        """Return one row per "process" or per "layer"."""
        return table_of(self, by=by)

    def __repr__(self) -> str:
        """Return a short description: there may be thousands of calls."""
        missing = f", {len(self.missing)} missing" if self.missing else ""
        num_steps = self.runs[0].steps
        return f"<GroupRun: {self.num_ranks} ranks{missing}, {num_steps} steps>"

    def rank_of(self, run: RunFacts) -> int:
        """Return the rank of a run in this group."""
        return 0 if run.process is None else run.process.rank

    def measured(self) -> Measured:
        """Raise an InputError: a report shows one rank."""
        raise InputError(
            f"the run has {self.num_ranks} ranks, and a report shows one: give group.runs[0], "
            "or the file rank0.json"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain = {name: to_plain(getattr(self, name)) for name in ("num_ranks", "missing", "lags")}
        plain["verdict"] = to_plain(self.verdict)
        plain["stragglers"] = [asdict(each) for each in self.stragglers]
        plain["runs"] = [each.to_dict() for each in self.runs]
        return plain


def group_run_of(runs: Sequence[RunFacts]) -> GroupRun:
    """Return the runs of one launch as a group. A folder may also have files of other launches."""
    known = [(run.process, run) for run in runs if run.process is not None]
    if not known:
        raise InputError(
            "these runs have no ranks: give runs that several ranks have saved to one folder"
        )
    latest = max((process for process, _ in known), key=lambda process: process.began)
    own = []
    for process, run in known:
        is_one_launch = process.launch == latest.launch and process.num_ranks == latest.num_ranks
        # Launchers report little about a start, but ranks that began minutes apart are not of one.
        if is_one_launch and latest.began - process.began < _MAX_DELAY:
            own.append((process.rank, run))
    own.sort(key=lambda each: each[0])
    ranks = [rank for rank, _ in own]
    found = [run for _, run in own]
    missing = set(range(latest.num_ranks)).difference(ranks)
    lag_by_rank = lateness(found)
    lags = [lag_by_rank.get(rank) for rank in ranks]
    return GroupRun(
        num_ranks=latest.num_ranks,
        runs=tuple(found),
        missing=tuple(sorted(missing)),
        lags=tuple(lags),
        stragglers=stragglers(found),
    )
