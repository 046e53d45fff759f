"""The definition of an option, generated from the Python argument of the same name.

Explanations, defaults and choices are read from the source text of the package: importing it would
make ``torchscan --help`` wait for torch.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGE = Path(__file__).parent.parent


class Option(NamedTuple):
    """An option of the shell, and what it takes from the argument in Python."""

    #: sentence, without its period; "{}" is the first clause of the explanation in ``files``
    help: str
    metavar: str | None = None
    type: Callable[[str], Any] | None = None
    #: where the argument is explained and has its default
    files: Sequence[str] = ()
    short: str | None = None
    #: the values, or the file and name of the ``Literal`` that has them
    choices: Sequence[str] | str | None = None
    #: None: as in Python
    default: Any = None
    #: name of the argument in Python, or None if it is that of the option
    python: str | None = None
    action: Any = None
    required: bool | None = None

    def default_of(self, argument: str) -> Any:
        """Return the default of this argument, or None if it has none."""
        if self.action is not None or self.default is not None:
            return self.default
        pattern = rf"^    {argument}: [^=\n]+ = (.+?),?$"
        value = re.search(pattern, _read(self.files), re.MULTILINE)
        return None if value is None else ast.literal_eval(value[1])

    def values(self) -> Sequence[str] | None:
        """Return the choices, or None if any value will do."""
        if not isinstance(self.choices, str):
            return self.choices
        file, name = self.choices.split(":")
        pattern = rf"^{name} = Literal\[(.*?)\]"
        (values,) = re.findall(pattern, _read((file,)), re.MULTILINE | re.DOTALL)
        return re.findall(r'"(.*?)"', values)

    def sentence(self, argument: str, default: Any, name_option: Callable[[str], str]) -> str:
        """Return the help text, completed with the explanation of this argument and the default.

        ``name_option`` returns the words of a shell for code in the explanation.
        """
        text = self.help
        if "{}" in text:
            text = text.format(self._explanation(argument, name_option))
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        if default and "(default" not in text:
            text = f"{text} (default: {default})"
        return f"{text[0].upper()}{text[1:]}."

    def _explanation(self, argument: str, name_option: Callable[[str], str]) -> str:
        """Return the first clause of the argument's explanation, in the words of a shell."""
        sections = re.findall(r"^    Args:\n((?: {8}.*\n)+)", _read(self.files), re.MULTILINE)
        pattern = rf"^ +{argument}: (.*(?:\n {{12}}.*)*)"
        (entry, *_) = re.findall(pattern, "".join(sections), re.MULTILINE)
        clause, *_ = re.split(r"[.:;](?: |$)", " ".join(entry.split()))

        return re.sub(r"``(.+?)``", lambda code: name_option(code[1]), clause)


@functools.lru_cache(maxsize=16)
def _read(files: Sequence[str]) -> str:
    return "\n".join((_PACKAGE / file).read_text(encoding="utf-8") for file in files)
