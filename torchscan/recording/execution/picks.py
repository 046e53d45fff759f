"""What operators make of indices that a pass has assumed.

*Picks* say which one was picked, *hits* whether it was this one, *loads* how many were picked, and where. Comparing turns picks
into hits; counting, sorting and finding turn both into loads; all else leaves them what they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchscan.recording.execution.calls import About, Assumed, OpRequest
from torchscan.recording.execution.draws import after_fractions
from torchscan.torch_versions import OpOverloadPacket, aten
from torchscan.trace.events import TensorSpec

_COMPARISONS = frozenset({aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.isin})

#: how often each one occurs, or where it is found
_COUNTS = frozenset({aten.bincount, aten.histc, aten.searchsorted, aten.bucketize, aten.argsort})
_COUNTS_HITS = _COUNTS | {aten.sum, aten.mean, aten.cumsum, aten.cumsum_, aten.count_nonzero}
_FINDS_HITS = frozenset({aten.nonzero, aten.argwhere, aten.masked_select})

#: a one at each index; how often there is one
_MARKS = frozenset({aten.scatter, aten.scatter_, aten.index_put, aten.index_put_, aten.index_fill, aten.index_fill_})
_ADDS_UP = frozenset({aten.scatter_add, aten.scatter_add_, aten.index_add, aten.index_add_})
_INDEX = 1  # the position of the index among their operands

#: operators of which only some results count: the order of a sort, values and counts of what is unique
_COUNTED_RESULTS: Mapping[OpOverloadPacket, tuple[int, ...]] = {
    aten.sort: (1,),
    **dict.fromkeys((aten._unique2, aten.unique_dim, aten.unique_consecutive), (0, 2)),
}


def asks_how_many(request: OpRequest, position: int, assumed: Assumed) -> bool:
    """Whether a call that reads the values of an operand learns no more from them than what was assumed."""
    if assumed.about.is_picked and request.op.overloadpacket in _COUNTED_RESULTS:
        return True
    return about_after(request, position, assumed).may_be_read


def of_result(op: OpOverloadPacket, position: int, spec: TensorSpec, assumed: Assumed) -> Assumed:
    """What one of the results rests on, if all of them together rest on this."""
    if assumed.about is About.IDS and spec.is_arithmetic:  # what an embedding makes of them
        return assumed.with_about(About.DATA)
    counts = position in _COUNTED_RESULTS.get(op, ()) and assumed.about.is_picked
    return assumed.with_about(About.LOADS) if counts else assumed


def about_after(request: OpRequest, position: int, assumed: Assumed) -> About:
    """What the results tell, as far as it comes from this operand."""
    if assumed.about is About.PICKS:
        return _after_picks(request.op.overloadpacket, position)
    if assumed.about is About.HITS:
        return _after_hits(request, position, assumed.choices)
    if assumed.about is About.FRACTIONS:
        return after_fractions(request)
    return assumed.about


def _after_picks(op: OpOverloadPacket, position: int) -> About:
    if op in _COUNTS or (op in _ADDS_UP and position == _INDEX):
        return About.LOADS
    return About.HITS if op in _COMPARISONS or (op in _MARKS and position == _INDEX) else About.PICKS


def _after_hits(request: OpRequest, position: int, choices: int) -> About:
    """Whether any of so many picks hits is a matter of balance if there are at least as many as choices."""
    op = request.op.overloadpacket
    chooses = op in _FINDS_HITS or (op is aten.index and position > 0)
    covers = op is aten.any and _reduced(request) >= choices
    return About.LOADS if chooses or covers or op in _COUNTS_HITS else About.HITS


def _reduced(request: OpRequest) -> int:
    """How many elements of the operand go into one of the result."""
    shape = request.tracked[0].spec.shape
    dims = request.args[1] if len(request.args) > 1 else None
    axes = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    return math.prod(shape[axis] for axis in axes)
