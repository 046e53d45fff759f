"""The heads of attention that the processes of a mesh share, by their number and by parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from torchscan.errors import InputError


class Heads(NamedTuple):
    """The heads of attention of all processes."""

    queries: int
    keys: int
    #: key-value heads after those that several processes need were repeated
    repeated: int


def heads_of(model: nn.Module, size: int) -> Heads | None:
    """Return the heads of which each process has some, or None if a config has none.

    If there are fewer key-value heads than processes, several of these have the same one.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    queries = getattr(text, "num_attention_heads", None)
    keys = getattr(text, "num_key_value_heads", None)
    if isinstance(queries, int) and queries % size:
        raise _indivisible(queries, "heads", size)
    if not isinstance(keys, int):
        return None
    repeated = size if size % keys == 0 else keys
    if repeated % size:
        raise _indivisible(keys, "key-value heads", size)
    return Heads(queries, keys, repeated) if isinstance(queries, int) else None


def _indivisible(heads: int, label: str, size: int) -> InputError:
    return InputError(
        f"{heads} {label} cannot be divided among tp {size}", ": choose a tp that divides them"
    )


def repeat_heads(model: nn.Module, heads: Heads | None, styles: Mapping[str, str]) -> None:
    """Repeat key-value heads as often as processes need them, as engines do.

    Attention stays as it is where the plan, ``styles`` by path, does not divide keys by heads.
    """
    if heads is None or heads.repeated <= heads.keys:
        return
    for path, each in model.named_modules():
        if isinstance(getattr(each, "kv_b_proj", None), nn.Linear):
            continue  # latent attention has one head for all, which each device computes
        projections: list[Any] = [getattr(each, name, None) for name in ("k_proj", "v_proj")]
        if not all(isinstance(found, nn.Linear) for found in projections):
            if hasattr(each, "num_key_value_groups"):
                raise InputError(
                    f"{path} has no k_proj and v_proj whose {heads.keys} heads can be repeated "
                    f"for tp {heads.repeated}",
                    ": choose a tp that divides them",
                )
            continue
        if styles.get(f"{path}.k_proj") == "colwise":
            _repeat_heads_of(each, projections, heads)


def _repeat_heads_of(attention: Any, projections: list[Any], heads: Heads) -> None:
    """Repeat the key-value heads of one module, whose projections are those of keys and values."""
    times = heads.repeated // heads.keys
    norm = getattr(attention, "k_norm", None)
    width = getattr(getattr(norm, "weight", None), "shape", None)
    if heads.keys > 1 and width == (projections[0].out_features,):
        _repeat_rows(norm, times)
    for projection in projections:
        _repeat_rows(projection, times)
        projection.out_features *= times
    attention.num_key_value_groups = heads.queries // heads.repeated
    if hasattr(attention, "num_key_value_heads"):
        attention.num_key_value_heads = heads.repeated


def _repeat_rows(module: Any, times: int) -> None:
    with torch.no_grad():
        for name, tensor in list(module._parameters.items()):
            if tensor is not None:
                repeated = tensor.repeat(times, *[1] * (tensor.dim() - 1))
                module._parameters[name] = nn.Parameter(repeated, tensor.requires_grad)
