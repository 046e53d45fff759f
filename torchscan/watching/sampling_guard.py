"""Guard of the code that samples a step while torch or the user waits: its errors and its time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from torchscan.torch_versions import (
    count_function_modes,
    innermost_transform,
    is_tracing,
    without_torch_function,
)


def is_transformed() -> bool:
    """Return whether this call is traced or transformed, so that it is not a real pass."""
    return is_tracing() or innermost_transform() is not None


class SamplingGuard:
    """State of the sampling of one step that all its parts share."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        """``fail`` is called with internal errors, which neither torch nor the user gets."""
        self.fail = fail
        #: True once the samples are handed over: torch may still call hooks
        self.is_over = False
        #: nanoseconds that sampling has taken
        self.took = 0


class _Guarded(Protocol):
    guard: SamplingGuard


S = TypeVar("S", bound=_Guarded)
P = ParamSpec("P")


def guarded(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Keep internal errors from torch and users, and add up the time that the method takes."""

    @functools.wraps(method)
    def call_guarded(sampler: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        guard = sampler.guard
        if guard.is_over or is_transformed():
            return
        start = perf_counter_ns()
        try:
            if count_function_modes():
                with without_torch_function():
                    method(sampler, *args, **kwargs)
            else:
                method(sampler, *args, **kwargs)
        except Exception as error:
            guard.fail(error)
        guard.took += perf_counter_ns() - start

    return call_guarded
