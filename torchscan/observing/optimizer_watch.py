"""The start and end of each optimizer step in the process, of whichever model."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle


class OptimizerWatch:
    """Reports when optimizers step."""

    def __init__(
        self, before: Callable[[Optimizer], None], after: Callable[[Optimizer], None]
    ) -> None:
        self._before, self._after = before, after
        self._handles: tuple[RemovableHandle, ...] = ()

    def start(self) -> None:
        """Report from now on."""
        self._handles = (
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer)),
        )

    def close(self) -> None:
        """Report nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = ()
