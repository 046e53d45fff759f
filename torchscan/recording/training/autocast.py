"""Autocast for meta tensors.

torch's autocast depends on the device of each tensor, and casts nothing on the meta device. So each
function is cast here, as torch documents it: contractions to 16 bits, functions that need range to
32 bits, and others to the widest type of their arguments.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp import autocast_mode
from torch.cuda.amp import common as cuda_autocast

from torchscan.recording.patches import Contexts, substituted
from torchscan.recording.switches import autocast_contexts

# fmt: off
_CONVOLUTIONS = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "conv_tbc",
}
_PRODUCTS = {
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addmv", "addr",
    "addbmm", "baddbmm",
}
_OTHER_CONTRACTIONS = {
    "linalg_vecdot", "linalg_multi_dot", "chain_matmul", "einsum", "prelu",
    "scaled_dot_product_attention",
}
_RECURRENT = {
    "lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell",
}
_REGRESSION_LOSSES = {
    "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "poisson_nll_loss",
}
_CLASSIFICATION_LOSSES = {
    "nll_loss", "nll_loss2d", "nll_loss_nd", "cross_entropy_loss",
    "binary_cross_entropy_with_logits",
}
_MARGIN_LOSSES = {
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
}
_WAYS_TO_RESIZE = (
    "nearest1d", "nearest2d", "nearest3d", "nearest_exact1d", "nearest_exact2d", "nearest_exact3d",
    "linear1d", "bilinear2d", "trilinear3d", "bicubic2d", "bilinear2d_aa", "bicubic2d_aa",
)
_SINGLE_ON_CPU = {
    "avg_pool3d", "binary_cross_entropy", "grid_sampler", "prod", "quantile", "cdist", "trace",
    "ctc_loss",
}
_CURVES = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow", "__pow__", "__rpow__", "softplus",
}
_NORMS = {
    "layer_norm", "native_layer_norm", "group_norm", "rms_norm", "cosine_similarity", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "norm",
}
_SUMS = {
    "softmax", "log_softmax", "prod", "sum", "cumsum", "cumprod", "linalg_vector_norm",
    "linalg_matrix_norm",
}
_WIDEST_ON_GPU = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put",
    "scatter_add", "tensordot", "vdot",
}
# fmt: on
_CONTRACTIONS = frozenset(_CONVOLUTIONS | _PRODUCTS | _OTHER_CONTRACTIONS)
_LOSSES = frozenset(_REGRESSION_LOSSES | _CLASSIFICATION_LOSSES | _MARGIN_LOSSES)
_RESIZES = {f"upsample_{way}" for way in _WAYS_TO_RESIZE}
_RESIZES |= {f"_{name}" for name in _RESIZES}

#: kind of device -> functions that compute in 16 bits
_LOWER: Mapping[str, frozenset[str]] = {
    "cpu": _CONTRACTIONS - {"mv", "addmv", "addr"},
    "cuda": _CONTRACTIONS | _RECURRENT,
}
#: functions that compute in 32 bits
_SINGLE: Mapping[str, frozenset[str]] = {
    "cpu": _LOSSES | _SINGLE_ON_CPU,
    "cuda": _LOSSES | _CURVES | _NORMS | _RESIZES,
}
#: functions whose ``dtype`` argument is set to 32 bits
_RETURN_SINGLE: Mapping[str, frozenset[str]] = {"cpu": frozenset(), "cuda": frozenset(_SUMS)}
#: functions that compute in the widest type of their arguments
_WIDEST: Mapping[str, frozenset[str]] = {
    "cpu": frozenset({"stack", "cat", "index_copy"}),
    "cuda": frozenset(_WIDEST_ON_GPU),
}
_HALF = (torch.float16, torch.bfloat16)


class Autocast:
    """The effect of ``torch.autocast`` with ``dtype`` on one kind of device; none if it is None."""

    def __init__(self, dtype: torch.dtype | None, device_type: str) -> None:
        self._dtype = dtype
        self._device_type = device_type
        #: parameters are cast once; by identity, with a reference to the parameter, because another
        #: tensor can come to have it
        self._casts: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Switch autocast on for the forward pass and the loss; the backward pass needs none.

        Torch says that it is on, and can switch it off.
        """
        if self._dtype is None:
            yield
            if not autocast_contexts():
                self.forget()  # casts of a context that the model itself had entered
            return
        before = (
            torch.is_autocast_enabled(self._device_type),
            torch.get_autocast_dtype(self._device_type),
        )
        self._switch(True, self._dtype)
        torch.autocast_increment_nesting()  # what is cast is kept until the outermost context ends
        try:
            yield
        finally:
            torch.autocast_decrement_nesting()
            self._switch(*before)
            self.forget()

    def _switch(self, enabled: bool, dtype: torch.dtype) -> None:
        torch.set_autocast_enabled(self._device_type, enabled)
        torch.set_autocast_dtype(self._device_type, dtype)

    def forget(self) -> None:
        """Release cast parameters when autocast, or the recomputation of a checkpoint, ends."""
        self._casts.clear()

    def cast(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that a function gets.

        Checkpoints switch autocast on again where they recompute, as the forward pass had it.
        """
        if not torch.is_autocast_enabled(self._device_type):
            if not autocast_contexts():
                self.forget()
            return args, kwargs
        lower = torch.get_autocast_dtype(self._device_type)
        name = getattr(function, "__name__", "")
        if name in _RETURN_SINGLE[self._device_type]:
            return args, self._returning_single(args, kwargs)
        dtype = self._type_for(name, (*args, *kwargs.values()), lower)
        if dtype is None:
            return args, kwargs
        # The last one first, as the compiler has torch do it: it decides what is alive while
        # weights are cast.
        named = {key: self._cast_all(kwargs[key], dtype) for key in reversed(kwargs)}
        return self._cast_all(args, dtype), {key: named[key] for key in kwargs}

    def _type_for(
        self, name: str, values: tuple[Any, ...], lower: torch.dtype
    ) -> torch.dtype | None:
        if name in _LOWER[self._device_type]:
            return lower
        if name in _SINGLE[self._device_type]:
            return torch.float32
        if name not in _WIDEST[self._device_type]:
            return None
        has_single = any(each.dtype is torch.float32 for each in _tensors(values))
        return torch.float32 if has_single else None

    def _returning_single(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        source = args[0] if args else None
        if not isinstance(source, Tensor) or source.dtype not in _HALF:
            return kwargs
        if kwargs.get("dtype") is not None or any(isinstance(each, torch.dtype) for each in args):
            return kwargs
        return {**kwargs, "dtype": torch.float32}

    def _cast_all(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor):
            return self._cast(value, dtype)
        if type(value) in (list, tuple):
            items = [self._cast_all(item, dtype) for item in reversed(value)]
            return type(value)(items[::-1])
        return value

    def _cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if tensor.dtype in (dtype, torch.float64) or not tensor.is_floating_point():
            return tensor
        if not (tensor.is_leaf and tensor.requires_grad and dtype is not torch.float32):
            return tensor.to(dtype)
        source, made = self._casts.get(id(tensor), (None, None))
        if made is None or source is None or source() is not tensor:
            made = tensor.to(dtype)
            self._casts[id(tensor)] = (weakref.ref(tensor), made)
        return made


#: functions of torch's that take a kind of device first
_ASKED_OF_A_DEVICE = (
    "is_autocast_enabled",
    "set_autocast_enabled",
    "get_autocast_dtype",
    "set_autocast_dtype",
)


def autocast_of_meta_tensors(device_type: str, home: torch.device | None) -> Contexts:
    """Yield contexts that answer for the meta device as for the device that it represents.

    Questions about the device that meta tensors report, the model's own, are answered in the same
    way. A model that names that device itself gets the same answer, because the two cases look
    equal; hardly any model does.
    """
    asked = frozenset({"meta", "meta" if home is None else home.type})
    for name in _ASKED_OF_A_DEVICE:
        answer = partial(_answer_for, device_type, asked, getattr(torch, name))
        yield substituted(torch, name, answer)
    # torch.autocast reads the one, torch.utils.checkpoint the other
    for namespace in (autocast_mode, torch.amp):
        if "is_autocast_available" in vars(namespace):
            answer = partial(_answer_for, device_type, asked, namespace.is_autocast_available)
            yield substituted(namespace, "is_autocast_available", answer)
    if device_type == "cuda":
        # torch.autocast("cuda") asks about this machine, which may have no such device
        yield substituted(cuda_autocast, "amp_definitely_not_available", lambda: False)
        yield substituted(torch.cuda, "is_bf16_supported", lambda *_args: True)


def _answer_for(
    device_type: str,
    asked: Collection[str],
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a function of torch with ``device_type`` in place of the kinds that are asked for."""
    meant = [_meant(value, device_type, asked) for value in args]
    options = {name: _meant(value, device_type, asked) for name, value in kwargs.items()}
    return function(*meant, **options)


def _meant(value: Any, device_type: str, asked: Collection[str]) -> Any:
    return device_type if isinstance(value, str) and value in asked else value


def _tensors(values: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(tuple(value))
