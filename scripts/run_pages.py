"""Train small models, record them and draw the pages of their runs: healthy ones, and ones that break.

``scripts/run_pages.py FOLDER [NAME…]`` writes each run, its page and what a browser shows of it:
light and dark, 1280 and 380 pixels wide.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright
from torch import Tensor, nn
from torch.nn import functional

import torchscan
from torchscan.types import Watcher
from torchscan.watching.explore.run_page import page_of_run

WIDTHS = (1280, 380)
SCHEMES = ("light", "dark")
VOCABULARY, LENGTH, SIZE = 64, 32, 64


def recorded(folder: Path, model: nn.Module) -> Watcher:
    """Watch every step of a model, in a folder without an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    return torchscan.watch(model, folder, every=1)


# -- models ----------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        """Run the module."""
        batch, length, size = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        q, k, v = split.unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, size))


class Mlp(nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(SIZE, 4 * SIZE), nn.ReLU()
        self.proj = nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        """Run the module."""
        return self.proj(self.act(self.fc(x)))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(SIZE), Attention()
        self.ln2, self.mlp = nn.LayerNorm(SIZE), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        """Run the module."""
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A small language model."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(LENGTH, SIZE)
        self.h = nn.ModuleList(Block() for _ in range(depth))
        self.ln_f, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the module."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class Half(nn.Linear):
    """A linear layer whose output is rounded to float16."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the module."""
        return super().forward(x).half().float()


class Residual(nn.Module):
    """A residual block of two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        """Run the module."""
        return x + 0.03 * self.act(self.linear(x))


def sentences(batch: int, seed: int) -> Tensor:
    """Return sequences in which a token depends on the two before it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (batch, LENGTH + 1), generator=generator)
    is_noise = torch.rand(tokens.shape, generator=generator) < 0.05
    for at in range(2, LENGTH + 1):
        rule = (3 * tokens[:, at - 1] + tokens[:, at - 2] + 7) % VOCABULARY
        tokens[:, at] = torch.where(is_noise[:, at], tokens[:, at], rule % 17)
    return tokens


def language_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the cross entropy of the next token."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


# -- runs ------------------------------------------------------------------------------------------


def healthy(folder: Path, num_steps: int = 600) -> None:
    """Train a transformer with a warmup, evaluations and a drop of the learning rate."""
    model = GPT(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = recorded(folder, model)
    for step in range(num_steps):
        if step % 200 == 0:
            run.note(f"epoch {1 + step // 200}")
        rate = 1e-3 * min(1, (step + 1) / 50) * (0.3 if step >= 500 else 1)
        optimizer.param_groups[0]["lr"] = rate
        loss = language_loss(model, sentences(16, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                for seed in range(2):
                    run.log_evaluation(language_loss(model, sentences(16, 10_000 + seed)))
            model.train()
    run.close()


def classify(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int
) -> None:
    """Train a classifier of points: which of four quarters they lie in."""
    run = recorded(folder, model)
    for step in range(num_steps):
        points = torch.randn(64, 2, generator=torch.Generator().manual_seed(step))
        labels = 2 * (points[:, 0] > 0).long() + (points[:, 1] > 0).long()
        loss = functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()


def vanishing(folder: Path, num_steps: int = 150) -> None:
    """Train 50 layers with sigmoids, through which hardly any gradient comes."""
    layers: list[nn.Module] = [nn.Linear(2, 32), nn.Sigmoid()]
    for _ in range(48):
        layers += [nn.Linear(32, 32), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    classify(folder, model, torch.optim.SGD(model.parameters(), lr=0.1), num_steps)


def dead(folder: Path, num_steps: int = 300) -> None:
    """Train with one ReLU that is dead: a large negative bias precedes it."""
    layers: list[nn.Module] = [nn.Linear(2, 64), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 4))
    nn.init.constant_(layers[4].bias, -20.0)  # type: ignore[arg-type]
    classify(folder, model, torch.optim.AdamW(model.parameters(), lr=3e-3), num_steps)


def nan(folder: Path, num_steps: int = 45) -> None:
    """Train a transformer with a layer that overflows in float16 at step 37."""
    model = GPT(8)
    linear = model.h[4].attn.qkv
    half = Half(SIZE, 3 * SIZE)
    half.load_state_dict(linear.state_dict())
    model.h[4].attn.qkv = half
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = recorded(folder, model)
    for step in range(num_steps):
        loss = language_loss(model, sentences(16, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if step >= 24:
                half.weight *= 2.3
    run.close()


def gan(folder: Path, num_steps: int = 300) -> None:
    """Train a generator of points on a circle against a discriminator, and watch the generator."""
    generator = nn.Sequential(
        *(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU()),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)),
    )
    critic = nn.Sequential(
        *(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)),
        nn.Linear(64, 1),
    )
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
    run = recorded(folder, generator)
    for _ in range(num_steps):
        angles = 2 * math.pi * torch.rand(64)
        real = torch.stack([angles.cos(), angles.sin()], 1)
        with torch.no_grad():
            fake = generator(torch.randn(64, 8))
        loss = functional.softplus(-critic(real)).mean() + functional.softplus(critic(fake)).mean()
        loss.backward()
        of_critic.step()
        of_critic.zero_grad()
        loss = functional.softplus(-critic(generator(torch.randn(64, 8)))).mean()
        loss.backward()
        of_generator.step()
        of_generator.zero_grad()
        of_critic.zero_grad()
    run.close()


def many(folder: Path, num_steps: int = 60) -> None:
    """Train a model of 2,401 modules: 800 residual blocks of two modules."""
    model = nn.Sequential(*(Residual() for _ in range(800)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = recorded(folder, model)
    for step in range(num_steps):
        points = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        loss = functional.mse_loss(model(points), points.roll(1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()


RUNS: dict[str, Callable[[Path], None]] = {
    "healthy": healthy,
    "vanishing": vanishing,
    "dead": dead,
    "nan": nan,
    "gan": gan,
    "many": many,
}


def take_pictures(page: Path, folder: Path) -> None:
    """Write what a browser shows of a page: the complete page, light and dark, wide and narrow."""
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=options)
        for width in WIDTHS:
            for scheme in SCHEMES:
                size = {"width": width, "height": 900}
                shown: Any = browser.new_page(viewport=size, color_scheme=scheme)
                errors: list[str] = []
                shown.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
                shown.on("console", lambda each, errors=errors: errors.append(each.text))
                shown.goto(page.as_uri())
                shown.wait_for_timeout(600)
                shown.screenshot(path=folder / f"{page.stem}-{scheme}-{width}.png", full_page=True)
                shown.close()
                if errors:
                    raise SystemExit(f"{page}: {errors}")
        browser.close()


def main(folder: Path, names: list[str]) -> None:
    """Record the runs that do not exist yet, then write all pages and pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or RUNS:
        run = folder / "runs" / name
        if not run.exists():
            torch.manual_seed(0)
            RUNS[name](run)
        page = folder / f"{name}.html"
        start = time.monotonic()
        page_of_run(run).save(page)
        size = page.stat().st_size / 1e3
        print(f"{name}: {time.monotonic() - start:.1f} s, {size:.0f} kB")
        take_pictures(page, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
