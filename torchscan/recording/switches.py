"""Global switches of torch that a forward pass may change, in one table."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
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

#: what is assigned to
_ATTRIBUTES = (
    *(
        f"backends.cudnn.{name}"
        for name in ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
    ),
    *(f"backends.mkldnn.{name}" for name in ("enabled", "deterministic", "allow_tf32")),
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    *("backends.opt_einsum.enabled", "backends.opt_einsum.strategy", "backends.quantized.engine"),
    "utils.deterministic.fill_uninitialized_memory",
)

#: what is read by one function, and given to another as it was read
_FUNCTIONS = (
    ("get_default_dtype", "set_default_dtype"),
    ("get_num_threads", "set_num_threads"),
    ("is_warn_always_enabled", "set_warn_always"),
    ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("backends.mha.get_fastpath_enabled", "backends.mha.set_fastpath_enabled"),
    *(
        (f"backends.cuda.{kind}_sdp_enabled", f"backends.cuda.enable_{kind}_sdp")
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    ),
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

#: the newer way to say what ``allow_tf32`` says. They come last: general ones before the special ones, whose value they change
_PRECISIONS = tuple(
    f"backends.{part}fp32_precision"
    for part in (
        *("", "cudnn.", "cudnn.conv.", "cudnn.rnn."),
        *("mkldnn.", "mkldnn.conv.", "mkldnn.rnn.", "cuda.matmul.", "mkldnn.matmul."),
    )
)

_UNREADABLE = object()


class _Switch(NamedTuple):
    """Functions that read a switch, and set it to the value that was read."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def keep_switches(undo: Undo) -> None:
    """All are as before afterwards, and in between two of them suit a record."""
    for switches, is_of_process in ((_of_thread(), False), (_of_process(), True)):
        undo.push(
            partial(_put_back, switches, [_value_of(switch) for switch in switches]),
            is_of_process=is_of_process,
        )
    # Fused attention and encoder-layer kernels exist for some devices only, and hide operators.
    torch.backends.mha.set_fastpath_enabled(False)
    undo.enter(as_written)


def _put_back(switches: Sequence[_Switch], before: Sequence[Any]) -> None:
    for switch, value in zip(switches, before, strict=True):
        if value is not _UNREADABLE and _value_of(switch) != value:
            switch.write(value)


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
    return tuple(_those_of_process())


def _those_of_process() -> Iterator[_Switch]:
    """All that this version of torch has."""
    for module in ("torch.backends.opt_einsum", "torch.utils.deterministic"):
        importlib.import_module(module)
    yield from (_attribute(path) for path in _ATTRIBUTES if _exists(path))
    yield from (
        _Switch(attrgetter(read)(torch), attrgetter(write)(torch))
        for read, write in _FUNCTIONS
        if _exists(read)
    )
    yield _Switch(
        _determinism, lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1])
    )
    yield _Switch(_anomalies, lambda value: torch.set_anomaly_enabled(*value))
    yield _Switch(attention_order, set_attention_order)
    yield _Switch(
        lambda: dict(vars(print_options())), lambda value: vars(print_options()).update(value)
    )
    yield from (_attribute(path) for path in _PRECISIONS if _exists(path))


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
    def write(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return _Switch(
        lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write
    )


def autocast_contexts() -> int:
    """Return the number of autocast contexts that are open.

    Both calls run in one expression, because an interrupt between them would leave one more.
    """
    return min(
        map(operator.call, (torch.autocast_increment_nesting, torch.autocast_decrement_nesting))
    )


def _set_autocast_contexts(number: int) -> None:
    """An interrupt can come where one begins or ends. Outside all of them, torch keeps no casts."""
    for _ in range(autocast_contexts() - number):
        torch.autocast_decrement_nesting()
    for _ in range(number - autocast_contexts()):
        torch.autocast_increment_nesting()
    if number == 0:
        torch.clear_autocast_cache()


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
