"""Projective fields beside forward-mode differentiation: what changes where an input changes."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from projective_models import ProjectiveCase, projective_cases
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from truth_section import Section, of

from tests.analyses.gradient_oracle import transparent
from tests.marked import table
from torchscan import projective_field
from torchscan.types import AxisReach, LayerReach

STORED = Path(__file__).parents[1] / "build" / "projective.jsonl"


class Compared(NamedTuple):
    """How many positions of a model's layers were compared, and how they differ."""

    package: str
    layers: int
    positions: int
    exact: int
    #: layers and positions that differ, by the operator or the note that explains it
    differing: dict[str, int]


def projective(_truth: Path | None = None) -> Section:
    """Compare all models, or take what was stored of them."""
    rows: list[tuple[object, ...]] = []
    every: list[Compared] = []
    for name, compared in compare_projective("").items():
        every.append(compared)
        reasons = ", ".join(f"{count:,}: {why}" for why, count in compared.differing.items())
        counts = compared.layers, f"{compared.positions:,}", f"{compared.exact:,}"
        rows.append((name, compared.package, *counts, reasons))
    total, exact = sum(each.positions for each in every), sum(each.exact for each in every)
    headings = ("model", "package", "layers", "positions", "exact", "differing")
    summary = (
        "projective fields, by layer, axis and position",
        "forward-mode differentiation",
        f"{total:,}",
        f"{of(exact, total)} exact, in {len(every)} models",
    )
    return Section([summary], {"projective": f"\n{table(headings, rows)}\n"})


def compare_projective(only: str) -> dict[str, Compared]:
    """Return the comparison of each model whose name contains this, and store new ones."""
    stored: dict[str, Compared] = {}
    if STORED.exists():
        for line in STORED.read_text().splitlines():
            name, values = json.loads(line)
            stored[name] = Compared(*values)
    results: dict[str, Compared] = {}
    for case in projective_cases():
        if only not in case.name:
            continue
        if case.name not in stored:
            stored[case.name] = compared = _compare(case)
            STORED.parent.mkdir(exist_ok=True)
            with STORED.open("a") as file:
                file.write(f"{json.dumps([case.name, compared])}\n")
        results[case.name] = stored[case.name]
        print(case.name, results[case.name], flush=True)
    return results


def _compare(case: ProjectiveCase) -> Compared:
    torch.manual_seed(0)
    model = transparent(case.build())
    fields = projective_field(model, case.shape, dtype=torch.float64)
    axes = {(axis.axis, axis.length) for axis in fields.output.axes}
    places = {dim: _places(length) for dim, length in sorted(axes)}
    changes = _changes(model, case.shape, places)
    counts: Counter[str] = Counter()
    layers: set[str] = set()
    for (path, position), tangents in changes.items():
        layer = fields[path]
        layers.add(path)
        for axis in layer.outputs[position]:
            for at in places[axis.axis]:
                counts[_difference(layer, axis, at, tangents[axis.axis, at])] += 1
    exact = counts.pop("exact", 0)
    return Compared(case.package, len(layers), exact + counts.total(), exact, dict(counts))


def _places(length: int) -> list[int]:
    """Return both ends, the middle, and places that no usual stride divides."""
    return sorted({0, 1, length // 3, length // 2, length // 2 + 1, length - 2, length - 1})


def _difference(layer: LayerReach, axis: AxisReach, at: int, changed: Tensor) -> str:
    """Return "exact", or what explains that other units are reached than change."""
    said: object
    true: object
    if axis.dim is None and axis.units is not None:
        said, true = axis.counts[at], int(changed.sum())
    elif axis.dim is None:
        said, true = axis.counts[at] > 0, bool(changed.any())
        for dim in range(1, changed.dim()):
            if true and not bool(_along(changed, dim).all()):
                true = f"a part along dimension {dim}"
    else:
        changing = _along(changed, axis.dim).nonzero().flatten().tolist()
        said = (axis.interval(at), axis.counts[at])
        true = ((changing[0], changing[-1]) if changing else None, len(changing))
    if said == true:
        return "exact"
    if axis.reasons:
        return axis.reasons[0].operator
    return ", ".join(axis.notes) or f"unexplained ({layer.type_name})"


def _along(changed: Tensor, dim: int) -> Tensor:
    """Return where anything changes along a dimension."""
    return changed.movedim(dim, 0).flatten(1).any(1)


#: by path of a layer and position of its output: by axis and position, where the output changes
Changes = dict[tuple[str, int], dict[tuple[int, int], Tensor]]


def _changes(
    model: nn.Module, shape: Sequence[int], places: Mapping[int, Sequence[int]]
) -> Changes:
    """Return where the first outputs of layers change, by one pass whose batch is the positions."""
    every = [(dim, at) for dim, positions in places.items() for at in positions]
    generator = torch.Generator().manual_seed(1)
    sample = torch.rand(1, *shape, generator=generator, dtype=torch.float64) + 0.5
    inputs = sample.expand(len(every), *shape).clone()
    tangents = torch.zeros_like(inputs)
    for row, (dim, at) in enumerate(every):
        tangents[row].select(dim - 1, at).fill_(1)

    changes: Changes = {}

    def keep(path: str, out: Any) -> None:
        for position, tensor in enumerate(_tensors_in(out)):
            if (path, position) in changes or len(tensor) != len(every):
                continue
            tangent = forward_ad.unpack_dual(tensor).tangent
            changed = torch.zeros_like(tensor) if tangent is None else tangent
            is_changed = changed.ne(0)
            rows = {each: is_changed[row : row + 1] for row, each in enumerate(every)}
            changes[path, position] = rows

    handles = [
        module.register_forward_hook(lambda _m, _a, out, path=path: keep(path, out))
        for path, module in model.named_modules()
    ]
    with torch.no_grad(), _without_fused_attention(), _means_for_maxima(), forward_ad.dual_level():
        model(forward_ad.make_dual(inputs, tangents))
    for handle in handles:
        handle.remove()
    return changes


def _tensors_in(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out]
    return [each for each in out if isinstance(each, Tensor)] if isinstance(out, tuple) else []


@contextlib.contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Compute attention by operators that have a forward mode."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _means_for_maxima() -> Iterator[None]:
    """Let maxima and softmax compute means, through which all elements have influence.

    Without norms, scores of attention are so large that all but one softmax weight round to 0.
    """
    before = F.max_pool2d, F.softmax
    F.max_pool2d, F.softmax = _mean_pool, _even_softmax
    try:
        yield
    finally:
        F.max_pool2d, F.softmax = before


def _even_softmax(scores: Tensor, dim: int) -> Tensor:
    return torch.softmax(scores * 1e-6, dim)


def _mean_pool(x: Tensor, kernel_size: int, stride: int | None = None, padding: int = 0) -> Tensor:
    return F.avg_pool2d(x, kernel_size, stride, padding)
