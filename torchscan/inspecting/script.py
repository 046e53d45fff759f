"""Runs a program of the user's in this process, as Python would, and finds the model that it trains."""

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
from pathlib import Path
from types import FrameType, ModuleType
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
#: what starts a program, and is not shown in its tracebacks
_STARTERS = (__name__, "runpy", "importlib._bootstrap", "importlib._bootstrap_external")

#: what a compiled model says of hooks that it did not expect
_OF_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


# -- naming a program ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script or a module, and what it is given."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]
    #: as ``python -u``: what it prints is seen at once
    is_unbuffered: bool


def program_of(words: Sequence[str]) -> Program:
    """``python -u train.py --epochs 3``, as it would be typed; ``python`` may be left out."""
    rest = list(words)
    if rest and not rest[0].startswith("-") and not rest[0].endswith(".py"):
        _require_this_python(rest.pop(0))
    is_unbuffered = False
    while rest and rest[0].startswith("-"):
        flags = rest.pop(0)[1:]
        others = flags.lstrip("u")
        is_unbuffered |= others != flags
        if others.startswith("m"):
            rest[:0] = [others[1:]] if others[1:] else []
            return _program(
                rest,
                "module: python -m package.module",
                is_module=True,
                is_unbuffered=is_unbuffered,
            )
        _require_kept(flags, others)
    return _program(rest, "script: python train.py", is_module=False, is_unbuffered=is_unbuffered)


def _program(words: Sequence[str], what: str, *, is_module: bool, is_unbuffered: bool) -> Program:
    if not words:
        raise InputError(f"nothing follows --: give a {what}")
    return Program(
        name=words[0], is_module=is_module, arguments=tuple(words[1:]), is_unbuffered=is_unbuffered
    )


def _require_this_python(word: str) -> None:
    found = _PYTHON.fullmatch(os.path.basename(word))
    if found is None:
        raise InputError(
            f"{word[:60]!r} is not Python: give a script after --, as in python train.py, or let the "
            f"launcher start torchscan, as in {word[:60]} … -m torchscan inspect -- train.py"
        )
    ours, asked = ".".join(map(str, sys.version_info[:3])), found["version"] or ""
    if not f"{ours}.".startswith(f"{asked}." if asked else ""):
        raise InputError(
            f"the script asks for Python {asked}, and this is {ours}: start torchscan with {word[:60]} "
            "-m torchscan"
        )


def _require_kept(flags: str, others: str) -> None:
    if not flags or others.startswith("c"):
        raise InputError(
            "a program after -- is a file or a module: give python train.py, or python -m package.module"
        )
    if others:
        raise InputError(
            f"python -{flags[:20]} has no effect after --: start torchscan with it, as in "
            f"python -{flags[:20]} … -m torchscan inspect -- train.py"
        )


# -- running it ----------------------------------------------------------------------------------------------------------


def run_program(program: Program, *, is_last: bool = False) -> int:
    """Run it in this process as Python would, and return its exit status. What it does not catch is shown as by Python.

    If it ``is_last``, the process ends with it, and nothing is put back: its threads and what it gave to ``atexit`` still run
    then, and look for its classes in ``__main__``.
    """
    with _as_started(program, is_last=is_last):
        run = _module_to_run(program.name) if program.is_module else _file_to_run(program.name)
        return _status_of(run)


@contextlib.contextmanager
def _as_started(program: Program, *, is_last: bool) -> Iterator[None]:
    """The main module, the arguments and the search path that Python would begin with, until the program is over."""
    main, arguments, path = sys.modules["__main__"], sys.argv, list(sys.path)
    try:
        sys.modules["__main__"] = ModuleType("__main__")
        sys.argv = [program.name, *program.arguments]
        if not sys.flags.safe_path:
            sys.path[0] = (
                os.getcwd()
                if program.is_module
                else os.path.dirname(os.path.realpath(program.name))
            )
        if program.is_unbuffered:
            with contextlib.suppress(AttributeError, ValueError):
                sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a stream of another kind has none
        yield
    finally:
        if not is_last:
            sys.modules["__main__"], sys.argv, sys.path[:] = main, arguments, path


