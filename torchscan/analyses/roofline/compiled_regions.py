"""Parts of a model that are compiled separately: FSDP communicates between them.

The hooks of FSDP break the graph, so torchtitan and others compile each layer that it shards. No
kernel has calls of two layers.
"""

from __future__ import annotations

from torchscan.trace.trace import Trace

#: all-gathers as FSDP makes them, which belong to the module whose parameters they gather
_GATHERS = frozenset({"c10d._allgather_base_"})


def compiled_regions(trace: Trace) -> list[int] | None:
    """Return by each call the number of its region, or None if the model is compiled as a whole."""
    units = {trace.path_of(op) for op in trace.ops if op.signature.operator in _GATHERS}
    if len(units) < 2:
        return None
    regions: list[int] = []
    for call in trace.modules:
        inherited = 0 if call.parent is None else regions[call.parent]
        regions.append(call.index if call.path in units else inherited)
    return [regions[op.module_call] for op in trace.ops]
