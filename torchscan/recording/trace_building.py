"""The trace of a pass, built from what its recorder saw, and its provenance."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from torchscan._version import __version__
from torchscan.errors import Give
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.recording.bookkeeping.inventory import Inventory, type_name_of
from torchscan.recording.bookkeeping.parameter_records import (
    notes_on_shares,
    parameter_records,
    unseen_parameters,
)
from torchscan.recording.omission import without_calls
from torchscan.recording.running import PassRun
from torchscan.recording.training.quantized_linear import QuantizedLinear
from torchscan.recording.unpacked import with_quantized, with_unpacked
from torchscan.torch_versions import is_sharded_type
from torchscan.trace.provenance import Processes, Provenance
from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace
from torchscan.user_warnings import warn_user


def build_trace(run: PassRun) -> Trace:
    """Return the trace of a pass that succeeded, and warn about tensors that the model kept."""
    recorder, inventory = run.recorder, run.inventory
    if recorder.values.by_storage:
        recorder.values.report()
    if run.attempt.buffers:
        run.assume(Note.of("rebuilt-buffers"))
    unread: list[Note] = []
    if inventory.has_scripts or inventory.packed or inventory.lazy_slots or recorder.took_packed:
        unread = unseen_parameters(inventory, recorder.took_packed)
        notes = [Note.of("weights-not-counted", weights=to_plain(each)) for each in unread]
        run.assumptions.update(dict.fromkeys(notes))

    # before the rest of the trace: this may enter parameters that the pass did not use
    parameters = parameter_records(inventory, recorder.table, recorder.took_packed)
    if any(issubclass(each, QuantizedLinear) for each in inventory.module_types):
        parameters = with_quantized(parameters, inventory.slots, inventory.modules)
    if not inventory.has_plain_tensors:
        run.assumptions.update(dict.fromkeys(notes_on_shares(parameters)))
    _warn_of_problems(run)
    trace = _trace_with(run, parameters, unread)
    return with_unpacked(trace, inventory.slots, inventory.modules)


def build_partial_trace(run: PassRun) -> Trace | None:
    """Return the trace of a pass that failed, or None if none can be built.

    An error while it is built must not hide why the pass failed.
    """
    recorder = run.recorder
    with contextlib.suppress(Exception):
        records = parameter_records(run.inventory, recorder.table, recorder.took_packed)
        return _trace_with(run, records, unread=())
    return None


def _trace_with(
    run: PassRun, parameters: tuple[ParameterRecord, ...], unread: Sequence[Note]
) -> Trace:
    request, attempt, recorder = run.request, run.attempt, run.recorder
    storages = recorder.table.storages.records()
    batch_size = None if request.input_shape is None else request.batch_size
    processes = None
    if run.inventory.is_sharded:
        processes = _processes_of(run.inventory)
    provenance = Provenance(
        execution="abstract" if attempt.is_abstract else "real",
        reasons=attempt.reasons,
        mode=request.mode,
        backward=request.has_backward,
        batch_size=batch_size,
        inputs=tuple(recorder.inputs),
        assumptions=tuple(run.assumptions),
        unrecorded_modules=tuple(sorted(recorder.tree.unrecorded_modules)),
        unreadable_weights=tuple(unread),
        torchscan_version=__version__,
        torch_version=torch.__version__,
        processes=processes,
    )
    trace = Trace(
        modules=recorder.ends.describe(recorder.tree.calls),
        ops=tuple(recorder.ops),
        tensors=tuple(recorder.table.records),
        storages=storages,
        parameters=parameters,
        provenance=provenance,
    )
    omitted = run.omitted
    if not (omitted.ops or omitted.modules):
        return trace
    return without_calls(trace, omitted.ops, omitted.modules)


def warn_of_unused_iterations(
    iterations: int | None, model: nn.Module, assumptions: Iterable[Note]
) -> None:
    """Warn about a number of iterations that no loop of a pass has used."""
    if iterations and all(note.code != "given-iterations" for note in assumptions):
        warn_user(
            Give("loop_iterations", iterations),
            f" has no effect on {type_name_of(model)}, which has no while_loop whose end depends "
            "on data",
        )


def _warn_of_problems(run: PassRun) -> None:
    """Warn about a number of iterations that no loop has used, and about leaked meta tensors.

    With meta tensors that outlive the pass, the model would fail later.
    """
    request = run.request
    warn_of_unused_iterations(request.loop_iterations, run.inventory.root, run.assumptions)
    table = run.recorder.table
    if not table.find_leaked():
        return
    for generation in (0, 2):  # only cycles hold some of them, and most of those cycles are young
        if table.find_leaked():
            gc.collect(generation)
    leaked = table.find_leaked()
    if leaked:
        shapes = ", ".join(str(list(spec.shape)) for spec in leaked[:3])
        warn_user(
            f"the model keeps {len(leaked)} meta tensor(s) where torchscan cannot remove them "
            f"({shapes}; in a functools.lru_cache?): clear them before you use the model, or give ",
            Give("execute", "real"),
        )


# -- ranks ---------------------------------------------------------------------------------------


def _processes_of(inventory: Inventory) -> Processes:
    """Return this rank, the mesh and the placements of sharded parameters."""
    from torch.distributed import get_rank

    mesh: dict[str, int] = {}
    placements: dict[str, str] = {}
    for slot in inventory.slots:
        tensor: Any = slot.tensor
        if not is_sharded_type(type(tensor)):
            continue
        of_tensor = tensor.device_mesh
        names = list(of_tensor.mesh_dim_names or map(str, range(of_tensor.ndim)))
        mesh.update(zip(names, of_tensor.shape, strict=True))
        pairs = zip(names, tensor.placements, strict=True)
        placements[slot.path] = ", ".join(f"{name}: {placement}" for name, placement in pairs)
    return Processes(get_rank(), mesh, placements)
