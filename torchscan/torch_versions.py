"""Everything that is private to torch or not in every version, by feature, not by version number.

torch 2.6 and later are supported. An operator that a version lacks is a name that never appears.
The file is long because there must not be a second one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as without_functorch
from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import optimizer
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._python_dispatch import _pop_mode as pop_mode
from torch.utils.hooks import RemovableHandle

__all__ = [
    "FORMATS_STACK",
    "FUSES_GROUPED_QUERIES",
    "GATHERS_VECTORS",
    "LEAF_NODE",
    "NO_BACKWARD_PASS",
    "RUNS_BACKWARD",
    "TELLS_UNPACKING",
    "WRITTEN_IN_PYTHON",
    "CustomOpDef",
    "GlobalHooks",
    "GradientHook",
    "HigherOrderOperator",
    "MissingOperator",
    "OpOverload",
    "OpOverloadPacket",
    "ShardOfFSDP",
    "TensorHooks",
    "TorchDispatchMode",
    "WithoutData",
    "allocator_snapshot",
    "anomaly_flags",
    "arrived",
    "as_written",
    "aten",
    "attention_order",
    "backward_pass",
    "chunking_verbs",
    "compile_callbacks",
    "compile_records",
    "compiled_from",
    "compiles_flex_attention",
    "count_dispatch_modes",
    "count_function_modes",
    "current_node",
    "current_stream",
    "default_device",
    "engine",
    "exchange_rows",
    "forget_hooks",
    "forget_placements",
    "gather_columns",
    "gather_rows",
    "graph_breaks",
    "groups_of_shards",
    "has_collectives_on_shapes",
    "has_compiled_parts",
    "has_compiler",
    "hooks_for_gradients_as_now",
    "hooks_of",
    "import_compiler",
    "innermost_transform",
    "is_capturing_now",
    "is_divided_along",
    "is_divided_unevenly",
    "is_fake_type",
    "is_faking",
    "is_functorch_wrapped",
    "is_group_pretended",
    "is_offloaded",
    "is_placed_elsewhere",
    "is_sharded_by_fsdp",
    "is_sharded_type",
    "is_transforming",
    "is_wrapped_by_ddp",
    "joined_mesh",
    "keeps_for_gradients",
    "local_part",
    "making_ordinary_tensors",
    "modes_as_now",
    "next_node",
    "not_compiled",
    "on_its_way",
    "one_hot",
    "optimizer_hooks",
    "outside_of_everything",
    "pinning_verbs",
    "placed_like",
    "placement_verbs",
    "print_options",
    "put_back_hooks",
    "put_in",
    "recompile_reason",
    "reducing_verbs",
    "resizing_verbs",
    "scaled_dot_product_attention",
    "scatter_rows",
    "set_anomaly_flags",
    "set_attention_order",
    "set_default_device",
    "set_grad_enabled",
    "set_version",
    "sharded_from",
    "sharded_tensor_verbs",
    "shards_of_fsdp",
    "share_memory",
    "shortened_to_tf32",
    "skip_in_compiler",
    "stands_for_itself",
    "strip_hooks",
    "sum_over",
    "sum_up_in_python",
    "take_wide_gradients",
    "threads_of_loss",
    "traces",
    "waiting_verbs",
    "with_buckets_without_data",
    "with_inputs_copied",
    "with_shards_copied",
    "without_dispatch",
    "without_functorch",
    "without_hooks_for_gradients",
    "without_modes",
    "without_python_dispatcher",
    "without_torch_function",
    "without_tracing",
    "without_transforms",
    "without_wrapped_kernels",
]

_C: Any = torch._C


# -- operators -------------------------------------------------------------------------------------


class MissingOperator:
    """The name of an operator that this version of torch lacks, which equals no operator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, overload: str) -> MissingOperator:
        return MissingOperator(f"{self._name}.{overload}")

    def __str__(self) -> str:
        return self._name

    def overloads(self) -> list[str]:
        """None of them."""
        return []


class _Operators:
    """``torch.ops.aten``, with a :class:`MissingOperator` where this version has none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        operator = getattr(torch.ops.aten, name, None) or MissingOperator(f"aten.{name}")
        setattr(self, name, operator)
        return operator


#: typed as torch has it: what it lacks is not called
aten: Any = _Operators()


def _fuses_grouped_queries() -> bool:
    """Ask torch for its choice, whatever the user has switched off."""
    query, key = torch.empty(1, 2, 1, 1), torch.empty(1, 1, 1, 1)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        choice: int = torch._fused_sdp_choice(query, key, key, enable_gqa=True)
    return choice != SDPBackend.MATH.value


# -- modes -----------------------------------------------------------------------------------------


def modes_as_now() -> Callable[[], None]:
    """A function that leaves the modes that this thread has entered in the meantime."""
    functions, operators = count_function_modes(), _C._len_torch_dispatch_stack()

    def leave() -> None:
        while count_function_modes() > functions:
            torch.overrides._pop_mode()
        while _C._len_torch_dispatch_stack() > operators:
            pop_mode()

    return leave


def traces() -> str | None:
    """Return the name of a tracer of torch that is active, or None.

    The tracers record all that torch does, in a way that code cannot leave.
    """
    if _C._get_tracing_state() is not None:
        return "torch.jit.trace"
    fx = sys.modules.get("torch.fx._symbolic_trace")
    code = getattr(nn.Module.__call__, "__code__", None)
    is_patched = fx is not None and code is not None and code.co_filename == fx.__file__
    return (
        "torch.fx"
        if is_patched and _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is None
        else None
    )


def without_python_dispatcher() -> contextlib.AbstractContextManager[object]:
    """In which C++ code calls kernels itself, where a tracer has torch call them from Python."""
    guard: contextlib.AbstractContextManager[object] = _C._DisablePythonDispatcher()
    return guard


def is_fake_type(kind: type) -> bool:
    """Return whether tensors of this type are fake: they report a device and have no data."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and issubclass(kind, fake.FakeTensor)


