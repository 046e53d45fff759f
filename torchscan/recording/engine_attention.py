"""Attention as inference engines run it, in place of the code of transformers, during a pass.

Models of transformers ask for an attention function by name, and call it with queries, keys and
values. An engine has one kernel where transformers has products and a softmax (with sinks or soft
caps), or a mask of all scores (with a sliding window). Of latent attention it expands no keys to
generate a token: it multiplies the queries with the matrix that would expand them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.notes import Note
from torchscan.recording.execution.engine_operators import fused_attention, latent_attention
from torchscan.recording.patches import Contexts, overridden, replaced
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import is_sharded_type, local_part

#: implementations of attention in transformers that an engine replaces
_REPLACED = ("eager", "sdpa")
#: attributes of a module with latent attention, as in DeepSeek-V2 and V3
_LATENT = ("kv_b_proj", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "expand_kv")

#: keys and values of a layer, given the latents and the rotary part of the keys
_Expand = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
_Attend = Callable[..., tuple[Tensor, Tensor | None]]


def attention_of_engines(
    modules: Iterable[nn.Module], assume: Callable[[Note], object]
) -> Contexts:
    """Yield contexts in which models of transformers attend as engines do.

    ``assume`` gets a note of each difference.
    """
    library, masking = "transformers.modeling_utils", "transformers.masking_utils"
    interface = getattr(sys.modules.get(library), "AttentionInterface", None)
    masks = getattr(sys.modules.get(masking), "AttentionMaskInterface", None)
    if masks is None or not hasattr(interface, "get_interface"):
        return
    engine = _EngineAttention(assume)
    kinds: dict[type[nn.Module], None] = {}
    for module in modules:
        if all(hasattr(module, name) for name in _LATENT):
            kinds[type(module)] = None
    yield overridden(interface, "get_interface", engine.choosing)
    for name in _REPLACED:
        if name in masks._global_mapping:
            yield replaced(masks._global_mapping, name, engine.without_causal_mask)
    for kind in kinds:
        yield overridden(kind, "expand_kv", engine.postponing)


class _EngineAttention:
    """The functions that models call during a pass."""

    def __init__(self, assume: Callable[[Note], object]) -> None:
        self._assume = assume
        #: by the class of a module with latent attention, its own function
        self._expand: dict[type[nn.Module], _Expand] = {}
        #: sizes of the windows that masks of this pass have
        self._windows: set[int] = set()

    def without_causal_mask(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes no mask where attention is causal or a window slides.

        Kernels know both. A chunk of attention does not slide, so it keeps its mask.
        """

        @wraps(build)
        def built(**options: Any) -> Any:
            queries, keys = options.get("q_length"), options.get("kv_length")
            window = options.get("local_size")
            chunk = getattr(options.get("config"), "attention_chunk_size", None)
            is_plain = options.get("allow_is_causal_skip", False) and queries in (1, keys)
            is_whole = options.get("attention_mask") is None
            is_chunk = window is not None and window == chunk
            if not is_recording() or not is_plain or not is_whole or is_chunk:
                return build(**options)
            if window is not None:
                self._windows.add(window)
            return None

        return built

    def choosing(self, choose: Callable[..., _Attend]) -> Callable[..., _Attend]:
        """Return the method that finds an attention function by its name."""

        @wraps(choose)
        def chosen(interface: object, name: str, default: _Attend) -> _Attend:
            attend = choose(interface, name, default)
            if not is_recording() or name not in (None, *_REPLACED):
                return attend
            return partial(self._attend, attend, attend is default)

        return chosen

    def postponing(self, expand: _Expand) -> _Expand:
        """Return a method that leaves latents as they are, until attention is called."""

        @wraps(expand)
        def postponed(module: nn.Module, latent: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
            if not is_recording():
                return expand(module, latent, rotary)
            self._expand[type(module)] = expand
            return rotary, latent

        return postponed

    def _attend(
        self,
        attend: _Attend,
        is_eager: bool,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        call = _Call(
            module=module,
            query=query,
            key=key,
            value=value,
            mask=attention_mask,
            options=options,
            is_eager=is_eager,
        )
        expand = self._expand.get(type(module))
        if expand is not None:
            latents = _LatentCall(module=module, query=query, latent=value, rotary=key)
            if latents.can_absorb:
                self._assume(Note.of("latent-attention"))
                return latents.absorbed(options.get("scaling")), None
            key, value = expand(module, value, key)
            call = replace(call, key=key, value=value)
        window = call.window
        if window not in self._windows:
            window = None
        if not call.needs_kernel(window):
            return attend(module, query, key, value, attention_mask, **options)
        self._assume(Note.of("engine-attention"))
        return call.in_one_kernel(window), None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of an attention function of transformers."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    #: True if the model has written this attention out
    is_eager: bool

    @property
    def sinks(self) -> Tensor | None:
        """Scores that attend to nothing, one for each head, or None."""
        sinks: Tensor | None = self.options.get("s_aux")
        if sinks is None:
            sinks = getattr(self.module, "sinks", None)
        return sinks

    @property
    def is_causal(self) -> bool | None:
        """True if a query sees no later keys, or None if neither call nor module knows."""
        is_causal: bool | None = self.options.get("is_causal")
        if is_causal is None:
            is_causal = getattr(self.module, "is_causal", None)
        return is_causal

    @property
    def window(self) -> int | None:
        """Number of keys that a query sees at most, or None if it sees all.

        Keys that a module compresses and adds to those of its window are seen, too.
        """
        window = self.options.get("sliding_window")
        queries, keys = self.query.shape[2], self.key.shape[2]
        is_compressed = getattr(self.module, "compressor", None) is not None
        if not isinstance(window, int) or is_compressed or queries not in (1, keys):
            return None
        return window if window < keys else None

    def needs_kernel(self, window: int | None) -> bool:
        """Return whether a kernel of an engine replaces what the model would call."""
        tensors = self.query, self.key, self.value, self.sinks
        if self.mask is not None or self.is_causal is None or self.query.dim() != 4:
            return False
        if any(is_sharded_type(type(each)) for each in tensors):
            return False
        if self.is_eager:
            return True
        is_biased = self.options.get("position_bias") is not None
        extras = window, self.sinks, self.options.get("softcap")
        is_uneven = self.key.shape[-1] != self.value.shape[-1]
        return not is_biased and (is_uneven or any(each is not None for each in extras))

    def in_one_kernel(self, window: int | None) -> Tensor:
        """Return the result, with the heads of a position next to each other."""
        result: Tensor = fused_attention(
            self.query,
            self.key,
            self.value,
            self.sinks,
            self.options.get("position_bias"),
            is_causal=bool(self.is_causal) and self.query.shape[2] > 1,
            window=window,
            softcap=self.options.get("softcap"),
            scale=self.options.get("scaling"),
        )
        return result.transpose(1, 2).contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class _LatentCall:
    """A call of attention with latents and the rotary part of the keys, for all heads."""

    module: Any
    query: Tensor
    latent: Tensor
    rotary: Tensor

    @property
    def can_absorb(self) -> bool:
        """True if tokens are generated, and the weight that expands latents is a plain matrix."""
        tensors = self.query, self.latent, self.rotary
        if self.query.shape[2] >= self.latent.shape[2]:
            return False
        if any(is_sharded_type(type(each)) for each in tensors):
            return False
        expand = self.module.kv_b_proj
        weight = getattr(expand, "weight", None)
        if not isinstance(weight, Tensor) or getattr(expand, "bias", None) is not None:
            return False
        rows = self.query.shape[1] * (self.module.qk_nope_head_dim + self.module.v_head_dim)
        return tuple(local_part(weight).shape) == (rows, self.latent.shape[-1])

    def absorbed(self, scale: float | None) -> Tensor:
        """Return the result, with the heads of a position next to each other.

        The matrices that expand keys and values are multiplied with queries and results instead.
        If an indexer picks tokens, only these are attended to.
        """
        batch, heads, queries, width = self.query.shape
        plain = self.module.qk_nope_head_dim
        by_head = local_part(self.module.kv_b_proj.weight).view(heads, -1, self.latent.shape[-1])
        expand_keys, expand_values = by_head.split([plain, self.module.v_head_dim], dim=1)

        query, rotary_query = self.query.split([plain, width - plain], dim=-1)
        query = query.transpose(0, 1).reshape(heads, batch * queries, plain)
        query = torch.bmm(query, expand_keys).view(heads, batch, queries, -1)
        picked = getattr(getattr(self.module, "indexer", None), "index_topk", None)
        attended = latent_attention(
            query.transpose(0, 1),
            rotary_query,
            self.latent[:, :, :picked],
            self.rotary[:, :, :picked],
            is_causal=queries > 1,
            scale=scale,
        )
        attended = attended.transpose(0, 1).reshape(heads, batch * queries, -1)
        values = torch.bmm(attended, expand_values.transpose(1, 2))
        return values.view(heads, batch, queries, -1).permute(1, 2, 0, 3)
