"""Propagation of assumed indices and random numbers through operators.

*Picks* are the picked indices, *hits* tell whether a given choice was picked, *marks* tell it for
each choice, *loads* are the numbers of picks and their positions. Comparing turns picks into hits;
counting, sorting and finding turn picks and marks into loads; other operators keep the kind. Hits
that are counted or found are loads if there are at least as many picks among them as choices.
Otherwise they are a *load* of the choice that was asked for: the end of a sequence, or an expert in
a loop over all experts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from torchscan.recording.execution.assumptions import About, Assumed
from torchscan.recording.execution.calls import OpRequest
from torchscan.torch_versions import OpOverloadPacket, aten
from torchscan.trace.events import TensorSpec

_COMPARISONS = frozenset({aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.isin})

#: how often each one occurs, or where it is found
_COUNTS = frozenset({aten.bincount, aten.histc, aten.searchsorted, aten.bucketize, aten.argsort})
#: the position of what they look for, which stays what it is
_LOOKED_FOR: Mapping[OpOverloadPacket, int] = {aten.searchsorted: 1, aten.bucketize: 0}
_COUNTS_HITS = _COUNTS | {aten.sum, aten.mean, aten.cumsum, aten.cumsum_, aten.count_nonzero}
_REDUCES = frozenset({aten.any, aten.sum, aten.mean, aten.count_nonzero})
_FINDS_HITS = frozenset({aten.nonzero, aten.argwhere, aten.masked_select})

#: a one at each index; how often there is one
# fmt: off
_MARKS = frozenset({
    aten.scatter, aten.scatter_, aten.index_put, aten.index_put_, aten.index_fill, aten.index_fill_,
})
# fmt: on
_ADDS_UP = frozenset({aten.scatter_add, aten.scatter_add_, aten.index_add, aten.index_add_})
_INDEX = 1  # the position of the index among their operands

#: operators of which only some results count: the order of a sort, values and counts of what is
#: unique
_COUNTED_RESULTS: Mapping[OpOverloadPacket, tuple[int, ...]] = {
    aten.sort: (1,),
    aten._unique2: (0, 2),
    aten.unique_dim: (0, 2),
    aten.unique_consecutive: (0, 2),
}

#: arguments that are false, or zero, where no random numbers are drawn
_SWITCHES = frozenset({"p", "dropout", "dropout_p", "train", "training"})
_FRACTIONS = frozenset({aten.rand, aten.rand_like})


def what_is_read(request: OpRequest, position: int, assumed: Assumed) -> About:
    """Return the kind of information that a call gets from an operand that it reads."""
    if assumed.about.is_picked and request.op.overloadpacket in _COUNTED_RESULTS:
        return About.LOADS
    return about_after(request, position, assumed)


def of_result(op: OpOverloadPacket, position: int, spec: TensorSpec, assumed: Assumed) -> Assumed:
    """Return the assumption of one result, given that of all results together."""
    if assumed.about is About.IDS and spec.is_arithmetic:  # what an embedding makes of them
        return assumed.with_about(About.DATA)
    counts = position in _COUNTED_RESULTS.get(op, ()) and assumed.about.is_picked
    return assumed.with_about(About.LOADS) if counts else assumed


def about_after(request: OpRequest, position: int, assumed: Assumed) -> About:
    """Return the kind of information in the results, as far as it comes from this operand."""
    if assumed.about is About.PICKS:
        return _after_picks(request, position, assumed.choices)
    if assumed.about in (About.LOAD, About.MARKS, About.HITS):
        return _after_hits(request, position, assumed)
    if assumed.about is About.FRACTIONS:
        # No fraction is below zero: a layer that is never dropped is not a matter of chance.
        is_certain = request.op is aten.lt.Scalar and request.args[1] <= 0
        return About.IDS if is_certain else About.DRAWN
    return assumed.about


def choices_asked_for(request: OpRequest, position: int, assumed: Assumed) -> Collection[object]:
    """Return the choices that a call compares picks with: all of them if it counts each one."""
    op = request.op.overloadpacket
    if assumed.about is not About.PICKS:
        return ()
    if op in _COUNTS or op in _COUNTED_RESULTS:
        return range(assumed.choices)
    return _compared_with(request, position) if op in _COMPARISONS else ()


def _compared_with(request: OpRequest, position: int) -> Collection[object]:
    choices: set[object] = {each for each in request.args if isinstance(each, int | float)}
    operands = zip(request.tensors, request.tracked, strict=True)
    for other, (tensor, tracked) in enumerate(operands):
        if other != position and tracked.is_concrete:
            choices.update(request.operand(tensor).flatten().tolist())
    return choices


def is_majority(asked_for: Collection[object], choices: int) -> bool:
    """Return whether a model asks for most of the choices, so that it loops over all of them."""
    return 2 * len(asked_for) > choices


def _after_picks(request: OpRequest, position: int, choices: int) -> About:
    op = request.op.overloadpacket
    is_counted = op in _COUNTS and _LOOKED_FOR.get(op) != position
    if is_counted or (op in _ADDS_UP and position == _INDEX):
        return About.LOADS
    if op in _MARKS and position == _INDEX:
        return About.MARKS
    if op not in _COMPARISONS:
        return About.PICKS
    asks_for_most = is_majority(_compared_with(request, position), choices)
    return About.MARKS if asks_for_most else About.HITS


def _after_hits(request: OpRequest, position: int, assumed: Assumed) -> About:
    """Return the kind of information in counted or found hits.

    With at least as many picks as choices, whether any pick hits is a matter of balance: a load of
    all.
    """
    op = request.op.overloadpacket
    counts = op in _COUNTS_HITS or op in _FINDS_HITS or (op is aten.index and position > 0)
    if not counts and op is not aten.any:
        return assumed.about
    if assumed.about is About.MARKS and counts:
        return About.LOADS
    has_all_choices = _reduced(request, position) >= assumed.choices
    return About.LOADS if has_all_choices else About.LOAD


def _reduced(request: OpRequest, position: int) -> int:
    """Return the number of operand elements that one element of the result combines."""
    shape = request.tracked[position].spec.shape
    dims = None
    if len(request.args) > 1 and request.op.overloadpacket in _REDUCES:
        dims = request.args[1]
    if dims is None:
        return math.prod(shape)
    if isinstance(dims, int):
        return shape[dims]
    return math.prod(shape[axis] for axis in dims)


# -- random numbers ------------------------------------------------------------------------------


def drawn_by(request: OpRequest) -> About | None:
    """Return the kind of the random numbers in a call's results, or None if it draws none.

    Dropout that is switched off draws none.
    """
    if not request.traits.may_draw or _is_switched_off(request):
        return None
    return About.FRACTIONS if request.op.overloadpacket in _FRACTIONS else About.DRAWN


def _is_switched_off(request: OpRequest) -> bool:
    schema = request.op._schema.arguments
    arguments = {argument.name: argument.default_value for argument in schema}
    arguments |= dict(zip(list(arguments), request.args, strict=False))
    arguments |= request.kwargs
    for name in _SWITCHES & arguments.keys():
        value = arguments[name]
        if isinstance(value, int | float) and not value:
            return True
    return False
