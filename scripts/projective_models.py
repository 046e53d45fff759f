"""Models whose projective fields are compared with automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.torchvision_cpu import torchvision  # before timm and transformers


class ProjectiveCase(NamedTuple):
    """A model and the shape of its input, without a batch."""

    name: str
    package: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


# models of the published receptive fields come first
_TORCHVISION = {
    "alexnet": (3, 127, 127), "vgg16": (3, 96, 96), "resnet18": (3, 97, 96), "resnet50": (3, 97, 96),
    "resnet101": (3, 64, 64), "densenet121": (3, 64, 65), "googlenet": (3, 96, 96),
    "mobilenet_v2": (3, 97, 97), "mobilenet_v3_large": (3, 96, 96), "convnext_tiny": (3, 97, 97),
    "swin_t": (3, 224, 224), "squeezenet1_1": (3, 97, 97), "regnet_x_400mf": (3, 97, 97),
    "resnext50_32x4d": (3, 65, 65), "wide_resnet50_2": (3, 65, 65), "inception_v3": (3, 107, 107),
    "efficientnet_b0": (3, 97, 97), "shufflenet_v2_x1_0": (3, 97, 97), "mnasnet1_0": (3, 97, 97),
    "regnet_y_400mf": (3, 97, 97), "vit_b_32": (3, 224, 224), "swin_v2_t": (3, 128, 128),
    "maxvit_t": (3, 224, 224),
}  # fmt: skip
_SEGMENTATION = {"deeplabv3_resnet50": (3, 97, 97), "fcn_resnet50": (3, 97, 97)}
_VIDEO = {"r3d_18": (3, 9, 48, 48), "r2plus1d_18": (3, 9, 48, 48)}
_TIMM = {
    "darknet53": (3, 97, 97), "hrnet_w18_small": (3, 96, 96), "res2net50_14w_8s": (3, 65, 65),
    "dla34": (3, 96, 96), "repvgg_a0": (3, 97, 97), "convmixer_768_32": (3, 70, 70),
    "mixer_s32_224": (3, 224, 224), "poolformer_s12": (3, 97, 97), "focalnet_tiny_srf": (3, 96, 96),
    "mobilevit_xxs": (3, 128, 128), "pvt_v2_b0": (3, 96, 96), "ghostnet_100": (3, 97, 97),
}  # fmt: skip


def projective_cases() -> Iterator[ProjectiveCase]:
    """Yield the models by package."""
    for name, shape in _TORCHVISION.items():
        yield ProjectiveCase(name, "torchvision", lambda name=name: _classifier(name), shape)
    for name, shape in _SEGMENTATION.items():
        yield ProjectiveCase(name, "torchvision", lambda name=name: _segmenter(name), shape)
    for name, shape in _VIDEO.items():
        yield ProjectiveCase(name, "torchvision", lambda name=name: _video_model(name), shape)
    for name, shape in _TIMM.items():
        yield ProjectiveCase(name, "timm", lambda name=name: _from_timm(name), shape)
    for name, (build, shape) in _TRANSFORMERS.items():
        yield ProjectiveCase(name, "transformers", build, shape)
    for name, (build, shape) in _OTHERS.items():
        yield ProjectiveCase(name, "written for this table", build, shape)


def _classifier(name: str) -> nn.Module:
    options: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        options = {"init_weights": False, "aux_logits": False}
    model: nn.Module = torchvision.models.get_model(name, **options)
    return model


def _segmenter(name: str) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    return _FirstOutput(model)


def _video_model(name: str) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(name)
    return model


def _from_timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name)
    return model


class _FirstOutput(nn.Module):
    """A model that returns one tensor of a dictionary or an output object."""

    def __init__(self, model: nn.Module, keyword: str | None = None) -> None:
        super().__init__()
        self.model = model
        self.keyword = keyword

    def forward(self, x: Tensor) -> Tensor:
        out = self.model(**{self.keyword: x}) if self.keyword else self.model(x)
        first: Tensor = next(iter(out.values()))
        return first


# -- transformers: small ones of each kind ---------------------------------------------------------


def _wav2vec_front_end() -> nn.Module:
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeatureEncoder

    return Wav2Vec2FeatureEncoder(Wav2Vec2Config(conv_dim=(16,) * 7))


def _hubert() -> nn.Module:
    from transformers import HubertConfig, HubertModel

    return _FirstOutput(
        HubertModel(
            HubertConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                conv_dim=(16,) * 7,
                num_conv_pos_embeddings=16,
                num_conv_pos_embedding_groups=4,
            )
        )
    )


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=2, use_cache=False))
    return _FirstOutput(model, "inputs_embeds")


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    return _FirstOutput(LlamaModel(config), "inputs_embeds")


def _segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerModel

    return _FirstOutput(SegformerModel(SegformerConfig()))


_TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Wav2Vec2 front end": (_wav2vec_front_end, (4000,)),
    "HuBERT, 2 layers": (_hubert, (4000,)),
    "GPT-2, 2 layers": (_gpt2, (24, 32)),
    "Llama, 2 layers": (_llama, (24, 32)),
    "SegFormer-B0": (_segformer, (3, 128, 128)),
}


# -- structures that the packages above do not have --------------------------------------------------


class _TemporalConvolutions(nn.Module):
    """A causal network of dilated convolutions, as WaveNet and TCN have."""

    def __init__(self, num_layers: int = 5) -> None:
        super().__init__()
        layers = [nn.Conv1d(4, 4, 3, dilation=2**layer) for layer in range(num_layers)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(F.pad(x, (2 * layer.dilation[0], 0)))
        return x


class _UNet(nn.Module):
    """Two levels down and up again, with transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)])
        self.bottom = nn.Conv2d(8, 8, 3, 2, 1)
        ups = [nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ConvTranspose2d(16, 4, 2, 2)]
        self.up = nn.ModuleList(ups)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down[0](x)
        two = self.down[1](one)
        up = self.up[0](self.bottom(two))
        up = self.up[1](torch.cat([two, up], 1))
        return self.last(torch.cat([one, up], 1))


_OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "causal dilated convolutions": (_TemporalConvolutions, (4, 120)),
    "U-Net, transposed convolutions": (_UNet, (1, 48, 40)),
    "kernels smaller than strides": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 1, 2), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 2, 3)
        ),
        (3, 41, 40),
    ),
    "dilated, strided": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 2, 2, dilation=3), nn.Conv1d(4, 4, 3, 2, 2, 4)),
        (3, 90),
    ),
    "LSTM": (lambda: _Steps(nn.LSTM(4, 4, batch_first=True)), (20, 4)),
    "GRU in both directions": (
        lambda: _Steps(nn.GRU(4, 4, bidirectional=True, batch_first=True)),
        (20, 4),
    ),
    "circular and mirrored borders": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 5, 2, 2, padding_mode="circular"),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate"),
        ),
        (3, 32, 31),
    ),
}


class _Steps(nn.Module):
    """A recurrent layer without its states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        steps: Tensor = self.layer(x)[0]
        return steps
