"""The states of the walk that follows which positions of an input reach which elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchscan.analyses.projective_field.reach_masks import (
    after_step,
    no_positions,
    of_rank,
    own_positions,
    placed,
    reached_anywhere,
    united,
    without_repeats,
)
from torchscan.analyses.projective_field.read_masks import Border
from torchscan.analyses.receptive_field.envelope_steps import shape_after
from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.analyses.receptive_field.questions import Seen
from torchscan.analyses.receptive_field.result_states import Axis, ResultStates, State
from torchscan.analyses.receptive_field.sights import Reason, joined_reasons
from torchscan.analyses.receptive_field.signature_windows import ResultWindows, is_identity
from torchscan.analyses.receptive_field.writes import Put
from torchscan.ops.windows import Along, Look, Note, Piece, Reshape, Way, Ways
from torchscan.trace.events import OpCall, OpSignature
from torchscan.trace.trace import Trace


# compared by identity: a state has its number, and masks are not compared
@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """The followed positions that reach each element of a tensor."""

    mask: Tensor
    #: operators for which the mask may have too many elements
    reasons: tuple[Reason, ...] = ()
    notes: frozenset[Note] = frozenset()


class _Numbered(tuple[int, int, int]):
    """The number of a reach in a state. It keeps the reach alive as long as the state."""

    reach: Reach

    def __new__(cls, number: int, reach: Reach) -> _Numbered:
        """Return the number in the form of a sight."""
        numbered = super().__new__(cls, (number, 0, 0))
        numbered.reach = reach
        return numbered


class ReachStates(ResultStates):
    """The states of results: the number of a reach stands for a sight."""

    def __init__(
        self, trace: Trace, axis: Axis, positions: Sequence[int], *, strict_norm: bool
    ) -> None:
        super().__init__(trace, [axis], set(), strict_norm=strict_norm)
        self._num_reaches = 0
        self._positions = positions
        tensor, dim = axis
        self._length = trace.tensors[tensor].spec.shape[dim]

    def own_places(self, rank: int, dim: int) -> Seen | None:
        """Return the state of the input: each position reaches the elements that have it."""
        return self._number(Reach(own_positions(self._positions, rank, dim, self._length)))

    def results(self, op: OpCall, states: Sequence[State]) -> list[State]:
        """Return what reaches the results, given what reaches the operands."""
        windows = self._windows_of(op.signature)
        read = states[: len(windows.shapes)]
        seeing = [(place, state) for place, state in enumerate(read) if state is not self.blind]
        if windows.rule is None:
            operands = [state for _, state in seeing] or [self.blind]
            results = windows.results
            return [self._mixed(operands, self.reason(op), len(each.shape)) for each in results]
        after: list[State] = []
        for result in windows.results:
            passed_on = [state for place, state in seeing if place in result.passed_on]
            if len(passed_on) == len(seeing) == 1:
                after += passed_on
            else:
                after.append(self._result_of(op, windows.shapes, result, seeing))
        return after

    def mix(self, states: Sequence[State], reason: Reason) -> State:
        """Return the state of a tensor whose elements are reached by all that reach any tensor."""
        return self._mixed(states, reason, 0)

    def find_channels(self, op: OpCall, states: Sequence[State]) -> None:
        """Do nothing: the channels are known."""

    def put(self, state: State, old: State, parent: int, op: OpCall, position: int) -> State:
        """Return what reaches a tensor after a view of it was written to."""
        if state == old == self.blind:
            return self.blind
        result = self._windows_of(op.signature).results[position]
        if 0 in result.shape:
            return old
        put = self._find_put(result, parent, op, position)
        rank = len(self._trace.tensors[parent].spec.shape)
        if put is None:
            return self._mixed([state, old], self.reason(op), rank)
        new_reach, old_reach = self._reach(state), self._reach(old)
        new = of_rank(new_reach.mask, len(put.step.shape))
        mask = _after_write(new, of_rank(old_reach.mask, rank), put)
        return self._state(mask, [new_reach, old_reach])

    def number_of(self, state: State) -> int | None:
        """Return the number of a state's reach, or None if it sees nothing."""
        (seen,) = state
        return None if seen is None else seen[0]

    def reach_of(self, state: State, rank: int) -> Reach:
        """Return what reaches a tensor of this rank."""
        reach = self._reach(state)
        return Reach(of_rank(reach.mask, rank), reach.reasons, reach.notes)

    def _result_of(
        self,
        op: OpCall,
        shapes: Sequence[Shape],
        result: ResultWindows,
        seeing: Sequence[tuple[int, State]],
    ) -> State:
        """Return what reaches one result."""
        if 0 in result.shape:
            return self.blind
        read = _ReadOperands(result, _find_border(op.signature), strict_norm=self._strict_norm)
        reaches = []
        for position, state in seeing:
            ways: Ways = result.looks[position] if position < len(result.looks) else None
            reach = self._reach(state)
            if read.operand(reach.mask, shapes[position], ways):
                reaches.append(reach)
        if not read.masks:
            return self.blind
        reasons = [self.reason(op)] if read.is_complete else []
        return self._state(read.mask(), reaches, reasons, read.notes)

    def _mixed(self, states: Sequence[State], reason: Reason, rank: int) -> State:
        reaches = [self._reach(state) for state in states if state is not self.blind]
        if not reaches:
            return self.blind
        masks = [reached_anywhere(each.mask, rank) for each in reaches]
        return self._state(united(masks), reaches, [reason])

    def _state(
        self,
        mask: Tensor,
        reaches: Sequence[Reach],
        reasons: Sequence[Reason] = (),
        notes: frozenset[Note] = frozenset(),
    ) -> State:
        """Return the state of a mask, with the reservations about what it was derived from."""
        if not bool(mask.any()):
            return self.blind
        all_notes = notes.union(*[each.notes for each in reaches])
        every_reason = joined_reasons([*[each.reasons for each in reaches], tuple(reasons)])
        return (self._number(Reach(mask, every_reason, all_notes)),)

    def _number(self, reach: Reach) -> Seen:
        self._num_reaches += 1
        return _Numbered(self._num_reaches, reach)

    def _reach(self, state: State) -> Reach:
        (seen,) = state
        return seen.reach if isinstance(seen, _Numbered) else Reach(no_positions(self._positions))