def making_fakes() -> contextlib.AbstractContextManager[object]:
    """In which tensors that are made pretend to be on their device, and have no data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


class WithoutData:
    """Makes tensors that pretend to be on their device, and have no data."""

    def __init__(self, mode: Any) -> None:
        from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

        #: in which all tensors are made so
        self.mode: contextlib.AbstractContextManager[object] = mode
        self._make: Any = FakeTensor
        self._as_meta: Any = in_kernel_invocation_manager

    @classmethod
    def of(cls, tensor: Tensor) -> WithoutData | None:
        """Return the mode of a fake tensor, or of its local part, or None if it has data."""
        mode = getattr(local_part(tensor), "fake_mode", None)
        return None if mode is None else cls(mode)

    def tensor(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """One of its own memory."""
        made: Tensor = self._make(
            self.mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device
        )
        return made

    def view(
        self, tensor: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int
    ) -> Tensor:
        """One that looks into the memory of another."""
        with self._as_meta(self.mode):
            view = tensor.as_strided(shape, stride, offset)
        made: Tensor = self._make(self.mode, view, tensor.device)
        return made


def has_no_data(tensor: Tensor) -> bool:
    """Return whether a tensor, or its local part, is nothing but a shape on some device."""
    return tensor.is_meta or WithoutData.of(tensor) is not None


def is_group_pretended() -> bool:
    """Return whether the process group is a fake one, with this process only."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return (
        distributed is not None
        and bool(distributed.is_initialized())
        and distributed.get_backend() == "fake"
    )


def is_offloaded(module: nn.Module) -> bool:
    """Return whether FSDP2 keeps parts of a module on the host."""
    policy: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "CPUOffloadPolicy", None)
    if policy is None or not is_sharded_by_fsdp(module):
        return False
    groups = [
        getattr(each._get_fsdp_state(), "_fsdp_param_group", None)
        for each in _sharded_modules(module)
    ]
    return any(isinstance(getattr(group, "offload_policy", None), policy) for group in groups)


def _sharded_modules(module: nn.Module) -> list[Any]:
    return [each for each in module.modules() if hasattr(each, "_get_fsdp_state")]


def shards_of_fsdp(module: nn.Module) -> list[ShardOfFSDP]:
    """Return the parameters that FSDP2 shards in a module."""
    if not is_sharded_by_fsdp(module):
        return []
    states = [each._get_fsdp_state() for each in _sharded_modules(module)]
    groups: list[Any] = []
    for state in states:
        several = getattr(state, "_fsdp_param_groups", None)
        groups += [state._fsdp_param_group] if several is None else several
    shards = (each for group in groups if group is not None for each in group.fsdp_params)
    return list(map(ShardOfFSDP, shards))


class ShardOfFSDP:
    """A parameter that FSDP2 shards."""

    def __init__(self, shard: Any) -> None:
        """``shard``: torch's object for it."""
        self._shard = shard

    @property
    def module(self) -> nn.Module:
        """The module that has the parameter."""
        module: nn.Module = self._shard._module_info.module
        return module

    @property
    def name(self) -> str:
        """The name of the parameter in its module."""
        return str(self._shard._module_info.param_name)

    @property
    def part(self) -> Tensor:
        """This rank's part of the parameter, padded as that of the first rank."""
        data: Tensor = self._shard._sharded_param_data
        return data.view(self._shard.padded_sharded_param_size)

    @property
    def rows(self) -> int:
        """The number of rows of the parameter, without the padding of the last rank."""
        return int(self._shard._orig_size[0])

    @property
    def groups(self) -> list[Any]:
        """The process groups of the mesh dimensions along which the parameter is sharded."""
        spec = self._shard._sharding_spec
        placed = zip(range(spec.mesh.ndim), spec.placements, strict=True)
        return [spec.mesh.get_group(dim) for dim, each in placed if not each.is_replicate()]

    @property
    def placement(self) -> tuple[Any, Sequence[Any]] | None:
        """The mesh and placements of the all-gathered parameter if it is a DTensor, or None."""
        spec = self._shard._unsharded_dtensor_spec
        return None if spec is None else (spec.mesh, spec.placements)

    def extend_all_gather(
        self, before: Callable[..., object], after: Callable[..., object]
    ) -> None:
        """Have FSDP2 call a function before, and one after, it all-gathers the parameter.

        It looks for them on the tensor, once when it is sharded.
        """
        tensor = self._shard._sharded_local_tensor
        tensor.fsdp_pre_all_gather = before
        tensor.fsdp_post_all_gather = after
        self._shard._init_extensions()


def take_wide_gradients(parameter: Tensor, dtype: torch.dtype) -> None:
    """Let a parameter have gradients of another type, where torch can."""
    if hasattr(parameter, "grad_dtype") and parameter.grad_dtype != dtype:
        parameter.grad_dtype = dtype


def pinning_verbs() -> list[tuple[Any, str]]:
    """Return the place of the function that pins memory, which has no effect on fake tensors."""
    return [(Tensor, "pin_memory")]


def fake_store() -> Any:
    """For a group of processes of which there is only this one."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def is_faking() -> bool:
    """Return whether a mode of torch's fake tensors is active, which modes like ours run before."""
    return _dispatch_mode(_FAKING) is not None


_dispatch_mode: Callable[[Any], Any] = _C._get_dispatch_mode
_FAKING = _C._TorchDispatchModeKey.FAKE


def making_ordinary_tensors() -> contextlib.AbstractContextManager[object]:
    """Return a context in which tensors are not those of inference mode.

    It does the same as ``torch.inference_mode(False)``, in less than half its time.
    """
    context: contextlib.AbstractContextManager[object] = _C._InferenceMode(False)
    return context


