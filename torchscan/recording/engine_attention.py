"""Attention as inference engines run it, in place of the code of transformers, during a pass.

Models of transformers ask for an attention function by name, and call it with queries, keys and
values. An engine has one kernel where transformers has products and a softmax (with sinks or soft
caps), or a mask of all scores (with a sliding window). Of latent attention it expands no keys to
generate a token: it multiplies the queries with the matrix that would expand them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.notes import Note
from torchscan.recording.execution.engine_operators import fused_attention, latent_attention
from torchscan.recording.patches import overridden, replaced
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import is_sharded_type, local_part

#: implementations of attention in transformers that an engine replaces
_REPLACED = ("eager", "sdpa")
#: attributes of a module with latent attention, as in DeepSeek-V2 and V3
_LATENT = ("kv_b_proj", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "expand_kv")

#: keys and values of a layer, given the latents and the rotary part of the keys
_Expand = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
_Attend = Callable[..., tuple[Tensor, Tensor | None]]


@contextlib.contextmanager
def attention_of_engines(
    modules: Iterable[nn.Module], assume: Callable[[Note], object]
) -> Iterator[None]:
    """Let models of transformers attend as engines do; ``assume`` gets a note of what differs."""
    names = ("transformers.modeling_utils", "transformers.masking_utils")
    models, masks = map(sys.modules.get, names)
    interface = getattr(models, "AttentionInterface", None)
    if not hasattr(interface, "get_interface") or not hasattr(masks, "AttentionMaskInterface"):
        yield
        return
    engine = _EngineAttention(assume)
    by_name = masks.AttentionMaskInterface._global_mapping
    with contextlib.ExitStack() as stack:
        stack.enter_context(overridden(interface, "get_interface", engine.choosing))
        for name in _REPLACED:
            if name in by_name:
                stack.enter_context(replaced(by_name, name, _without_causal_mask))
        for kind in dict.fromkeys(type(module) for module in modules if _is_latent(module)):
            stack.enter_context(overridden(kind, "expand_kv", engine.postponing))
        yield


def _is_latent(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in _LATENT)


def _without_causal_mask(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return no mask where one only says that attention is causal, or that a window slides.

    Kernels know both. A chunk of attention does not slide, so it keeps its mask.
    """

    @wraps(build)
    def built(**options: Any) -> Any:
        queries, keys = options.get("q_length"), options.get("kv_length")
        chunk = getattr(options.get("config"), "attention_chunk_size", None)
        is_plain = options.get("allow_is_causal_skip", False) and queries in (1, keys)
        is_chunk = chunk is not None and options.get("local_size") == chunk
        is_whole = options.get("attention_mask") is None
        if is_recording() and is_plain and is_whole and not is_chunk:
            return None
        return build(**options)

    return built


class _EngineAttention:
    """The functions that models call during a pass."""

    def __init__(self, assume: Callable[[Note], object]) -> None:
        self._assume = assume
        #: by the class of a module with latent attention, its own function
        self._expand: dict[type[nn.Module], _Expand] = {}

    def choosing(self, choose: Callable[..., _Attend]) -> Callable[..., _Attend]:
        """Return the method that finds an attention function by its name."""

        @wraps(choose)
        def chosen(interface: object, name: str, default: _Attend) -> _Attend:
            attend = choose(interface, name, default)
            if not is_recording() or name not in (None, *_REPLACED):
                return attend
            return partial(self._attend, attend, is_eager=attend is default)

        return chosen

    def postponing(self, expand: _Expand) -> _Expand:
        """Return a method that leaves latents as they are, until attention is called."""

        @wraps(expand)
        def postponed(
            module: nn.Module, latent: Tensor, rotary: Tensor
        ) -> tuple[Tensor, Tensor]:
            if not is_recording():
                return expand(module, latent, rotary)
            self._expand[type(module)] = expand
            return rotary, latent

        return postponed

    def _attend(
        self,
        attend: _Attend,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *,
        is_eager: bool,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        expand = self._expand.get(type(module))
        if expand is not None:
            if query.shape[2] < key.shape[2]:
                result = self._attend_to_latents(module, query, value, key, options)
                if result is not None:
                    return result, None
            key, value = expand(module, value, key)
        own = partial(attend, module, query, key, value, attention_mask, **options)
        window = options.get("sliding_window")
        if window is not None and window >= key.shape[2]:
            window = None
        sinks, softcap = _sinks_of(module, options), options.get("softcap")
        is_plain = not is_eager and window is None and sinks is None and softcap is None
        bias = options.get("position_bias")
        is_biased = bias is not None and not is_eager
        is_causal = options.get("is_causal")
        is_causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        if is_plain or is_biased or is_causal is None or attention_mask is not None:
            return own()
        if query.dim() != 4 or _are_sharded(query, key, value, sinks):
            return own()
        self._assume(Note.of("engine-attention"))
        result = fused_attention(
            query,
            key,
            value,
            sinks,
            bias,
            is_causal=is_causal and query.shape[2] > 1,
            window=window,
            softcap=softcap,
            scale=options.get("scaling"),
        )
        return result.transpose(1, 2).contiguous(), None

    def _attend_to_latents(
        self,
        module: Any,
        query: Tensor,
        latent: Tensor,
        rotary: Tensor,
        options: dict[str, Any],
    ) -> Tensor | None:
        """Return the result by position, or None if the matrix is stored in another way."""
        batch, heads, queries, _ = query.shape
        width = module.qk_nope_head_dim
        weight = getattr(module.kv_b_proj, "weight", None)
        if not isinstance(weight, Tensor) or _are_sharded(query, latent, rotary):
            return None
        weight = local_part(weight)
        by_head = heads * (width + module.v_head_dim), latent.shape[-1]
        if tuple(weight.shape) != by_head or module.kv_b_proj.bias is not None:
            return None
        expand_keys, expand_values = weight.view(heads, -1, latent.shape[-1]).split(
            [width, module.v_head_dim], dim=1
        )
        latent, rotary = _selected(module, latent, rotary)
        self._assume(Note.of("latent-attention"))
        by_keys, rotary_query = query.split([width, query.shape[-1] - width], dim=-1)
        by_keys = by_keys.transpose(0, 1).reshape(heads, batch * queries, width)
        by_latents = torch.bmm(by_keys, expand_keys).view(heads, batch, queries, -1)
        attended = latent_attention(
            by_latents.transpose(0, 1),
            rotary_query,
            latent,
            rotary,
            is_causal=queries > 1,
            scale=options.get("scaling"),
        )
        attended = attended.transpose(0, 1).reshape(heads, batch * queries, -1)
        values = torch.bmm(attended, expand_values.transpose(1, 2))
        return values.view(heads, batch, queries, -1).permute(1, 2, 0, 3)


def _selected(module: Any, latent: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cached tokens that a token attends to: some, if an indexer picks them."""
    picked = getattr(getattr(module, "indexer", None), "index_topk", None)
    if not isinstance(picked, int):
        return latent, rotary
    return latent[:, :, :picked], rotary[:, :, :picked]


def _sinks_of(module: nn.Module, options: dict[str, Any]) -> Tensor | None:
    """Return the scores that attend to nothing, one for each head."""
    sinks = options.get("s_aux")
    return getattr(module, "sinks", None) if sinks is None else sinks


def _are_sharded(*tensors: Tensor | None) -> bool:
    return any(is_sharded_type(type(each)) for each in tensors)
