"""torchscan: what a PyTorch model consists of and what it costs, before anything is trained.

Names are imported when they are first used, so that ``torchscan --help`` need not wait for torch.
``__init__.pyi`` lists them for type checkers, and for this file, too.
"""

import sys
from importlib import import_module
from typing import Any

from torchscan import formatters, hints
from torchscan.garbage import collected_later


def _homes() -> dict[str, str]:
    """Return the module of each public name.

    The list is read line by line: a parser would take longer than all the rest.
    """
    homes: dict[str, str] = {}
    home = ""
    with open(f"{__file__}i", encoding="utf-8") as listed:
        for line in listed:
            if line.startswith("from "):
                home = line.split()[1]
            if " as " in line and home != __name__:
                homes[line.rpartition(" as ")[2].strip(" ,\n")] = home
    return homes


_HOMES = _homes()
_SUBMODULES = ("parallel", "sinks", "types")
#: without names of the standard library, which ``from torchscan import *`` must not hide
__all__ = sorted({*_HOMES, *_SUBMODULES} - {"inspect", "types"})

formatters.load_writers_by(lambda: _imported("torchscan.report.result_display"))
formatters.load_writers_by(
    lambda: _imported("torchscan.watching.run_display"), "torchscan.watching"
)
if hints.HintFinder not in sys.meta_path:
    sys.meta_path.append(hints.HintFinder)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(_imported(_HOMES[name]), name)
        return value
    hint = hints.hint_for_name(name)
    if hint is not None:
        raise AttributeError(hint)
    path = f"{__name__}.{name}"
    try:
        return _imported(path)  # for example torchscan.crawler, as if all had been imported
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def _imported(path: str) -> Any:
    """Return a module.

    ``from torchscan import summary`` would hide an AttributeError behind "cannot import name".
    """
    try:
        with collected_later():
            return import_module(path)
    except AttributeError as error:
        raise ImportError(f"{path} cannot be imported: {error}") from error


def __dir__() -> list[str]:
    return sorted({*_HOMES, *_SUBMODULES})