@contextlib.contextmanager
def outside_of_everything() -> Iterator[None]:
    """Leave every pass, graph and transformation (vmap, grad) inside the context."""
    with without_functorch(), without_modes(), torch.no_grad():
        yield


@contextlib.contextmanager
def without_tracing() -> Iterator[None]:
    """Leave every pass and graph, five times as fast, for code that enters no dispatch mode."""
    if is_transforming():
        with outside_of_everything():
            yield
    else:
        with _C._DisableTorchDispatch(), torch.no_grad():
            yield


#: a context in which modes of operators see nothing, and no others are entered
without_dispatch: Any = _C._DisableTorchDispatch


#: whether torch.jit.trace is at work
is_tracing: Callable[[], bool] = _C._is_tracing


#: the transform of ``torch.func`` that is active in this thread, or None
innermost_transform: Callable[[], object] = _C._functorch.peek_interpreter_stack


def is_transforming() -> bool:
    """Return whether vmap or grad is active in this thread."""
    return innermost_transform() is not None


def without_transforms() -> contextlib.AbstractContextManager[object]:
    """Compute with ordinary tensors inside the context, also while vmap or grad is active."""
    if not is_transforming():
        return contextlib.nullcontext()
    transforms: Any = importlib.import_module("torch._functorch.pyfunctorch")
    cleared: contextlib.AbstractContextManager[object]
    cleared = transforms.temporarily_clear_interpreter_stack()
    return cleared


def strip_hooks(model: nn.Module) -> None:
    """Remove all hooks of modules, also the global ones, for a copy that must not call them."""
    module = nn.modules.module
    for hooks in (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
    ):
        hooks.clear()
    for each in model.modules():
        for hooks in (
            each._forward_hooks,
            each._forward_pre_hooks,
            each._backward_hooks,
            each._backward_pre_hooks,
        ):
            hooks.clear()


# -- tensors and functions -------------------------------------------------------------------------

#: sets whether gradients are recorded; ``torch.set_grad_enabled`` is a class written in Python
set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled
#: a context in which no subclass or mode takes the place of torch's functions
without_torch_function: Any = _C.DisableTorchFunction
#: how many modes that take the place of torch's functions are active
count_function_modes: Callable[[], int] = _C._len_torch_function_stack
#: how many modes that take the place of operators are
count_dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
#: whether it is what vmap and grad wrap around a tensor
is_functorch_wrapped: Callable[[Tensor], bool] = _C._functorch.is_functorch_wrapped_tensor
#: whether two tensors look into the same memory block
share_memory: Callable[[Tensor, Tensor], bool] = _C._is_alias_of
scaled_dot_product_attention: Callable[..., Any] = _C._nn.scaled_dot_product_attention
#: a context in which operators are not differentiated, and arrive as they are called
below_autograd: Any = _C._AutoDispatchBelowAutograd
#: whether an RMS norm is one kernel on cards, with a gradient
HAS_FUSED_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
one_hot: Callable[..., Any] = _C._nn.one_hot

#: whether attention on the CPU takes grouped queries in its fused kernel
FUSES_GROUPED_QUERIES = _fuses_grouped_queries()
#: modules of torch's whose functions are written in Python, and ask whether others take their place
WRITTEN_IN_PYTHON: tuple[Any, ...] = (
    nn.functional,
    torch.functional,
    torch.autograd,
    torch._tensor,
)


def set_version(tensor: Tensor, version: int) -> None:
    """Set the version counter of a tensor. Later versions of torch take several tensors at once."""
    try:
        _C._autograd._unsafe_set_version_counter((tensor,), (version,))
    except TypeError:
        _C._autograd._unsafe_set_version_counter(tensor, version)


# -- switches --------------------------------------------------------------------------------------


def default_device() -> torch.device | None:
    """Return the device that was given to ``torch.set_default_device`` in this thread."""
    context: Any = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def set_default_device(device: torch.device | None) -> None:
    """Set the default device that was read.

    After None, torch 2.6 fails when it is asked, unless the state is as if it had never been set.
    """
    torch.set_default_device(device)
    if device is None:
        vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)


def attention_order() -> list[int]:
    """In which order the kernels of attention are tried."""
    order: list[int] = _C._get_sdp_priority_order()
    return order


def set_attention_order(order: list[int]) -> None:
    """Set the order of attention backends that was read."""
    _C._set_sdp_priority_order(order)


def print_options() -> Any:
    """Return torch's options for printing tensors. They can be assigned to."""
    return torch._tensor_str.PRINT_OPTS


def runs_libraries_of_cuda_13() -> bool:
    """Return whether torch runs cuBLAS and cuDNN of CUDA 13 or later.

    A build without CUDA stands for the default CUDA build of its version.
    """
    if torch.version.cuda is not None:
        return int(torch.version.cuda.partition(".")[0]) >= 13
    return TorchVersion(torch.__version__) >= "2.11"


#: version of cuDNN above which torch prefers its attention on Hopper and GB100
_CUDNN_OF_ATTENTION = (9, 15, 0)


def prefers_cudnn_attention() -> bool:
    """Return whether torch runs cuDNN's attention first, on GPUs for which it prefers it.

    The version that torch was compiled with decides: asking for the loaded one initializes cuDNN,
    which fails where another version is found.
    """
    cudnn: Any = getattr(_C, "_cudnn", None)
    if torch.version.cuda is None or cudnn is None:
        return runs_libraries_of_cuda_13()
    return tuple(cudnn.getCompileVersion()) > _CUDNN_OF_ATTENTION


#: True if "tf32" is set by name; older versions have a flag, and newer ones refuse a mixture
_HAS_PRECISIONS = hasattr(torch.backends.cudnn, "conv")


