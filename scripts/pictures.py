"""The pictures of the docs: what the functions draw, and what a terminal shows."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib import pyplot as plt
from PIL import Image
from playwright.sync_api import sync_playwright
from terminal_picture import terminal_picture
from torch import Tensor, nn

import torchscan
from torchscan.analyses.module_graph import module_graph
from torchscan.report.export import info_table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from torchvision_cpu import torchvision  # noqa: E402 - lets torchvision be imported beside a CPU build of torch

STATIC = ROOT / "docs" / "_static"
SHAPE = (3, 224, 224)
STEP: dict[str, Any] = {
    "batch_size": 32,
    "training": True,
    "optimizer": "AdamW",
    "precision": "bf16-mixed",
}
SHARDED: dict[str, Any] = {
    "batch_size": 8192,
    "training": True,
    "optimizer": "AdamW",
    "device": "H100",
}
MODELS = "resnet18 resnet50 densenet121 mobilenet_v3_large efficientnet_b0 regnet_y_3_2gf convnext_tiny swin_t"
#: what the site has behind its pages
_DARK = {"axes.facecolor": "#131416", "figure.facecolor": "#131416", "savefig.facecolor": "#131416"}
_COLOURS = 256


def both(name: str, draw: Callable[[], Any]) -> None:
    """Write a picture for light ground, and one for dark ground."""
    for suffix, style in (("", {}), ("-dark", _DARK)):
        with plt.rc_context(style):
            path = STATIC / f"{name}{suffix}.png"
            draw().figure.savefig(path, dpi=150)
            plt.close("all")
        Image.open(path).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
            path, optimize=True
        )


def pages(page: str) -> None:
    """What a browser shows of a page: in a window, and on a phone."""
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        print("no browser here: the pictures of the page stay as they are")
        return
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder) / "model.html"
        file.write_text(page, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=program, args=options)
        for scheme, suffix in (("light", ""), ("dark", "-dark")):
            for name, wide, tall in (("page", 1280, 1120), ("phone", 380, 1480)):
                path = STATIC / f"{name}{suffix}.png"
                seen = browser.new_context(
                    viewport={"width": wide, "height": tall}, color_scheme=scheme
                ).new_page()
                seen.goto(f"{file.as_uri()}#layer3.0/" if name == "page" else file.as_uri())
                seen.wait_for_timeout(300)
                seen.screenshot(path=path)
                Image.open(path).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
                    path, optimize=True
                )
        browser.close()


class _Layer(nn.Module):
    """As docs/ranks.md has it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4096, 16384), nn.Linear(16384, 4096)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def _layers() -> nn.Module:
    return nn.Sequential(*(_Layer() for _ in range(40)))


def _shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _pipeline() -> torchscan.types.PipelinePlan:
    """As docs/ranks.md has it, with fewer microbatches."""
    with torch.device("meta"):
        stages = [nn.Sequential(*(_Layer() for _ in range(5))) for _ in range(8)]
    asked: dict[str, Any] = {"batch_size": 2048, "optimizer": "AdamW", "device": "H100"}
    return torchscan.parallel.pipeline(
        stages, (4096,), schedule="Interleaved1F1B", num_ranks=4, microbatches=8, **asked
    )


def main() -> None:
    """Draw all of them."""
    os.environ["COLORTERM"] = "truecolor"
    model = torchvision.models.resnet50()
    info = torchscan.crawl_module(model, SHAPE)
    estimate = torchscan.estimate_memory(model, SHAPE, **STEP, device="RTX 4090")
    roofline = torchscan.analyze_roofline(model, SHAPE, **STEP, device="RTX 4090")
    field = torchscan.receptive_field(torchvision.models.resnet18(), SHAPE)
    models = {name: getattr(torchvision.models, name)() for name in MODELS.split()}
    table = torchscan.model_table(models, SHAPE, metrics=["params", "macs"])

    both("memory", lambda: estimate.plot())
    both("roofline", lambda: roofline.plot())
    both("receptive-field", lambda: field.plot())
    both("layers", lambda: torchscan.aggregate_info(info, 2).plot(top=10))
    both("models", lambda: table.plot())
    planned = torchscan.parallel.plan(
        _layers, (4096,), mesh={"dp": 8}, apply=_shard, ranks="ends", **SHARDED
    )
    both("plan", lambda: planned.plot())
    both("pipeline", lambda: _pipeline().plot())

    bottleneck = module_graph(torchscan.record(model, SHAPE), "layer3.0")
    (STATIC / "bottleneck.svg").write_text(bottleneck.to_svg(), encoding="utf-8")
    pages(
        torchscan.html_report(torchscan.Scan(model, SHAPE, **STEP, device="RTX 4090"), "ResNet-50")
    )
    whole = torchscan.crawl_module(model, SHAPE, **STEP, device="RTX 4090")
    columns = ["type", "output_shape", "params", "macs", "latency", "latency_share"]
    shown = info_table(torchscan.aggregate_info(whole, 2), columns, fold_repeats=True).write(
        "text", width=92, colours=True
    )
    terminal_picture(
        STATIC / "table.svg",
        "summary(resnet50(), (3, 224, 224), **step, device='RTX 4090', max_depth=2, fold_repeats=True)",
        shown,
        gap=3,
    )
    terminal_picture(
        STATIC / "memory-terminal.svg",
        "print(estimate)",
        estimate.to_text(width=92, colours=True),
    )


if __name__ == "__main__":
    main()
