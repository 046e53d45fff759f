"""Global switches of torch that a forward pass may change, in one table."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Sequence
from functools import cache
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
    undo.push(_restoring(_of_thread()), is_of_process=False)
    undo.push(_restoring(_of_process()))
    # Fused attention and encoder-layer kernels exist for some devices only, and hide operators.
    torch.backends.mha.set_fastpath_enabled(False)
    undo.enter(as_written)


def _restoring(switches: Sequence[_Switch]) -> Callable[[], None]:
    """Return a function that sets the switches to their present values."""
    before = [_value_of(switch) for switch in switches]

    def restore() -> None:
        for switch, value in zip(switches, before, strict=True):
            if value is not _UNREADABLE and _value_of(switch) != value:
                switch.write(value)

    return restore


def _value_of(switch: _Switch) -> Any:
    """Return the value of a switch, or a marker if the older API cannot read the newer one's value.

    Then the newer API restores it.
    """
    try:
        return switch.read()
    except RuntimeError:
        return _UNREADABLE


@cache
def _of_thread() -> tuple[_Switch, ...]:
    """Return the switches that each thread has separately."""
    return (
        _Switch(torch.is_grad_enabled, torch.set_grad_enabled),
        _Switch(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        *map(_autocast_on, ("cpu", "cuda")),
        _Switch(autocast_contexts, _set_autocast_contexts),
        _Switch(default_device, set_default_device),
    )


@cache
def _of_process() -> tuple[_Switch, ...]:
    """Return the switches of the process that this version of torch has."""
    for module in ("torch.backends.opt_einsum", "torch.utils.deterministic"):
        importlib.import_module(module)
    switches = [_attribute(path) for path in _ATTRIBUTES if _exists(path)]
    for read, write in _FUNCTIONS:
        if _exists(read):
            switches.append(_Switch(attrgetter(read)(torch), attrgetter(write)(torch)))
    switches += [_determinism(), _anomaly_detection()]
    switches += [_Switch(attention_order, set_attention_order), _printing()]
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
    return _Switch(lambda: getattr(holder, name), lambda value: setattr(holder, name, value))


def _autocast_on(device: str) -> _Switch:
    def read() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def write(value: tuple[bool, torch.dtype]) -> None:
        is_enabled, dtype = value
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)

    return _Switch(read, write)


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


def _determinism() -> _Switch:
    def read() -> tuple[bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    def write(value: tuple[bool, bool]) -> None:
        is_enabled, warns_only = value
        torch.use_deterministic_algorithms(is_enabled, warn_only=warns_only)

    return _Switch(read, write)


def _anomaly_detection() -> _Switch:
    def read() -> tuple[bool, bool]:
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    def write(value: tuple[bool, bool]) -> None:
        is_enabled, checks_nan = value
        torch.set_anomaly_enabled(is_enabled, checks_nan)

    return _Switch(read, write)


def _printing() -> _Switch:
    def read() -> dict[str, Any]:
        return dict(vars(print_options()))

    def write(value: dict[str, Any]) -> None:
        vars(print_options()).update(value)

    return _Switch(read, write)
