"""Global switches of torch that a forward pass may change, in one table."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from torchscan.recording.undo import Undo
from torchscan.torch_versions import (
    as_written,
    attention_order,
    default_device,
    print_options,
    set_attention_order,
    set_default_device,
)

#: switches that are attributes
_ATTRIBUTES = (
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.benchmark_limit",
    "backends.cudnn.deterministic",
    "backends.cudnn.allow_tf32",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.allow_tf32",
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.opt_einsum.enabled",
    "backends.opt_einsum.strategy",
    "backends.quantized.engine",
    "utils.deterministic.fill_uninitialized_memory",
)

#: switches that one function reads, and another one sets to the value that was read
_FUNCTIONS = (
    ("get_default_dtype", "set_default_dtype"),
    ("get_num_threads", "set_num_threads"),
    ("is_warn_always_enabled", "set_warn_always"),
    ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("backends.mha.get_fastpath_enabled", "backends.mha.set_fastpath_enabled"),
    ("backends.cuda.flash_sdp_enabled", "backends.cuda.enable_flash_sdp"),
    ("backends.cuda.mem_efficient_sdp_enabled", "backends.cuda.enable_mem_efficient_sdp"),
    ("backends.cuda.math_sdp_enabled", "backends.cuda.enable_math_sdp"),
    ("backends.cuda.cudnn_sdp_enabled", "backends.cuda.enable_cudnn_sdp"),
    (
        "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
        "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
    ),
    (
        "__future__.get_overwrite_module_params_on_conversion",
        "__future__.set_overwrite_module_params_on_conversion",
    ),
    (
        "__future__.get_swap_module_params_on_conversion",
        "__future__.set_swap_module_params_on_conversion",
    ),
)

#: attributes that replace ``allow_tf32``, and come last; a general one before the special ones,
#: whose value it changes
_PRECISIONS = (
    "backends.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
)

_UNREADABLE = object()


class _Switch(NamedTuple):
    """Functions that read a switch, and set it to the value that was read."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def keep_switches(undo: Undo) -> None:
    """Restore all switches afterwards, and set two of them for recording."""
    for switches, is_of_process in ((_of_thread(), False), (_of_process(), True)):
        before = _read(switches)
        undo.push(partial(_restore, switches, before), is_of_process=is_of_process)
    # Fused attention and encoder-layer kernels exist for some devices only, and hide operators.
    torch.backends.mha.set_fastpath_enabled(False)
    undo.enter(as_written)


def _read(switches: Sequence[_Switch]) -> list[Any]:
    """Return the values of switches, or a marker where the older API cannot read the newer one's.

    Then the newer API restores it.
    """
    values = []
    for switch in switches:
        try:
            values.append(switch.read())
        except RuntimeError:
            values.append(_UNREADABLE)
    return values


def _restore(switches: Sequence[_Switch], before: Sequence[Any]) -> None:
    for switch, value in zip(switches, before, strict=True):
        # Each is read when those before it are set, because some change others.
        if value is not _UNREADABLE and _read([switch]) != [value]:
            switch.write(value)


@cache
def _of_thread() -> tuple[_Switch, ...]:
    """Return the switches that each thread has separately."""
    switches = [
        _Switch(torch.is_grad_enabled, torch.set_grad_enabled),
        _Switch(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    ]
    for device in ("cpu", "cuda"):
        is_on = partial(torch.is_autocast_enabled, device)
        dtype = partial(torch.get_autocast_dtype, device)
        switches.append(_Switch(is_on, partial(torch.set_autocast_enabled, device)))
        switches.append(_Switch(dtype, partial(torch.set_autocast_dtype, device)))
    switches.append(_Switch(autocast_contexts, _set_autocast_contexts))
    switches.append(_Switch(default_device, set_default_device))
    return tuple(switches)


@cache
def _of_process() -> tuple[_Switch, ...]:
    """Return the switches of the process that this version of torch has."""
    for module in ("torch.backends.opt_einsum", "torch.utils.deterministic"):
        importlib.import_module(module)
    switches = [_attribute(path) for path in _ATTRIBUTES if _exists(path)]
    for read, write in _FUNCTIONS:
        if _exists(read):
            switches.append(_Switch(attrgetter(read)(torch), attrgetter(write)(torch)))
    switches += _PAIRS
    switches.append(_Switch(attention_order, set_attention_order))
    options = print_options()
    for name in vars(options):
        switches.append(_Switch(partial(getattr, options, name), partial(setattr, options, name)))
    switches += [_attribute(path) for path in _PRECISIONS if _exists(path)]
    return tuple(switches)


def _exists(path: str) -> bool:
    try:
        attrgetter(path)(torch)
    except AttributeError:
        return False
    except RuntimeError:  # there, and cannot be read at the moment
        return True
    return True


def _attribute(path: str) -> _Switch:
    owner, _, name = path.rpartition(".")
    holder = attrgetter(owner)(torch)
    return _Switch(partial(getattr, holder, name), partial(setattr, holder, name))


def autocast_contexts() -> int:
    """Return the number of autocast contexts that are open.

    Both calls run in one expression, because an interrupt between them would leave one more.
    """
    return min(
        map(operator.call, (torch.autocast_increment_nesting, torch.autocast_decrement_nesting))
    )


def _set_autocast_contexts(number: int) -> None:
    """Open or close contexts: an interrupt can come while one begins or ends.

    Outside of all contexts, torch keeps no casts.
    """
    for _ in range(autocast_contexts() - number):
        torch.autocast_decrement_nesting()
    for _ in range(number - autocast_contexts()):
        torch.autocast_increment_nesting()
    if number == 0:
        torch.clear_autocast_cache()


#: pairs of switches that one function sets
_PAIRS = (
    _Switch(
        torch.are_deterministic_algorithms_enabled,
        lambda is_on: torch.use_deterministic_algorithms(
            is_on, warn_only=torch.is_deterministic_algorithms_warn_only_enabled()
        ),
    ),
    _Switch(
        torch.is_deterministic_algorithms_warn_only_enabled,
        lambda warns_only: torch.use_deterministic_algorithms(
            torch.are_deterministic_algorithms_enabled(), warn_only=warns_only
        ),
    ),
    _Switch(
        torch.is_anomaly_enabled,
        lambda is_on: torch.set_anomaly_enabled(is_on, torch.is_anomaly_check_nan_enabled()),
    ),
    _Switch(
        torch.is_anomaly_check_nan_enabled,
        lambda checks_nan: torch.set_anomaly_enabled(torch.is_anomaly_enabled(), checks_nan),
    ),
)
