"""The recorded passes of a model that generates, shared by all questions about it on one mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchscan.analyses.generation.cache_size import CacheSize
from torchscan.analyses.generation.spread_model import SpreadModel
from torchscan.once import forget, once
from torchscan.precisions import Precision
from torchscan.recording.folding import Folded
from torchscan.recording.generation_passes import Generating, Length, Step, Stepping

#: tokens of a prompt that shows something in a moment
_SHORT = 3


class LayerCheck(NamedTuple):
    """Facts about a model and the tokens that are asked for, which one pass shows."""

    #: True if layers that look equal are
    is_equal: bool
    #: True if a prompt is run token by token
    is_loop: bool


class SharedPasses:
    """The passes by batch size. Layers that are equal to others are left out if possible."""

    def __init__(
        self,
        spread: SpreadModel,
        *,
        step: Step | None,
        inputs: Mapping[str, Tensor] | None,
        kernels: Mapping[str, Any],
        precision: Precision | None,
        length: Length,
        limit: int | None,
        checks: dict[Length, LayerCheck],
    ) -> None:
        """Record nothing yet.

        Args:
            spread: the model.
            step: a function that calls the model, or None.
            inputs: what the pass over the prompt is given besides, for one sequence.
            kernels: the kind of device, as for :class:`Generating`.
            precision: the format that the model is converted to.
            length: the tokens that are asked for.
            limit: the number of positions of the model, or None.
            checks: what other questions about the model found out, by the tokens that are asked
                for. What is found out here is added.
        """
        self._spread = spread
        self._step = step
        self._inputs = inputs
        self._kernels = kernels
        self._precision = precision
        self._length = length
        self._limit = limit
        self._checks = checks
        self._by_batch: dict[int, Generating] = {}
        self._all: list[Generating] = []

    def of_batch(self, batch_size: int) -> Generating:
        """Return the passes of so many sequences."""
        if batch_size != 1 and batch_size not in self._by_batch:
            self._by_batch[batch_size] = self._new(batch_size)
        passes = self.alone if batch_size == 1 else self._by_batch[batch_size]
        passes.folded = self.folded
        return passes

    @once
    def sizes(self) -> Mapping[str, int]:
        """The elements of parameters that are divided among devices, by their paths."""
        prefix = "" if self._step is None else "model."
        return {f"{prefix}{path}": size for path, size in self._spread.sizes.items()}

    @once
    def whole_matrices(self) -> tuple[str, ...]:
        """The matrices of layers that are not divided along "tp", by their paths in a layer."""
        return self._spread.whole_matrices(self._short or self._spread.all_layers)

    def run_all_layers(self) -> None:
        """Forget all passes, and record all layers from now on."""
        self._checks[self._length] = self._check._replace(is_equal=False)
        self._by_batch.clear()
        forget(self, "alone", "folded", "_short", "whole_matrices")

    @property
    def is_loop(self) -> bool:
        """True if a prompt is run token by token, so that a long one is slow to record."""
        return self._check.is_loop

    @property
    def num_records(self) -> int:
        """Number of passes that were recorded so far."""
        return sum(each.records for each in self._all)

    @once
    def alone(self) -> Generating:
        """The passes of one sequence."""
        return self._new(1)

    @once
    def folded(self) -> Folded | None:
        """The model with fewer layers, or None if layers that look equal are not."""
        if self._short is None:
            self._fold(self.alone)
        else:
            self.alone.leave_out()
        return self.alone.folded

    @once
    def _short(self) -> nn.Module | None:
        """The part of a device with fewer layers, or None if all have to be sharded.

        Layers are compared before the model is sharded, which takes less time.
        """
        short = self._spread.some_layers if self._step is None else None
        if short is None:
            return None
        if self._length not in self._checks:
            module = self._spread.module
            self._fold(self._generating(module, 1, precision=self._precision))
        return short if self._check.is_equal else None

    def _fold(self, passes: Generating) -> None:
        """Leave out layers if they are equal to others.

        That is found out in a pass that was asked for or, if this takes a step for each token, in
        a short one.
        """
        if self._length not in self._checks:
            passes.leave_out()
            is_loop = CacheSize(passes, self._length, None, self._limit).is_loop
            length = Length(self._length.prompt, self._length.generated // 2)
            passes.fold(Length(_SHORT, _SHORT) if is_loop else length)
            self._checks[self._length] = LayerCheck(passes.folded is not None, is_loop)
        elif self._check.is_equal:
            passes.leave_out()

    @property
    def _check(self) -> LayerCheck:
        return self._checks[self._length]

    def _new(self, batch_size: int) -> Generating:
        if self._short is not None:
            return self._generating(self._short, batch_size, lacks_layers=True)
        precision = None if self._spread.is_converted else self._precision
        return self._generating(self._spread.all_layers, batch_size, precision=precision)

    def _generating(self, module: nn.Module, batch_size: int, **options: Any) -> Generating:
        like = self._spread.module
        if self._step is not None:
            module, like = Stepping(module, self._step), Stepping(like, self._step)
        passes = Generating(
            module,
            batch_size=batch_size,
            kernels=self._kernels,
            inputs=self._inputs,
            like=like,
            **options,
        )
        self._all.append(passes)
        return passes
