"""The compiler: what it has compiled, its callbacks and records, and code that it leaves alone."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_C: Any = torch._C

_NO_COMPILING = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


def import_compiler() -> None:
    """Import the compiler, as torch does for the first optimizer or checkpoint.

    During a pass, the import would fail or keep tensors alive.
    """
    importlib.import_module("torch._dynamo")


def has_compiler() -> bool:
    """Return whether the compiler is loaded."""
    return "torch._dynamo" in sys.modules


def compiled_from(module: nn.Module) -> nn.Module | None:
    """Return the module that ``torch.compile`` wraps, or None. The compiler is not imported."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    return (
        module._orig_mod
        if frames is not None and isinstance(module, frames.OptimizedModule)
        else None
    )


def wrapper_types() -> tuple[type[nn.Module], ...]:
    """Return the types of modules that wrap another one: DDP's and the compiler's."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    compiled = () if frames is None else (frames.OptimizedModule,)
    return (nn.parallel.DistributedDataParallel, *compiled)


def as_written() -> contextlib.AbstractContextManager[object]:
    """Run compiled functions eagerly inside the context. The compiler is not imported."""
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else contextlib.nullcontext()
    )


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the compiler leaves alone, and everything that it calls.

    ``torch.compiler.disable`` wraps it, which takes a microsecond in each call. Since torch 2.7 a
    function can be marked instead.
    """
    eval_frame: Any = getattr(_C._dynamo, "eval_frame", None)
    mark = getattr(eval_frame, "set_code_exec_strategy", None)
    code = getattr(function, "__code__", None)
    types: Any = sys.modules.get("torch._dynamo.types")
    if mark is not None and code is not None and hasattr(types, "FrameExecStrategy"):
        skip = types.FrameAction.SKIP
        mark(code, types.FrameExecStrategy(skip, skip))
        return function
    left_alone: Callable[..., Any] = torch.compiler.disable(function)
    return left_alone


def skip_in_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the compiler does not compile, nor what it calls.

    ``torch.compiler.disable`` wraps a function, which costs each call a microsecond or more. The
    compiler can also skip its code, if it reports when it starts: callers remove hooks then.
    """
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    skip = getattr(frames, "set_code_exec_strategy", None)
    code = getattr(function, "__code__", None)
    if skip is None or code is None or not compile_callbacks():
        return not_compiled(function)
    action = frames.FrameAction.SKIP
    skip(code, frames.FrameExecStrategy(action, action))
    return function


def compile_callbacks() -> tuple[list[Any], ...]:
    """Return the callbacks for the begin and end of a compilation, or none without the compiler."""
    dynamo = sys.modules.get("torch._dynamo.callback")
    handler = getattr(dynamo, "callback_handler", None)
    return () if handler is None else (handler.start_callbacks, handler.end_callbacks)


def compile_records() -> list[Any]:
    """Return the compiler's records of the frames that it compiled last."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return [] if utils is None else list(utils.get_compilation_metrics())


def recompile_reason(record: Any) -> str | None:
    """Return why a frame was compiled again, or None. Torch 2.6 does not tell it."""
    reason: str | None = getattr(record, "recompile_reason", None)
    return reason


def graph_breaks() -> dict[str, int]:
    """Return how often the compiler broke graphs since the process began, by reason."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return {} if utils is None else dict(utils.counters["graph_break"])


def compiles_flex_attention() -> list[tuple[Any, str]]:
    """Return the place of torch's switch that keeps flex attention from being compiled.

    Older versions have no such switch, and the module may not be loaded.
    """
    module = sys.modules.get("torch.nn.attention.flex_attention")
    return [(module, _NO_COMPILING)] if hasattr(module, _NO_COMPILING) else []
