"""Counts the functions of torchscan that ``summary`` of five layers runs: ``call_count.py [--list]``.

Modules are loaded before, so that what a file does when it is imported does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

from torch import nn

import torchscan

PACKAGE = str(Path(torchscan.__file__).parent)
#: parts of functions that have frames of their own in some versions of Python
_PARTS = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class CallCount:
    """The functions of the package that run, and the most that run inside each other."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        #: the innermost functions at the deepest place, from the outside in
        self.deepest: list[str] = []

    def notice(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; ``sys.setprofile`` calls this."""
        code = frame.f_code
        if event != "call" or not _is_counted(code):
            return
        self.functions.add(code)
        path = []
        around: FrameType | None = frame
        while around is not None:
            if _is_counted(around.f_code):
                path.append(around.f_code.co_qualname)
            around = around.f_back
        if len(path) > len(self.deepest):
            self.deepest = path[::-1]


def _is_counted(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE) and code.co_name not in _PARTS


def count_calls(model: nn.Module, shape: tuple[int, ...]) -> CallCount:
    """Return the functions that a second ``summary`` of a model runs."""
    counted = CallCount()
    with contextlib.redirect_stdout(io.StringIO()):
        torchscan.summary(model, shape)
        sys.setprofile(counted.notice)
        try:
            torchscan.summary(model, shape)
        finally:
            sys.setprofile(None)
    return counted


def main() -> None:
    """Print the numbers, and with ``--list`` the functions of each file and the deepest calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="list the functions by file")
    options = parser.parse_args()
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 15 * 15, 10)
    )
    counted = count_calls(model, (3, 32, 32))

    names_by_file = defaultdict(list)
    for code in counted.functions:
        file = str(Path(code.co_filename).relative_to(PACKAGE))
        names_by_file[file].append(code.co_qualname)
    if options.list:
        for file, names in sorted(names_by_file.items()):
            print(f"{file} {len(names)}: {', '.join(sorted(names))}")
        print(f"deepest: {' > '.join(counted.deepest)}")
    print(
        f"{len(counted.functions)} functions in {len(names_by_file)} files, "
        f"{len(counted.deepest)} deep"
    )


if __name__ == "__main__":
    main()
