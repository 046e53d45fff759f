"""Parameters of a generation: all of them, those that one token uses, and their stored bytes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from torchscan.analyses.generation.serving_costs import Serving, packed_weights
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.ops.routing import UNKNOWN
from torchscan.recording.folding import Repeats
from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace


def distinct_parameters(trace: Trace) -> list[ParameterRecord]:
    """Return the parameters without buffers, each once."""
    held = [each for index, each in enumerate(trace.parameters) if each.identity == index]
    return [each for each in held if not each.is_buffer]


def count_parameters(trace: Trace, sizes: Mapping[str, int]) -> int:
    """Return the number of parameters, given those of all devices by the paths of the divided."""
    return sum(sizes.get(each.path, each.numel) for each in distinct_parameters(trace))


def active_parameters(
    trace: Trace, sizes: Mapping[str, int], repeats: Repeats | None = None
) -> int:
    """Return the number of parameters that one token uses: all, but only ``k`` of ``E`` experts."""
    share = _with_repeats(_routed_shares(trace), repeats)
    active = 0
    for each in distinct_parameters(trace):
        size = sizes.get(each.path, each.numel)
        used = share.get(each.storages[0], Fraction(1)) if each.storages else Fraction(1)
        active += round(size * used)
    return active


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
        if routing is UNKNOWN:
            continue
        for tensor in op.inputs:
            record = trace.tensors[tensor]
            is_weight = trace.storages[record.storage].kind == "parameter"
            if is_weight and record.spec.shape[:1] == (routing.choices,):
                all_choices = routing.choices * routing.num_devices
                found[record.storage] = Fraction(routing.picks, all_choices)
    return found


def weights_bytes(trace: Trace, serving: Serving, repeats: Repeats | None = None) -> int:
    """Return the bytes of all that a model keeps, with weights of products as they are stored."""
    packed = _with_repeats(packed_weights(trace, serving), repeats)
    total = 0
    for index, parameter in enumerate(trace.parameters):
        if parameter.identity != index:
            continue
        size = parameter.stored_bytes
        if parameter.storages:
            size = round(size * packed.get(parameter.storages[0], Fraction(1)))
        total += size

    # Other constants are, for example, the scales of packed weights.
    constants = [each for each in trace.storages if each.kind == "constant"]
    total += sum(each.size for each in constants if each.born is None and each.died is None)
    return total
