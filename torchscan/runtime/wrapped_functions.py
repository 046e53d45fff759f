"""Functions of torch that are replaced by others for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def wrap_function(
    names: Mapping[str, Any],
    name: str,
    wrapper: Callable[..., Any],
    assign: Callable[[str, Any], object],
) -> Callable[[], None]:
    """Replace a function by one that passes it to ``wrapper``, with its arguments; return what puts it back.

    It is not put back if something else has replaced it since: that may call what it found here.
    """
    original = names[name]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    assign(name, wrapped)

    def put_back() -> None:
        if names[name] is wrapped:
            assign(name, original)

    return put_back
