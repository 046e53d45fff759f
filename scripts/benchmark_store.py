"""Size of the file of a long run, and the time to read it and to write its page."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from torchscan.watching.explore.run_page import page_of_run
from torchscan.watching.history import WatchedRun
from torchscan.watching.watch import watch

_STEPS = 4000
_WIDTH, _NUM_BLOCKS, _NUM_TOKENS = 44, 3, 64
_BATCH, _LENGTH = 8, 32
#: seconds between two looks whether the worker has written the steps so far
_PAUSE = 0.001


def measure_store(steps: int = _STEPS) -> None:
    """Print the size of a run with every step sampled, and how long reading it takes."""
    torch.manual_seed(0)
    model = _model()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        worker = _train(model, path, steps)
        run = WatchedRun(path)
        size = sum(file.stat().st_size for file in path.iterdir())
        parameters = sum(each.numel() for each in model.parameters())
        print(f"{parameters:,} parameters, {len(list(model.modules()))} modules, {steps:,} steps")
        print(f"{len(run.series)} series; {len(run.steps())} steps are kept")
        print(f"store            {size / 1e6:8.1f} MB")
        print(f"worker           {1e3 * worker / steps:8.2f} ms a step, in CPU time")
        output = Path(folder) / "run.html"
        _print_seconds("page", lambda: page_of_run(path).save(output))
        _print_seconds("layers over steps", lambda: run.layers_over_steps())
        _print_seconds("one history", lambda: run.history("1.qkv.weight"))
        _print_seconds("curves", lambda: run.curves())


class _Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.project = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        wide = 4 * _WIDTH
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, wide), nn.ReLU(), nn.Linear(wide, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the block."""
        queries, keys, values = self.qkv(self.norm1(x)).split(_WIDTH, -1)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(attended)
        return x + self.mlp(self.norm2(x))


def _model() -> nn.Module:
    blocks = [_Block() for _ in range(_NUM_BLOCKS)]
    ends = (nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _NUM_TOKENS))
    return nn.Sequential(nn.Embedding(_NUM_TOKENS, _WIDTH), *blocks, *ends)


def _train(model: nn.Module, path: Path, steps: int) -> float:
    """Train, and return the CPU time of the worker. Training waits for it, so that nothing is lost."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, path, every=1, graph=False) as watcher:
        for _ in range(steps):
            # each token follows from the one before it, or is a random one
            tokens = torch.randint(_NUM_TOKENS, (_BATCH, 1)) + torch.arange(_LENGTH + 1)
            noise = torch.randint(_NUM_TOKENS, tokens.shape)
            tokens = tokens.where(torch.rand(tokens.shape) < 0.9, noise) % _NUM_TOKENS
            optimizer.zero_grad()
            found = model(tokens[:, :-1])
            nn.functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
            while watcher._process._outlet.num_steps_left > 4:
                time.sleep(_PAUSE)
        while watcher._process._outlet.num_steps_left:
            time.sleep(_PAUSE)
        worker = _cpu_seconds(watcher._process.number)
    if watcher.dropped:
        raise RuntimeError(f"{watcher.dropped} steps were dropped")
    return worker


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _print_seconds(what: str, read: Callable[[], object]) -> None:
    start = time.perf_counter()
    read()
    print(f"{what:17}{time.perf_counter() - start:8.2f} s", flush=True)
