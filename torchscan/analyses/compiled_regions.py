"""Parts of a model that are compiled separately: FSDP communicates between them.

The hooks of FSDP break the graph, so torchtitan and others compile each layer that it shards. No
kernel has calls of two layers, and what is outside of layers is not compiled.
"""

from __future__ import annotations

from collections.abc import Collection

from torchscan.trace.trace import Trace

#: region of the calls outside of layers
OUTSIDE = 0
#: all-gathers as FSDP makes them, which belong to the module whose parameters they gather
_GATHERS = frozenset({"c10d._allgather_base_"})


def compiled_regions(trace: Trace, layers: Collection[str] = ()) -> list[int] | None:
    """Return by each call the number of its region, or None if the model is compiled as a whole.

    ``layers`` are the paths of modules that are compiled; by default those that FSDP shards.
    """
    units = set(layers) or {
        trace.path_of(op) for op in trace.ops if op.signature.operator in _GATHERS
    }
    if len(units) < 2 and not layers:
        return None
    regions: list[int] = []
    for call in trace.modules:
        inherited = OUTSIDE if call.parent is None else regions[call.parent]
        regions.append(call.index if call.path in units else inherited)
    return [regions[op.module_call] for op in trace.ops]
