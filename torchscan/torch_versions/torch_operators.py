"""Operators that some versions of torch lack, and the kernels that torch chooses for others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.torch_version import TorchVersion

_C: Any = torch._C


class MissingOperator:
    """The name of an operator that this version of torch lacks, which equals no operator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, overload: str) -> MissingOperator:
        return MissingOperator(f"{self._name}.{overload}")

    def __str__(self) -> str:
        return self._name

    def overloads(self) -> list[str]:
        """Return an empty list."""
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
#: True if an RMS norm is one kernel on GPUs, with a gradient
HAS_FUSED_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
#: True if matrix products take MX block scales (``float8_e8m0fnu``). Torch 2.7 has only the dtype;
#: the products came with ``float4_e2m1fn_x2``
HAS_SCALES_IN_8_BITS = hasattr(torch, "float4_e2m1fn_x2")
scaled_dot_product_attention: Callable[..., Any] = _C._nn.scaled_dot_product_attention
one_hot: Callable[..., Any] = _C._nn.one_hot
#: the norms of many tensors, by one kernel if they have the same type and are dense
norms_of: Callable[..., tuple[Tensor, ...]] = torch._foreach_norm
#: all values of many tensors in one, by one kernel; of a single tensor it is a view
join_values: Callable[[list[Tensor]], Tensor] = _C._nn.flatten_dense_tensors
#: modules of torch with functions in Python, which ask whether others take their place
WRITTEN_IN_PYTHON: tuple[Any, ...] = (
    nn.functional,
    torch.functional,
    torch.autograd,
    torch._tensor,
)

#: dispatch keys of tensors on the CPU, by their layout
_CPU_KEYS = ("CPU", "SparseCPU", "SparseCsrCPU", "NestedTensorCPU", "QuantizedCPU", "MkldnnCPU")


def has_cpu_kernel(operator: OpOverload) -> bool:
    """Return whether an operator has a kernel for tensors on the CPU of any layout."""
    name = operator.name()
    return any(_C._dispatch_has_computed_kernel_for_dispatch_key(name, key) for key in _CPU_KEYS)


def _fuses_grouped_queries() -> bool:
    """Return whether torch chooses the fused kernel, whatever the user has switched off."""
    if not hasattr(torch, "_fused_sdp_choice"):
        return True
    query, key = torch.empty(1, 2, 1, 1), torch.empty(1, 1, 1, 1)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        choice: int = torch._fused_sdp_choice(query, key, key, enable_gqa=True)
    return choice != SDPBackend.MATH.value


#: True if attention on the CPU takes grouped queries in its fused kernel
FUSES_GROUPED_QUERIES = _fuses_grouped_queries()


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
