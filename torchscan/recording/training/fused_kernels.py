"""Kernels that Liger and Unsloth put in the place of several operators, without data.

Each saves and allocates what their kernels do. Modules get a subclass of their class, so that
equal layers stay equal.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchscan.errors import Argument, InputError
from torchscan.recording.adapters import adapter_parts
from torchscan.recording.training.quantized_linear import QuantizedLinear
from torchscan.torch_versions import HAS_FUSED_RMS_NORM, call_of

#: Liger's names for norms, rotary embeddings and gated layers; Unsloth's fused low-rank adapters
FusedKernel = Literal["rms_norm", "rope", "swiglu", "lora"]

#: the function of rotary embeddings in files of transformers
_ROTATE = "apply_rotary_pos_emb"

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define("rotate_(Tensor(a!) tensor, Tensor cos, Tensor sin) -> ()")
_library.define("swiglu(Tensor gate, Tensor up) -> Tensor")
_library.define("swiglu_backward(Tensor gradient, Tensor(a!) gate, Tensor(b!) up) -> ()")


def fuse_kernels(model: nn.Module, kinds: Sequence[FusedKernel]) -> None:
    """Change modules of a copy so that they compute with these kernels."""
    if "rms_norm" in kinds and not HAS_FUSED_RMS_NORM:
        raise InputError(
            Argument("fused_kernels"),
            f" has 'rms_norm', and torch {torch.__version__} has no operator for it: use a later "
            "version of torch, or leave it out",
        )
    for kind in kinds:
        fuse, label = _FUSING[kind]
        subclasses: dict[type[nn.Module], type[nn.Module]] = {}
        for module in model.modules():
            forward = fuse(module)
            if forward is None:
                continue
            cls = type(module)
            if cls not in subclasses:
                # tables show the name of the class
                names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
                subclasses[cls] = type(cls.__name__, (cls,), {**names, "forward": forward})
            module.__class__ = subclasses[cls]
        if not subclasses:
            raise InputError(
                Argument("fused_kernels"),
                f" has {kind!r}, and {type(model).__name__} has no {label}: leave it out",
            )


# -- norms ----------------------------------------------------------------------------------------


def fuse_norm(module: Any) -> Callable[..., Any] | None:
    """Return the forward function of an RMS norm, or None for other modules."""
    is_norm = "RMSNorm" in type(module).__name__ and isinstance(
        getattr(module, "weight", None), nn.Parameter
    )
    return normalize_rows if is_norm else None


def normalize_rows(self: Any, hidden_states: Tensor) -> Tensor:
    """Return normalized rows in the type of the input, from one kernel."""
    weight = self.weight.to(hidden_states.dtype)
    eps = getattr(self, "variance_epsilon", None) or getattr(self, "eps", None)
    # autocast would convert both to 32 bits, as it does for torch's own function
    with torch.autocast(hidden_states.device.type, enabled=False):
        return torch.rms_norm(hidden_states, weight.shape, weight, eps)


# -- rotary embeddings ----------------------------------------------------------------------------


class _Rotation(torch.autograd.Function):
    """Rotary embedding of one tensor in place, and of its gradient in place."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keep the angles alone."""
        context.save_for_backward(cos, sin)
        rows = tensor.transpose(1, 2).contiguous()
        torch.ops.torchscan.rotate_(rows, cos, sin)
        return rows.transpose(1, 2)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Return the gradient of the tensor."""
        cos, sin = context.saved_tensors
        rows = gradient.transpose(1, 2).contiguous()
        torch.ops.torchscan.rotate_(rows, cos, sin)
        return rows.transpose(1, 2), None, None


_rotate = call_of(_Rotation)


def rotate_both(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *_args: Any, **_kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Return queries and keys, in the place of the function of transformers."""
    return _rotate(query, cos, sin), _rotate(key, cos, sin)


