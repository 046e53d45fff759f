"""Published times of single kernels, and what the package estimates for each."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from torchscan.analyses.generation.serving_costs import Serving
from torchscan.analyses.roofline import Rates
from torchscan.analyses.roofline import constants as C
from torchscan.analyses.roofline.call_times import CallTimes
from torchscan.analyses.roofline.links import Fabric
from torchscan.analyses.roofline.near_bytes import Near
from torchscan.analyses.roofline.number_formats import Numbers
from torchscan.hardware.device_specs import device_named
from torchscan.ops import OpCost, compute_cost
from torchscan.trace.events import GroupSpec, OpCall, OpSignature, TensorSpec

Kind = Literal["products", "decode", "prompt", "collectives"]

#: the cards that were measured, by their names in the tables
CARDS = {"a100_sxm": "A100", "h200_sxm": "H200", "l40s": "L40S"}
#: the files of a kind, without the name of the card
FILES: dict[Kind, str] = {
    "products": "kernel_gemm",
    "decode": "kernel_generation_attention",
    "prompt": "kernel_context_attention",
    "collectives": "kernel_nccl",
}
#: weights that the published products take in turn: those that stay in the cache are read from it
WEIGHTS_IN_TURN = 6
#: bounds of the regions of a kind: rows, keys, bytes
REGIONS: dict[Kind, tuple[int, ...]] = {
    "products": (16, 64, 128, 256, 512, 1024, 4096),
    "decode": (64, 512, 4096),
    "prompt": (64, 512, 4096),
    "collectives": (32_000, 1_000_000, 32_000_000),
}
UNITS: dict[Kind, str] = {
    "products": "rows",
    "decode": "keys",
    "prompt": "keys",
    "collectives": "bytes",
}
#: an operator of each collective in the tables
_COLLECTIVES = {
    "all_gather": torch.ops.c10d._allgather_base_.default,
    "all_reduce": torch.ops._c10d_functional.all_reduce.default,
    "alltoall": torch.ops._c10d_functional.all_to_all_single.default,
    "reduce_scatter": torch.ops.c10d._reduce_scatter_base_.default,
}
_BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measurement, and the call that was measured."""

    kind: Kind
    card: str
    #: rows of a product, keys, or bytes
    size: int
    #: what the measurement has in common with its neighbors: all but the size
    family: str
    seconds: float
    call: OpCall
    cost: OpCost
    #: bytes that the cache holds already, if it has room for as many
    warm_bytes: int = 0

    @property
    def region(self) -> int:
        """Return the number of the region that the size lies in."""
        return sum(self.size > bound for bound in REGIONS[self.kind])

    @property
    def is_apart(self) -> bool:
        """Return whether constants were not set on it: a third of the families of each region.

        There are few collectives, so single sizes of them.
        """
        part = self.size if self.kind == "collectives" else self.region
        name = f"held out: {self.kind}, {self.family}, {part}"
        return zlib.crc32(name.encode()) % 3 == 0


def table_names() -> list[str]:
    """Return the names of the files of all tables."""
    return [f"{file}_{card}.csv.gz" for file in FILES.values() for card in CARDS]


def cases_of(truth: Path, kind: Kind, card: str) -> list[Case]:
    """Return all measurements in 16 bits."""
    with gzip.open(truth / f"{FILES[kind]}_{card}.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    makers: dict[Kind, Callable[[dict[str, str], str], Case | None]] = {
        "products": _product,
        "decode": _decode,
        "prompt": _prompt,
        "collectives": _collective,
    }
    return [case for row in rows if (case := makers[kind](row, card)) is not None]


def estimates(cases: list[Case]) -> list[float]:
    """Return the seconds that the package estimates for each, all of one card."""
    device = device_named(CARDS[cases[0].card])
    times = CallTimes(
        Rates(device), Numbers(), compiled=True, turned=False, serving=Serving(has_flash_3=True)
    )
    fabric = Fabric(device=device)
    room = C.CACHE_KEPT * (device.l2_bytes or 0)
    return [_estimate(case, times, fabric, room) for case in cases]


