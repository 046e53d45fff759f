"""Architectures of packages that list them: one of each name without its numbers and sizes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from field_cases import Built, Case, one_of_each_size
from torch import nn

#: makes a model by name, and the arguments of one call
Make = Callable[[str], tuple[nn.Module, tuple[Any, ...]]]


def registered(
    package: str, names: Iterable[str], make: Make, *, devices: tuple[str, ...] = ("meta", "cpu")
) -> Iterator[Case]:
    """Yield a case for one name of each size."""
    for name in one_of_each_size(names):
        yield Case(
            name=f"{package}:{name}", builds=(partial(_registered, make, name),), devices=devices
        )


def _registered(make: Make, name: str, device: str, is_small: bool) -> Built:
    del is_small
    with torch.device(device):
        model, args = make(name)
    return Built(model=model.eval(), args=args)


def _image(*size: int) -> torch.Tensor:
    return torch.rand(1, 3, *size, device="cpu")


def timm() -> Iterator[Case]:
    """Return timm's registry, each model with an image of its own size."""
    import timm

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        model = timm.create_model(name)
        return model, (torch.rand(1, *model.default_cfg["input_size"], device="cpu"),)

    return registered("timm", timm.list_models(), make)


def timm_3d() -> Iterator[Case]:
    """Return the registry of timm's models for volumes, each called with a volume of 96³ voxels."""
    import timm_3d

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        return timm_3d.create_model(name), (torch.rand(1, 3, 96, 96, 96, device="cpu"),)

    return registered("timm_3d", timm_3d.list_models(), make)


def torchvision() -> Iterator[Case]:
    """Return torchvision's registry without the quantized copies."""
    from torchvision import models

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        model = models.get_model(name, weights=None, **_WITHOUT_BACKBONE.get(_task(name), {}))
        return model, _arguments(name, _task(name))

    def _task(name: str) -> str:
        return models.get_model_builder(name).__module__.split(".")[2]

    names = [name for name in models.list_models() if not name.startswith("quantized_")]
    yield from registered("torchvision", [n for n in names if _task(n) != "detection"], make)
    yield from registered(
        "torchvision", [n for n in names if _task(n) == "detection"], make, devices=("cpu",)
    )


_WITHOUT_BACKBONE = {task: {"weights_backbone": None} for task in ("detection", "segmentation")}


def _arguments(name: str, task: str) -> tuple[Any, ...]:
    if task == "video":
        return (_image(16, 224, 224),)
    if task == "detection":
        return ([torch.rand(3, 320, 320, device="cpu")],)
    if task == "optical_flow":
        return _image(128, 128), _image(128, 128)
    size = 299 if "inception" in name else 256 if "v2" in name and "swin" in name else 224
    return (_image(size, size),)


def torchaudio() -> Iterator[Case]:
    """Return the factories of torchaudio for models of one size."""
    from torchaudio import models

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        model = getattr(models, name)(**_OPTIONS_OF_SOUND.get(name, {}))
        return model, _ARGUMENTS_OF_SOUND.get(name, _WAVE)()

    factories = [name for name in dir(models) if name.endswith("_base")]
    others = [name for name in dir(models) if name.startswith(("hdemucs_", "squim_"))]
    return registered("torchaudio", sorted({*factories, *others}), make, devices=("cpu",))


def _wave() -> tuple[Any, ...]:
    return (torch.rand(1, 16000),)


_WAVE = _wave
_SOURCES = {"sources": ["drums", "bass", "other", "vocals"]}
_OPTIONS_OF_SOUND = {
    "emformer_rnnt_base": {"num_symbols": 128},
    **dict.fromkeys(["hdemucs_high", "hdemucs_low", "hdemucs_medium"], _SOURCES),
}
_ARGUMENTS_OF_SOUND: dict[str, Callable[[], tuple[Any, ...]]] = {
    "conv_tasnet_base": lambda: (torch.rand(1, 1, 16000),),
    "conformer_wav2vec2_base": lambda: (torch.rand(1, 100, 64),),
    "emformer_rnnt_base": lambda: (
        torch.rand(1, 132, 80),
        torch.tensor([132]),
        torch.arange(8)[None].int(),
        torch.tensor([8]),
    ),
    "hdemucs_high": lambda: (torch.rand(1, 2, 44100),),
    "hdemucs_low": lambda: (torch.rand(1, 2, 44100),),
    "hdemucs_medium": lambda: (torch.rand(1, 2, 44100),),
    "squim_subjective_base": lambda: (torch.rand(1, 16000), torch.rand(1, 16000)),
}


