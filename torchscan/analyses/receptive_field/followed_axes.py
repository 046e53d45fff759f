"""The axes of the inputs that are followed, and which of them are spatial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchscan.analyses.receptive_field.result_states import Axis, ResultStates
from torchscan.errors import Argument, InputError
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedAxes:
    """All axes of the inputs but the batch: the channels show up while they are followed."""

    trace: Trace
    #: the spatial dimensions of inputs that were named by the user
    given: Mapping[str, Sequence[int]]
    tracked: Sequence[Axis]
    #: the inputs whose channels are to be found
    undecided: frozenset[int]

    @classmethod
    def of(cls, trace: Trace, axes: Mapping[str, Sequence[int]] | None) -> FollowedAxes:
        """Return the axes of a trace, or raise an error if the given dimensions are malformed."""
        index_by_name: dict[str | None, int] = {}  # of inputs with the same name, the first one's
        for index, record in enumerate(trace.tensors):
            if record.kind == "input":
                index_by_name.setdefault(record.name, index)
        inputs = sorted(index_by_name.values())
        num_dims = {
            trace.tensors[index].name: len(trace.tensors[index].spec.shape) for index in inputs
        }
        given = _check_axes(axes or {}, num_dims)
        tracked: list[Axis] = []
        undecided: set[int] = set()
        for index in inputs:
            record = trace.tensors[index]
            dims = given.get(record.name, range(1, len(record.spec.shape)))
            tracked += [(index, dim) for dim in dims]
            if record.name not in given and record.spec.is_arithmetic:
                undecided.add(index)
        return cls(trace=trace, given=given, tracked=tracked, undecided=frozenset(undecided))

    def result_states(self, *, strict_norm: bool) -> ResultStates:
        """Return the states in which a walk keeps what tensors see of these axes."""
        return ResultStates(self.trace, self.tracked, set(self.undecided), strict_norm=strict_norm)

    def spatial(self, channels: Mapping[int, int | None]) -> list[Axis]:
        """Return the spatial axes, given the channels of inputs that were found.

        If neither given nor found, the channels are dimension 1 of an input with three or more.
        """
        return [axis for axis in self.tracked if self._is_spatial(axis, channels)]

    def _is_spatial(self, axis: Axis, channels: Mapping[int, int | None]) -> bool:
        tensor, dim = axis
        record = self.trace.tensors[tensor]
        if record.name in self.given or not record.spec.is_arithmetic:
            return True
        default = 1 if len(record.spec.shape) > 2 else None
        return dim != channels.get(tensor, default)


def _check_axes(
    axes: Mapping[str, Sequence[int]], ranks: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the axes without negative dimensions, or raise an error if they are malformed."""
    if not isinstance(axes, Mapping):
        raise InputError.of_value(
            "axes", axes, "give a dictionary of dimensions by input, {'args[0]': (2, 3)}"
        )
    for name, dims in axes.items():
        if name not in ranks:
            message = f" names {name!r}, which is not an input of this pass: choose from "
            raise InputError(Argument("axes"), message + ", ".join(ranks))
        if not isinstance(dims, Sequence) or not all(isinstance(dim, int) for dim in dims):
            raise InputError(
                Argument("axes"), f" of {name!r} are {dims!r}: give a tuple of dimensions, (2, 3)"
            )
        if not all(-ranks[name] <= dim < ranks[name] for dim in dims):
            raise InputError(
                Argument("axes"),
                f" of {name!r} are {tuple(dims)}, and it has {ranks[name]} dimensions: give others",
            )
    checked: dict[str, tuple[int, ...]] = {}
    for name, dims in axes.items():
        checked[name] = tuple(dim % ranks[name] for dim in dims)
    return checked
