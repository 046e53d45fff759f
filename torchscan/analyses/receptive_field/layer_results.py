"""Results for all layer calls of a pass."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torchscan.errors import InputError
from torchscan.results import Result


class _AxisResult(Protocol):
    """A result along one axis."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""


class _LayerResult(Protocol):
    """A result for one call of one module."""

    @property
    def path(self) -> str: ...
    @property
    def type_name(self) -> str: ...
    @property
    def call(self) -> int: ...
    @property
    def outputs(self) -> Sequence[Sequence[_AxisResult]]: ...


L = TypeVar("L", bound=_LayerResult)


@dataclass(frozen=True, slots=True)
class LayerResults(Result, Generic[L]):
    """Results for all layer calls.

    ``["layer4"]`` is a layer's first call, ``["layer4", 1]`` its second.
    """

    layers: tuple[L, ...]

    @property
    def output(self) -> L:
        """The result for the model's output."""
        return self.layers[0]

    def __getitem__(self, key: str | tuple[str, int]) -> L:
        match key:
            case str(path):
                call = 0
            case str(path), int(call):
                pass
            case _:
                raise InputError(f"{key!r} is not a layer: give its path, or (path, call)")
        for layer in self.layers:
            if (layer.path, layer.call) == (path, call):
                return layer
        known = list(dict.fromkeys(each.path for each in self.layers))
        near = difflib.get_close_matches(str(path), known, 5, 0) or known[:5]
        times = f" {call + 1} times" if call else ""
        raise InputError(
            f"no layer {path!r} was called{times}: choose from {', '.join(map(repr, near))}"
        )

    def __iter__(self) -> Iterator[L]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        layers = []
        for layer in self.layers:
            outputs: list[list[Any]] = []
            for axes in layer.outputs:
                plain = [axis.to_dict() for axis in axes]
                outputs.append(plain)
            layers.append(
                {
                    "path": layer.path,
                    "type": layer.type_name,
                    "call": layer.call,
                    "outputs": outputs,
                }
            )
        return {"layers": layers}