class _ReadOperands:
    """The masks of a result, operand by operand and way by way."""

    def __init__(self, result: ResultWindows, border: Border, *, strict_norm: bool) -> None:
        self.masks: list[Tensor] = []
        self.notes: frozenset[Note] = frozenset()
        #: True if an operand is read completely, for want of a rule
        self.is_complete = False
        self._result = result
        self._border = border
        self._strict_norm = strict_norm
        self._statistics: list[Tensor] = []

    def operand(self, mask: Tensor, shape: Shape, ways: Ways) -> bool:
        """Read an operand in all ways, and return whether anything of it is read."""
        mask = of_rank(mask, len(shape))
        if ways is None:
            self.is_complete = self.is_complete or mask[0].numel() > 1
            self.masks.append(reached_anywhere(mask, len(self._result.shape)))
        elif is_identity(ways) and shape == self._result.shape:
            self.masks.append(mask)
        else:
            for way in ways:
                self._read(mask, shape, way)
        return ways is None or bool(ways)

    def mask(self) -> Tensor:
        """Return the mask of the result."""
        mask = united(self.masks)
        for other in self._statistics:
            if bool((other & ~mask).any()):
                self.notes |= {"norm-stats"}
        return without_repeats(mask)

    def _read(self, mask: Tensor, shape: Shape, way: Way) -> None:
        *steps, last = way.steps
        piece = last if isinstance(last, Piece) else None
        is_bordered = way.note in ("wraps", "padded")
        size_before = mask[0].numel()
        for step in steps if piece else way.steps:
            mask = after_step(mask, shape, step, self._border if is_bordered else "none")
            shape = shape_after(shape, step)
        if piece is not None:
            mask = placed(mask, piece, self._result.shape[piece.dim])
        if way.note == "hull" and mask[0].numel() < size_before:
            self.notes |= {"hull"}
        if way.note == "norm-stats" and not self._strict_norm:
            self._statistics.append(mask)
        else:
            self.masks.append(mask)


def _find_border(signature: OpSignature) -> Border:
    """Return what an operator reads beyond the ends, where its window does not say which.

    The name of the operator says so, or the mode among its arguments.
    """
    words = (signature.operator, *signature.args, *signature.kwargs.values())
    names = " ".join([each for each in words if isinstance(each, str)])
    if "replic" in names:
        return "replicate"
    if "reflect" in names:
        return "reflect"
    return "wrap"


def _after_write(new: Tensor, old: Tensor, put: Put) -> Tensor:
    """Return the mask of a tensor after a view of it was written to."""
    if isinstance(put.step, Reshape) or put.region is None:
        return after_step(new, put.step.shape, Reshape(put.shape))
    back = _back_to_base(new, put.step)
    sizes = [len(old)]
    region = [slice(None)]
    for dim, (start, count, step) in enumerate(put.region, 1):
        size = put.shape[dim - 1]
        if (start, count, step) == (0, size, 1):
            sizes.append(max(old.shape[dim], back.shape[dim]))
            region.append(slice(None))
        else:
            sizes.append(size)
            region.append(slice(start, start + (count - 1) * step + 1, step))
    written = united([old, old.new_zeros(sizes)]).clone()
    written[tuple(region)] = back
    return without_repeats(written)


def _back_to_base(mask: Tensor, look: Look) -> Tensor:
    """Return the mask of a view with the dimensions of what it is a view of."""
    kept = [how.dim for how in look.dims if isinstance(how, Along)]
    others = [dim for dim in range(len(look.shape)) if dim not in kept]  # of one element
    mask = mask.permute(0, *[dim + 1 for dim in (*kept, *others)])
    mask = mask.reshape(mask.shape[: len(kept) + 1])
    for dim, how in enumerate(look.dims, 1):
        if not isinstance(how, Along):
            mask = mask.unsqueeze(dim)
    return mask
