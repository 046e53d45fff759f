"""Activation checkpointing for models without it: layers are recomputed in the backward pass."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from torchscan.errors import InputError
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.patches import Contexts, overridden
from torchscan.recording.request import require_positive
from torchscan.torch_versions import OpOverload, import_compiler

#: torchtitan's choice of operators, there called "op"
SELECTIVE = "selective"
#: operators whose results torchtitan keeps, as far as this version of torch has them
_KEPT_BY_TORCHTITAN = (
    "aten.mm",
    "aten._scaled_mm",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_attention_math",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten.max",
    "_c10d_functional.reduce_scatter_tensor",
    "_c10d_functional.all_to_all_single",
)


def checkpointed(modules: Mapping[str, nn.Module], paths: Collection[str]) -> Contexts:
    """Yield contexts in which modules with these paths keep only their arguments."""

    def again(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    if paths:
        import_compiler()
    for path in paths:
        yield overridden(modules[path], "forward", again)


def checkpoint_layers(model: nn.Module, layers: Sequence[nn.Module], choice: Any) -> None:
    """Checkpoint layers of a copy: all, every n-th one, or with the operators that a policy keeps.

    Layers of transformers do it themselves, as after ``gradient_checkpointing_enable``. Their
    models then keep no cache of keys and values, which would be added twice.
    """
    import_compiler()
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            config.use_cache = False

    options: dict[str, Any] = {"use_reentrant": False}
    every = 1
    if choice == SELECTIVE:
        # each layer counts its own products
        options["context_fn"] = lambda: create_selective_checkpoint_contexts(TorchtitanPolicy())
    elif callable(choice) or is_operator_list(choice):
        options["context_fn"] = partial(create_selective_checkpoint_contexts, choice)
    else:
        every = int(choice)
    own = list(dict.fromkeys(layers))  # a layer that is called several times is there once
    if every > max(len(own), 1):
        raise InputError.of_value("checkpoint", choice, f"give a number of layers up to {len(own)}")
    for each in own[every - 1 :: every]:
        layer: Any = each
        if isinstance(getattr(layer, "gradient_checkpointing", None), bool):
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(checkpoint, **options)
        else:
            layer.forward = partial(checkpoint, layer.forward, **options)


def is_operator_list(choice: object) -> bool:
    """Return whether a value is a list of torch's operators (overloads, not overload packets)."""
    return isinstance(choice, list) and all(isinstance(each, OpOverload) for each in choice)


class TorchtitanPolicy:
    """torchtitan's policy for one layer, in which every second product is recomputed.

    Products with a bias are recomputed, too: torchtitan's models have none.
    """

    def __init__(self) -> None:
        self._kept = _operators_named(_KEPT_BY_TORCHTITAN)
        # torchao's tensors are multiplied by ``mm``, which calls the product in 8 bits
        self._products = _operators_named(("aten.mm", "aten._scaled_mm"))
        self._num_products: Counter[bool] = Counter()

    def __call__(
        self, context: SelectiveCheckpointContext, operator: Any, *_args: Any, **_kwargs: Any
    ) -> CheckpointPolicy:
        """Return whether to save the results of a call."""
        if operator in self._products:
            self._num_products[context.is_recompute] += 1
            if self._num_products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        is_kept = operator in self._kept
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


@dataclass(frozen=True, slots=True)
class SavedCalls:
    """A policy that saves the results of operators on tensors of certain shapes.

    It is a policy of ``torch.utils.checkpoint.create_selective_checkpoint_contexts``.
    """

    #: the operator with its overload ("aten.mm.default"), and the shapes of its tensors
    calls: frozenset[tuple[str, tuple[tuple[int, ...], ...]]]

    def __call__(
        self, _context: SelectiveCheckpointContext, operator: Any, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        """Return whether to save the results of a call."""
        shapes = tuple([tuple(each.shape) for each in tensors_in((args, kwargs))])
        is_saved = (str(operator), shapes) in self.calls
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def _operators_named(names: Sequence[str]) -> frozenset[Any]:
    operators = []
    for name in names:
        namespace, _, operator = name.partition(".")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        if packet is not None and hasattr(packet, "default"):
            operators.append(packet.default)
    return frozenset(operators)


def require_checkpoint(choice: object) -> None:
    """Raise an InputError unless layers can be checkpointed in this way."""
    if isinstance(choice, bool) or choice == SELECTIVE:
        return
    if isinstance(choice, int):
        require_positive("checkpoint", choice)
        return
    if isinstance(choice, str):
        advice = "give True, a number of layers, 'selective', a policy or a list of operators"
        raise InputError.of_value("checkpoint", choice, advice)
    if callable(choice):
        _require_policy(choice)
    elif not is_operator_list(choice):
        advice = "give a list of operators, such as [torch.ops.aten.mm.default]"
        raise InputError.of_value("checkpoint", choice, advice)


def _require_policy(choice: Callable[..., Any]) -> None:
    try:
        inspect.signature(choice).bind(None, None)
    except ValueError:  # it is written in C
        return
    except TypeError as error:
        raise InputError.of_value(
            "checkpoint", choice, "give a policy(context, operator, *args, **kwargs) of torch"
        ) from error
