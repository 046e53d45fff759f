"""Configs by their names on the Hugging Face hub, as far as its cache on this machine has them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchscan.errors import InputError
from torchscan.targets.parsing import Target

#: ``meta-llama/Llama-3.1-8B``, ``gpt2``; with a branch, a tag or a commit, ``gpt2@main``
_MODEL = re.compile(
    r"(?P<name>\w[\w.\-]*(?:/\w[\w.\-]*)?)(?:@(?P<revision>\w[\w.\-]*(?:/\w[\w.\-]*)*))?", re.ASCII
)
_NO_FILE = "it is not a file"
_FROM = "torchscan reads configs from disk or from the hub's cache, and downloads nothing"


def cached_config(target: Target) -> Path:
    """The config of the model that the target names."""
    found = _MODEL.fullmatch(target.place)
    if found is None or target.place.endswith(".json"):
        raise InputError.about(target, f"there is no file {target.place!r}: {_FROM}")
    path = _in_cache(target, found["name"], found["revision"])
    if path is None:
        at = f" --revision {found['revision']}" if found["revision"] else ""
        raise InputError.about(
            target,
            f"{_NO_FILE}, and not in the hub's cache; {_FROM}: run hf download {found['name']} "
            f"config.json{at}, or give the path of a config",
        )
    return path


def _in_cache(target: Target, name: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import constants, try_to_load_from_cache
    except ImportError as error:
        raise InputError.about(
            target,
            f"{_NO_FILE}, and the hub's cache needs huggingface_hub: pip install huggingface_hub, "
            "or give the path of a config",
        ) from error
    # the environment may have changed since huggingface_hub was imported, which is when it looks
    folder = os.path.expanduser(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE)
    try:
        path = try_to_load_from_cache(name, "config.json", cache_dir=folder, revision=revision)
    except (OSError, ValueError) as error:  # a name that no model on the hub can have, say
        message = str(error).partition("\n")[0]
        raise InputError.about(
            target, f"{_NO_FILE}, and reading the hub's cache failed: {message}"
        ) from error
    return (
        Path(path) if isinstance(path, str) else None
    )  # it may also say that the hub has no such file
