"""The windows of an operator signature, with what all calls of the same signature share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.analyses.receptive_field.pieces import united
from torchscan.analyses.receptive_field.questions import Answers
from torchscan.analyses.receptive_field.sights import Glance, Sight, everything, follow
from torchscan.analyses.receptive_field.symmetry import Turn
from torchscan.ops.registry import compute_cost, windows
from torchscan.ops.windows import EachOutput, Look, Looks, Piece, Ways, Whole, Windows
from torchscan.trace.events import OpSignature, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultWindows:
    """The windows of one result of an operator, with the answers so far."""

    shape: Shape
    looks: Looks
    answers: Answers
    #: of a view: what is seen after it was written to
    after_writes: Answers
    #: the positions of operands whose elements it has at the same places, as most results have
    passed_on: frozenset[int]
    #: by the position of an operand and its turn: the turn of the result
    turns: dict[tuple[int, Turn], Turn | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureWindows:
    """The data that all calls with one signature share."""

    rule: Windows | None
    shapes: tuple[Shape, ...]
    results: tuple[ResultWindows, ...]


def windows_of_signature(signature: OpSignature) -> SignatureWindows:
    """Return the windows of all results of a signature, without any answers yet."""
    rule = windows(signature)
    shapes = tuple(spec.shape for spec in signature.inputs)
    results: list[ResultWindows] = []
    for position, spec in enumerate(signature.outputs):
        looks = _looks_of(rule, position, signature)
        result = ResultWindows(
            shape=spec.shape,
            looks=looks,
            answers={},
            after_writes={},
            passed_on=_find_passed_on(looks, spec.shape, shapes),
            turns={},
        )
        results.append(result)
    return SignatureWindows(rule=rule, shapes=shapes, results=tuple(results))


def _looks_of(rule: Windows | None, output: int, signature: OpSignature) -> Looks:
    """Return the windows of one result. A rule for one result holds for all of the same shape."""
    if rule is None:
        return (None,)
    if isinstance(rule, EachOutput):
        return rule.looks[output] if output < len(rule.looks) else ()
    same = signature.outputs[output].shape == signature.outputs[0].shape
    return rule if same else ()


def _find_passed_on(looks: Looks, shape: Shape, shapes: Sequence[Shape]) -> frozenset[int]:
    passed_on: set[int] = set()
    if 0 in shape:
        return frozenset()
    for position, (ways, given) in enumerate(zip(looks, shapes, strict=False)):
        if is_identity(ways) and given == shape:
            passed_on.add(position)
    return frozenset(passed_on)


def is_identity(ways: Ways) -> bool:
    """Return whether no element is moved or mixed, provided that the shape is the same."""
    return ways is not None and len(ways) == 1 and ways[0].is_identity


def look_at_operands(
    result: ResultWindows,
    seeing: Sequence[tuple[int, Sight]],
    shapes: Sequence[Shape],
    glance: Glance,
) -> Sight | None:
    """Return what a result sees along one axis, given what the operands see of it."""
    parts: list[tuple[Piece | None, Sight]] = []
    for position, sight in seeing:
        ways: Ways = result.looks[position] if position < len(result.looks) else None
        if ways is None:
            parts.append((None, everything(sight, shapes[position], result.shape, glance)))
        elif is_identity(ways) and shapes[position] == result.shape:
            parts.append((None, sight))
        else:
            parts += [follow(sight, shapes[position], each, glance) for each in ways]
    return united(parts, result.shape, glance.size) if parts else None


def find_summed(signature: OpSignature, operator: SignatureWindows) -> list[tuple[int, int, int]]:
    """Return the operands that a product sums over: position, last summed dimension, and length."""
    if operator.rule is None or not compute_cost(signature).cost.macs:
        return []
    summed: list[tuple[int, int, int]] = []
    ways_and_shapes = zip(operator.results[0].looks, operator.shapes, strict=False)
    for position, (ways, shape) in enumerate(ways_and_shapes):
        step = ways[0].steps[0] if ways and ways[0].steps else None
        if not isinstance(step, Look):
            continue
        dims = [dim for dim, how in enumerate(step.dims) if isinstance(how, Whole)]
        if dims:
            summed.append((position, dims[-1], shape[dims[-1]]))
    return summed


def find_written(signature: OpSignature) -> list[int]:
    """Return the positions of the operands that an operator writes to, according to its schema."""
    schema = signature.op._schema
    if not schema.is_mutable:
        return []
    first = 0
    written: list[int] = []
    for position, argument in enumerate(schema.arguments):
        if position < len(signature.args):
            value = signature.args[position]
        else:
            value = signature.kwargs.get(argument.name)
        count = _count_tensors(value)
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += range(first, first + count)
        first += count
    return written


def _count_tensors(value: object) -> int:
    if isinstance(value, tuple):
        return sum(_count_tensors(each) for each in value)
    return int(isinstance(value, TensorSpec))
