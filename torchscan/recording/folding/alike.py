"""Comparison of two traces that ignores the numbers of tensors and storages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

from torchscan.trace.trace import Trace


def difference(one: Trace, other: Trace) -> str | None:
    """Return the first difference between two traces, or None if they are equal."""
    for what, parts in _PARTS.items():
        for mine, theirs in zip(parts(one), parts(other), strict=False):
            if mine != theirs:
                return f"{what}: {mine} and {theirs}"
    counts, others = _counts(one), _counts(other)
    if counts == others:
        return None
    return f"{counts} and {others} module calls, operator calls, parameters"


def _counts(trace: Trace) -> tuple[int, int, int]:
    return len(trace.modules), len(trace.ops), len(trace.parameters)


def compare_parameters(trace: Trace) -> Iterator[Hashable]:
    """Yield the parameters without the numbers of their storages."""
    for each in trace.parameters:
        yield each._replace(storages=()), len(each.storages)


def compare_modules(trace: Trace) -> Iterator[Hashable]:
    """Yield the module calls without the tensors of caches that they are given and return.

    There are only those of the layers that were run.
    """
    for call in trace.modules:
        inputs = _names_of_others(trace, call.input_names, call.inputs)
        outputs = _names_of_others(trace, call.output_names, call.outputs)
        yield call._replace(inputs=(), outputs=(), input_names=inputs, output_names=outputs)


def _names_of_others(
    trace: Trace, names: tuple[str, ...], tensors: tuple[int, ...]
) -> tuple[str, ...]:
    kinds = (trace.storages[trace.tensors[each].storage].kind for each in tensors)
    return tuple([name for name, kind in zip(names, kinds, strict=True) if kind != "cache"])


def compare_ops(trace: Trace) -> Iterator[Hashable]:
    """Yield the operator calls, with tensors and storages in the order in which they are met.

    Tensors without elements are left out: it does not matter to which operator they belong.
    """
    number, memory = _numbering(), _numbering()
    for op in trace.ops:
        storages = []
        numbers = []
        for each in (*op.inputs, *op.outputs):
            storage = trace.tensors[each].storage
            if trace.storages[storage].size:
                numbers.append(number(each))
                storages.append(memory(storage))
        yield op.signature, op.module_call, op.phase, tuple(numbers), tuple(storages)


def compare_storages(trace: Trace) -> Iterator[Hashable]:
    """Yield the storages in the order in which operators meet them."""
    met: dict[int, None] = {}
    for op in trace.ops:
        met |= dict.fromkeys(trace.tensors[each].storage for each in (*op.inputs, *op.outputs))
    for index in met:
        storage = trace.storages[index]
        if storage.size:
            yield storage if storage.kind != "cache" else storage._replace(name="")


def _numbering() -> Callable[[int], int]:
    known: dict[int, int] = {}
    return lambda each: known.setdefault(each, len(known))


_PARTS: Mapping[str, Callable[[Trace], Iterator[Hashable]]] = {
    "parameter": compare_parameters,
    "module call": compare_modules,
    "operator call": compare_ops,
    "storage": compare_storages,
}
