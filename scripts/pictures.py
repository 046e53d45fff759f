"""The pictures of the docs: what the functions draw, and what a terminal shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from PIL import Image
from terminal_picture import terminal_picture

import torchscan
from torchscan.report.export import info_table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from torchvision_cpu import torchvision  # noqa: E402 - lets torchvision be imported beside a CPU build of torch

STATIC = ROOT / "docs" / "_static"
SHAPE = (3, 224, 224)
STEP: dict[str, Any] = {"batch_size": 32, "training": True, "optimizer": "AdamW", "precision": "bf16-mixed"}
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
        Image.open(path).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


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

    both("memory", lambda: torchscan.draw_memory(estimate))
    both("roofline", lambda: torchscan.draw_roofline(roofline))
    both("receptive-field", lambda: torchscan.draw_receptive_field(field))
    both("layers", lambda: torchscan.draw_layers(torchscan.aggregate_info(info, 2), top=10))
    both("models", lambda: torchscan.draw_models(table))

    bottleneck = torchscan.module_graph(torchscan.record(model, SHAPE), "layer3.0")
    (STATIC / "bottleneck.svg").write_text(torchscan.to_svg(bottleneck), encoding="utf-8")
    whole = torchscan.crawl_module(model, SHAPE, **STEP, device="RTX 4090")
    columns = ["type", "output_shape", "params", "macs", "latency", "latency_share"]
    shown = info_table(torchscan.aggregate_info(whole, 2), columns, fold_repeats=True).write("text", width=92, colours=True)
    terminal_picture(
        STATIC / "table.svg",
        "summary(resnet50(), (3, 224, 224), **step, device='RTX 4090', max_depth=2, fold_repeats=True)",
        shown,
        gap=3,
    )
    terminal_picture(STATIC / "memory-terminal.svg", "print(estimate)", torchscan.format_memory(estimate, 92, colours=True))


if __name__ == "__main__":
    main()
