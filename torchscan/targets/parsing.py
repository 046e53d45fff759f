"""Parser of targets.

They are ``package.module:callable(args)``, ``path/file.py:name``, ``timm:…``, ``torchvision:…`` and
``hf:…``.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchscan.errors import InputError
from torchscan.wording import Subject

Kind = Literal["module", "file", "torchvision", "timm", "hf"]

HOW = (
    "give package.module:callable(arguments), path/to/file.py:name, torchvision:resnet50, "
    "timm:vit_base_patch16_224 or hf:path/to/config.json"
)
#: splits at the first colon that is followed only by a name and its arguments
_NAMED = re.compile(
    r"(?P<place>.+?):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?P<call>\(.*\))?", re.DOTALL
)
_HUB = re.compile(r"(?P<kind>torchvision|timm):(?P<name>[\w.\-]+)(?P<call>\(.*\))?", re.DOTALL)
_CONFIG = re.compile(r"hf:(?P<place>.+?)(?P<call>\([^/()]*\))?", re.DOTALL)
_MAX_SHOWN = 200
#: how files of SQLite begin
_SQLITE = b"SQLite format 3\0"
_FILES = (".pt", ".pth", ".onnx", ".ipynb", ".safetensors", ".bin", ".yaml")
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model by name: where to look for it, its name, and its arguments."""

    text: str
    kind: Kind
    #: a module's name, a file's path or a model's name on the hub; empty for the collections
    place: str
    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    is_call: bool = False
    #: True for commands about language models: then a config without architectures has a head
    is_language_model: bool = False

    def __str__(self) -> str:
        """Return the name as it was given, shortened if it is longer than any model's name."""
        return self.text if len(self.text) <= _MAX_SHOWN else f"{self.text[:_MAX_SHOWN]}…"


def parse_target(text: str) -> Target:
    """Parse a target. Arguments are Python literals; nothing is evaluated."""
    kind, match = _match(text)
    if match is None or "\0" in text:
        raise InputError(Subject(_quote(text)), f" is not a model: {_meant(text)}")
    parts = match.groupdict()
    place, name, call = parts.get("place") or "", parts.get("name") or "", parts.get("call")
    if kind == "module" and not _MODULE.fullmatch(place):
        raise InputError(
            Subject(_quote(text)),
            f" is not a model: {_quote(place)} is neither a module nor a .py file: {HOW}",
        )
    args, kwargs = _arguments(text, call)
    if kind != "module" and kind != "file" and args:
        raise InputError.about(
            _quote(text),
            f"arguments have no names: give {name or 'config.json'}(num_classes=10), for example",
        )
    return Target(
        text=text,
        kind=kind,
        place=place,
        name=name,
        args=args,
        kwargs=kwargs,
        is_call=call is not None,
    )


def _match(text: str) -> tuple[Kind, re.Match[str] | None]:
    """Return the kind of a target, and its parts if it has the form of this kind."""
    if text.startswith("hf:"):
        return "hf", _CONFIG.fullmatch(text)
    if text.startswith("torchvision:"):
        return "torchvision", _HUB.fullmatch(text)
    if text.startswith("timm:"):
        return "timm", _HUB.fullmatch(text)
    match = _NAMED.fullmatch(text)
    if match is not None and match["place"].endswith(".py"):
        return "file", match
    return "module", match


def _meant(text: str) -> str:
    """Return advice for a name without a file or hub."""
    if len(text) > 100 or "\n" in text or "\0" in text:
        return HOW
    if is_watched(text):
        return f"it is a watched run, which torchscan runs open {text} shows"
    if text.endswith(".py"):
        return f"give the name of one in the file, {text}:NAME"
    if text.endswith(".json"):
        return f"did you mean hf:{text}?"
    if not _MODULE.fullmatch(text) or text.endswith(_FILES):
        return HOW
    place, _, name = text.rpartition(".")
    if place:
        return f"did you mean {place}:{name}?"
    return f"did you mean torchvision:{name}, timm:{name} or a_file.py:{name}?"


def is_watched(text: str) -> bool:
    """Return whether a text is the folder of a watched run, or a file in it."""
    path = Path(text)
    with contextlib.suppress(OSError, ValueError):  # no name of a file
        if path.suffix == ".sqlite":
            with path.open("rb") as file:
                return file.read(len(_SQLITE)) == _SQLITE
        return bool(text) and any(path.glob("rank*.sqlite"))
    return False


def _arguments(text: str, call: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if call is None:
        return (), {}
    try:
        parsed = ast.parse(f"_{call}", mode="eval").body
        if not isinstance(parsed, ast.Call) or not isinstance(parsed.func, ast.Name):
            raise ValueError("give one pair of parentheses")
        compile(ast.Expression(parsed), "arguments", "eval")  # finds repeated keywords
        if any(keyword.arg is None for keyword in parsed.keywords):
            raise ValueError("** is not supported")
        keywords = {str(keyword.arg): _literal(keyword.value) for keyword in parsed.keywords}
        return tuple(_literal(argument) for argument in parsed.args), keywords
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        message = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            "the arguments of ", Subject(_quote(text)), f" are invalid: {message}"
        ) from error


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)[:60]!r} is not a literal") from None


def _quote(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 100 else f"{shown[:99]}…"
