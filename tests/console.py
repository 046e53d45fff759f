"""Runs the ``console`` blocks of a page, as a reader would in a folder with the examples, and says what they print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import tests.torchvision_cpu  # noqa: F401 - beside a CPU build of torch
from torchscan.cli.main import main

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def with_real_output(page: str) -> str:
    """The page, with what its commands print now."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "docs" / "examples", folder, dirs_exist_ok=True)
        session = _Session(Path(folder))
        return _BLOCK.sub(lambda block: f"```console\n{session.block(block[1])}```", page)


class _Session:
    """A shell in a folder: torchscan runs in this process, what else there is in one of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._status = 0

    def block(self, text: str) -> str:
        """The commands of a block, each with its output."""
        commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        return (
            "\n\n".join(f"$ {command}\n{self._output(command)}".rstrip() for command in commands)
            + "\n"
        )

    def _output(self, command: str) -> str:
        name, *arguments = shlex.split(command)
        if name == "torchscan":
            return self._torchscan(arguments)
        if command == "echo $?":
            return f"{self._status}\n"
        done = subprocess.run(  # noqa: S603
            [name, *arguments], cwd=self._folder, capture_output=True, text=True, check=True
        )
        return done.stdout

    def _torchscan(self, arguments: list[str]) -> str:
        out = io.StringIO()
        path, modules = list(sys.path), set(sys.modules)
        with contextlib.ExitStack() as stack:
            for each in (
                contextlib.chdir(self._folder),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(out),
            ):
                stack.enter_context(each)
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("default")
            self._status = main(arguments)
        sys.path[:] = path
        for name in [
            each for each in set(sys.modules) - modules if each.startswith("_torchscan_target_")
        ]:
            del sys.modules[name]
        lines = (line.rstrip() for line in out.getvalue().splitlines())
        return re.sub(r"(torch \d+\.\d+\.\d+)\+\w+", r"\1", "\n".join(lines)).replace(
            f"{self._folder}/", ""
        )
