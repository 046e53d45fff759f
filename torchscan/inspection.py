"""The verb that watches what a model really does."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn

from torchscan.errors import InputError
from torchscan.runtime.inspector import Inspector
from torchscan.runtime.run import RunFacts, run_of


class Run:
    """An inspection: started, finished, then full of facts. Printed, it is a table of them."""

    def __init__(self, model: nn.Module, *, warm_up: int) -> None:
        self._inspector = Inspector(model)
        self._warm_up = warm_up
        self._facts: RunFacts | None = None

    def start(self) -> Run:
        """Follow the model from now on."""
        self._inspector.start()
        return self

    def finish(self) -> RunFacts:
        """Follow it no longer; what was found."""
        if self._facts is None:
            self._facts = run_of(self._inspector.finish(), self._warm_up)
        return self._facts

    def __enter__(self) -> Run:
        """Start."""
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Finish, whatever has happened."""
        self.finish()

    @property
    def facts(self) -> RunFacts:
        """What was found. Raises while the inspection goes on."""
        if self._facts is None:
            raise InputError("the inspection is not finished: leave its context, or call finish()")
        return self._facts

    def __str__(self) -> str:
        """As a table, once it is finished."""
        return repr(self) if self._facts is None else str(self._facts)

    def __repr__(self) -> str:
        """Whether it goes on, or what it has found."""
        return "<Run: not finished>" if self._facts is None else f"<Run: {self._facts!r}>"

    def _repr_html_(self) -> str:
        return repr(self) if self._facts is None else self._facts._repr_html_()

    @property
    def info(self) -> dict[str, Any]:
        """The calls, nested as the modules are."""
        return self.facts.info


def inspect(model: nn.Module, *, warm_up: int = 1) -> Run:
    """Watch what ``model`` does in the context of the result: each call of a module, forward and backward, in real steps.

    Nothing is put on the model, and its results are the same bit by bit.

    Args:
        warm_up: of several steps, how many of the first are left out.
    """
    return Run(model, warm_up=warm_up)
