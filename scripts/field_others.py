"""Models of other libraries than transformers, in their usual sizes, with random weights on the CPU, and one call of each.

Transformers for images that are larger than a CPU's memory likes have fewer layers; each layer has its published size.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

#: a model, positional arguments, keyword arguments
Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

#: library:model -> what makes it and its arguments
OTHERS: dict[str, Callable[[], Call]] = {}


def called(name: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    """Decorates a function that makes a model and its arguments."""

    def add(make: Callable[[], Call]) -> Callable[[], Call]:
        OTHERS[name] = make
        return make

    return add


def add_class(library: str, module: str, name: str, *shape: int, **options: Any) -> None:
    """A class of a library, called with one tensor of this shape."""

    def make() -> Call:
        return getattr(importlib.import_module(module), name)(**options), (torch.rand(shape),), {}

    OTHERS[f"{library}:{name}"] = make


# Diffusion: what denoises, what encodes.


def _denoiser(name: str, kwargs: Callable[[], dict[str, Any]], **options: Any) -> None:
    def make() -> Call:
        return getattr(importlib.import_module("diffusers"), name)(**options), (), kwargs()

    OTHERS[f"diffusers:{name}"] = make


def _at_step(
    *shape: int, text: tuple[int, int] | None = None, **others: Any
) -> Callable[[], dict[str, Any]]:
    """Noise, a step and, if given, the shape of an encoded text; sizes among the others become tensors."""

    def kwargs() -> dict[str, Any]:
        first = (
            "hidden_states" if (text and text[1] >= 4096) or "class_labels" in others else "sample"
        )
        made = {
            name: torch.rand(value) if isinstance(value, tuple) else value
            for name, value in others.items()
        }
        encoded = {} if text is None else {"encoder_hidden_states": torch.rand(1, *text)}
        return {first: torch.rand(shape), "timestep": torch.tensor([10]), **encoded, **made}

    return kwargs


_denoiser("UNet2DModel", _at_step(1, 3, 64, 64), sample_size=64)
_denoiser("UNet2DConditionModel", _at_step(1, 4, 64, 64, text=(77, 768)), cross_attention_dim=768)
_denoiser("UNet3DConditionModel", _at_step(1, 4, 4, 32, 32, text=(77, 1024)))
_denoiser(
    "ControlNetModel",
    _at_step(1, 4, 64, 64, text=(77, 768), controlnet_cond=(1, 3, 512, 512)),
    cross_attention_dim=768,
)
_denoiser(
    "DiTTransformer2DModel",
    _at_step(1, 4, 32, 32, class_labels=torch.tensor([3])),
    num_layers=12,
    num_attention_heads=6,
    attention_head_dim=64,
)
_denoiser(
    "PixArtTransformer2DModel",
    _at_step(
        1, 4, 64, 64, text=(16, 4096), added_cond_kwargs={"resolution": None, "aspect_ratio": None}
    ),
    sample_size=64,
    caption_channels=4096,
    num_layers=14,
)
_denoiser(
    "SD3Transformer2DModel",
    _at_step(1, 16, 64, 64, text=(77, 4096), pooled_projections=(1, 2048)),
    num_layers=6,
)
_denoiser(
    "FluxTransformer2DModel",
    _at_step(
        1, 64, 64, text=(32, 4096), pooled_projections=(1, 768), img_ids=(64, 3), txt_ids=(32, 3)
    ),
    num_layers=1,
    num_single_layers=2,
)
_denoiser(
    "WanTransformer3DModel",
    _at_step(1, 16, 2, 16, 16, text=(16, 4096)),
    num_layers=2,
    num_attention_heads=12,
    ffn_dim=8960,
)
add_class("diffusers", "diffusers", "AutoencoderTiny", 1, 3, 256, 256)
add_class("diffusers", "diffusers", "VQModel", 1, 3, 64, 64)
add_class(
    *("diffusers", "diffusers", "AutoencoderKL", 1, 3, 256, 256),
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
)


# Adapters around GPT-2 and BERT.


def _adapted(name: str, config: str, **options: Any) -> None:
    def make() -> Call:
        import peft
        import transformers

        is_bert = options["task_type"] == "SEQ_CLS"
        base_class = (
            transformers.BertForSequenceClassification if is_bert else transformers.GPT2LMHeadModel
        )
        model = peft.get_peft_model(
            base_class(base_class.config_class()), getattr(peft, config)(**options)
        )
        return model, (), {"input_ids": torch.arange(10, 26)[None]}

    OTHERS[f"peft:{name}"] = make


_adapted("LoRA on GPT-2", "LoraConfig", r=8, task_type="CAUSAL_LM")
_adapted("DoRA on GPT-2", "LoraConfig", r=8, use_dora=True, task_type="CAUSAL_LM")
_adapted("IA3 on GPT-2", "IA3Config", task_type="CAUSAL_LM")
_adapted(
    "prefix tuning of GPT-2", "PrefixTuningConfig", num_virtual_tokens=8, task_type="CAUSAL_LM"
)
_adapted(
    "prompt tuning of GPT-2", "PromptTuningConfig", num_virtual_tokens=8, task_type="CAUSAL_LM"
)
_adapted("LoRA on BERT", "LoraConfig", r=8, target_modules=["query", "value"], task_type="SEQ_CLS")


# Graphs of 100 nodes and 400 edges.


def _edges(nodes: int = 100, count: int = 400) -> Tensor:
    return torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(0))


def _graph_network(name: str) -> None:
    def make() -> Call:
        from torch_geometric.nn import models

        model = getattr(models, name)(
            in_channels=64, hidden_channels=128, num_layers=3, out_channels=10
        )
        return model, (torch.rand(100, 64), _edges()), {}

    OTHERS[f"torch_geometric:{name}"] = make


for _name in ("GCN", "GraphSAGE", "GAT", "GIN", "EdgeCNN"):
    _graph_network(_name)


@called("torch_geometric:SchNet")
def _schnet() -> Call:
    from torch_geometric.nn import SchNet

    model = SchNet(
        interaction_graph=lambda *_: (_edges(20, 100), torch.rand(100))
    )  # its own needs a compiled library
    return model, (torch.randint(1, 9, (20,)), torch.rand(20, 3)), {}


@called("torch_geometric:TransformerConv")
def _transformer_convolutions() -> Call:
    from torch_geometric.nn import Sequential, TransformerConv

    layers = [
        (TransformerConv(64, 64, heads=4), "x, edge_index -> x"),
        (TransformerConv(256, 10), "x, edge_index -> x"),
    ]
    return Sequential("x, edge_index", layers), (torch.rand(100, 64), _edges()), {}


@called("torch_geometric:RGCNConv")
def _relations() -> Call:
    from torch_geometric.nn import RGCNConv

    return (
        RGCNConv(64, 32, num_relations=4, num_bases=4),
        (torch.rand(100, 64), _edges(), torch.randint(4, (400,))),
        {},
    )


# Medical images.

_NETS = ("monai", "monai.networks.nets")
add_class(
    *(*_NETS, "UNet", 1, 1, 64, 64, 64),
    spatial_dims=3,
    in_channels=1,
    out_channels=2,
    channels=(16, 32, 64, 128, 256),
    strides=(2, 2, 2, 2),
    num_res_units=2,
)
add_class(*_NETS, "SwinUNETR", 1, 1, 64, 64, 64, in_channels=1, out_channels=14, feature_size=24)
add_class(*_NETS, "UNETR", 1, 1, 96, 96, 96, in_channels=1, out_channels=14, img_size=(96, 96, 96))
add_class(*_NETS, "DenseNet121", 1, 1, 64, 64, 64, spatial_dims=3, in_channels=1, out_channels=2)
add_class(*_NETS, "SegResNet", 1, 1, 64, 64, 64, init_filters=16)
add_class(*_NETS, "VNet", 1, 1, 64, 64, 64)
add_class(*_NETS, "EfficientNetBN", 1, 3, 224, 224, model_name="efficientnet-b0", pretrained=False)
add_class(
    *(*_NETS, "AttentionUnet", 1, 1, 64, 64),
    spatial_dims=2,
    in_channels=1,
    out_channels=2,
    channels=(16, 32, 64, 128),
    strides=(2, 2, 2),
)
add_class(
    *(*_NETS, "DynUNet", 1, 1, 64, 64, 64),
    spatial_dims=3,
    in_channels=1,
    out_channels=2,
    kernel_size=[3, 3, 3],
    strides=[1, 2, 2],
    upsample_kernel_size=[2, 2],
)


# Detection.


def _yolo(name: str, class_name: str = "DetectionModel") -> None:
    def make() -> Call:
        from ultralytics.nn import tasks

        return (
            getattr(tasks, class_name)(f"{name}.yaml", verbose=False),
            (torch.rand(1, 3, 640, 640),),
            {},
        )

    OTHERS[f"ultralytics:{name}"] = make


for _name in ("yolov5n", "yolov8n", "yolov10n", "yolo11n", "yolo12n"):
    _yolo(_name)
_yolo("yolov8n-seg", "SegmentationModel")
_yolo("yolo11n-cls", "ClassificationModel")
_yolo("yolo11n-pose", "PoseModel")
_yolo("rtdetr-l", "RTDETRDetectionModel")


# Speech.

_SPEECH = "speechbrain.lobes.models"
add_class("speechbrain", f"{_SPEECH}.ECAPA_TDNN", "ECAPA_TDNN", 1, 200, 80, input_size=80)
add_class("speechbrain", f"{_SPEECH}.Xvector", "Xvector", 1, 200, 40, in_channels=40)
add_class("speechbrain", f"{_SPEECH}.CRDNN", "CRDNN", 1, 100, 80, input_shape=[1, 100, 80])
add_class(
    *("speechbrain", f"{_SPEECH}.HifiGAN", "HifiganGenerator", 1, 80, 50),
    in_channels=80,
    out_channels=1,
    resblock_type="1",
    resblock_dilation_sizes=[[1, 3, 5]] * 3,
    resblock_kernel_sizes=[3, 7, 11],
    upsample_kernel_sizes=[16, 16, 4, 4],
    upsample_initial_channel=512,
    upsample_factors=[8, 8, 2, 2],
)


@called("speechbrain:ConformerEncoder")
def _conformer() -> Call:
    from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    sound = torch.rand(1, 100, 256)
    return ConformerEncoder(12, 256, 1024, 4), (sound,), {"pos_embs": RelPosEncXL(256)(sound)}


@called("speechbrain:TransformerASR")
def _transformer_asr() -> Call:
    from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR

    model = TransformerASR(
        1000, 80, d_model=256, nhead=4, num_encoder_layers=6, num_decoder_layers=3, d_ffn=1024
    )
    return model, (torch.rand(1, 100, 80), torch.arange(5, 20)[None]), {}


@called("speechbrain:EnhancementGenerator")
def _metric_gan() -> Call:
    from speechbrain.lobes.models.MetricGAN import EnhancementGenerator

    return EnhancementGenerator(), (torch.rand(1, 100, 257), torch.ones(1)), {}


# Equivariant to rotations.


@called("e3nn:SimpleNetwork")
def _gated() -> Call:
    from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork

    sizes = {"max_radius": 2.0, "num_neighbors": 3.0, "num_nodes": 5.0}
    model = SimpleNetwork(irreps_in="3x0e + 2x1o", irreps_out="4x0e + 1x1o", **sizes)
    return model, ({"pos": torch.rand(5, 3), "x": torch.rand(5, 9)},), {}


@called("e3nn:FullyConnectedTensorProduct")
def _tensor_product() -> Call:
    from e3nn import o3

    model = o3.FullyConnectedTensorProduct("8x0e + 4x1o", "1x0e + 1x1o", "8x0e + 4x1o")
    return model, (torch.rand(10, 20), torch.rand(10, 4)), {}


@called("e3nn:Linear")
def _equivariant_linear() -> Call:
    from e3nn import o3

    return o3.Linear("8x0e + 4x1o", "4x0e + 8x1o"), (torch.rand(10, 20),), {}


# Policies.


def _policy(module: str, name: str, size: tuple[int, ...], actions: int | None) -> None:
    """Of so many discrete actions, or of six continuous ones."""

    def make() -> Call:
        import numpy as np
        from gymnasium import spaces

        seen = spaces.Box(0, 255, size, np.uint8) if len(size) == 3 else spaces.Box(-1, 1, size)
        done = spaces.Box(-1, 1, (6,)) if actions is None else spaces.Discrete(actions)
        policy = getattr(importlib.import_module(f"stable_baselines3.{module}"), name)
        return policy(seen, done, lambda _: 3e-4), (torch.zeros(1, *size),), {}

    OTHERS[f"stable_baselines3:{name}"] = make


_policy("common.policies", "ActorCriticPolicy", (8,), 4)
_policy("common.policies", "ActorCriticCnnPolicy", (4, 84, 84), 4)
_policy("sac.policies", "SACPolicy", (17,), None)
_policy("dqn.policies", "DQNPolicy", (8,), 4)


# Vision transformers.

_VIT = {
    "image_size": 224,
    "patch_size": 16,
    "num_classes": 1000,
    "dim": 384,
    "depth": 6,
    "heads": 6,
    "mlp_dim": 1536,
}


def _vit(module: str, name: str, *, size: int = 224, **options: Any) -> None:
    add_class("vit_pytorch", f"vit_pytorch.{module}", name, 1, 3, size, size, **options)


_vit("vit", "ViT", **_VIT)
_vit("simple_vit", "SimpleViT", **_VIT)
_vit("cait", "CaiT", cls_depth=2, **_VIT)
_vit("xcit", "XCiT", cls_depth=2, **_VIT)
_vit(
    "t2t",
    "T2TViT",
    dim=512,
    image_size=224,
    depth=5,
    heads=8,
    mlp_dim=512,
    t2t_layers=((7, 4), (3, 2), (3, 2)),
    num_classes=1000,
)
_vit(
    "cct",
    "CCT",
    img_size=(224, 224),
    embedding_dim=384,
    num_layers=6,
    num_heads=6,
    mlp_ratio=3.0,
    num_classes=1000,
)
_vit(
    "levit",
    "LeViT",
    image_size=224,
    stages=3,
    dim=(256, 384, 512),
    depth=4,
    heads=(4, 6, 8),
    mlp_mult=2,
    num_classes=1000,
)
_vit("cvt", "CvT", num_classes=1000)
_vit(
    "max_vit",
    "MaxViT",
    dim_conv_stem=64,
    dim=96,
    dim_head=32,
    depth=(2, 2, 5, 2),
    window_size=7,
    num_classes=1000,
)
_vit(
    "nest",
    "NesT",
    image_size=224,
    patch_size=4,
    dim=96,
    heads=3,
    num_hierarchies=3,
    block_repeats=(2, 2, 8),
    num_classes=1000,
)
_vit(
    *("crossformer", "CrossFormer"),
    dim=(64, 128, 256, 512),
    depth=(2, 2, 8, 2),
    global_window_size=(8, 4, 2, 1),
    local_window_size=7,
    num_classes=1000,
)
_vit(
    *("mobile_vit", "MobileViT"),
    size=256,
    image_size=(256, 256),
    dims=[96, 120, 144],
    channels=[16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 384],
    num_classes=1000,
)


# Segmentation.

_HEADS = (
    "Unet",
    "UnetPlusPlus",
    "FPN",
    "PSPNet",
    "DeepLabV3",
    "DeepLabV3Plus",
    "PAN",
    "Linknet",
    "MAnet",
    "Segformer",
    "UPerNet",
)
for _name in _HEADS:
    add_class(
        *("segmentation_models_pytorch",) * 2,
        _name,
        1,
        3,
        256,
        256,
        encoder_name="resnet34",
        encoder_weights=None,
    )
