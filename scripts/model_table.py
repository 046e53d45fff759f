"""A table of well-known models: parameters, MACs, FLOPs, memory, receptive field, and the latency on a card."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import torchvision_cpu  # noqa: F401 - lets torchvision be imported beside a CPU build of torch

from torchscan.cli.main import main

MODELS = (
    "alexnet vgg16 resnet18 resnet50 resnet101 densenet121 mobilenet_v2 mobilenet_v3_large efficientnet_b0 efficientnet_b4 "
    "regnet_y_8gf convnext_tiny swin_t vit_b_16 vit_l_16"
)
DEVICE = (
    [] if {"--device", "-d"} & set(sys.argv) else ["--device", "NVIDIA H200", "--precision", "bf16"]
)

sys.exit(
    main(["table", *(f"torchvision:{name}" for name in MODELS.split()), *DEVICE, *sys.argv[1:]])
)
