"""The packages of ``scripts/benchmark --field``, and where the architectures of each come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import field_registries as registries
from field_cases import Built, Case
from field_search import Search
from field_searched import HELD_OUT, SEARCHED


@dataclass(frozen=True, kw_only=True)
class Package:
    """A distribution, and what yields its architectures."""

    distribution: str
    cases: Callable[[], Iterator[Case]]
    #: True if neither torchscan nor a rule was changed after a look at its models
    held_out: bool = False


def _transformers() -> Iterator[Case]:
    from field_transformers import cases

    return cases()


def _diffusers() -> Iterator[Case]:
    """Yield the models that are called by hand, then the others by the names of arguments."""
    from field_diffusers import cases

    known = set()
    for case in _by_hand("diffusers"):
        known.add(case.name)
        yield case
    yield from (case for case in cases() if case.name not in known)


def _by_hand(package: str) -> Iterator[Case]:
    """Yield the models of a package that are called by hand."""
    import field_called  # noqa: F401 - adds to the others
    from field_others import OTHERS, Call

    def build(call: Callable[[], Call], device: str, is_small: bool) -> Built:
        del device, is_small  # as they are
        model, args, kwargs = call()
        return Built(model=model.eval(), args=args, kwargs=kwargs)

    devices = ("meta",) if package == "torchtune" else ("cpu",)
    for name, call in OTHERS.items():
        if name.partition(":")[0] == package:
            yield Case(name=name, builds=(partial(build, call),), devices=devices)


def _both(package: str, *modules: str, **options: object) -> Callable[[], Iterator[Case]]:
    """Yield models that are called by hand, then the other classes of these modules."""

    def cases() -> Iterator[Case]:
        known = set()
        for case in _by_hand(package):
            known.add(case.name)
            yield case
        for case in Search(package, *modules, **options)():
            if case.name not in known:
                yield case

    return cases


_REGISTRIES: Mapping[str, tuple[str, Callable[[], Iterator[Case]]]] = {
    "transformers": ("transformers", _transformers),
    "timm": ("timm", registries.timm),
    "timm_3d": ("timm-3d", registries.timm_3d),
    "torchvision": ("torchvision", registries.torchvision),
    "torchaudio": ("torchaudio", registries.torchaudio),
    "pytorchcv": ("pytorchcv", registries.pytorchcv),
    "pretrainedmodels": ("pretrainedmodels", registries.pretrainedmodels),
    "geffnet": ("geffnet", registries.geffnet),
    "efficientnet_pytorch": ("efficientnet-pytorch", registries.efficientnet_pytorch),
    "effdet": ("effdet", registries.effdet),
    "open_clip": ("open-clip-torch", registries.open_clip),
    "ultralytics": ("ultralytics", registries.ultralytics),
    "segmentation_models_pytorch": (
        "segmentation-models-pytorch",
        registries.segmentation_models,
    ),
    "litgpt": ("litgpt", registries.litgpt),
    "whisper": ("openai-whisper", registries.whisper),
    "segment_anything": ("segment-anything", registries.segment_anything),
    "clip": ("openai-clip", registries.clip),
    "deepctr_torch": ("deepctr-torch", registries.deepctr_torch),
    "neuralforecast": ("neuralforecast", registries.neuralforecast),
    "peft": ("peft", partial(_by_hand, "peft")),
    "e3nn": ("e3nn", partial(_by_hand, "e3nn")),
    "stable_baselines3": ("stable-baselines3", partial(_by_hand, "stable_baselines3")),
    "diffusers": ("diffusers", _diffusers),
    "torch_geometric": ("torch-geometric", _both("torch_geometric", "torch_geometric.nn.models")),
    "monai": ("monai", _both("monai", "monai.networks.nets")),
    "speechbrain": ("speechbrain", _both("speechbrain", "speechbrain.lobes.models")),
    "vit_pytorch": ("vit-pytorch", _both("vit_pytorch", "vit_pytorch")),
    "braindecode": (
        "braindecode",
        Search(
            "braindecode", "braindecode.models", n_chans=22, n_outputs=4, n_times=1000, sfreq=250
        ),
    ),
    "tsai": ("tsai", Search("tsai", "tsai.models")),
    "spandrel": ("spandrel", Search("spandrel", "spandrel.architectures")),
    "spandrel_extra_arches": ("spandrel-extra-arches", Search("spandrel_extra_arches")),
    "kornia": ("kornia", _both("kornia", "kornia.feature", "kornia.models", "kornia.contrib")),
    "lightly": ("lightly", Search("lightly", "lightly.models")),
    "pykeen": ("pykeen", Search("pykeen", "pykeen.nn")),
    "schnetpack": ("schnetpack", Search("schnetpack", "schnetpack.representation")),
}


def packages() -> dict[str, Package]:
    """Return all packages by the names that their cases begin with."""
    every = dict(_REGISTRIES)
    for distribution, module in SEARCHED.items():
        name = distribution.replace("-", "_")
        every[name] = (distribution, _both(name, module or name.lower()))
    return {
        name: Package(distribution=distribution, cases=cases, held_out=distribution in HELD_OUT)
        for name, (distribution, cases) in every.items()
    }
