"""Purpose of a block of memory, and the code that allocated it, by the stack of the allocation.

A stack names functions, files and lines, but not modules. It has Python frames and, if it was
recorded with ``stacks="all"``, C++ frames. The backward pass on a GPU runs in a thread without
Python frames, except for code that autograd calls: checkpoints, hooks and custom functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Literal, NamedTuple

from torchscan.analyses.memory_snapshot.snapshot_data import Frame, Origin

#: purpose of a block
OwnerKind = Literal[
    "parameters",
    "buffers",
    "optimizer",
    "gradients",
    "gathered",
    "activations",
    "recomputed",
    "loss",
    "backward",
    "temporary",
    "workspaces",
    "other",
    "unknown",
]
#: files that C++ frames have
_CPP_FILE = re.compile(r"^$|\?\?|\.(?:c|cc|cpp|cu|cuh|h|hpp|inc|so)\b|\.so\.")
#: a file of torch, and its path in the package
_TORCH_FILE = re.compile(r"(?:^|/)torch/((?:\w+/)*\w+\.py)$")
#: functions of torch that allocate the workspaces of libraries
_WORKSPACES = re.compile(r"^at::(?:cuda|native)::\w*Workspace")
#: files whose functions only forward calls
_PASSED_ON = re.compile(
    r"(?:^|/)(?:contextlib|functools|runpy|threading)\.py$|/(?:accelerate|torchscan)/"
)
_OPTIMIZERS = re.compile(
    r"(?:^|/)(?:torch/optim|bitsandbytes/optim|apex/optimizers|torchao/optim|deepspeed/ops)/"
)
#: functions of torch's optimizers that compute a step from the state that exists
_OPTIMIZER_KERNELS = re.compile(r"^_(?:single_tensor|multi_tensor|fused)_")
_LOSS = re.compile(r"cross_entropy|nll_loss|(?:^|_)loss(?:$|_)|Loss$|mse_loss")
#: files of functions with a backward pass in Python, and of compiled functions
_FUNCTIONS_OF_AUTOGRAD = frozenset(
    {"autograd/function.py", "_functorch/_aot_autograd/runtime_wrappers.py"}
)
#: functions that put parameters and buffers on a device
_LOADING = frozenset(
    {"_apply", "convert", "from_pretrained", "load_state_dict", "_load_from_state_dict", "to_empty"}
)


class Owner(NamedTuple):
    """Purpose of a block, and the code that allocated it."""

    kind: OwnerKind
    #: innermost frame outside of torch, or None if there is none
    frame: Frame | None = None
    #: innermost module of ``torch.nn`` that this code called, such as "linear"; "" for none
    via: str = ""


class KnownOwner(NamedTuple):
    """Purpose of memory that belongs to a known tensor."""

    kind: OwnerKind
    #: path of the module, or ""
    path: str
    #: the variable that holds it, or ""
    place: str = ""


def owner_of(origin: Origin, *, is_recorded: bool) -> Owner:
    """Return the owner of a block.

    Args:
        origin: the stack of the allocation.
        is_recorded: True if the allocation was recorded with stacks. A stack without code of the
            program then belongs to the thread that runs backward passes.
    """
    python = _frames_of_python(origin)
    code = _outside_torch(python)
    if any(_WORKSPACES.match(frame.name) for frame in origin.frames):
        return Owner("workspaces", code, _module_of_torch(python))
    files = [frame.filename for frame in python]
    if any(map(_OPTIMIZERS.search, files)):
        is_kernel = any(_OPTIMIZER_KERNELS.match(frame.name) for frame in python)
        return Owner("temporary" if is_kernel else "optimizer", code)
    has_engine = any("torch::autograd::Engine" in frame.name for frame in origin.frames)
    # Other threads begin with a function of ``threading``, and the main thread with a script.
    if has_engine or (is_recorded and all(map(is_torch_file, files))):
        return _owner_in_backward(origin, python)
    if not python:
        return Owner("unknown")
    return Owner(_kind_of_call(python), code, _module_of_torch(python))


def python_frames(origin: Origin) -> list[Frame]:
    """Return the Python frames, innermost first, or those of the forward pass if there are none."""
    return _frames_of_python(origin) or list(origin.forward_frames)


def _frames_of_python(origin: Origin) -> list[Frame]:
    return [frame for frame in origin.frames if not is_cpp_file(frame.filename)]


def is_torch_file(filename: str) -> bool:
    """Return whether a file belongs to torch."""
    return _path_in_torch(filename) is not None


@lru_cache(maxsize=4096)
def _path_in_torch(filename: str) -> str | None:
    """Return the path of a file within torch, such as "nn/functional.py", or None."""
    match = _TORCH_FILE.search(filename)
    return None if match is None else match[1]


@lru_cache(maxsize=4096)
def is_cpp_file(filename: str) -> bool:
    """Return whether a file is the file of a C++ frame."""
    return _CPP_FILE.search(filename) is not None


def _owner_in_backward(origin: Origin, python: Sequence[Frame]) -> Owner:
    """Return the owner of a block that autograd, or code called by autograd, allocated."""
    if any("AccumulateGrad" in frame.name for frame in origin.frames):
        return Owner("gradients", _outside_torch(origin.forward_frames))
    stack = python or origin.forward_frames
    kind = _kind_of_communication(python) or "backward"
    if _is_recomputed(python):
        kind = "recomputed"
    return Owner(kind, _outside_torch(stack), _module_of_torch(stack))


def _kind_of_call(python: Sequence[Frame]) -> OwnerKind:
    """Return the purpose of an allocation outside of autograd's C++ code."""
    if _is_recomputed(python):
        return "recomputed"
    names = {frame.name for frame in python}
    files = _torch_files(python)
    if "backward" in names and not _FUNCTIONS_OF_AUTOGRAD.isdisjoint(files):
        return "backward"
    kind = _kind_of_communication(python) or _kind_of_state(names, files)
    if kind is not None:
        return kind
    if _is_loss(python):
        return "loss"
    is_compiled = any("torchinductor" in frame.filename for frame in python)
    return "activations" if is_compiled or "_call_impl" in names else "other"


