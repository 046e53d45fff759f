"""Values that a pass makes up, followed to where they leave the tensors.

On shapes alone the indices that a router picks are spread evenly: see
:mod:`torchscan.recording.execution.balanced_routing`. How many tokens each expert gets, and which
ones, is what was assumed, and what a mixture of experts reads. Which expert a token gets is not: a
branch that reads it could as well go another way. :mod:`torchscan.recording.execution.picks` tells
the two apart. How many tokens a certain one gets may be either: that is decided at the end, when it
is known how many others were asked for.

In a real pass on made-up inputs the same is done for what is computed from them, and in any pass
for what is computed from random numbers that the model draws. None of it is read without a remark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from torchscan.errors import NeedsValuesError
from torchscan.notes import Note
from torchscan.recording.bookkeeping.shared_memory import Tracked
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.execution.assumptions import About, Assumed
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.picks import (
    about_after,
    choices_asked_for,
    drawn_by,
    is_majority,
    of_result,
    what_is_read,
)
from torchscan.recording.execution.reads import (
    ONLY_SPEC_MATTERS,
    begins_deepcopy,
    may_read,
    name_of_read,
    reads,
)
from torchscan.recording.places import is_validation, place_of_user
from torchscan.torch_versions import OpOverloadPacket, aten, current_node

#: the operands, by their position, whose values were made up, and what they rest on
Met = Sequence[tuple[int, Assumed]]
NOTHING: Met = ()


class AssumedValues:
    """The assumptions that the values in each storage depend on, and the reads of these values."""

    def __init__(
        self, table: TensorTable, assume: Callable[[Note], None], *, is_last_resort: bool
    ) -> None:
        """Begin without assumptions.

        With ``is_last_resort`` a branch that reads an assumed index is noted; else the pass ends
        there.
        """
        self._table = table
        self._assume = assume
        self._is_last_resort = is_last_resort
        self._is_checking = False
        #: indices of the gradients of ones with which the backward pass begins
        self._gradients_of_loss: set[int] = set()
        #: numbers that became tensors without values in the backward pass, by index
        self._numbers: dict[int, float] = {}
        #: by the number of a block of memory, what its values depend on
        self.by_storage: dict[int, Assumed] = {}
        #: by the call that picked, the choices that its picks were compared with
        self._asked_for: dict[int, set[object]] = {}
        #: what was read of certain choices: a matter of balance only if most others are asked for
        self._undecided: list[tuple[Assumed, str, str]] = []
        #: by the operator that picked, where a branch reads it
        self._branches: dict[str, dict[str, None]] = {}
        #: where values are read that depend on made-up inputs, or on random numbers, and by what
        self._reads: dict[str, str] = {}
        self._draws: dict[str, str] = {}

    def enter_input(self, tensor: Tensor, *, matters_only_to_control_flow: bool) -> None:
        """Note that the values of this input were made up."""
        tracked = self._table.find(tensor)
        if matters_only_to_control_flow:
            about = About.EXAMPLES
        else:
            about = About.DATA if tracked.spec.is_arithmetic else About.IDS
        self._enter(tracked, Assumed(about=about))

    def enter_gradient_of_loss(self, ones: Tensor) -> None:
        """Note a gradient of ones with which the backward pass begins."""
        self._gradients_of_loss.add(self._table.find(ones).index)

    def enter_number(self, made: Tensor, number: float) -> None:
        """Note the number that a tensor of the backward pass was made of."""
        if self._gradients_of_loss:
            self._numbers[self._table.find(made).index] = number

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Refuse reads of values out of range: what is read inside decides no control flow."""
        self._is_checking = True
        try:
            yield
        finally:
            self._is_checking = False

    def met_by(self, request: OpRequest) -> Met:
        """Return the operands of a call that depend on assumptions.

        Raise an error if the call reads values that were not allowed to be assumed.
        """
        met = [
            (position, each)
            for position, each in enumerate(map(self._of, request.tracked))
            if each is not None
        ]
        if not met or (request.op in ONLY_SPEC_MATTERS and not begins_deepcopy(request)):
            return NOTHING
        if may_read(request):
            for position, assumed in met:
                if reads(request, position):
                    about = what_is_read(request, position, assumed)
                    self._note(assumed.with_about(about), name_of_read(request.op))
        return met

    def answer(self, request: OpRequest) -> bool | None:
        """Return the assumed answer of an operator that asks for a truth, or None."""
        first, *_ = request.tracked
        if first.is_concrete:
            return None
        if request.op is not aten.equal.default:
            if not is_validation():  # by torch, which expects values in range
                return None
            self._assume(Note.of("distribution-arguments-valid"))
            return True
        # Kernels that make a gradient in the forward pass ask whether the loss was scaled since.
        number = self._numbers.get(request.tracked[-1].index)
        if not self._gradients_of_loss or number is None:
            return None
        is_equal = number == 1 and first.index in self._gradients_of_loss
        self._assume(Note.of("gradient-compared", equal=is_equal))
        return is_equal

    def is_certain(self, condition: Tensor) -> bool:
        """Return whether a condition has a value that neither data nor an assumption decides.

        Conditions are those of torch's own control flow.
        """
        tracked = self._table.find(condition)
        if condition.is_meta or (tracked.proxy is not None and tracked.proxy.is_meta):
            return False
        return self._of(tracked) is None

    def read_by_loop(self, condition: Tensor) -> None:
        """Note that made-up integers decide whether a loop goes on.

        If anything else decides it, the operator that reads the condition notes it.
        """
        assumed = self._of(self._table.find(condition))
        if assumed is not None and assumed.about.is_integer:
            self._reads.setdefault(place_of_user() or "a line inside torch", "while_loop")

    def read(self, tensor: Tensor, function: str) -> None:
        """Note that a function has read the values of a tensor."""
        assumed = self._of(self._table.find(tensor)) if self.by_storage else None
        if assumed is not None:
            self._note(assumed, function)

    def follow(
        self, request: OpRequest, assumed: Assumed | None, met: Met, made: Sequence[Tracked]
    ) -> None:
        """Let the results of a call depend on the assumptions of its operands, or on its own.

        ``made`` are the results; tensors that the call wrote to follow, too.
        """
        if assumed is not None:
            self._enter_picks(assumed, made)
        for position, each in met:
            choices = choices_asked_for(request, position, each)
            self._asked_for.get(each.call, set()).update(choices)
        known = [(about_after(request, position, each), each) for position, each in met]
        drawn = None
        if any(tracked.is_concrete for tracked in made):
            drawn = drawn_by(request)
        if drawn is not None:
            known.append((drawn, Assumed(drawn)))
        if not known:
            return
        about, strongest = max(known)
        if request.traits.written:
            written = map(self._table.find, request.written_tensors())
            made = [*made, *(tracked for tracked in written if tracked not in made)]
        self._hand_on(request.op.overloadpacket, made, strongest.with_about(about))

    def _enter_picks(self, assumed: Assumed, made: Sequence[Tracked]) -> None:
        """Enter the picks of one call separately.

        A loop picks once per iteration and asks for the same choice each time.
        """
        assumed = assumed._replace(call=len(self._asked_for))
        self._asked_for[assumed.call] = set()
        for tracked in made:
            self._enter(tracked, None if tracked.spec.is_arithmetic else assumed)

    def _hand_on(self, op: OpOverloadPacket, made: Sequence[Tracked], assumed: Assumed) -> None:
        """Enter the assumption of the results of an operator.

        Loads, and what meets unknown values, are what a router makes of its picks: the trace rests
        on their balance.
        """
        is_used = False
        for position, tracked in enumerate(made):
            result = of_result(op, position, tracked.spec, assumed)
            self._enter(tracked, result)
            is_used |= result.about is About.LOADS or not tracked.is_concrete
        if is_used and assumed.about.is_picked:
            self._assume_balance(assumed)

    def _assume_balance(self, assumed: Assumed) -> None:
        self._assume(Note.of("balanced-routing", operator=assumed.operator))

    def _enter(self, tracked: Tracked, assumed: Assumed | None) -> None:
        """Keep the strongest assumption of a storage: a read may return any of its values."""
        if assumed is None or not tracked.is_concrete:
            return
        before = self.by_storage.get(tracked.storage)
        if before is None or before.about < assumed.about:
            self.by_storage[tracked.storage] = assumed

    def report(self) -> None:
        """Report what was read on the way, or raise an error if it must not have been."""
        for assumed, reader, place in self._undecided:
            if is_majority(self._asked_for[assumed.call], assumed.choices):
                self._assume_balance(assumed)
            else:
                self._note_place(assumed.with_about(About.HITS), reader, place)
        for operator, places in self._branches.items():
            self._assume(Note.of("branch-on-pick", operator=operator, places=list(places)))
        if self._reads:
            self._assume(Note.of("typical-inputs", reads=_list_reads(self._reads)))
        if self._draws:
            self._assume(Note.of("typical-random-numbers", reads=_list_reads(self._draws)))

    def _of(self, tracked: Tracked) -> Assumed | None:
        return self.by_storage.get(tracked.storage) if tracked.is_concrete else None

    def _note(self, assumed: Assumed, reader: str) -> None:
        if self._is_checking or assumed.about.is_integer or is_validation():
            return
        if assumed.about is About.LOADS:
            self._assume_balance(assumed)
            return
        place = place_of_user()
        if place is None and current_node() is not None:
            return  # the gradient of something that the forward pass has read
        self._note_place(assumed, reader, place or "a line inside torch")

    def _note_place(self, assumed: Assumed, reader: str, place: str) -> None:
        if assumed.about is About.DATA:
            self._reads.setdefault(place, reader)
        elif assumed.about.is_drawn:
            self._draws.setdefault(place, reader)
        elif assumed.about is About.LOAD:
            self._undecided.append((assumed, reader, place))
        elif self._is_last_resort:
            self._branches.setdefault(assumed.operator, {}).setdefault(place)
        else:
            raise NeedsValuesError(
                f"a branch at {place} reads an index that {assumed.operator} picks by values that "
                "are not known"
            )


def _list_reads(functions: Mapping[str, str]) -> list[dict[str, str]]:
    """Return plain data of functions by the place at which they read values."""
    return [{"function": function, "place": place} for place, function in functions.items()]
