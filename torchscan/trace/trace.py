"""The record of one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchscan.escapes import printable
from torchscan.formatters import table_of
from torchscan.notes import Note
from torchscan.results import RowsResult
from torchscan.trace.events import ModuleCall, OpCall
from torchscan.trace.provenance import Provenance
from torchscan.trace.records import ParameterRecord, StorageRecord, TensorRecord

if TYPE_CHECKING:
    from torchscan.report.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(RowsResult):
    """The trace of one pass: module calls as a tree, operator calls, tensors and parameters."""

    modules: tuple[ModuleCall, ...]
    ops: tuple[OpCall, ...]
    tensors: tuple[TensorRecord, ...]
    storages: tuple[StorageRecord, ...]
    parameters: tuple[ParameterRecord, ...]
    provenance: Provenance

    def table(self, by: str = "operator", top: int | None = None) -> Table:
        """Return costs by "operator" or by "module", the largest first; ``top`` limits the rows."""
        return table_of(self, by=by, top=top)

    @property
    def root(self) -> ModuleCall:
        """The call of the recorded module itself."""
        return self.modules[0]

    def path_of(self, op: OpCall) -> str:
        """The path of the module whose own operator this is."""
        return self.modules[op.module_call].path

    def assuming(self, note: Note) -> Trace:
        """Return the trace with one more assumption in its provenance."""
        assumptions = (*self.provenance.assumptions, note)
        provenance = replace(self.provenance, assumptions=assumptions)
        return replace(self, provenance=provenance)

    def __repr__(self) -> str:
        """Return a short text, as the trace of a large model has thousands of entries."""
        model, execution = printable(self.root.type_name), self.provenance.execution
        counts = f"{len(self.modules)} module calls, {len(self.ops)} operator calls"
        return f"<Trace of {model}: {counts}, {execution} pass>"