def pytorchcv() -> Iterator[Case]:
    """Return the models of pytorchcv, each with an image of its own size."""
    from pytorchcv import model_provider

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        model = model_provider.get_model(name, pretrained=False)
        size = getattr(model, "in_size", (224, 224))
        channels = getattr(model, "in_channels", 3)
        return model, (torch.rand(1, channels, *size, device="cpu"),)

    return registered("pytorchcv", model_provider._models, make)


def pretrainedmodels() -> Iterator[Case]:
    """Return the models of pretrainedmodels."""
    import pretrainedmodels

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        model = pretrainedmodels.__dict__[name](pretrained=None)
        size = 331 if "nasnet" in name and "mobile" not in name else 299
        return model, (
            _image(size, size) if size == 331 or "ception" in name else _image(224, 224),
        )

    return registered("pretrainedmodels", pretrainedmodels.model_names, make)


def geffnet() -> Iterator[Case]:
    """Return the models of geffnet."""
    import geffnet
    from geffnet import gen_efficientnet, mobilenetv3

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        return geffnet.create_model(name, pretrained=False), (_image(224, 224),)

    names = [*gen_efficientnet.__all__, *mobilenetv3.__all__]
    return registered("geffnet", [name for name in names if name.islower()], make)


def efficientnet_pytorch() -> Iterator[Case]:
    """Return the models of efficientnet_pytorch."""
    from efficientnet_pytorch import EfficientNet

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        return EfficientNet.from_name(name), (_image(224, 224),)

    return registered("efficientnet_pytorch", ["efficientnet-b0"], make)


def effdet() -> Iterator[Case]:
    """Return the detectors of effdet, without the backbone's weights."""
    import effdet

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        config = effdet.get_efficientdet_config(name)
        model = effdet.EfficientDet(config, pretrained_backbone=False)
        return model, (_image(*config.image_size),)

    names = effdet.config.model_config.efficientdet_model_param_dict
    return registered("effdet", names, make)


def open_clip() -> Iterator[Case]:
    """Return the configs of open_clip, each with an image and a text."""
    import open_clip

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        config = open_clip.get_model_config(name)
        model = open_clip.create_model(
            name, pretrained_text=False, device=torch.get_default_device()
        )
        size = config["vision_cfg"].get("image_size", 224)
        size = (size, size) if isinstance(size, int) else tuple(size)
        text = torch.arange(5, 5 + config["text_cfg"].get("context_length", 77), device="cpu")
        return model, (_image(*size), text[None])

    return registered("open_clip", open_clip.list_models(), make)


def ultralytics() -> Iterator[Case]:
    """Return the files that describe models of ultralytics, each in its smallest scale."""
    import ultralytics
    from ultralytics.nn import tasks

    root = Path(ultralytics.__file__).parent / "cfg" / "models"
    files = {each.stem: each for each in sorted(root.rglob("*.yaml"))}

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        config = tasks.yaml_model_load(files[name])
        task = tasks.guess_model_task(config)
        special = [kind for word, kind in _CLASS_OF_WORD.items() if word in name]
        model = getattr(tasks, [*special, _CLASS_OF_TASK.get(task)][0])(config, verbose=False)
        return model, (torch.rand(1, 3, 320, 320),)

    for name in files:
        yield Case(
            name=f"ultralytics:{name}", builds=(partial(_registered, make, name),), devices=("cpu",)
        )


_CLASS_OF_TASK = {
    "detect": "DetectionModel",
    "segment": "SegmentationModel",
    "semantic": "SemanticSegmentationModel",
    "depth": "DepthModel",
    "classify": "ClassificationModel",
    "pose": "PoseModel",
    "obb": "OBBModel",
}
_CLASS_OF_WORD = {
    "rtdetr": "RTDETRDetectionModel",
    "world": "WorldModel",
    "yoloe": "YOLOEModel",
}


def segmentation_models() -> Iterator[Case]:
    """Return every head with a ResNet, and a U-Net with every encoder."""
    import segmentation_models_pytorch as smp

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        head, encoder = name.split(" on ")
        model = getattr(smp, head)(encoder_name=encoder, encoder_weights=None)
        return model, (_image(256, 256),)

    heads = [each.__name__ for each in smp.MODEL_ARCHITECTURES_MAPPING.values()]
    names = [f"{head} on resnet34" for head in heads]
    encoders = [f"Unet on {name}" for name in smp.encoders.get_encoder_names()]
    return registered("segmentation_models_pytorch", [*names, *encoders], make)


