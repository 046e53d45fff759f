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


def _small(config: Any, kind: Any = transformers.AutoModel, **inputs: Any) -> Case:
    return Case(lambda: kind.from_config(config), inputs)


_IDS = torch.zeros(1, 6, dtype=torch.long)

#: small members of many families: with data, so that a real pass can be compared
SMALL: Mapping[str, Case] = {
    "resnet18": Case(lambda: torchvision.models.resnet18(), {"input_shape": (3, 64, 64)}),
    "mobilenet_v3_small": Case(
        lambda: torchvision.models.mobilenet_v3_small(), {"input_shape": (3, 64, 64)}
    ),
    "efficientnet_b0": Case(
        lambda: torchvision.models.efficientnet_b0(), {"input_shape": (3, 64, 64)}
    ),
    "shufflenet_v2_x0_5": Case(
        lambda: torchvision.models.shufflenet_v2_x0_5(), {"input_shape": (3, 64, 64)}
    ),
    "squeezenet1_1": Case(lambda: torchvision.models.squeezenet1_1(), {"input_shape": (3, 64, 64)}),
    "regnet_y_400mf": Case(
        lambda: torchvision.models.regnet_y_400mf(), {"input_shape": (3, 64, 64)}
    ),
    "swin_t": Case(lambda: torchvision.models.swin_t(), {"input_shape": (3, 64, 64)}),
    "lraspp": Case(
        lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None),
        {"input_shape": (3, 64, 64)},
    ),
    "r3d_18": Case(lambda: torchvision.models.video.r3d_18(), {"input_shape": (3, 4, 32, 32)}),
    "raft_small": Case(
        lambda: torchvision.models.optical_flow.raft_small(),
        {"input_shape": [(3, 128, 128), (3, 128, 128)]},
    ),
    "timm vit": Case(lambda: timm.create_model("test_vit"), {"input_shape": (3, 160, 160)}),
    "timm mixer": Case(lambda: timm.create_model("test_mlp_mixer"), {"input_shape": (3, 160, 160)})
    if timm.is_model("test_mlp_mixer")
    else Case(lambda: timm.create_model("mixer_s32_224"), IMAGE),
    "timm xcit": Case(lambda: timm.create_model("xcit_nano_12_p16_224"), IMAGE),
    "timm mobilevit": Case(
        lambda: timm.create_model("mobilevit_xxs"), {"input_shape": (3, 64, 64)}
    ),
    "BERT": _small(
        transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
        ),
        kwargs={"input_ids": _IDS, "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]])},
    ),
    "GPT-2": _small(
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4),
        transformers.AutoModelForCausalLM,
        input_shape=(6,),
        dtype=torch.long,
    ),
    "Llama": llama(
        6,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    ),
    "Mixtral": _small(
        transformers.MixtralConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        transformers.AutoModelForCausalLM,
        input_shape=(8,),
        dtype=torch.long,
    ),
    "T5": _small(
        transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        kwargs={"input_ids": _IDS, "decoder_input_ids": _IDS[:, :3]},
    ),
    "Whisper": _small(
        transformers.WhisperConfig(
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
        ),
        kwargs={"input_features": torch.zeros(1, 80, 3000), "decoder_input_ids": _IDS},
    ),
    "wav2vec 2": _small(
        transformers.Wav2Vec2Config(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            conv_dim=[32] * 7,
        ),
        input_shape=(4000,),
    ),
    "CLIP": _small(
        transformers.CLIPConfig(
            text_config={
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "intermediate_size": 64,
            },
            vision_config={
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "intermediate_size": 64,
            },
        ),
        kwargs={"input_ids": _IDS, "pixel_values": torch.zeros(1, 3, 224, 224)},
    ),
    "Mamba": _small(
        transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=100),
        input_shape=(6,),
        dtype=torch.long,
    ),
}

DEEPSEEK_V3 = Case(
    lambda: transformers.AutoModelForCausalLM.from_config(transformers.DeepseekV3Config()).to(
        torch.bfloat16
    ),
    {"input_shape": (512,), "dtype": torch.long},
)

#: the models whose time is measured
TIMED: Mapping[str, Case] = {
    "ResNet-50": _vision("resnet50"),
    "ViT-B/16": _vision("vit_b_16"),
    "Swin-T": _vision("swin_t"),
    "EfficientNet-B4": Case(
        lambda: torchvision.models.efficientnet_b4(), {"input_shape": (3, 380, 380)}
    ),
    "ConvNeXt-T": _vision("convnext_tiny"),
    "DenseNet-121": _vision("densenet121"),
    "BERT-base": _text(transformers.BertConfig(), 512),
    "GPT-2": _text(transformers.GPT2Config(), 1024),
    "Llama-7B": llama(),
}

#: others, added later to check the first
TIMED_BESIDES: Mapping[str, Case] = {
    "ResNet-101": _vision("resnet101"),
    "ViT-L/16": _vision("vit_l_16"),
    "Swin-S": _vision("swin_s"),
    "EfficientNet-B2": Case(
        lambda: torchvision.models.efficientnet_b2(), {"input_shape": (3, 288, 288)}
    ),
    "ConvNeXt-S": _vision("convnext_small"),
    "DenseNet-169": _vision("densenet169"),
    "MobileNetV3-L": _vision("mobilenet_v3_large"),
    "MaxViT-T": _vision("maxvit_t"),
}
