"""Ways to checkpoint a training step, as a table."""

from __future__ import annotations

from collections import Counter
from functools import partial

from torchscan import units
from torchscan.analyses.checkpoint_curve import CheckpointChoice, CheckpointCurve, SavedResult
from torchscan.report.make_table import make_table, mark_best, number, share_text, words, yes_or_no
from torchscan.report.table import Conclusion, Table
from torchscan.wrong_arguments import explain_wrong_types

#: names of results in a row; the others are counted
_MAX_NAMES = 6
#: modules with products from which on all of them have one name
_MIN_PRODUCTS = 2
_LEGEND = (
    "FLOPs: what is recomputed. Best: no other way needs less memory and no more time. * marks "
    "the fastest way that fits."
)
_ORDINALS = {2: "2nd", 3: "3rd"}
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "linear", "convolution"))


def describe_recomputed(choice: CheckpointChoice, curve: CheckpointCurve) -> str:
    """Return what the backward pass recomputes."""
    checkpoint = choice.checkpoint
    if isinstance(checkpoint, bool):
        return "all layers" if checkpoint else "nothing"
    if isinstance(checkpoint, int):
        return f"every {_ORDINALS.get(checkpoint, f'{checkpoint}th')} layer"
    if not choice.saved:
        return "selective"
    names = _names_of_saved(choice, curve)
    if len(names) > _MAX_NAMES:
        names = [*names[: _MAX_NAMES - 1], f"{len(names) - _MAX_NAMES + 1} more"]
    return f"all but {', '.join(names)}"


def _names_of_saved(choice: CheckpointChoice, curve: CheckpointCurve) -> list[str]:
    """Return names of saved results: of attention, of modules with products, and of operators.

    A name has the number of results with other shapes, by which rows with the same names differ.
    """
    products: Counter[str] = Counter()
    for each in _products_of(choice):
        products.update(dict.fromkeys(map(_name_module, each.modules), 1))
    num_products = max(len(_products_of(each)) for each in curve)
    if len(_products_of(choice)) == num_products and products.total() > _MIN_PRODUCTS:
        products = Counter(products=1)
    others = _other_operators_of(choice)
    names = ["attention"] if others.pop("attention", 0) else []
    for name, num_results in [*products.items(), *others.items()]:
        names.append(name if num_results == 1 else f"{num_results} {name}")
    return names


def _name_module(path: str) -> str:
    """Return the end of a path that names a module: "conv1", and "downsample.0" for an index."""
    if not path:
        return "product"
    outer, _, name = path.rpartition(".")
    if not name.isdecimal() or not outer:
        return name

    _, _, parent = outer.rpartition(".")
    return f"{parent}.{name}"


def _other_operators_of(choice: CheckpointChoice) -> Counter[str]:
    """Return the numbers of results that are not products, by operator."""
    numbers: Counter[str] = Counter()
    for each in choice.saved or ():
        operator = each.operator_name
        if "attention" in operator:
            operator = "attention"
        if operator not in _PRODUCTS:
            numbers[operator.strip("_")] += 1
    return numbers


def _products_of(choice: CheckpointChoice) -> list[SavedResult]:
    """Return the saved results that are products."""
    saved = choice.saved or ()
    return [each for each in saved if each.operator_name in _PRODUCTS]


_COLUMNS = (
    number("reserved_bytes", "Reserved", text=units.memory, unit="B"),
    number("peak_bytes", "Peak", text=units.memory, unit="B", priority=3),
    number("time_estimate", "Step", text=units.duration, unit="s"),
    number("recomputed_share", "FLOPs", text=share_text),
    words("fits", "Fits", text=yes_or_no, priority=1),
    words("is_on_front", "Best", text=yes_or_no, priority=2),
)


@explain_wrong_types
def checkpoint_table(curve: CheckpointCurve) -> Table:
    """Return a table with a row for each way to checkpoint the step, the fastest first.

    Args:
        curve: of ``MemoryEstimate.checkpointing()``.
    """
    describe = partial(describe_recomputed, curve=curve)
    name = words("recomputed", "Recomputed", describe, min_width=12, wrap=True)
    question = curve.question
    if curve.max_memory is not None:
        question += f", at most {units.memory(curve.max_memory)} reserved"
    remarks = [_LEGEND, f"Times: {curve.error_margin.label}.", _conclude(curve)]
    summary, columns = f"{question}; {curve.num_layers:,} layers", (name, *_COLUMNS)
    return make_table(
        "Checkpoints",
        columns,
        curve.choices,
        mark_best(curve.choices, curve.fastest),
        summary=[summary],
        remarks=remarks,
        noun="ways",
    )


def _conclude(curve: CheckpointCurve) -> Conclusion:
    fastest, baseline = curve.fastest, curve.baseline
    if fastest is None:
        least = min(curve, key=lambda each: each.reserved_bytes)
        name, needed = describe_recomputed(least, curve), units.memory(least.reserved_bytes)
        return Conclusion(f"None fits: recomputing {name} needs the least, {needed}.")
    if fastest is baseline:
        return Conclusion("The step fits without checkpoints.")
    name = describe_recomputed(fastest, curve)
    saved = units.memory(baseline.reserved_bytes - fastest.reserved_bytes)
    slower = share_text(fastest.time_estimate / baseline.time_estimate - 1)
    return Conclusion(
        f"Fastest that fits: recompute {name}. It saves {saved} and takes {slower} longer than "
        "without checkpoints."
    )
