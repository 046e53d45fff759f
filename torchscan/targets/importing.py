"""Import of the modules and files that targets name, and search for names in them."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.targets.parsing import Target

#: names that are suggested for the beginning of a name
_MAX_NAMES = 8


@contextlib.contextmanager
def first_on_the_path(folder: Path) -> Iterator[None]:
    """Let modules of this folder be found, as by ``python -m`` there, and restore the path."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def named(target: Target, folder: Path) -> Any:
    """Return the object that the target names in its module or file."""
    found = _file(target, folder) if target.kind == "file" else imported(target.place, target)
    for name in target.name.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise InputError.about(
                target, f"{target.place} has no {name!r}{near(name, dir(found))}"
            ) from None
    return found


def imported(name: str, target: Target) -> Any:
    """Return a module by its name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InputError.about(
                target, f"there is no module {error.name!r} here: install it, or give a file.py"
            ) from error
        raise InputError.about(target, f"importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise InputError.about(
            target, f"importing {name} failed: {describe_error(error)}"
        ) from error


def path_of(text: str, folder: Path, target: Target) -> Path:
    """Return the path, relative to a folder."""
    try:
        path = (folder / Path(text).expanduser()).resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()  # which says, unlike exists() of Python 3.14, that a name is too long
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError.about(
            str(target)[:100], f"{text[:60]!r} is not a path: {error.__class__.__name__}"
        ) from error
    return path


def near(name: str, known: Collection[str]) -> str:
    """Return a question that suggests names: the shortest that begin so, or else similar ones."""
    public = [each for each in known if not each.startswith("_")]
    longer = sorted((each for each in public if each.lower().startswith(name.lower())), key=len)
    alike = longer[:_MAX_NAMES] or difflib.get_close_matches(name, public, 3)
    if not alike:
        return ""
    question = f": did you mean {' or '.join(alike)}?"
    if len(longer) > _MAX_NAMES:
        question += f" {len(longer) - _MAX_NAMES} more begin like this."
    return question


def _file(target: Target, folder: Path) -> Any:
    """Return the file as a module, run once; like a script, it can import its neighbors."""
    path = path_of(target.place, folder, target)
    if not path.is_file():
        raise InputError.about(target, f"there is no file {target.place!r}")
    name = f"_torchscan_target_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    sys.path.insert(0, str(path.parent))  # until the path is restored
    specification: Any = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError.about(
            target, f"running {target.place} failed: {describe_error(error)}"
        ) from error
    return module


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with advice for the most common one."""
    text, _, _ = f"{type(error).__name__}: {error}".partition("\n")
    return explain_torchvision(error) or text


def explain_torchvision(error: BaseException) -> str | None:
    """Return the error of a torchvision that does not fit torch if it caused this one, or None."""
    causes = [each for each in chain_of(error) if "operator torchvision::" in str(each)]
    if not causes:
        return None
    import torch  # has been imported by torchvision

    cause = causes[-1]
    text, _, _ = f"{type(cause).__name__}: {cause}".partition("\n")
    problem = "torchvision was built for another version of torch"
    advice = f"install the torchvision that matches torch {torch.__version__}"
    return f"{text}; {problem}: {advice}"


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from, or while they were handled."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
