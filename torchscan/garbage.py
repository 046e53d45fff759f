"""When Python looks for garbage: not while thousands of records are made, none of which is."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """What is made in here is not searched for garbage again and again.

    Beside a model's libraries a full search takes some 80 ms, and Python makes one whenever a quarter more has been made.
    Where searches were on they are on again afterwards, also if a model has turned them off; where they were off nothing is
    done, as another thread may have turned them off for a while in the same way.
    """
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
