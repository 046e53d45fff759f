"""The sentence of each note: the only place where facts of results become English."""

from __future__ import annotations

from typing import Any

from torchscan.notes import register_texts

#: code -> the sentence, with the names of values in braces, or a function of the values
TEXTS: dict[str, Any] = {
    # of files that older versions wrote, which hold sentences
    "text": "{text}",
}

register_texts(TEXTS)
