"""See scripts/same-figures: every figure of many models, a line for each answer, so that two checkouts can be compared."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchscan

sys.path.insert(
    0, str(Path(torchscan.__file__).parent.parent)
)  # the tests of the checkout that is asked

import tests.torchvision_cpu  # noqa: F401 - beside a CPU build of torch, before torchvision and timm

import torchvision  # isort: skip
import timm

from torchscan import (
    TorchscanError,
    analyze_generation,
    analyze_roofline,
    crawl_module,
    estimate_memory,
    parallel,
    receptive_field,
)

#: sentences may be put better, and a verdict says what is searched for only when it is asked
WORDS = frozenset({"reasons", "assumptions", "warnings", "largest_batch_size", "longest_sequence"})

TORCHVISION = """alexnet vgg11_bn squeezenet1_1 googlenet inception_v3 resnet18 resnet50 resnext50_32x4d wide_resnet50_2
densenet121 mobilenet_v2 mobilenet_v3_small mnasnet0_5 shufflenet_v2_x0_5 efficientnet_b0 efficientnet_v2_s regnet_y_400mf
convnext_tiny vit_b_16 swin_t swin_v2_t maxvit_t"""
TIMM = """deit_tiny_patch16_224 mixer_s16_224 beit_base_patch16_224 cait_xxs24_224 poolformer_s12 gmlp_s16_224 nf_resnet50
hrnet_w18_small dla34 xcit_nano_12_p16_224 convmixer_768_32 sequencer2d_s halonet26t lambda_resnet26t botnet26t_256
efficientformer_l1 pvt_v2_b0 twins_pcpvt_small visformer_tiny tresnet_m"""
VIDEO = {"r3d_18": (3, 8, 112, 112), "s3d": (3, 16, 224, 224), "mvit_v1_b": (3, 16, 224, 224)}
#: what takes other images than of 224 pixels
SIDES = {"inception_v3": 299, "halonet26t": 256, "botnet26t_256": 256}
DENSE = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")

Question = Callable[[nn.Module, dict[str, Any]], Any]


def _plain(result: Any) -> Any:
    return result.to_dict()


def _memory(**step: Any) -> Question:
    return lambda model, inputs: _plain(estimate_memory(model, **inputs, **step))


def _roofline(**step: Any) -> Question:
    return lambda model, inputs: _plain(analyze_roofline(model, **inputs, **step))


def _on_tensors(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """With complete arguments: of shapes, older versions look for the largest batch, which takes long."""
    shapes = (
        inputs["input_shape"]
        if isinstance(inputs["input_shape"], dict)
        else {"": inputs["input_shape"]}
    )
    size, dtype = inputs["batch_size"], inputs.get("dtype")
    given = {name: torch.zeros((size, *shape), dtype=dtype) for name, shape in shapes.items()}
    arguments = {"args": tuple(given.values())} if "" in given else {"kwargs": given}
    return _plain(
        estimate_memory(model, **arguments, training=True, optimizer="SGD", device="24 GiB")
    )


QUESTIONS: dict[str, Question] = {
    "info": lambda model, inputs: crawl_module(model, **inputs),
    "info of a backward pass": lambda model, inputs: crawl_module(
        model, **inputs, mode="train", training=True
    ),
    "info as fvcore counts": lambda model, inputs: crawl_module(
        model, **inputs, convention="fvcore"
    ),
    "receptive field": lambda model, inputs: _plain(receptive_field(model, **inputs)),
    "memory": _memory(),
    "memory of a step": _memory(training=True, optimizer="AdamW", precision="bf16-mixed"),
    "memory on a card": _on_tensors,
    "time": _roofline(device="NVIDIA GeForce RTX 4090", precision="fp16"),
    "time of a step": _roofline(
        device="NVIDIA H200",
        training=True,
        optimizer="AdamW",
        precision="bf16-mixed",
        compiled=True,
    ),
}

MESHES = (
    *({"dp": 8}, {"dp": 4, "tp": 2}, {"dp": 2, "cp": 4}, {"dp": 4, "pp": 2}),
    {"dp": 2, "replicate": 2, "tp": 2},
)


def _plan(mesh: dict[str, int], **step: Any) -> Question:
    def ask(model: nn.Module, inputs: dict[str, Any]) -> Any:
        asked = {"training": True, "optimizer": "AdamW", "device": "H100", "ranks": "ends"}
        return _plain(parallel.plan(model, **inputs, mesh=mesh, **asked, **step))

    return ask


def _generation(**asked: Any) -> Question:
    return lambda model, _: _plain(
        analyze_generation(model, 256, 64, batch_size=8, device="H100", **asked)
    )


def _search(model: nn.Module, _: dict[str, Any]) -> Any:
    return _plain(
        parallel.search(
            model, num_gpus=8, meshes=MESHES, length=512, global_batch_size=32, device="H100"
        )
    )


def _curve(model: nn.Module, inputs: dict[str, Any]) -> Any:
    step = {"training": True, "optimizer": "AdamW", "device": "H100", "precision": "bf16-mixed"}
    return _plain(estimate_memory(model, **inputs, **step).checkpointing())


#: questions about language models
OF_LANGUAGE: dict[str, Question] = {
    "generation": _generation(),
    "generation of an engine": _generation(engine="vllm", mesh={"tp": 2}),
    "serving": lambda model, _: _plain(
        parallel.search_serving(model, 256, 64, num_gpus=4, device="H100")
    ),
    "sharded step": _plan({"dp": 4, "tp": 2}, precision="bf16-mixed"),
    "sharded step in 8 bits": _plan({"dp": 4}, float8="tensorwise", precision="bf16-mixed"),
    "step along the sequence": _plan({"cp": 4}, precision="bf16-mixed"),
    "mesh search": _search,
    "checkpointing": _curve,
}


def main() -> None:
    """Print a line for each answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument(
        "--keep",
        metavar="FOLDER",
        type=Path,
        help="also write each answer in full, to see what differs",
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name, build, inputs in models():
        if options.only in name:
            model = build().eval()
            questions = QUESTIONS | (OF_LANGUAGE if name == "llama" else {})
            for question, ask in questions.items():
                text = _answer(model, {**inputs, "batch_size": 2}, ask)
                print(
                    f"{name}: {question}: {len(text)} bytes {hashlib.sha256(text.encode()).hexdigest()[:16]}",
                    flush=True,
                )
                if options.keep is not None:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{name} {question}.json".replace("/", "_")).write_text(text)


def _answer(model: nn.Module, inputs: dict[str, Any], ask: Question) -> str:
    try:
        return json.dumps(_figures(ask(model, inputs)), indent=1)
    except TorchscanError as error:
        return f"refused: {type(error).__name__}"


def _figures(answer: Any) -> Any:
    """All but the sentences."""
    if isinstance(answer, dict):
        return {key: _figures(value) for key, value in answer.items() if key not in WORDS}
    return [_figures(each) for each in answer] if isinstance(answer, list | tuple) else answer


def models() -> Iterator[tuple[str, Callable[[], nn.Module], dict[str, Any]]]:
    """One or two of each family, and 50 that are drawn."""
    image = {"input_shape": (3, 224, 224)}
    for name in TORCHVISION.split():
        side = SIDES.get(name, 224)
        yield (
            name,
            lambda name=name: _on_meta(lambda: torchvision.models.get_model(name)),
            {"input_shape": (3, side, side)},
        )
    for name in DENSE:
        built = lambda name=name: _on_meta(  # noqa: E731
            lambda: torchvision.models.get_model(name, weights_backbone=None)
        )
        yield name, built, image
    for name, shape in VIDEO.items():
        yield (
            name,
            lambda name=name: _on_meta(lambda: torchvision.models.get_model(name)),
            {"input_shape": shape},
        )
    for name in TIMM.split():
        side = SIDES.get(name, 224)
        yield (
            name,
            lambda name=name: _on_meta(lambda: timm.create_model(name)),
            {"input_shape": (3, side, side)},
        )
    yield "llama", _llama, {"input_shape": {"input_ids": (64,)}, "dtype": torch.long}
    yield "bert", _bert, {"input_shape": {"input_ids": (64,)}, "dtype": torch.long}
    for number in range(50):
        yield (
            f"drawn {number}",
            lambda number=number: _random_model(random.Random(number)),  # noqa: S311
            {"input_shape": (8, 32, 32)},
        )


def _on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.device("meta"):
            return build()
    except (RuntimeError, NotImplementedError):
        return build()


def _llama() -> nn.Module:
    import transformers

    sizes = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "vocab_size": 512,
    }
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, use_cache=False
    )
    return transformers.LlamaForCausalLM(config)