@contextlib.contextmanager
def products_in_tf32(wanted: bool) -> Iterator[None]:
    """Products of single precision in tf32, or not."""
    matmul: Any = torch.backends.cuda.matmul
    name: str = "allow_tf32"
    value: str | bool = wanted
    if _HAS_PRECISIONS:
        name = "fp32_precision"
        value = "tf32" if wanted else "ieee"
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def shortened_to_tf32() -> frozenset[Literal["products", "convolutions", "recurrent"]]:
    """Return the kinds of operators that may use TF32 for single precision, by torch's switches."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    shortened: dict[Literal["products", "convolutions", "recurrent"], bool]
    if not _HAS_PRECISIONS:
        shortened = {
            "products": matmul.allow_tf32,
            "convolutions": cudnn.allow_tf32,
            "recurrent": cudnn.allow_tf32,
        }
    else:
        shortened = {
            "products": matmul.fp32_precision == "tf32",
            "convolutions": cudnn.conv.fp32_precision == "tf32",
            "recurrent": cudnn.rnn.fp32_precision == "tf32",
        }
    return frozenset(name for name, is_shortened in shortened.items() if is_shortened)


# -- kernels ---------------------------------------------------------------------------------------

#: blocks of states that oneDNN keeps for the gradient of a recurrent layer: five in torch 2.6 and
#: 2.9, three in 2.13
BLOCKS_OF_WIDE_STATES = 3 if TorchVersion(torch.__version__) >= "2.10" else 5
#: True if CUDA kernels that pick rows of a table load several elements at once: pytorch#151612
GATHERS_VECTORS = TorchVersion(torch.__version__) >= "2.8"
#: True if the CUDA kernel that adds up the losses of rows has more than 32 threads: pytorch#149548
_LOSS_HAS_MORE_THREADS = TorchVersion(torch.__version__) >= "2.8"


def threads_of_loss(rows: int) -> int:
    """Return the number of threads of the CUDA kernel that adds up the losses of rows."""
    if not _LOSS_HAS_MORE_THREADS:
        return 32
    return int(min(max(2 ** round(math.log2(max(rows // 16, 1))), 32), 1024))


# -- autograd --------------------------------------------------------------------------------------

NO_BACKWARD_PASS = -1
#: the number of the backward pass that this thread works on, or :data:`NO_BACKWARD_PASS`
backward_pass: Callable[[], int] = _C._current_graph_task_id


def accumulator_of(parameter: Tensor) -> Any:
    """Return the node that accumulates a tensor's gradient, or None if there is none.

    The node lives as long as it is referenced.
    """
    with torch.enable_grad(), torch.inference_mode(False):
        node = parameter.view_as(parameter).grad_fn
    return None if node is None else node.next_functions[0][0]


class GradientHook:
    """One hook for the gradients of many nodes, called with the gradient of a node's first result.

    A hook of a node costs torch a table, a handle and a weak reference. Nodes can also share the
    table of a tensor, which torch reads the hooks of that tensor from.
    """

    def __init__(self) -> None:
        with torch.enable_grad(), making_ordinary_tensors(), without_dispatch():
            self._carrier: Any = torch.zeros((), requires_grad=True, device="cpu")
        self._table: dict[int, Callable[[Tensor], None]] = {}

    def call(self, note: Callable[[Tensor], None]) -> None:
        """Call a function for the nodes that the hook is put on from now on, and not for others."""
        self.forget()
        self._table = {0: note}
        self._carrier._backward_hooks = self._table

    def put_on(self, node: Any) -> None:
        """Have the hook called for a node; :func:`current_node` is the node then."""
        node._register_hook_dict(self._carrier)

    def forget(self) -> None:
        """Remove the hook from all nodes."""
        self._table.clear()


#: of many tensors by one kernel, where they are alike and dense
norms_of: Callable[..., tuple[Tensor, ...]] = torch._foreach_norm
#: all values of many tensors in one, by one kernel; of a single tensor it is a view
join_values: Callable[[list[Tensor]], Tensor] = _C._nn.flatten_dense_tensors


#: the type of the nodes that add gradients to leaves, such as parameters
LEAF_NODE: Any = _C._functions.AccumulateGrad


def at_end_of_backward_pass(call: Callable[[], object]) -> None:
    """Have something called when the backward pass that goes on is over; its graph may be kept."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(call)


#: of a device by its number; builds without CUDA have none
_raw_cuda_stream: Callable[[int], int] = getattr(_C, "_cuda_getCurrentRawStream", int)
_cuda_device: Callable[[], int] = getattr(_C, "_cuda_getDevice", int)
#: streams by the number of their device and torch's address
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}
#: whether what runs on CUDA is captured, to be run later; nothing may be timed then
is_capturing: Callable[[], bool] = getattr(_C, "_cuda_isCurrentStreamCapturing", bool)


def is_capturing_now() -> bool:
    """Return whether CUDA is in use and work is being captured, to run later."""
    return torch.cuda.is_initialized() and is_capturing()


def current_stream(device: int | None = None) -> torch.cuda.Stream:
    """Return the current stream of a device, or of the current device.

    It takes a tenth of the time in which torch creates an object for the stream.
    """
    device = _cuda_device() if device is None else device
    key = device, _raw_cuda_stream(device)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = torch.cuda.current_stream(device)
    return stream


#: the node of the graph whose gradient this thread computes
current_node: Callable[[], Any] = _C._current_autograd_node
#: the number that autograd gives the next node of a graph made in this thread
next_node: Callable[[], int] = _C._autograd._get_sequence_nr
_top_hooks: Callable[[bool], Any] = getattr(
    _C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)


#: whether what a node of a graph keeps says if hooks have packed it
TELLS_UNPACKING = hasattr(_C._autograd.SavedTensor, "unpack_hook")


def keeps_for_gradients() -> bool:
    """Return whether hooks see saved tensors, as a checkpoint's do. False on torch 2.6."""
    return _top_hooks(True) is not None


