"""A first look: what ResNet-18 is and what it costs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import torchvision_cpu  # noqa: F401 - lets torchvision be imported beside a CPU build of torch
from torchvision.models import resnet18

from torchscan import summary

summary(resnet18(), (3, 224, 224), max_depth=2)