def _bert() -> nn.Module:
    import transformers

    sizes = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=512))


class _Sum(nn.Module):
    """A branch beside what goes through, or gated by it."""

    def __init__(self, branch: nn.Module, *, is_gate: bool) -> None:
        super().__init__()
        self.branch = branch
        self.is_gate = is_gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add, or multiply with a share."""
        return x * self.branch(x).sigmoid() if self.is_gate else x + self.branch(x)


class _Sequence(nn.Module):
    """The pixels one after the other, through a layer for sequences."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To tokens and back."""
        tokens = x.flatten(2).transpose(1, 2)
        out = self.layer(tokens)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2).reshape(x.shape)


def _random_model(draw: random.Random) -> nn.Module:
    """A stack of layers that keep their channels, with branches, repeats, frozen and tied parts."""
    layers = [_layer(draw, depth=0) for _ in range(draw.randint(2, 7))]
    if draw.random() < 0.3:
        layers.append(layers[draw.randrange(len(layers))])
    head = (
        [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, draw.choice([1, 10]))]
        if draw.random() < 0.6
        else []
    )
    model = nn.Sequential(*layers, *head)
    for parameter in model.parameters():
        parameter.requires_grad_(draw.random() < 0.9)
    next(model.parameters()).requires_grad_()
    return model


