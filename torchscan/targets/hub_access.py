"""Configs in the cache of the Hugging Face hub; downloads and code from the hub are refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.targets.importing import chain_of
from torchscan.targets.parsing import Target

#: the implementations of attention and experts that are part of torch and transformers; all others
#: are packages or repositories, which transformers fetches if the package "kernels" is installed
_BUILT_IN = (None, "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
_MAX_BYTES = 16 * 2**20
#: ``meta-llama/Llama-3.1-8B``, ``gpt2``; with a branch, a tag or a commit, ``gpt2@main``
_MODEL = re.compile(
    r"(?P<name>\w[\w.\-]*(?:/\w[\w.\-]*)?)(?:@(?P<revision>\w[\w.\-]*(?:/\w[\w.\-]*)*))?", re.ASCII
)
_NO_FILE = "it is not a file"
_FROM = "torchscan reads configs from disk or from the hub's cache, and downloads nothing"


def cached_config(target: Target) -> Path:
    """Return the path of the config of the model that the target names."""
    match = _MODEL.fullmatch(target.place)
    if match is None or target.place.endswith(".json"):
        raise InputError.about(target, f"there is no file {target.place!r}: {_FROM}")
    name, revision = match["name"], match["revision"]
    path = _find_in_cache(target, name, revision)
    if path is None:
        option = f" --revision {revision}" if revision else ""
        raise InputError.about(
            target,
            f"{_NO_FILE}, and not in the hub's cache; {_FROM}: run hf download {name} "
            f"config.json{option}, or give the path of a config",
        )
    return path


def _find_in_cache(target: Target, name: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import constants, try_to_load_from_cache
    except ImportError as error:
        raise InputError.about(
            target,
            f"{_NO_FILE}, and the hub's cache needs huggingface_hub: pip install huggingface_hub, "
            "or give the path of a config",
        ) from error
    # huggingface_hub reads the environment on import, and it may have changed since then.
    folder = os.path.expanduser(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE)
    try:
        path = try_to_load_from_cache(name, "config.json", cache_dir=folder, revision=revision)
    except (OSError, ValueError) as error:  # for example a name that no model can have
        message = str(error).partition("\n")[0]
        raise InputError.about(
            target, f"{_NO_FILE}, and reading the hub's cache failed: {message}"
        ) from error
    # Besides None there is a marker for files that the hub is known not to have.
    return Path(path) if isinstance(path, str) else None


def read_config(path: Path, target: Target) -> dict[str, Any]:
    """Return the config of the file with the arguments of the target; {} if it is not an object."""
    if path.stat().st_size > _MAX_BYTES:
        raise InputError.about(
            target, f"{path} is larger than 16 MiB, so it is not a config: give a config.json"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # transformers says what is wrong with it
    if not isinstance(found, dict):
        return {}
    # Implementations have two spellings, with and without an underscore; an argument overrides
    # both.
    given = {name.lstrip("_") for name in target.kwargs}
    kept = {name: value for name, value in found.items() if name.lstrip("_") not in given}
    return {**kept, **target.kwargs}


def refuse_foreign_code(config: Mapping[str, Any], target: Target) -> None:
    """Raise an InputError that names the key of weights, or of kernels of a repository."""
    for key, value in _entries(config):
        _, _, name = key.rpartition(".")
        if any(each in key for each in _IMPLEMENTATIONS):
            kind = value.removeprefix("paged|") if isinstance(value, str) else value
            if isinstance(value, str) and kind not in _BUILT_IN:
                raise InputError.about(
                    target,
                    f"{key} is {value!r}, whose kernels are not part of torch, and torchscan "
                    "downloads nothing: remove it from the config, or append "
                    "(_attn_implementation='sdpa') to the target",
                )
        if value and (name == "checkpoint_path" or (name == "pretrained" and "." in key)):
            raise InputError.about(
                target,
                f"{key} is {value!r}, and torchscan loads no weights, which do not change the "
                "counts: remove it from the config",
            )


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep huggingface_hub, and with it transformers and timm, from using the network.

    Its cache can still be read. The switch is that of the whole process, so downloads of other
    threads fail meanwhile.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def missing_part(
    error: BaseException, config: Mapping[str, Any], target: Target
) -> InputError | None:
    """Return the error that names a repository that is not in the cache.

    None: something else failed.
    """
    errors = sys.modules.get("huggingface_hub.errors")
    names = ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
    kinds = tuple(getattr(errors, name) for name in names if hasattr(errors, name))
    if not any(isinstance(each, kinds) for each in chain_of(error)):
        return None
    messages = " ".join(str(each) for each in chain_of(error))
    repositories = {}
    for key, value in _entries(config):
        if isinstance(value, str):
            # timm's names of repositories begin with a scheme, as in hf-hub:owner/name.
            _, _, repositories[key] = value.rpartition(":")
    named = [(key, value) for key, value in repositories.items() if value and value in messages]
    # A config may leave out the key that asks for a repository, and transformers has a default.
    key, value = max(named, key=lambda each: len(each[1]), default=("", ""))
    what = f"{key} is {value!r}, which is" if key else "it refers to a repository that is"
    return InputError.about(
        target,
        f"{what} not in the hub's cache, and torchscan downloads nothing: remove it, or run hf "
        "download first",
    )


def _entries(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is neither an object nor a list, by its key, dotted."""
    children: Any = ()
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    else:
        yield key, value
    for name, child in children:
        yield from _entries(child, f"{key}.{name}" if key else str(name))
