"""Names of devices that contain, or resemble, a given one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: words that tell one model from another, so a name must not leave them out
_DISTINGUISHING = {"ti", "super", "max", "nvl", "s", "g", "q", "pro", "ultra", "gcd", "laptop"}
#: other words for one in the names of devices
_SYNONYMS = {"mobile": "laptop", "notebook": "laptop"}
#: similarity that a name needs to be suggested for an unknown one; 1 means equal
_MIN_LIKENESS = 0.6


def is_part(name: str, full: str) -> bool:
    """Return whether ``full`` contains the words of ``name``.

    "A100 80GB SXM" is part of "NVIDIA A100-SXM4-80GB", and "A10" is not. "GTX 1650" is not part of
    "GTX 1650 Ti".
    """
    if not has_words(name, full):
        return False
    missing = _words(full) - _words(name)
    return missing.isdisjoint(_DISTINGUISHING)


def has_words(name: str, full: str) -> bool:
    """Return whether ``full`` contains the words of ``name``, of which there must be some.

    What is written together has to be side by side: "A40" is not in "NVIDIA A100-SXM4-40GB".
    """
    parts = re.findall("[a-z0-9]+", name.lower())
    present = _spaced(full)
    return bool(parts) and all(_spaced(part) in present for part in parts)


def _spaced(name: str) -> str:
    """Return the words of a name with a space on either side of each."""
    return f" {' '.join(_split(name))} "


def most_similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the three known names with the most similar words.

    The similarity of two names is the mean over the words of the given one, each compared with the
    most similar word of the other.
    """
    words = _words(name)
    likeness: dict[str, float] = {}
    for full in known:
        others = _words(full)
        total = 0.0
        for word in words:
            total += max(difflib.SequenceMatcher(None, word, other).ratio() for other in others)
        likeness[full] = total / max(len(words), 1)

    similar = [full for full in likeness if likeness[full] >= _MIN_LIKENESS]
    similar.sort(key=lambda full: -likeness[full])
    return similar[:3]


def _words(name: str) -> set[str]:
    return set(_split(name))


def _split(name: str) -> list[str]:
    """Return the words of a name, letters apart from numbers: "RTX4090" is "rtx", "4090"."""
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    return [_SYNONYMS.get(word, word) for word in words]
