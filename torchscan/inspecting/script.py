"""A program of the user's, run in this process as Python would, and the model that it trains."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import re
import runpy
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_pre_hook

from torchscan.errors import AlarmError, InputError, NonFiniteError
from torchscan.inspecting.finding_log import is_looking_again
from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
from torchscan.inspecting.run import RunFacts
from torchscan.observing.compiling import CompileWatch
from torchscan.recording.call_tree import Begun
from torchscan.recording.undo import is_recording
from torchscan.torch_versions import compile_callbacks, forget_hooks, not_compiled

_FINE, _FAILED, _INTERRUPTED = 0, 1, 130
_PYTHON = re.compile(r"pythonw?(?P<version>\d+(\.\d+)*)?(\.exe)?")
#: modules that start a program, whose frames its tracebacks do not show
_STARTERS = (__name__, "runpy", "importlib._bootstrap", "importlib._bootstrap_external")
#: warning of a compiled model about hooks
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"


# -- naming a program ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script or a module, and its arguments."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]
    #: True for ``python -u``: its output is not buffered
    is_unbuffered: bool


def program_of(words: Sequence[str]) -> Program:
    """Return the program of ``python -u train.py --epochs 3``; ``python`` may be left out."""
    rest = list(words)
    if rest and not rest[0].startswith("-") and not rest[0].endswith(".py"):
        _require_this_python(rest.pop(0))
    is_unbuffered = is_module = False
    while rest and rest[0].startswith("-") and not is_module:
        flags = rest.pop(0)[1:]
        others = flags.lstrip("u")
        is_unbuffered |= others != flags
        is_module = others.startswith("m")
        if not is_module:
            _require_no_flags(flags, others)
        elif others[1:]:  # python -mpackage.module
            rest.insert(0, others[1:])
    if not rest:
        kind = "module: python -m package.module" if is_module else "script: python train.py"
        raise InputError(f"nothing follows --: give a {kind}")
    name, *arguments = rest
    return Program(
        name=name,
        is_module=is_module,
        arguments=tuple(arguments),
        is_unbuffered=is_unbuffered,
    )


def _require_this_python(word: str) -> None:
    found = _PYTHON.fullmatch(os.path.basename(word))
    if found is None:
        raise InputError(
            f"{word[:60]!r} is not Python: give a script after --, as in python train.py, or let "
            f"the launcher start torchscan, as in {word[:60]} … -m torchscan inspect -- train.py"
        )
    own = ".".join(map(str, sys.version_info[:3]))
    asked = found["version"] or ""
    if asked and not f"{own}.".startswith(f"{asked}."):
        raise InputError(
            f"the script asks for Python {asked}, and this is {own}: start torchscan with "
            f"{word[:60]} -m torchscan"
        )


def _require_no_flags(flags: str, others: str) -> None:
    if not flags or others.startswith("c"):
        raise InputError(
            "a program after -- is a file or a module: give python train.py, or python -m "
            "package.module"
        )
    if others:
        raise InputError(
            f"python -{flags[:20]} has no effect after --: start torchscan with it, as in "
            f"python -{flags[:20]} … -m torchscan inspect -- train.py"
        )


# -- running it ----------------------------------------------------------------------------------


def run_program(
    program: Program,
    *,
    is_last: bool = False,
    explain: Callable[[BaseException], object] = lambda _: None,
) -> int:
    """Run a program in this process as Python would, and return its exit status.

    An exception that it does not catch is explained, and shown as by Python. If it ``is_last``, the
    process ends with it, and nothing is restored: its threads and ``atexit`` functions still run
    then, and look for its classes in ``__main__``.
    """
    with _as_started(program, is_last=is_last):
        if program.is_module:
            _require_module(program.name)
        elif not os.path.isfile(program.name):
            name = program.name[:100]
            raise InputError(f"{name!r} does not exist: give a script, as in python train.py")
        try:
            if program.is_module:
                # ``runpy.run_module`` would remove the main module when its code ends
                vars(runpy)["_run_module_as_main"](program.name)
            else:
                _run_file(os.path.abspath(program.name))
        except SystemExit as leaving:
            code = leaving.code
            if code is None or isinstance(code, int):
                return code or _FINE
            print(code, file=sys.stderr)  # noqa: T201 - as Python does
            return _FAILED
        except BaseException as error:
            explain(error)
            _show(error)
            return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
        return _FINE


@contextlib.contextmanager
def _as_started(program: Program, *, is_last: bool) -> Iterator[None]:
    """Set the main module, the arguments and the search path that Python would begin with."""
    main, arguments, path = sys.modules["__main__"], sys.argv, list(sys.path)
    try:
        sys.modules["__main__"] = ModuleType("__main__")
        sys.argv = [program.name, *program.arguments]
        if not sys.flags.safe_path:
            folder = os.path.dirname(os.path.realpath(program.name))
            sys.path[0] = os.getcwd() if program.is_module else folder
        if program.is_unbuffered:
            with contextlib.suppress(AttributeError, ValueError):  # a stream of another type
                sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        yield
    finally:
        if not is_last:
            sys.modules["__main__"], sys.argv, sys.path[:] = main, arguments, path


def _require_module(name: str) -> None:
    """Raise if the module, or the package that it is in, is not installed."""
    missing: str | None = name
    try:
        if importlib.util.find_spec(name) is not None:
            return
    except ModuleNotFoundError as error:
        missing = error.name if f"{name}.".startswith(f"{error.name}.") else None
    except (Exception, SystemExit):  # the package fails: running the module shows how
        return
    if missing is not None:
        raise InputError(
            f"{missing[:100]!r} is not an installed module: install it, or give a file.py"
        )


def _run_file(path: str) -> None:
    """Run a file as ``runpy.run_path`` does, but with ``sys.argv[0]`` different from ``__file__``.

    Processes that it spawns find it by its ``__file__``, for which there must be no ``__spec__``.
    """
    loader, main = SourceFileLoader("__main__", path), vars(sys.modules["__main__"])
    main.update(__file__=path, __cached__=None, __loader__=loader, __builtins__=builtins)
    code = loader.source_to_code(loader.get_data(path), path)
    exec(code, main)  # noqa: S102 - the user has asked for it


def _show(error: BaseException) -> None:
    """Print an exception as Python does, without the frames before the program's own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _STARTERS:
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:
        traceback.print_exception(error)


# -- finding its model ---------------------------------------------------------------------------


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
        self._inside.clear()

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
