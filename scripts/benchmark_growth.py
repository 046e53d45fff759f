"""What one operator takes in chains of 100 to 30,000: whether time grows with what there is to look at, and no faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmark_speed import seconds_of
from torch import Tensor, nn

from torchscan import analyze_roofline, crawl_module, estimate_memory

LENGTHS = (100, 300, 1_000, 3_000, 10_000, 30_000)
#: microseconds that a length may take in all before longer chains are left out
_LONGEST = 60e6


class Functional(nn.Module):
    """Operators, and hardly a module."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        """``relu(x · scale)``, again and again."""
        for _ in range(self.length // 2):
            x = torch.relu(x * self.scale)
        return x


class Growing(Functional):
    """Every shape is another one: nothing repeats itself."""

    def forward(self, x: Tensor) -> Tensor:
        """One more element each time."""
        x = x * self.scale[0]
        for _ in range(self.length // 2):
            x = nn.functional.pad(torch.relu(x), (0, 1))
        return x


def _convolutions(length: int) -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(length)))


CHAINS: Mapping[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "convolutions": (_convolutions, (8, 32, 32)),
    "functions": (Functional, (4, 8)),
    "new shapes": (Growing, (4, 8)),
}
CALLS: Mapping[str, Callable[..., Any]] = {
    "crawl_module": crawl_module,
    "estimate_memory": lambda *asked: estimate_memory(*asked, training=True, optimizer="AdamW"),
    "analyze_roofline": lambda *asked: analyze_roofline(*asked, device="NVIDIA H200"),
}


def measure_growth(only: str, picture: Path | None) -> None:
    """Print microseconds an operator; the default calls, and a bare pass on the meta device beside them."""
    found: dict[str, dict[int, float]] = {}
    print(f"{'microseconds an operator':42}" + "".join(f"{length:>9,}" for length in LENGTHS))
    for chain in CHAINS:
        for call in ("a bare pass", *CALLS):
            name = f"{call}, {chain}"
            if only.lower() in name.lower():
                found[name] = _grown(chain, call)
                print(
                    f"{name:42}"
                    + "".join(
                        f"{found[name].get(length, float('nan')):9.0f}" for length in LENGTHS
                    ),
                    flush=True,
                )
    if picture is not None:
        from speed_picture import draw

        draw(found, picture)


def _grown(chain: str, call: str) -> dict[int, float]:
    """By length. If one takes too long, longer ones are left out."""
    per_operator: dict[int, float] = {}
    for length in LENGTHS:
        if per_operator and max(per_operator.values()) * length > _LONGEST:
            break
        per_operator[length] = 1e6 * _seconds(chain, call, length) / length
    return per_operator


def _seconds(chain: str, call: str, length: int) -> float:
    build, shape = CHAINS[chain]
    with torch.device("meta"):
        model = build(length).eval()
    example = torch.zeros(1, *shape, device="meta")
    run = (lambda: model(example)) if call == "a bare pass" else (lambda: CALLS[call](model, shape))
    with torch.inference_mode() if call == "a bare pass" else torch.enable_grad():
        return min(seconds_of(run) for _ in range(3 if length <= 3000 else 2))