def _layer(draw: random.Random, depth: int) -> nn.Module:
    kernel = draw.choice([1, 3, 5])
    simple: list[Callable[[], nn.Module]] = [
        lambda: nn.Conv2d(
            8,
            8,
            kernel,
            padding=kernel // 2,
            groups=draw.choice([1, 2, 8]),
            bias=draw.random() < 0.5,
        ),
        lambda: nn.Conv2d(8, 8, 3, padding=draw.choice([2, 4]), dilation=2),
        lambda: nn.ConvTranspose2d(8, 8, 2, stride=2),
        lambda: nn.Sequential(nn.MaxPool2d(2, ceil_mode=draw.random() < 0.5), nn.BatchNorm2d(8)),
        lambda: nn.AvgPool2d(3, stride=1, padding=1),
        lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()),
        lambda: nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(inplace=draw.random() < 0.5)),
        lambda: nn.Sequential(nn.Conv2d(8, 8, 1), nn.GELU(), nn.Dropout(0.1)),
        lambda: _Sequence(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
        lambda: _Sequence(nn.LSTM(8, 8, batch_first=True)),
        lambda: _Sequence(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        ),
        lambda: nn.Upsample(scale_factor=2, mode=draw.choice(["nearest", "bilinear"])),
    ]
    if depth < 2 and draw.random() < 0.3:
        branch = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, kernel, padding=kernel // 2)
        )
        return _Sum(branch, is_gate=draw.random() < 0.4)
    if depth < 2 and draw.random() < 0.2:
        return nn.Sequential(*(_layer(draw, depth + 1) for _ in range(2)))
    return draw.choice(simple)()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