def hooks_for_gradients_as_now() -> Callable[[], None]:
    """Return a function that leaves the hooks for saved tensors that this thread has entered."""
    before = _top_hooks(True)

    def leave() -> None:
        while _top_hooks(True) not in (before, None):
            _C._autograd._pop_saved_tensors_default_hooks()
        if _top_hooks(True) != before:
            _C._autograd._push_saved_tensors_default_hooks(*before)

    return leave


@contextlib.contextmanager
def without_hooks_for_gradients() -> Iterator[None]:
    """Disable earlier hooks for saved tensors, except in torch 2.6, which does not show them."""
    taken = []
    try:
        while (top := _top_hooks(True)) is not None:
            taken.append(top)
            _C._autograd._pop_saved_tensors_default_hooks()
        yield
    finally:
        while taken:
            _C._autograd._push_saved_tensors_default_hooks(*taken.pop())


#: where the function is that Python's functions hand a graph to
RUNS_BACKWARD: tuple[dict[str, Any], str] = (vars(torch.autograd), "_engine_run_backward")
#: where the function is that anomaly mode asks for the frames that create a node
FORMATS_STACK: tuple[dict[str, Any], str] = (
    vars(importlib.import_module("torch.fx.traceback")),
    "format_stack",
)


def put_in(names: dict[str, Any], name: str, value: Any) -> Any:
    """Put a value in the place of another one, which is returned."""
    before, names[name] = names[name], value
    return before


def engine() -> Any:
    """Return autograd's engine."""
    return torch.autograd.Variable._execution_engine


# -- hooks -----------------------------------------------------------------------------------------

#: by their number; None if there never were any
TensorHooks = tuple[dict[int, Any] | None, dict[int, Any] | None]
_NO_HOOKS: TensorHooks = (None, None)


def hooks_of(tensor: Tensor) -> TensorHooks:
    """Return the hooks that autograd calls with a tensor's gradient, and after accumulating it."""
    given: Any = tensor._backward_hooks
    added: Any = tensor._post_accumulate_grad_hooks
    if given is None and added is None:
        return _NO_HOOKS
    if given is not None:
        given = dict(given)
    if added is not None:
        added = dict(added)
    return given, added


def put_back_hooks(tensor: Tensor, before: TensorHooks) -> None:
    """Restore hooks that were read. Autograd keeps the dict that it got, so that is changed."""
    there = hooks_of(tensor)
    if there is before or there == before:
        return
    for name, hooks in zip(("_backward_hooks", "_post_accumulate_grad_hooks"), before, strict=True):
        now: Any = getattr(tensor, name)
        if now is not None:
            now.clear()
            now.update(hooks or {})
        if hooks is None:
            setattr(tensor, name, None)


def forget_hooks(*functions: Callable[..., object]) -> None:
    """Remove global hooks of modules, with their options.

    Torch keeps the options when a hook is removed by its handle.
    """
    module: Any = nn.modules.module
    for table in (module._global_forward_pre_hooks, module._global_forward_hooks):
        for number in [number for number, hook in list(table.items()) if hook in functions]:
            module._global_forward_hooks_with_kwargs.pop(number, None)
            module._global_forward_hooks_always_called.pop(number, None)
            table.pop(number, None)


class GlobalHooks:
    """Global hooks of all modules that are put on and removed again and again.

    A handle of torch costs several times as much, and leaves the options of its hook behind.
    """

    def __init__(
        self,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
        *,
        with_kwargs: bool = False,
    ) -> None:
        #: unique among all hooks
        self._number = RemovableHandle(OrderedDict()).id
        module: Any = nn.modules.module
        self._entries: list[tuple[dict[int, Any], Any]] = []
        if before is not None:
            self._entries.append((module._global_forward_pre_hooks, before))
        if after is not None:
            self._entries.append((module._global_forward_hooks, after))
            self._entries.append((module._global_forward_hooks_always_called, True))
        if with_kwargs:
            self._entries.append((module._global_forward_hooks_with_kwargs, True))

    def replace_after(self, after: Callable[..., None]) -> None:
        """Have another function called after each call of a module."""
        table, _ = self._entries[1]
        self._entries[1] = table, after
        if self._number in table:
            table[self._number] = after

    def put_on(self) -> None:
        """Have the hooks called behind those that are there."""
        for table, entry in self._entries:
            table[self._number] = entry

    def remove(self) -> None:
        """Have the hooks called no more."""
        for table, _ in self._entries:
            table.pop(self._number, None)


def optimizer_hooks() -> tuple[dict[int, Any], ...]:
    """Return the hooks that all optimizers call before and after their step."""
    return optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks


# -- many processes --------------------------------------------------------------------------------


def placement_verbs() -> list[tuple[Any, str]]:
    """Return the functions that find the placement of a DTensor's results: objects and names."""
    api = sys.modules.get("torch.distributed.tensor._api")
    if api is None:
        return []
    propagator = api.DTensor._op_dispatcher.sharding_propagator
    names = ("propagate_op_sharding", "propagate_op_sharding_non_cached")
    return [(propagator, name) for name in names]


def forget_placements() -> None:
    """Clear the placements of results that DTensors remember, also those of equal former meshes."""
    if "torch.distributed.tensor._api" not in sys.modules:
        return
    from torch.distributed.tensor import debug

    clear = getattr(debug, "_clear_sharding_prop_cache", None) or getattr(
        debug, "_clear_python_sharding_prop_cache", None
    )
    if clear is not None:
        clear()
    planner = sys.modules.get("torch.distributed.tensor._redistribute")
    for name in ("_gen_transform_infos", "clear_redistribute_planner_cache"):
        known = getattr(planner, name, None)
        if known is not None:
            getattr(known, "cache_clear", known)()


def resizing_verbs() -> list[tuple[Any, str]]:
    """Return the places of the functions with which FSDP2 frees and allocates storages."""
    modules = [
        sys.modules.get(f"torch.distributed.fsdp._fully_shard.{name}")
        for name in ("_fsdp_param", "_fsdp_param_group")
    ]
    names = ("alloc_storage", "free_storage")
    return [(each, name) for each in modules for name in names if hasattr(each, name)]