def litgpt() -> Iterator[Case]:
    """Return the configs of litgpt, with two layers each."""
    from litgpt import GPT, Config
    from litgpt.config import name_to_config

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        config = Config.from_name(name)
        config = Config.from_name(name, n_layer=min(2, config.n_layer))
        return GPT(config), (torch.arange(16, device="cpu")[None],)

    return registered("litgpt", name_to_config, make)


def whisper() -> Iterator[Case]:
    """Return Whisper, with thirty seconds and sixteen tokens."""
    from whisper.model import ModelDimensions, Whisper

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        del name
        model = Whisper(ModelDimensions(80, 1500, 384, 6, 4, 51865, 448, 384, 6, 4))
        return model, (torch.rand(1, 80, 3000), torch.arange(16)[None])

    return registered("whisper", ["tiny"], make, devices=("cpu",))


def segment_anything() -> Iterator[Case]:
    """Return the image encoder of each size; prompts and masks need a dictionary of images."""
    from segment_anything import sam_model_registry

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        model = sam_model_registry[name]()
        return model.image_encoder, (_image(1024, 1024),)

    return registered("segment_anything", ["vit_b"], make)


def clip() -> Iterator[Case]:
    """Return CLIP with a ResNet and with a ViT."""
    from clip.model import CLIP

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        vision = ((3, 4, 6, 3), 64, None) if name == "resnet" else (12, 768, 32)
        model = CLIP(512, 224, *vision, 77, 49408, 512, 8, 12)
        return model, (_image(224, 224), torch.arange(77, device="cpu")[None])

    return registered("clip", ["resnet", "vit"], make, devices=("cpu",))


def deepctr_torch() -> Iterator[Case]:
    """Return the models of deepctr-torch, each for four sparse and two dense features."""
    models = importlib.import_module("deepctr_torch.models")
    from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat

    sparse = [SparseFeat(f"s{index}", 100, embedding_dim=8) for index in range(4)]
    dense = [DenseFeat(f"d{index}", 1) for index in range(2)]
    columns = [*sparse, *dense]
    past = [
        VarLenSparseFeat(
            SparseFeat("hist_s0", 100, embedding_dim=8, embedding_name="s0"),
            5,
            length_name="length",
        ),
        SparseFeat("length", 6, embedding_dim=8),
    ]

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        model_class = getattr(models, name)
        matrix = torch.randint(0, 5, (2, 6)).float()
        if name in ("DIN", "DIEN"):
            model = model_class([*columns, *past], ["s0"])
            return model, (torch.cat([matrix, torch.ones(2, 6)], 1),)
        if name in ("DIFM", "IFM", "AFM"):
            return model_class(columns, sparse), (matrix,)
        if name == "CCPM":
            return model_class(sparse, sparse), (matrix,)
        if name in ("SharedBottom", "ESMM", "MMOE", "PLE"):
            tasks = {"task_types": ["binary", "binary"], "task_names": ["a", "b"]}
            return model_class(columns, **tasks), (matrix,)
        if name in ("PNN",):
            return model_class(columns), (matrix,)
        return model_class(columns, columns), (matrix,)

    names = [name for name in dir(models) if isinstance(getattr(models, name), type)]
    for name in sorted(names):
        if name != "BaseModel":
            yield Case(
                name=f"deepctr_torch:{name}",
                builds=(partial(_registered, make, name),),
                devices=("cpu",),
            )


def neuralforecast() -> Iterator[Case]:
    """Return the models of neuralforecast, each for a series of 48 steps and a horizon of 12."""
    models = importlib.import_module("neuralforecast.models")

    def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
        options = {"n_series": 1} if name in _FOR_MANY_SERIES else {}
        model = getattr(models, name)(h=12, input_size=48, max_steps=1, **options)
        batch = {
            "insample_y": torch.rand(1, 48, 1),
            "insample_mask": torch.ones(1, 48, 1),
            "hist_exog": None,
            "futr_exog": None,
            "stat_exog": None,
        }
        return model, (batch,)

    names = [name for name in dir(models) if isinstance(getattr(models, name), type)]
    for name in sorted(names):
        yield Case(
            name=f"neuralforecast:{name}",
            builds=(partial(_registered, make, name),),
            devices=("cpu",),
        )


_FOR_MANY_SERIES = {
    *("StemGNN", "TSMixer", "TSMixerx", "MLPMultivariate", "iTransformer", "TimeMixer"),
    *("SOFTS", "RMoK", "xLSTMMixer", "TimeXer"),
}
