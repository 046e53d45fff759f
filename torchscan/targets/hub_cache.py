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
_FROM = "configs are read from disk or from the hub's cache, never downloaded"


def cached_config(target: Target) -> Path:
    """The config of the model that the target names."""
    found = _MODEL.fullmatch(target.place)
    if found is None or target.place.endswith(".json"):
        raise InputError(f"{target}: there is no file {target.place!r}; {_FROM}")
    path = _in_cache(target, found["name"], found["revision"])
    if path is None:
        at = f" --revision {found['revision']}" if found["revision"] else ""
        raise InputError(
            f"{target}: it is no file, and not in the hub's cache; {_FROM}: "
            f"run hf download {found['name']} config.json{at}, or give the path of a config"
        )
    return path


def _in_cache(target: Target, name: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import constants, try_to_load_from_cache
    except ImportError as error:
        raise InputError(
            f"{target}: it is no file, and looking in the hub's cache needs huggingface_hub: "
            "pip install huggingface_hub, or give the path of a config"
        ) from error
    # the environment may have changed since huggingface_hub was imported, which is when it looks
    folder = os.path.expanduser(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE)
    try:
        path = try_to_load_from_cache(name, "config.json", cache_dir=folder, revision=revision)
    except (OSError, ValueError) as error:  # a name that no model on the hub can have, say
        said = str(error).partition("\n")[0]
        raise InputError(
            f"{target}: it is no file, and the hub's cache cannot be asked: {said}"
        ) from error
    return (
        Path(path) if isinstance(path, str) else None
    )  # it may also say that the hub has no such file