def _estimate(case: Case, times: CallTimes, fabric: Fabric, room: float) -> float:
    if case.kind == "collectives":
        return fabric.seconds(case.call) or 0.0
    cached = int(case.cost.bytes_read * _kept(case.warm_bytes / room)) if room else 0
    run = times.run(0, case.call, case.cost, Near((cached, 0), (0, 0), 0))
    return run.work.busy + C.LAUNCH_COMPILED * run.launches


def _kept(fill: float) -> float:
    """Return the share of what a loop reads that it finds in a cache which replaces at random.

    Until a line is read again, the others that were not found have replaced it or not:
    ``kept = exp(−(1 − kept) · fill)``, where the loop reads ``fill`` times what there is room for.
    """
    if fill <= 1:
        return 1.0
    kept = 0.0
    for _ in range(60):
        kept = math.exp(-(1 - kept) * fill)
    return kept


def _product(row: dict[str, str], card: str) -> Case | None:
    if row["gemm_dtype"] != "bfloat16":
        return None
    m, n, k = _integers(row, "m", "n", "k")
    return product_case(card, (m, n, k), float(row["latency_ms"]) / 1e3)


def product_case(card: str, shape: tuple[int, int, int], seconds: float = math.nan) -> Case:
    """Return a product of so many rows, columns and sums."""
    m, n, k = shape
    weight = TensorSpec((k, n), _BF16, (1, k))
    call = _call(torch.ops.aten.mm.default, (_spec(m, k), weight), _spec(m, n))
    return Case(
        kind="products",
        card=card,
        size=m,
        family=f"{n} × {k}",
        seconds=seconds,
        call=call,
        cost=compute_cost(call.signature).cost,
        warm_bytes=2 * (WEIGHTS_IN_TURN * n * k + m * k + m * n),
    )


def _decode(row: dict[str, str], card: str) -> Case | None:
    return _attention("decode", row, card)


def _prompt(row: dict[str, str], card: str) -> Case | None:
    return _attention("prompt", row, card)


def _attention(kind: Kind, row: dict[str, str], card: str) -> Case | None:
    if (row["attn_dtype"], row["kv_cache_dtype"]) != ("bfloat16", "bfloat16"):
        return None
    batch, prompt, step = _integers(row, "batch_size", "isl", "step")
    heads, key_heads, width = _integers(row, "num_heads", "num_key_value_heads", "head_dim")
    queries, keys = (1, prompt + step) if kind == "decode" else (prompt, prompt)
    query, key = _spec(batch, heads, queries, width), _spec(batch, key_heads, keys, width)
    operands = (query, key, key, 0.0, kind == "prompt")
    call = _call(torch.ops.aten._scaled_dot_product_flash_attention.default, operands, query)
    cost = compute_cost(call.signature).cost
    if kind == "prompt":  # which writes the cache, too
        cost = replace(cost, bytes_written=cost.bytes_written + 2 * key.stored_bytes)
    return Case(
        kind=kind,
        card=card,
        size=keys,
        family=f"{batch} × {heads}, {key_heads} heads of {width}",
        seconds=float(row["latency_ms"]) / 1e3,
        call=call,
        cost=cost,
        warm_bytes=cost.bytes_read,
    )


def _collective(row: dict[str, str], card: str) -> Case:
    ranks, elements = _integers(row, "num_gpus", "message_size")
    group = GroupSpec(name="", purpose="", ranks=tuple(range(ranks)))
    whole = _spec(elements)
    call = _call(_COLLECTIVES[row["op_name"]], (whole, group), whole)
    return Case(
        kind="collectives",
        card=card,
        size=whole.stored_bytes,
        family=f"{row['op_name']} of {ranks}",
        seconds=float(row["latency_ms"]) / 1e3,
        call=call,
        cost=OpCost(),
    )


def _integers(row: dict[str, str], *names: str) -> Iterator[int]:
    return (int(float(row[name])) for name in names)


def _spec(*shape: int) -> TensorSpec:
    stride, size = [], 1
    for length in reversed(shape):
        stride.insert(0, size)
        size *= length
    return TensorSpec(shape, _BF16, tuple(stride))


def _call(op: torch._ops.OpOverload, args: tuple[object, ...], out: TensorSpec) -> OpCall:
    signature = OpSignature(op=op, args=args, kwargs={}, outputs=(out,), is_view=False)
    return OpCall(signature, inputs=(), outputs=(), module_call=0)