def _module_to_run(name: str) -> Callable[[], object]:
    missing = _missing_for(name)
    if missing is not None:
        raise InputError(
            f"{missing[:100]!r} is not an installed module: install it, or give a file.py"
        )
    return lambda: _run_module(name)


def _missing_for(name: str) -> str | None:
    """The module, or the package it is in, that is not there. If that package fails, running the module says so."""
    try:
        return name if importlib.util.find_spec(name) is None else None
    except ModuleNotFoundError as error:
        return error.name if f"{name}.".startswith(f"{error.name}.") else None
    except (Exception, SystemExit):
        return None


def _file_to_run(name: str) -> Callable[[], object]:
    path = Path(name)
    if path.is_file():
        return lambda: _run_file(os.path.abspath(path))
    raise InputError(f"{name[:100]!r} does not exist: give a script, as in python train.py")


def _run_module(name: str) -> None:
    """Run a module as ``python -m`` does.

    ``runpy.run_module`` would remove the main module when its code ends.
    """
    run_as_main: Callable[[str], object] = vars(runpy)[
        "_run_module_as_main"
    ]  # which Python itself calls by this name
    run_as_main(name)


def _run_file(path: str) -> None:
    """Run a file as ``runpy.run_path`` does, but with ``sys.argv[0]`` different from ``__file__``.

    Processes that it spawns find it by its ``__file__``, for which there must be no ``__spec__``.
    """
    loader, main = SourceFileLoader("__main__", path), vars(sys.modules["__main__"])
    main.update(__file__=path, __cached__=None, __loader__=loader, __builtins__=builtins)
    exec(loader.source_to_code(loader.get_data(path), path), main)  # noqa: S102 - running it is what was asked for


def _status_of(run: Callable[[], object]) -> int:
    try:
        run()
    except SystemExit as leaving:
        return _status_left(leaving.code)
    except BaseException as error:
        _show(error)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
    return _FINE