def fuse_rotation(module: nn.Module) -> Callable[..., Any] | None:
    """Return the module's function with a fused rotation among its globals."""
    function: Any = inspect.unwrap(type(module).forward)
    code = getattr(function, "__code__", None)
    if code is None or _ROTATE not in code.co_names:
        return None
    made = types.FunctionType(
        code,
        {**function.__globals__, _ROTATE: rotate_both},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


# -- gated layers ---------------------------------------------------------------------------------


class _SwiGLU(torch.autograd.Function):
    """The product of a gate's SiLU and another tensor, whose gradients replace both."""

    @staticmethod
    def forward(context: Any, gate: Tensor, up: Tensor) -> Tensor:
        """Keep both alone."""
        context.save_for_backward(gate, up)
        product: Tensor = torch.ops.torchscan.swiglu(gate, up)
        return product

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Return the gradients of both."""
        gate, up = context.saved_tensors
        torch.ops.torchscan.swiglu_backward(gradient, gate, up)
        return gate, up


_swiglu = call_of(_SwiGLU)


def fuse_gate(module: Any) -> Callable[..., Any] | None:
    """Return the forward function of a gated layer, or None for other modules."""
    has_parts = all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj"))
    act = getattr(module, "act_fn", None)
    return run_gated if has_parts and "SiLU" in type(act).__name__ else None


def run_gated(self: Any, x: Tensor) -> Tensor:
    """Return the product of the gate and the other tensor, projected down."""
    result: Tensor = self.down_proj(_swiglu(self.gate_proj(x), self.up_proj(x)))
    return result


# -- low-rank adapters ----------------------------------------------------------------------------


class _FusedAdapter(torch.autograd.Function):
    """A frozen linear layer and its adapter, as Unsloth multiplies them: in the type of the input.

    A packed weight is dequantized for each product.
    """

    @staticmethod
    def forward(
        context: Any, given: Tensor, dropped: Tensor, into: Tensor, out_of: Tensor, base: Any
    ) -> Tensor:
        """Keep the input with dropped elements, and the adapter."""
        context.save_for_backward(dropped, into, out_of)
        context.base = base
        rows = given.reshape(-1, given.shape[-1])
        result = F.linear(rows, _weight_of(base, given.dtype))
        low = dropped.reshape(rows.shape) @ into.t().to(given.dtype)
        result += low @ (out_of.t().to(given.dtype) * 2.0)
        if base.bias is not None:
            result += base.bias.to(given.dtype)
        return result.view(*given.shape[:-1], -1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Return the gradients of the input and of the adapter."""
        dropped, into, out_of = context.saved_tensors
        dtype = gradient.dtype
        rows = gradient.reshape(-1, gradient.shape[-1])
        kept = dropped.reshape(-1, dropped.shape[-1])
        low, wide = into.to(dtype), out_of.to(dtype)
        back = rows @ wide
        of_into = (kept.t() @ back).mul_(2.0).t()
        of_out = ((low @ kept.t()) @ rows).mul_(2.0).t()
        of_given = rows @ _weight_of(context.base, dtype)
        of_given += (kept != 0) * (back @ (low * 2.0))
        return of_given.view(dropped.shape), None, of_into, of_out, None


_multiply = call_of(_FusedAdapter)


def _weight_of(base: Any, dtype: torch.dtype) -> Tensor:
    weight: Tensor = base.dequantize() if isinstance(base, QuantizedLinear) else base.weight
    return weight.to(dtype)


def fuse_adapter(module: nn.Module) -> Callable[..., Any] | None:
    """Return the forward function of a layer with an adapter, or None for other modules."""
    return None if adapter_parts(module) is None else run_adapted


def run_adapted(self: Any, x: Tensor) -> Tensor:
    """Return the result of the layer and its adapter, in the type of the input or of autocast."""
    parts = adapter_parts(self)
    assert parts is not None  # noqa: S101 - the layer has an adapter
    base, dropout, into, out_of = parts
    dtype = into.weight.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    given = x.to(dtype) if x.dtype == torch.float32 else x
    result: Tensor = _multiply(given, dropout(given), into.weight, out_of.weight, base)
    return result


_FUSING: dict[FusedKernel, tuple[Callable[[Any], Callable[..., Any] | None], str]] = {
    "rms_norm": (fuse_norm, "RMS norm with a weight"),
    "rope": (fuse_rotation, f"rotary embedding by {_ROTATE}()"),
    "swiglu": (fuse_gate, "gated layer with gate_proj, up_proj, down_proj and SiLU"),
    "lora": (fuse_adapter, "low-rank adapter beside a linear layer"),
}


@torch.library.impl(_library, "rotate_", "CompositeExplicitAutograd")
def leave_rows(_rows: Tensor, _cos: Tensor, _sin: Tensor) -> None:
    """Write nothing: rows have no values."""


@torch.library.impl(_library, "swiglu", "CompositeExplicitAutograd")
def make_gated(gate: Tensor, _up: Tensor) -> Tensor:
    """Return the product, without values."""
    return torch.empty_like(gate)


@torch.library.impl(_library, "swiglu_backward", "CompositeExplicitAutograd")
def leave_gradients(_gradient: Tensor, _gate: Tensor, _up: Tensor) -> None:
    """Write nothing: gradients have no values."""
