"""The state of model and process, restored after a pass, also if it raises an exception.

Counters, tracers and transformations of the caller do not see the pass. Function modes stay,
because the default device is one.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Collection, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn

from torchscan.errors import InputError
from torchscan.recording.bookkeeping.inventory import Inventory, is_pretended
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.module_contents import Snapshot
from torchscan.recording.running_modules import CALL_CODE
from torchscan.recording.switches import keep_switches
from torchscan.recording.undo import Undo, is_recording, run_at_end_of_pass
from torchscan.torch_versions import (
    compiled_from,
    leave_later_modes,
    traces,
    without_functorch,
    without_hooks_for_gradients,
    without_modes,
    without_python_dispatcher,
    wrapper_types,
)

#: maximum number of Python calls per level of nested modules in a pass; without one, it is 3
_CALLS_PER_LEVEL = 8
#: deeper models would overflow the stack, which the recursion limit protects
_MAX_LEVELS = 1_200


def keep_everything(
    undo: Undo, inventory: Inventory, mode: str, arguments: Sequence[Any], table: TensorTable
) -> None:
    """Put the module in ``mode`` ("eval", "train" or "same"); let ``undo`` restore all state.

    Changes that other threads make at the same time stay: the table knows those of the pass.
    """
    modules = list(inventory.modules.values())
    if threading.active_count() > 1:
        _refuse_if_running_elsewhere(inventory.root, modules)
    leave_surroundings(undo)
    undo.push(leave_later_modes(), is_of_process=False)
    keep_random_state(undo)
    keep_switches(undo)
    # Tensors are given, too: those of a ScriptModule are not among its attributes.
    tensors = [slot.tensor for slot in inventory.slots]
    snapshot = Snapshot(modules, [*arguments, *tensors])
    undo.push(partial(snapshot.restore, table))
    snapshot.gradients.watch(undo)
    flags = [_training_of(each) for each in modules]
    undo.push(partial(_set_flags, modules, flags))
    if any(issubclass(each, wrapper_types()) for each in inventory.module_types):
        _bypass_compilation(modules)
    if mode != "same":
        _set_flags(modules, [mode == "train"] * len(modules))


def _refuse_if_running_elsewhere(root: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Raise an InputError if another thread runs the model: both would change its attributes."""
    this_thread = threading.get_ident()
    # Not in a variable: this function's own frame is among them, which would be a cycle.
    others = [frame for thread, frame in sys._current_frames().items() if thread != this_thread]
    if not others:
        return

    ids = set(map(id, modules))
    if any(_is_in(ids, frame) for frame in others):
        raise InputError(
            f"another thread is running this model ({type(root).__name__}), and recording it now "
            "would interfere: wait until it has finished, or give copy.deepcopy(model)"
        )


def _is_in(modules: Collection[int], innermost: FrameType) -> bool:
    """Return whether the thread with this innermost frame runs one of the modules."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code is CALL_CODE and id(frame.f_locals.get("self")) in modules:
            return True
        frame = frame.f_back
    return False


def keep_random_state(undo: Undo) -> None:
    """Restore generators afterwards: Python's, NumPy's, torch's and those of initialized GPUs."""
    undo.push(partial(random.setstate, random.getstate()))
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    if numpy_random is not None:
        undo.push(partial(numpy_random.set_state, numpy_random.get_state()))
    undo.push(partial(torch.set_rng_state, torch.get_rng_state()))
    if torch.cuda.is_initialized():
        undo.push(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))


# -- surroundings --------------------------------------------------------------------------------


def refuse_nesting() -> None:
    """Raise an InputError inside another pass, or in a tracer, which no pass can step out of."""
    if is_recording():
        raise InputError(
            "torchscan was called inside the forward pass of a model that it records: record the "
            "models one after the other"
        )
    tracer = traces()
    if tracer is not None:
        raise InputError(
            f"{tracer} is tracing, and would trace the pass too: call torchscan before or after"
        )


def leave_surroundings(undo: Undo) -> None:
    """Leave modes, transforms, hooks for gradients and anomaly detection until the pass ends."""
    for context in (
        without_functorch,
        without_python_dispatcher,
        without_modes,
        without_hooks_for_gradients,
    ):
        undo.enter(context, is_of_process=False)
    undo.enter(partial(torch.inference_mode, False), is_of_process=False)
    undo.enter(partial(torch.autograd.set_detect_anomaly, False))


def make_room_for_nesting(inventory: Inventory) -> None:
    """Raise Python's recursion limit by the calls of nested modules, until the pass ends."""
    limit = sys.getrecursionlimit()
    levels = max(path.count(".") for path in inventory.modules)
    run_at_end_of_pass(partial(sys.setrecursionlimit, limit))
    sys.setrecursionlimit(limit + _CALLS_PER_LEVEL * min(levels, _MAX_LEVELS))


# -- the model -------------------------------------------------------------------------------------


def original_of(module: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` or DistributedDataParallel wraps."""
    if not isinstance(module, wrapper_types()):
        return module
    compiled = compiled_from(module)
    if compiled is not None:
        return original_of(compiled)
    if is_pretended(module):
        return module
    inner: Any = module.module
    return original_of(inner)  # DDP would communicate with the other ranks


def _bypass_compilation(modules: Sequence[nn.Module]) -> None:
    """Replace compiled modules by their originals; the snapshot takes that back."""
    for module in modules:
        for name, child in module._modules.items():
            if child is None:
                continue
            original = original_of(child)
            if original is not child:
                module._modules[name] = original


def set_training(modules: Sequence[nn.Module], mode: str) -> None:
    """Set the training flags one by one.

    An overridden ``train()`` may have effects that cannot be undone, such as merging adapters.
    """
    if mode != "same":
        _set_flags(modules, [mode == "train"] * len(modules))


def _training_of(module: nn.Module) -> bool | None:
    """Return the training flag, or None for a frozen module, which has none."""
    flag: bool | None = vars(module).get("training")
    if flag is None:
        return getattr(module, "training", None)
    return flag


def _set_flags(modules: Sequence[nn.Module], flags: Sequence[bool | None]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if flag is None or _training_of(module) in (None, flag):
            continue
        if isinstance(module, torch.jit.ScriptModule):
            module.training = flag
        else:
            vars(module)["training"] = flag  # without calling a __setattr__ that the class defines
