"""The pictures of the docs: plots, what a browser shows, and what a terminal shows."""

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
from playwright.sync_api import Page as BrowserPage
from playwright.sync_api import sync_playwright
from terminal_picture import terminal_picture
from torch import Tensor, nn

import torchscan
from torchscan.analyses.module_graph import module_graph
from torchscan.report.layer_table import info_table

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
_COLORS = 256


def both(name: str, draw: Callable[[], Any]) -> None:
    """Write a picture for light ground, and one for dark ground."""
    for suffix, style in (("", {}), ("-dark", _DARK)):
        with plt.rc_context(style):
            path = STATIC / f"{name}{suffix}.png"
            draw().figure.savefig(path, dpi=150)
            plt.close("all")
        reduce_colors(path)


def take_pictures(
    name: str,
    address: str,
    window: tuple[int, int],
    *,
    prepare: Callable[[BrowserPage], None] | None = None,
    end: str | None = None,
) -> None:
    """Write what a browser shows of a page in light and in dark: the window.

    With ``end``, a CSS selector, write everything from the top to the end of that element, with
    twice as many pixels.
    """
    width, height = window
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        print(f"Chromium is not installed: {name}.png stays as it is", file=sys.stderr)
        return
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=options)
        for scheme, suffix in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(
                viewport={"width": width, "height": height},
                device_scale_factor=1 if end is None else 2,
                color_scheme=scheme,
            )
            page.goto(address)
            page.wait_for_timeout(300)
            if prepare is not None:
                prepare(page)
            path = STATIC / f"{name}{suffix}.png"
            if end is None:
                page.screenshot(path=path)
            else:
                page.evaluate("scrollTo(0, 0)")
                bottom = page.locator(end).evaluate("each => each.getBoundingClientRect().bottom")
                clip = {"x": 0, "y": 0, "width": width, "height": bottom + 12}
                page.screenshot(path=path, full_page=True, clip=clip)
            reduce_colors(path)
        browser.close()


def reduce_colors(path: Path) -> None:
    """Write a picture again with a palette, which makes a smaller file. Rare colors stay."""
    picture = Image.open(path).convert("RGB")
    counted = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)
    common = [channel for _, color in counted[: _COLORS // 2] for channel in color]
    rare = picture.quantize(_COLORS - len(common) // 3, method=Image.Quantize.MAXCOVERAGE)
    palette = Image.new("P", (1, 1))
    palette.putpalette([*common, *(rare.getpalette() or [])])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


class _Layer(nn.Module):
    """The layer of docs/parallel.md."""

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
    """Return the pipeline of docs/parallel.md, with fewer microbatches."""
    with torch.device("meta"):
        stages = [nn.Sequential(*(_Layer() for _ in range(5))) for _ in range(8)]
    asked: dict[str, Any] = {"batch_size": 2048, "optimizer": "AdamW", "device": "H100"}
    return torchscan.parallel.pipeline(
        stages, (4096,), schedule="Interleaved1F1B", num_ranks=4, microbatches=8, **asked
    )


class Classifier(nn.Module):
    """A small convolutional network that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.block = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, 4, bias=False)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        x = self.stem(images)
        x = x + self.block(x)
        return nn.functional.cross_entropy(self.head(self.pool(x).flatten(1)), labels)


def _stripes(count: int) -> tuple[Tensor, Tensor]:
    """Return noisy pictures of stripes in four directions, and the directions."""
    labels = torch.randint(4, (count,))
    angles = labels * torch.pi / 4
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    along = torch.outer(angles.cos(), rows.flatten()) + torch.outer(angles.sin(), columns.flatten())
    phase = 2 * torch.pi * torch.rand(count, 1)
    images = (along * torch.pi / 2 + phase).sin() + torch.randn(count, 256)
    return images.view(count, 1, 16, 16), labels


def _train(run: Path) -> None:
    """Train a classifier for 200 steps, and record the run."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with torchscan.watch(model, run, every=2):
        for _ in range(200):
            optimizer.zero_grad()
            model(*_stripes(32)).backward()
            optimizer.step()


def _fit_graph(page: BrowserPage) -> None:
    page.get_by_role("button", name="fit to view").click()


def take_watch_pictures() -> None:
    """Show a run in the browser: the loss and two layers with their gradients over the steps."""

    def arrange(page: BrowserPage) -> None:
        for layer in ("stem.0", "head"):
            page.evaluate(f"location.hash = '#{layer}'")
            page.wait_for_timeout(500)
            page.get_by_role("button", name="keep").first.click()
        page.evaluate("location.hash = ''")
        page.wait_for_timeout(1500)
        _fit_graph(page)

    with TemporaryDirectory() as folder:
        run = Path(folder) / "first"
        _train(run)
        with torchscan.serve(run, port=0) as server:
            take_pictures("watch", server.url, (1210, 1040), prepare=arrange, end=".distributions")


def take_report_pictures() -> None:
    """Show the HTML report of ResNet-50 in the browser."""
    model = torchvision.models.resnet50()
    scan = torchscan.Scan(model, SHAPE, training=True, batch_size=64, device="RTX 4090")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "resnet50.html"
        torchscan.html_report(scan, "torchvision:resnet50").save(file)
        address = f"{file.as_uri()}#layer2"
        take_pictures("report", address, (1260, 880), prepare=_fit_graph, end=".charts")


def take_phone_pictures() -> None:
    """Show the HTML report of ResNet-50 on a phone."""
    scan = torchscan.Scan(torchvision.models.resnet50(), SHAPE, **STEP, device="RTX 4090")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "resnet50.html"
        torchscan.html_report(scan, "ResNet-50").save(file)
        take_pictures("phone", file.as_uri(), (380, 1480))


def take_pair_pictures() -> None:
    """Show ResNet-50 and ResNet-101 side by side in the browser."""

    def enter(page: BrowserPage) -> None:
        page.evaluate("location.hash = '#layer3/'")
        page.wait_for_timeout(200)
        page.get_by_label("only differences").check()

    asked: dict[str, Any] = {"batch_size": 64, "device": "RTX 4090"}
    models = (torchvision.models.resnet50(weights=None), torchvision.models.resnet101(weights=None))
    comparison = torchscan.compare(*(torchscan.Scan(model, SHAPE, **asked) for model in models))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pair.html"
        comparison.to_html(file, names=("ResNet-50", "ResNet-101"))
        take_pictures("pair", file.as_uri(), (1260, 880), prepare=enter, end="main")


def draw_plots() -> None:
    """Draw the plots of memory, times, receptive fields, layers, models, plans and graphs."""
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


def draw_terminals() -> None:
    """Draw what a terminal shows of a table and of a memory estimate."""
    model = torchvision.models.resnet50()
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
    estimate = torchscan.estimate_memory(model, SHAPE, **STEP, device="RTX 4090")
    terminal_picture(
        STATIC / "memory-terminal.svg",
        "print(estimate)",
        estimate.to_text(width=92, colours=True),
    )


PICTURES = {
    "plots": draw_plots,
    "terminals": draw_terminals,
    "phone": take_phone_pictures,
    "report": take_report_pictures,
    "pair": take_pair_pictures,
    "watch": take_watch_pictures,
}


def main() -> None:
    """Draw the pictures that are named, or all of them."""
    os.environ["COLORTERM"] = "truecolor"
    names = sys.argv[1:] or list(PICTURES)
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        sys.exit(f"{unknown[0]!r} is not a group of pictures: choose from {', '.join(PICTURES)}")
    for name in names:
        PICTURES[name]()


if __name__ == "__main__":
    main()