def _is_loss(python: Sequence[Frame]) -> bool:
    """Return whether the stack computes a loss, not a module that the loss function calls."""
    for frame in python:
        if frame.name == "_call_impl":
            return False
        if _LOSS.search(frame.name) or frame.filename.endswith("torch/nn/modules/loss.py"):
            return True
    return False


def _kind_of_state(names: Set[str], files: Set[str]) -> OwnerKind | None:
    """Return the kind of state that is created before training, or None if it is something else."""
    is_created = "__init__" in names
    if is_created and "nn/parallel/distributed.py" in files:
        return "gradients"  # buckets of DDP
    if "forward" in names:
        return None
    is_of_module = is_created and any(file.startswith("nn/") for file in files)
    return "parameters" if is_of_module or names & _LOADING else None


def _kind_of_communication(python: Sequence[Frame]) -> OwnerKind | None:
    """Return the purpose of memory that ``torch.distributed`` allocates, or None for other code."""
    if not any(file.startswith("distributed/") for file in _torch_files(python)):
        return None
    names = {frame.name for frame in python}
    if any("reduce" in name for name in names):
        return "gradients"
    is_gathered = any("gather" in name or "unshard" in name for name in names)
    return "gathered" if is_gathered else None


def _is_recomputed(python: Sequence[Frame]) -> bool:
    """Return whether a checkpoint repeats a forward pass in the backward pass."""
    return any(
        frame.name in ("unpack_hook", "recompute_fn", "backward")
        for frame in python
        if frame.filename.endswith("torch/utils/checkpoint.py")
    )


def _torch_files(frames: Sequence[Frame]) -> frozenset[str]:
    paths = {_path_in_torch(frame.filename) for frame in frames}
    return frozenset(path for path in paths if path is not None)


def _outside_torch(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame outside of torch, and outside of code that only forwards calls."""
    for frame in frames:
        if not is_torch_file(frame.filename) and not _PASSED_ON.search(frame.filename):
            return frame
    return None


def _module_of_torch(frames: Sequence[Frame]) -> str:
    """Return the file of the innermost module of ``torch.nn`` below the user's code."""
    for frame in frames:
        if not is_torch_file(frame.filename):
            return ""
        match = re.search(r"torch/nn/modules/(\w+)\.py$", frame.filename)
        if match is not None and frame.name == "forward":
            return match[1]
    return ""
