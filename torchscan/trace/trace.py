"""The record of one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchscan.escapes import printable
from torchscan.results import RowsResult, table_of
from torchscan.trace.events import (
    ModuleCall,
    OpCall,
    ParameterRecord,
    Provenance,
    StorageRecord,
    TensorRecord,
)

if TYPE_CHECKING:
    from torchscan.report.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(RowsResult):
    """What one pass of a model did: its module calls as a tree, its operator calls, its tensors, its parameters.

    ``modules[0]`` is the call of the root; indices in the records point into these tuples.
    """

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

    def assuming(self, remark: str) -> Trace:
        """Return the same trace with one more assumption in its provenance."""
        assumptions = (*self.provenance.assumptions, remark)
        return replace(self, provenance=replace(self.provenance, assumptions=assumptions))

    def __repr__(self) -> str:
        """Short: a record of a large model has thousands of entries."""
        counts = f"{len(self.modules)} module calls, {len(self.ops)} operator calls"
        return f"<Trace of {printable(self.root.type_name)}: {counts}, {self.provenance.execution} pass>"