def waiting_verbs() -> list[tuple[Any, str]]:
    """Return the place of the function that waits for a collective, if there is one."""
    work = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "Work", None)
    return [] if work is None else [(work, "wait")]


def chunking_verbs() -> list[tuple[Any, str]]:
    """Return the place of the function with which FSDP2 creates the chunks of all ranks."""
    from torch.distributed.fsdp import _fully_shard

    module: Any = getattr(_fully_shard, "_fsdp_param", None)
    return [(module, "_chunk_with_empty")] if hasattr(module, "_chunk_with_empty") else []


def sharded_tensor_verbs() -> dict[str, tuple[Any, str]]:
    """Return places of FSDP2: inputs of an all-gather, new shards of a parameter or gradient."""
    from torch.distributed.fsdp import _fully_shard

    shard: Any = getattr(getattr(_fully_shard, "_fsdp_param", None), "FSDPParam", None)
    names = {"inputs": "all_gather_inputs", "shards": "to_sharded_dtensor"}
    return {kind: (shard, name) for kind, name in names.items() if hasattr(shard, name)}


def with_inputs_copied(
    copy: Callable[[Tensor], Tensor],
) -> Callable[[Any], Any]:
    """Return what replaces FSDP2's property: offloaded shards are copied before an all-gather."""

    def replace(before: Any) -> Any:
        def inputs(shard: Any) -> Any:
            if not shard.offload_to_cpu or shard.sharded_state.name != "SHARDED":
                return before.fget(shard)
            on_host = shard._sharded_param_data
            shard._sharded_param_data = copy(on_host)
            try:
                return before.fget(shard)
            finally:
                shard._sharded_param_data = on_host

        return property(inputs)

    return replace


