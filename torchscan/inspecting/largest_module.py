"""The largest module that a program calls, found while it runs."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_pre_hook

from torchscan.errors import AlarmError, NonFiniteError
from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
from torchscan.inspecting.repeated_calls import is_looking_again
from torchscan.inspecting.run import RunFacts
from torchscan.observing.compiling import CompileWatch
from torchscan.recording.module_calls import Begun
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import compile_callbacks, forget_hooks, not_compiled

#: warning of a compiled model about hooks
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"


class Watch(Protocol):
    """An inspection of a model, which finishes by itself when it has seen enough."""

    @property
    def is_finished(self) -> bool:
        """True if enough steps were inspected."""

    def start(self, under_way: Begun) -> object:
        """Begin, with a call of the model."""

    def explain(self, error: BaseException) -> None:
        """Explain an exception."""

    def finish(self) -> RunFacts:
        """End, and return the results."""

    def abandon(self) -> None:
        """End, and drop the results."""


class LargestModule:
    """The inspection of the module with the most parameters of all that are called.

    Modules that train come before those that do not. A module trains if it is called with gradients
    on, and has a parameter that requires one. A module has no more parameters than the one that it
    is part of, and is called after it, so complete models are inspected.
    """

    def __init__(self, watch: Callable[[nn.Module, bool], Watch], guard: NonFiniteGuard) -> None:
        """Inspect modules with ``watch(module, trains)``; ``guard`` checks the steps of all."""
        self._make_watch = watch
        self._guard = guard
        self._watch: Watch | None = None
        self._watched: weakref.ref[nn.Module] | None = None
        #: True if the watched module trains, and its number of parameters
        self._rank = (False, -1)
        #: identities of the modules in the watched one
        self._inside: set[int] = set()
        #: numbers of parameters of modules, each counted once, by identity
        self._sizes: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._switching = threading.Lock()
        self._process = os.getpid()
        self._filters = warnings.catch_warnings()
        self._hook: Callable[..., None] = self._before
        self._compiler = CompileWatch(self._look_away, self._look)
        #: error that was raised when the program was over, or None
        self.found_last: NonFiniteError | None = None
        #: internal error of torchscan, or None; the program goes on without an inspection
        self.internal_error: Exception | None = None

    def __enter__(self) -> LargestModule:
        """Follow the calls of all modules."""
        self._filters.__enter__()
        warnings.filterwarnings("ignore", _HOOKS_WARNING, UserWarning)
        self._look()
        self._guard.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Follow calls no longer."""
        try:
            self._guard.finish()
        except NonFiniteError as error:  # of a device, whose last step could only be read now
            self.found_last = error
        self._stop_looking()
        self._filters.__exit__(None, None, None)

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that the program has forked."""
        return os.getpid() == self._process

    @property
    def trains(self) -> bool:
        """True if the module that was found trains."""
        trains, _ = self._rank
        return trains

    def explain(self, error: BaseException) -> None:
        """Explain an exception that ends the program."""
        if self._watch is not None and self.is_of_this_process:
            self._watch.explain(error)

    def facts(self) -> RunFacts | None:
        """Return the facts of the largest module, or None if there was none."""
        return None if self._watch is None else self._watch.finish()

    def _look(self) -> None:
        """Register the hook that searches for the largest module, hidden from the compiler."""
        self._hook = not_compiled(self._before) if compile_callbacks() else self._before
        register_module_forward_pre_hook(self._hook)

    def _look_away(self) -> None:
        forget_hooks(self._hook)

    def _stop_looking(self) -> None:
        self._compiler.close()
        self._look_away()

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if is_dynamo_compiling() or is_recording() or is_looking_again():
            return
        if not self.is_of_this_process:
            return
        self._compiler.listen()  # it may have been loaded since
        try:
            self._consider(module, arguments)
        except (AlarmError, NonFiniteError):  # the user has asked for it
            raise
        except Exception as error:
            self.internal_error = error
            self._stop_looking()
            if self._watch is not None:
                with contextlib.suppress(Exception):
                    self._watch.abandon()

    def _consider(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Inspect a module that is called if it is better than the present one."""
        if self.trains and self._watch is not None and self._watch.is_finished:
            self._stop_looking()
            return
        if self.trains and id(module) in self._inside:
            return
        trains = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in module.parameters()
        )
        rank = trains, self._size_of(module)
        if self._is_better(module, rank):
            self._follow((module, arguments), rank)

    def _size_of(self, module: nn.Module) -> int:
        """Return the number of parameters of a module."""
        reference, size = self._sizes.get(id(module), (None, 0))
        if reference is not None and reference() is module:
            return size
        sized = [each for each in module.parameters() if not nn.parameter.is_lazy(each)]
        size = sum(each.numel() for each in sized)
        self._sizes[id(module)] = weakref.ref(module), size
        return size

    def _is_better(self, module: nn.Module, rank: tuple[bool, int]) -> bool:
        """Return whether a module has more parameters, or contains the watched one.

        The module that ``torch.compile`` puts around a model no longer calls the model's hooks.
        """
        if rank != self._rank:
            return rank > self._rank
        watched = None if self._watched is None else self._watched()
        return any(each is watched for each in list(module.modules())[1:])

    def _follow(self, begun: Begun, rank: tuple[bool, int]) -> None:
        """Inspect a module from the call that has begun."""
        module, _ = begun
        trains, _ = rank
        with self._switching:
            if not self._is_better(module, rank):  # another thread was faster
                return
            if self._watch is not None:
                self._watch.abandon()
            self._rank, self._watch = rank, self._make_watch(module, trains)
            self._watched = weakref.ref(module)
            self._inside = {id(each) for each in module.modules()}
            self._watch.start(begun)
            # Come after the hooks of the inspection, and what the compiler calls: in the call in
            # which it finishes, all are gone.
            self._compiler.close()
            self._compiler.listen()
            self._look_away()
            self._look()
