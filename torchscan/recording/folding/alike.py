"""Comparison of two traces that ignores the numbers of tensors and storages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from torchscan.trace.trace import Trace


def difference(one: Trace, other: Trace) -> str | None:
    """Return the first difference between two traces, or None if they are equal."""
    for what, parts in (
        ("parameter", _parameters),
        ("module call", _modules),
        ("operator call", _ops),
        ("storage", _storages),
    ):
        for mine, theirs in zip(parts(one), parts(other), strict=False):
            if mine != theirs:
                return f"{what}: {mine} and {theirs}"
    counts = [(len(each.modules), len(each.ops), len(each.parameters)) for each in (one, other)]
    return (
        None
        if counts[0] == counts[1]
        else f"{counts[0]} and {counts[1]} module calls, operator calls, parameters"
    )


def _parameters(trace: Trace) -> Iterator[Hashable]:
    return ((each._replace(storages=()), len(each.storages)) for each in trace.parameters)


def _modules(trace: Trace) -> Iterator[Hashable]:
    """But for what of a cache it is given and returns: there are those of the layers that were run."""
    for call in trace.modules:
        inputs = _names_of_others(trace, call.input_names, call.inputs)
        outputs = _names_of_others(trace, call.output_names, call.outputs)
        yield call._replace(inputs=(), outputs=(), input_names=inputs, output_names=outputs)


def _names_of_others(
    trace: Trace, names: tuple[str, ...], tensors: tuple[int, ...]
) -> tuple[str, ...]:
    kinds = (trace.storages[trace.tensors[each].storage].kind for each in tensors)
    return tuple([name for name, kind in zip(names, kinds, strict=True) if kind != "cache"])


def _ops(trace: Trace) -> Iterator[Hashable]:
    """Whose tensor one without elements is does not matter."""
    number, memory = _numbering(), _numbering()
    for op in trace.ops:
        tensors = [
            each
            for each in (*op.inputs, *op.outputs)
            if trace.storages[trace.tensors[each].storage].size
        ]
        yield (
            op.signature,
            op.module_call,
            op.phase,
            tuple(map(number, tensors)),
            tuple(memory(trace.tensors[each].storage) for each in tensors),
        )


def _storages(trace: Trace) -> Iterator[Hashable]:
    """In the order in which operators meet them."""
    met = dict.fromkeys(
        trace.tensors[each].storage for op in trace.ops for each in (*op.inputs, *op.outputs)
    )
    storages = filter(lambda each: each.size, map(trace.storages.__getitem__, met))
    return (each if each.kind != "cache" else each._replace(name="") for each in storages)


def _numbering() -> Callable[[int], int]:
    known: dict[int, int] = {}
    return lambda each: known.setdefault(each, len(known))