def _status_left(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or _FINE
    print(code, file=sys.stderr)  # noqa: T201 - as Python does
    return _FAILED


def _show(error: BaseException) -> None:
    """Print an exception as Python does, without the frames before the program's own."""
    trace = error.__traceback__
    while trace is not None and _is_of_starter(trace.tb_frame):
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:
        traceback.print_exception(error)


def _is_of_starter(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _STARTERS


# -- finding its model ---------------------------------------------------------------------------------------------------


class Watch(Protocol):
    """An inspection of a model, which finishes by itself when it has seen enough."""

    @property
    def is_finished(self) -> bool:
        """True if enough steps were inspected."""

    def start(self, under_way: Begun) -> object:
        """Begin, with a call of the model."""

    def finish(self) -> RunFacts:
        """End; what was found."""

    def abandon(self) -> None:
        """End, and find nothing."""


class LargestModule:
    """Watches the module with the most parameters of all that are called, those that train before those that do not.

    A module has no more parameters than the one that it is part of, and is called after it: so it is whole models that are
    watched. A module trains if it is called with gradients on, and has a parameter that requires one.
    """

    def __init__(self, watch: Callable[[nn.Module, bool], Watch], guard: NonFiniteGuard) -> None:
        """Watch modules with ``watch(module, trains)``; ``guard`` checks the steps of all modules to the end."""
        self._make_watch = watch
        self._guard = guard
        self._watch: Watch | None = None
        self._watched: Callable[[], nn.Module | None] = _nothing
        #: whether it trains, and how many parameters it has
        self._rank = (False, -1)
        #: identities of the modules in what is watched
        self._inside: set[int] = set()
        self._sizes = _Sizes()
        self._switching = threading.Lock()
        self._process = os.getpid()
        self._filters = warnings.catch_warnings()
        self._hook: Callable[..., None] = self._before
        self._compiler = CompileWatch(self._look_away, self._look)
        #: what was found when the program was over
        self.found_last: NonFiniteError | None = None
        #: of torchscan, on the way: the program goes on without being watched
        self.internal_error: Exception | None = None

    def __enter__(self) -> LargestModule:
        """Look at every call of a module."""
        self._filters.__enter__()
        warnings.filterwarnings("ignore", _OF_HOOKS, UserWarning)
        self._look()
        self._guard.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no longer."""
        try:
            self._guard.finish()
        except NonFiniteError as error:  # of a device, whose last step could only be read now
            self.found_last = error
        self._look_no_longer()
        self._filters.__exit__(None, None, None)

    @property
    def is_of_this_process(self) -> bool:
        """Not in a process that the program has forked off."""
        return os.getpid() == self._process

    @property
    def trains(self) -> bool:
        """True if the module that was found trains."""
        return self._rank[0]

    def facts(self) -> RunFacts | None:
        """Return the facts of the largest module, or None if there was none."""
        return None if self._watch is None else self._watch.finish()

    def _look(self) -> None:
        """Register the hook that searches for the largest module, hidden from the compiler."""
        self._hook = not_compiled(self._before) if compile_callbacks() else self._before
        register_module_forward_pre_hook(self._hook)

    def _look_away(self) -> None:
        forget_hooks(self._hook)

    def _look_no_longer(self) -> None:
        self._compiler.close()
        self._look_away()
        self._inside.clear()

    def _give_up(self) -> None:
        self._look_no_longer()
        if self._watch is not None:
            with contextlib.suppress(Exception):
                self._watch.abandon()

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if (
            is_dynamo_compiling()
            or is_recording()
            or is_looking_again()
            or not self.is_of_this_process
        ):
            return
        self._compiler.listen()  # it may have been loaded since
        try:
            self._consider(module, arguments)
        except (AlarmError, NonFiniteError):  # who watches has asked for it
            raise
        except Exception as error:
            self.internal_error = error
            self._give_up()

    def _consider(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if self.trains and self._watch is not None and self._watch.is_finished:
            self._look_no_longer()
        elif self.trains and id(module) in self._inside:
            return
        elif self._is_better(module, rank := self._rank_of(module)):
            self._follow((module, arguments), rank)

    def _is_better(self, module: nn.Module, rank: tuple[bool, int]) -> bool:
        """More, or all of what is watched: the module that ``torch.compile`` puts around a model no longer calls its hooks."""
        watched = self._watched()
        return rank > self._rank or (
            rank == self._rank and any(each is watched for each in list(module.modules())[1:])
        )

    def _rank_of(self, module: nn.Module) -> tuple[bool, int]:
        trains = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in module.parameters()
        )
        return trains, self._sizes.of(module)

    def _follow(self, begun: Begun, rank: tuple[bool, int]) -> None:
        with self._switching:
            if not self._is_better(begun[0], rank):  # another thread was faster
                return
            if self._watch is not None:
                self._watch.abandon()
            self._rank, self._watch = rank, self._make_watch(begun[0], rank[0])
            self._watched = weakref.ref(begun[0])
            self._inside = {id(each) for each in begun[0].modules()}
            self._watch.start(begun)
            self._come_last()

    def _come_last(self) -> None:
        """After the watch, its hooks, and whom the compiler tells of it: in the call in which it finishes, all are gone."""
        self._compiler.close()
        self._compiler.listen()
        self._look_away()
        self._look()


def _nothing() -> None:
    """Do nothing. It is the model before one is found."""


class _Sizes:
    """Numbers of parameters of modules, each counted once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], int]] = {}

    def of(self, module: nn.Module) -> int:
        reference, size = self._known.get(id(module), (None, 0))
        if reference is not None and reference() is module:
            return size
        sized = [each for each in module.parameters() if not nn.parameter.is_lazy(each)]
        size = sum(each.numel() for each in sized)
        self._known[id(module)] = weakref.ref(module), size
        return size