def with_shards_copied(
    copy: Callable[[Tensor], Tensor],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what replaces FSDP2's method: shards of gradients are copied to the host.

    That of the parameter is made first, on the host.
    """

    def replace(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(shard: Any, tensor: Tensor) -> Any:
            is_gradient = shard.offload_to_cpu and hasattr(shard, "sharded_param")
            return make(shard, copy(tensor) if is_gradient else tensor)

        return made

    return replace


def flight_records() -> list[dict[str, Any]]:
    """Return torch's records of the latest collectives of this rank, with the host's times.

    There may be none.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    found: list[dict[str, Any]] = []
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            with contextlib.suppress(RuntimeError, ValueError):
                found += json.loads(dump()).get("entries", [])
    return found


def place_in_group() -> tuple[int, int] | None:
    """The number of this process, and how many there are; None: it is alone."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or c10d.get_world_size() < 2:
        return None
    return c10d.get_rank(), c10d.get_world_size()


def ranks_by_group() -> dict[str, tuple[int, ...]]:
    """The groups that this process is in, by torch's names, with the processes in each."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    names = {} if c10d is None else dict(c10d._world.pg_names)
    return {
        str(name): tuple(c10d.get_process_group_ranks(group))
        for group, name in names.items()
        if group is not None
    }


def gather_rows(tensors: Sequence[Tensor], group: Any) -> list[Tensor]:
    """Return the rows of all ranks of several tensors, which travel in one collective."""
    ops: Any = torch.ops._c10d_functional
    given = [each.contiguous() for each in tensors]
    made = ops.all_gather_into_tensor_coalesced(given, group.size(), group.group_name)
    return [ops.wait_tensor(each) for each in made]


def gather_columns(tensor: Tensor, group: Any) -> Tensor:
    """Return a tensor whose last dimension is divided among ranks."""
    ops: Any = torch.ops._c10d_functional
    size = group.size()
    made = ops.all_gather_into_tensor(tensor.contiguous(), size, group.group_name)
    return torch.cat(ops.wait_tensor(made).chunk(size), -1)


def scatter_rows(tensor: Tensor, group: Any) -> Tensor:
    """Return this rank's rows of the sum over all ranks."""
    ops: Any = torch.ops._c10d_functional
    made = ops.reduce_scatter_tensor(tensor.contiguous(), "sum", group.size(), group.group_name)
    found: Tensor = ops.wait_tensor(made)
    return found


def sum_over(tensor: Tensor, group: Any) -> Tensor:
    """Return the sum of a tensor over all ranks."""
    ops: Any = torch.ops._c10d_functional
    found: Tensor = ops.wait_tensor(ops.all_reduce(tensor, "sum", group.group_name))
    return found


def exchange_rows(rows: Tensor, group: Any) -> Tensor:
    """Return rows of all ranks, of which each sends as many to each other one; differentiable."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    size = group.size()
    parts = [rows.shape[0] // size] * size
    parts[-1] += rows.shape[0] % size
    return all_to_all_single_autograd(rows, parts, parts, group)


def is_sharded_by_fsdp(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on a module, or on one inside it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and any(isinstance(each, kind) for each in module.modules())


def is_wrapped_by_ddp(module: nn.Module) -> bool:
    """Return whether DDP reduces the gradients of a module."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def reducing_verbs() -> list[tuple[Any, str]]:
    """Return the place where DDP gets its reducer."""
    return [(sys.modules["torch.distributed"], "Reducer")]


def with_buckets_without_data(kind: Any) -> Callable[..., Any]:
    """Return what makes DDP's reducer, whose buckets have no data where the parameters have none.

    Before its second pass, a reducer fits its buckets to the order of the gradients and broadcasts
    their sizes. Steps do not repeat that, so this one keeps its buckets.
    """

    class _Reducer(kind):  # type: ignore[misc]
        def _rebuild_buckets(self) -> bool:
            return False

    def made(parameters: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        mode = getattr(parameters[0], "fake_mode", None)
        with contextlib.nullcontext() if mode is None else mode:
            return _Reducer(parameters, *args, **kwargs)

    return made


def sum_up_in_python(module: nn.Module) -> None:
    """Have DDP call a function for each bucket.

    Its own code expects a result, which a simulated group does not have.
    """
    import torch.distributed as distributed

    def summed(group: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        distributed.all_reduce(buffer.div_(group.size()), group=group)
        done: Any = torch.futures.Future()
        done.set_result(buffer)
        return done

    summed.__annotations__.clear()  # DDP has them name its own types, or none
    wrapper: Any = module
    wrapper.register_comm_hook(wrapper.process_group, summed)


def is_sharded_type(kind: type) -> bool:
    """Return whether tensors of this type are sharded, as DTensors are."""
    api = sys.modules.get("torch.distributed.tensor._api")
    return api is not None and issubclass(kind, api.DTensor)


def allocator_snapshot() -> dict[str, Any] | None:
    """Return the snapshot of CUDA's allocator, or None without CUDA or with another allocator."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        content: dict[str, Any] = torch.cuda.memory._snapshot()
    except RuntimeError:  # cudaMallocAsync has none
        return None
    return content


def whole_mesh_of(module: nn.Module) -> Any:
    """Return the complete ``DeviceMesh`` of a model's parameters.

    FSDP and tensor parallelism may each know a part of it.
    """
    spread: list[Any] = [each for each in module.parameters() if is_sharded_type(type(each))]
    meshes = {id(root): root for each in spread if (root := _root_of(each.device_mesh)) is not None}
    return max(meshes.values(), key=lambda mesh: mesh.ndim, default=None)


def dimensions_of(module: nn.Module) -> set[str]:
    """Return the mesh dimensions along which parameters are sharded or replicated.

    A pipeline's dimension is not among them.
    """
    spread: list[Any] = [each for each in module.parameters() if is_sharded_type(type(each))]
    return {name for each in spread for name in each.device_mesh.mesh_dim_names or ()}


def _root_of(mesh: Any) -> Any:
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed.device_mesh import _mesh_resources  # where older versions know it

    return _mesh_resources.get_root_mesh(mesh)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, also while it arrives, or any other tensor as it is."""
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor
    part: Any = tensor
    if is_sharded_type(type(part)):
        part = part._local_tensor
    return part.elem if _is_on_its_way(part) else part  # type: ignore[no-any-return]


def joined_mesh(mesh: Any, names: Sequence[str]) -> Any:
    """Return the dimensions of a mesh as one."""
    if len(names) == 1:
        return mesh[names[0]]
    return mesh[tuple(names)]._flatten("_".join(names))


def sharded_from(part: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """Return the DTensor of which this rank has ``part``."""
    from torch.distributed.tensor import DTensor

    found: Tensor = DTensor.from_local(part, mesh, placements, run_check=False)
    return found


def is_divided_along(tensor: Tensor, dim: int) -> bool:
    """Return whether a DTensor is divided along a dimension; other tensors are not."""
    placements: Sequence[Any] = getattr(tensor, "placements", ())
    return any(each.is_shard(dim) for each in placements)


def groups_of_shards(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Return the groups of ranks among which tensors are divided.

    There is one for each dimension of each mesh along which any DTensor is not replicated.
    """
    groups: dict[tuple[Any, int], Any] = {}
    for tensor in tensors:
        if not is_sharded_type(type(tensor)):
            continue
        sharded: Any = tensor
        mesh = sharded.device_mesh
        for dim, placement in enumerate(sharded.placements):
            if not placement.is_replicate():
                groups[mesh, dim] = mesh.get_group(dim)
    return list(groups.values())


def stands_for_itself(tensor: Tensor) -> bool:
    """Return whether no proxy can replace a tensor: it is sharded, or has a device and no data."""
    return is_sharded_type(type(tensor)) or is_fake_type(type(tensor))


def is_placed_elsewhere(tensor: Tensor | None, other: Tensor) -> bool:
    """Return whether two DTensors have different placements."""
    both: Any = tensor, other
    return (
        tensor is not None
        and all(is_sharded_type(type(each)) for each in both)
        and both[0].placements != both[1].placements
    )


def is_divided_unevenly(tensor: Tensor) -> bool:
    """Return whether some ranks have more of a DTensor than others."""
    spread: Any = tensor
    if not is_sharded_type(type(tensor)):
        return False
    pairs = zip(spread.placements, spread.device_mesh.shape, strict=True)
    return any(
        placement.is_shard() and tensor.shape[placement.dim] % number for placement, number in pairs
    )


def placed_like(tensor: Any, other: Any) -> Tensor:
    """A DTensor, in parts as those of another one. The processes send each other what they lack."""
    placed: Tensor = tensor.redistribute(placements=other.placements)
    return placed


def _is_on_its_way(tensor: Tensor) -> bool:
    """Return whether a tensor is the result of a collective that may still run."""
    kind = getattr(
        sys.modules.get("torch.distributed._functional_collectives"), "AsyncCollectiveTensor", None
    )
    return kind is not None and isinstance(tensor, kind)


def on_its_way(tensor: Tensor) -> Tensor:
    """Wrap the result of a collective, as torch's functions return it: its users wait for it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(tensor)


def arrived(tensor: Tensor) -> None:
    """Wait for what other processes send, if this is what they do."""
    part: Any = tensor
    if is_sharded_type(type(tensor)):
        part = part._local_tensor
    if _is_on_its_way(part):
        part.trigger_wait()


# -- compiling -------------------------------------------------------------------------------------

_NO_COMPILING = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


def import_compiler() -> None:
    """Import the compiler, as torch does for the first optimizer or checkpoint.

    During a pass, the import would fail or keep tensors alive.
    """
    importlib.import_module("torch._dynamo")


def compiled_from(module: nn.Module) -> nn.Module | None:
    """Return the module that ``torch.compile`` wraps, or None. The compiler is not imported."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    return (
        module._orig_mod
        if frames is not None and isinstance(module, frames.OptimizedModule)
        else None
    )


def as_written() -> contextlib.AbstractContextManager[object]:
    """Run compiled functions eagerly inside the context. The compiler is not imported."""
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else contextlib.nullcontext()
    )


def has_compiler() -> bool:
    """Return whether the compiler is loaded."""
    return "torch._dynamo" in sys.modules


def has_compiled_parts(module: nn.Module) -> bool:
    """Return whether a module, or one inside it, was compiled."""
    if "torch._dynamo" not in sys.modules:
        return False
    return any(
        each._compiled_call_impl is not None or compiled_from(each) is not None
        for each in module.modules()
    )


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the compiler leaves alone, and everything that it calls.

    ``torch.compiler.disable`` wraps it, which takes a microsecond in each call. Since torch 2.7 a
    function can be marked instead.
    """
    eval_frame: Any = getattr(_C._dynamo, "eval_frame", None)
    mark = getattr(eval_frame, "set_code_exec_strategy", None)
    code = getattr(function, "__code__", None)
    types: Any = sys.modules.get("torch._dynamo.types")
    if mark is not None and code is not None and hasattr(types, "FrameExecStrategy"):
        skip = types.FrameAction.SKIP
        mark(code, types.FrameExecStrategy(skip, skip))
        return function
    left_alone: Callable[..., Any] = torch.compiler.disable(function)
    return left_alone


def skip_in_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the compiler does not compile, nor what it calls.

    ``torch.compiler.disable`` wraps a function, which costs each call a microsecond or more. The
    compiler can also skip its code, if it reports when it starts: callers remove hooks then.
    """
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    skip = getattr(frames, "set_code_exec_strategy", None)
    code = getattr(function, "__code__", None)
    if skip is None or code is None or not compile_callbacks():
        return not_compiled(function)
    action = frames.FrameAction.SKIP
    skip(code, frames.FrameExecStrategy(action, action))
    return function


def compile_callbacks() -> tuple[list[Any], ...]:
    """Return the callbacks for the begin and end of a compilation, or none without the compiler."""
    dynamo = sys.modules.get("torch._dynamo.callback")
    handler = getattr(dynamo, "callback_handler", None)
    return () if handler is None else (handler.start_callbacks, handler.end_callbacks)


def compile_records() -> list[Any]:
    """Return the compiler's records of the frames that it compiled last."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return [] if utils is None else list(utils.get_compilation_metrics())


def recompile_reason(record: Any) -> str | None:
    """Why a frame was compiled again. Not told by torch 2.6."""
    reason: str | None = getattr(record, "recompile_reason", None)
    return reason


def graph_breaks() -> dict[str, int]:
    """Why the compiler broke graphs, and how often, since the process began."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return {} if utils is None else dict(utils.counters["graph_break"])


def compiles_flex_attention() -> tuple[dict[str, Any], str] | None:
    """Return the place of torch's switch for compiling flex attention, or None.

    Older versions have no such switch, and the module may not be loaded.
    """
    module = sys.modules.get("torch.nn.attention.flex_attention")
    return (
        None
        if module is None or not hasattr(module, _NO_COMPILING)
        else (vars(module), _NO_COMPILING)
    )


def has_collectives_on_shapes() -> bool:
    """Return whether torch's collectives run on tensors without data.

    ``torch.distributed`` must be imported.
    """
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::_allgather_base_", "Meta")


def anomaly_flags() -> tuple[bool, bool]:
    """Return whether anomaly mode records the lines of operators, and whether it checks for NaN."""
    return torch._C.is_anomaly_enabled(), torch._C.is_anomaly_check_nan_enabled()


def set_anomaly_flags(is_on: bool, checks_nan: bool) -> None:
    """Set autograd's own flags, past the functions that users call."""
    torch._C.set_anomaly_enabled(is_on, checks_nan)


def without_wrapped_kernels() -> contextlib.AbstractContextManager[None]:
    """Return a context in which ``wrap_triton`` launches kernels, as it does on data."""
    from torch._library.triton import set_wrap_triton_enabled

    return set_wrap_triton_enabled(False)


def function_of_triton_op(op: OpOverload) -> Callable[..., Any] | None:
    """Return the function that ``torch.library.triton_op`` made an operator of, or None."""
    from torch._library.custom_ops import OPDEFS
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    definition = OPDEFS.get(f"{op.namespace}::{op._opname}")
    if definition is None or FunctionalTensorMode not in definition._torch_dispatch_fns:
        return None
    function: Callable[..., Any] | None = definition._abstract_fn
    return function


def with_operands_of_functions(
    swap: Callable[[Any], Any],
) -> tuple[type, str, Callable[[Any], Any]]:
    """Return what to override so that autograd functions of the user's get other operands.

    It lies below ``Function.apply``, which programs keep under names of their own.
    """
    owner = torch.autograd.function._SingleLevelFunction

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            operands = [swap(each) for each in args]
        return super(owner, function).apply(*operands, **kwargs)

    return owner, "apply", lambda _: classmethod(apply)


#: where torch's functions for control flow look up what runs them, and the operators of each
_CONTROL_FLOW = {
    "cond": "cond_op",
    "while_loop": "while_loop_op",
    "scan": "scan_op",
    "map": "map_impl",
}


def control_flow() -> list[tuple[Any, str]]:
    """Return modules and names under which torch finds its operators that take functions.

    There are none in versions that compile the functions in another way.
    """
    utils = importlib.import_module("torch._higher_order_ops.utils")
    if not hasattr(utils, "_hop_compile_and_call"):
        return []
    found: list[tuple[Any, str]] = [(utils, "_hop_compile_and_call")]
    for module, name in _CONTROL_FLOW.items():
        owner = importlib.import_module(f"torch._higher_order_ops.{module}")
        if hasattr(owner, name):
            found.append((owner, name))
    return found
