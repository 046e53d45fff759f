"""A program of the user's, run in this process as Python would, and the model that it trains."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import ModuleType

from torchscan.errors import InputError

_FINE, _FAILED, _INTERRUPTED = 0, 1, 130
_PYTHON = re.compile(r"pythonw?(?P<version>\d+(\.\d+)*)?(\.exe)?")
#: modules that start a program, whose frames its tracebacks do not show
_STARTERS = (__name__, "runpy", "importlib._bootstrap", "importlib._bootstrap_external")


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
