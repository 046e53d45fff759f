"""Parameters of a generation: all of them, those that one token uses, and their stored bytes."""

from __future__ import annotations

from fractions import Fraction

from torchscan.analyses.generation.serving_costs import Serving, packed_weights
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.ops.routing import UNKNOWN
from torchscan.recording.folding import Repeats
from torchscan.trace.events import ParameterRecord
from torchscan.trace.trace import Trace


def distinct_parameters(trace: Trace) -> list[ParameterRecord]:
    """Parameters, not buffers, each once."""
    return [
        each
        for at, each in enumerate(trace.parameters)
        if not each.is_buffer and each.identity == at
    ]


def active_parameters(trace: Trace, repeats: Repeats | None = None) -> int:
    """Return the number of parameters that one token uses: all, but only ``k`` of ``E`` experts."""
    share = _with_repeats(_routed_shares(trace), repeats)
    if not share:
        return sum(each.numel for each in distinct_parameters(trace))
    return sum(
        each.numel
        if not each.storages
        else round(each.numel * share.get(each.storages[0], Fraction(1)))
        for each in distinct_parameters(trace)
    )


def _with_repeats(share: dict[int, Fraction], repeats: Repeats | None) -> dict[int, Fraction]:
    """Add the shares of parameters in layers that are repeated."""
    if repeats is None:
        return share
    pairs = repeats.storage_in_layer_that_ran.items()
    return share | {mine: share[like] for mine, like in pairs if like in share}


def _routed_shares(trace: Trace) -> dict[int, Fraction]:
    """Return the share of experts that a token picks, by the storage of their weights."""
    routed = RoutedCalls(trace)
    found: dict[int, Fraction] = {}
    for index, op in enumerate(trace.ops):
        routing = routed.routing(index)
        for tensor in op.inputs if routing is not UNKNOWN else ():
            record = trace.tensors[tensor]
            is_weight = trace.storages[record.storage].kind == "parameter"
            if is_weight and record.spec.shape and record.spec.shape[0] == routing.choices:
                found[record.storage] = Fraction(routing.picks, routing.choices)
    return found


def weights_bytes(trace: Trace, serving: Serving, repeats: Repeats | None = None) -> int:
    """Bytes of all that a model keeps, weights that products take in the format that they are stored in."""
    packed = _with_repeats(packed_weights(trace, serving), repeats)
    held = [each for at, each in enumerate(trace.parameters) if each.identity == at]
    return _other_bytes(trace) + sum(
        round(each.stored_bytes * packed.get(each.storages[0], Fraction(1)))
        if each.storages
        else each.stored_bytes
        for each in held
    )


def _other_bytes(trace: Trace) -> int:
    """Return the bytes of other constants, such as the scales of packed weights."""
    return sum(
        each.size
        for each in trace.storages
        if each.kind == "constant" and each.born is None and each.died is None
    )
