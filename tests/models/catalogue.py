"""Real models with random weights, built on the meta device unless their constructors need data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.torchvision_cpu import torchvision

# isort: split
import timm  # imports torchvision, as transformers does
import transformers


@dataclass(frozen=True)
class Case:
    """A model, and what a pass of it is given."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def on_meta(self) -> nn.Module:
        with torch.device("meta"):
            return self.build().eval()


IMAGE = {"input_shape": (3, 224, 224)}


def _vision(name: str, **options: Any) -> Case:
    return Case(lambda: torchvision.models.get_model(name, weights=None, **options), IMAGE)


def _timm(name: str) -> Case:
    return Case(lambda: timm.create_model(name), IMAGE)


def _text(config: Any, tokens: int, kind: Any = transformers.AutoModel) -> Case:
    return Case(lambda: kind.from_config(config), {"input_shape": (tokens,), "dtype": torch.long})


def llama(tokens: int = 2048, **sizes: int) -> Case:
    return _text(transformers.LlamaConfig(**sizes), tokens, transformers.AutoModelForCausalLM)


LLAMA_3_1_405B = llama(
    hidden_size=16384,
    intermediate_size=53248,
    num_hidden_layers=126,
    num_attention_heads=128,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=131072,
)
MIXTRAL_8X7B = _text(transformers.MixtralConfig(), 512, transformers.AutoModelForCausalLM)

#: the models whose time is measured
TIMED: Mapping[str, Case] = {
    "ResNet-50": _vision("resnet50"),
    "ViT-B/16": _vision("vit_b_16"),
    "Swin-T": _vision("swin_t"),
    "EfficientNet-B4": Case(lambda: torchvision.models.efficientnet_b4(), {"input_shape": (3, 380, 380)}),
    "ConvNeXt-T": _vision("convnext_tiny"),
    "DenseNet-121": _vision("densenet121"),
    "BERT-base": _text(transformers.BertConfig(), 512),
    "GPT-2": _text(transformers.GPT2Config(), 1024),
    "Llama-7B": llama(),
}
