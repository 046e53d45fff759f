"""Layers that are empty because they do not run, and the records of the parameters they had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.parameter_records import notes_on_shares
from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES
from torchscan.recording.folding.layer_folds import Fold
from torchscan.recording.folding.thinned import UnfoldableError, above_in, copied
from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Slots:
    """The parameters and buffers of a model."""

    #: the paths of all, in order
    paths: Sequence[str]
    #: the paths of those in layers that were emptied, with those in layers that run
    like: Mapping[str, str]


def slots_of(module: nn.Module, folds: Sequence[Fold]) -> Slots | None:
    """Return the parameters of a model, or None if layers that do not run must keep theirs.

    They must if they share parameters with others or hold tensors of other types.
    """
    inventory = Inventory(module)
    if inventory.packed or inventory.lazy_slots:
        return None
    holders = Counter(id(slot.tensor) for slot in inventory.slots)
    layers: dict[str, str] = {}
    for fold in folds:
        layers |= fold.stands_in
    like: dict[str, str] = {}
    for slot in inventory.slots:
        layer = slot.owner
        while layer and layer not in layers:
            layer = layer.rpartition(".")[0]
        if not layer:
            continue
        if holders[id(slot.tensor)] > 1 or type(slot.tensor) not in PLAIN_TYPES:
            return None
        like[slot.path] = layers[layer] + slot.path.removeprefix(layer)
    return Slots([slot.path for slot in inventory.slots], like)


def emptied(module: nn.Module, folds: Sequence[Fold]) -> nn.Module:
    """Return a copy of the model in which the layers that do not run are empty."""
    made: nn.Module = copied(module)
    for fold in folds:
        above, last = above_in(made, fold.path)
        layers = above._modules[last] = copied(above._modules[last])
        for index in fold.left_out:
            layer = layers._modules[str(index)] = copied(layers._modules[str(index)])
            layer._modules, layer._parameters, layer._buffers = {}, {}, {}
    return made


def with_parameters(trace: Trace, slots: Slots) -> Trace:
    """Return the trace with records of the parameters that the emptied layers had."""
    known = {each.path: each for each in trace.parameters}
    missing = [path for path in slots.like if path not in known]
    if not missing:
        return trace
    if len(missing) + len(known) != len(slots.paths):
        raise UnfoldableError("a pass has changed which parameters there are")
    positions = {path: position for position, path in enumerate(slots.paths)}
    storages = list(trace.storages)
    records: list[ParameterRecord] = []
    for path in slots.paths:
        if path in known:
            first = trace.parameters[known[path].identity].path
            records.append(known[path]._replace(identity=positions[first]))
            continue
        record = known[slots.like[path]]
        begin = len(storages)
        storages += [storages[each]._replace(name=path) for each in record.storages]
        records.append(
            record._replace(
                owner=path.rpartition(".")[0],
                identity=positions[path],
                is_used=False,
                storages=tuple(range(begin, len(storages))),
            )
        )
    return _with_share(replace(trace, parameters=tuple(records), storages=tuple(storages)))


def _with_share(trace: Trace) -> Trace:
    """Return the trace with the share of all parameters that this rank holds."""
    share = notes_on_shares(trace.parameters)
    if not share:
        return trace
    codes = {note.code for note in share}
    others = [note for note in trace.provenance.assumptions if note.code not in codes]
    notes = [*others, *share]
    return replace(trace, provenance=replace(trace.provenance, assumptions=tuple(notes)))
