"""Models of torchvision, timm and transformers by name or config, with their known inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.targets.built import Built
from torchscan.targets.hub_access import (
    cached_config,
    missing_part,
    read_config,
    refuse_foreign_code,
)
from torchscan.targets.importing import explain_torchvision, imported, near, path_of
from torchscan.targets.inputs import InputSpec
from torchscan.targets.parsing import Target
from torchscan.user_warnings import warn_user

_TOKENS = 512


def _torchvision(target: Target, _: Path) -> Callable[[], Built]:
    models = imported("torchvision.models", target)
    if target.name not in models.list_models():
        raise InputError.about(
            target,
            f"torchvision has no model {target.name!r}{near(target.name, models.list_models())}",
        )
    builder = models.get_model_builder(target.name)
    _require_nothing_to_download(
        target, "weights", "weights_backbone", "pretrained", "pretrained_backbone"
    )
    options = {"weights": None, **target.kwargs}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options.setdefault("weights_backbone", None)

    def build() -> Built:
        model = models.get_model(target.name, **options)
        return Built(model, _image(models, target.name, builder))

    return build


def _require_nothing_to_download(target: Target, *names: str) -> None:
    asked = [name for name in names if target.kwargs.get(name)]
    if asked:
        raise InputError.about(
            target,
            f"{asked[0]} is given, and torchscan downloads nothing: leave it out, weights do not "
            "change the counts",
        )


def _image(models: Any, name: str, builder: Any) -> tuple[InputSpec, ...]:
    """Return an image of the size that a model's weights were trained for.

    There is none for models of videos, boxes and optical flow.
    """
    try:
        crop = models.get_model_weights(name).DEFAULT.transforms().crop_size[-1]
    except (AttributeError, ValueError, TypeError, IndexError):
        return ()
    if ".video." in builder.__module__:
        return ()
    return (InputSpec((3, crop, crop)),)


def _timm(target: Target, _: Path) -> Callable[[], Built]:
    timm = imported("timm", target)
    if not timm.is_model(target.name):
        raise InputError.about(
            target, f"timm has no model {target.name!r}{near(target.name, timm.list_models())}"
        )

    _require_nothing_to_download(target, "pretrained", "checkpoint_path")

    def build() -> Built:
        model = timm.create_model(target.name, **{"pretrained": False, **target.kwargs})
        size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
        return Built(model, () if size is None else (InputSpec(tuple(size)),))

    return build


def _transformers(target: Target, folder: Path) -> Callable[[], Built]:
    """Return how to build the config's architecture, in its type, without code of the config."""
    path = _config_file(target, folder)
    written = read_config(path, target)
    refuse_foreign_code(written, target)
    transformers = imported("transformers", target)
    config = _config(transformers, path, target, written)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = getattr(config, "architectures", None) or ()
    has_language_model = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not names and target.is_language_model and has_language_model:
        return _built_by(
            lambda: transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False),
            written,
            target,
        )
    if not names:
        warn_user(
            f"{target}: the config names no architectures, so this is the model without a head: "
            'add "architectures": ["LlamaForCausalLM"], for example, to the config for one with '
            "a head"
        )
        return _built_by(
            lambda: transformers.AutoModel.from_config(config, trust_remote_code=False),
            written,
            target,
        )
    try:
        model_class = getattr(transformers, str(names[0]))
    except (AttributeError, ImportError, RuntimeError) as error:
        message = explain_torchvision(error) or str(error).strip().partition("\n")[0][:200]
        raise InputError.about(
            target, f"transformers cannot provide {str(names[0])[:60]!r}: {message}"
        ) from error
    return _built_by(lambda: model_class._from_config(config), written, target)


def _built_by(
    build: Callable[[], Any], written: Mapping[str, Any], target: Target
) -> Callable[[], Built]:
    """Return a function that builds the model; its error names the key that asks for a download."""

    def built() -> Built:
        try:
            model = build()
        except Exception as error:
            missing = missing_part(error, written, target)
            if missing is None:
                raise
            raise missing from error
        return Built(model, _known_inputs(model))

    return built


def _config_file(target: Target, folder: Path) -> Path:
    """Return the path of the config, which is on disk or else in the hub's cache."""
    path = path_of(target.place, folder, target)
    if not path.exists():
        return cached_config(target)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError.about(target, f"there is no config.json in {target.place!r}")
    return path


def _config(transformers: Any, path: Path, target: Target, written: Mapping[str, Any]) -> Any:
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
        unknown = [name for name in target.kwargs if not hasattr(config, name)]
        if not unknown:
            for name, value in target.kwargs.items():
                setattr(config, name, value)
    except Exception as error:
        missing = missing_part(error, written, target)
        if missing is not None:
            raise missing from error
        # An import error may be caused by another, such as a torchvision for another torch.
        origin: BaseException = error
        while isinstance(origin, ImportError) and origin.__cause__ is not None:
            origin = origin.__cause__
        message = " ".join(str(origin).split())[:200]  # its cause may be in its second line
        if isinstance(error, ImportError):
            text = explain_torchvision(error) or f"{type(origin).__name__}: {message}"
            raise InputError.about(target, f"importing transformers failed: {text}") from error
        raise InputError.about(
            target, f"{path} is not a config that transformers knows: {message}"
        ) from error
    if unknown:
        raise InputError.about(
            target, f"{type(config).__name__} has no {unknown[0]!r}{near(unknown[0], dir(config))}"
        )
    return config


def _known_inputs(model: Any) -> tuple[InputSpec, ...]:
    """Return the inputs of a model: token ids, or an image; none if it takes both.

    There are 512 tokens, or fewer if the model takes fewer.
    """
    config = model.config
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        return ()
    if model.main_input_name == "input_ids":
        tokens = min(_TOKENS, getattr(config, "max_position_embeddings", None) or _TOKENS)
        names = ["input_ids", *(["decoder_input_ids"] if config.is_encoder_decoder else [])]
        return tuple(InputSpec((tokens,), "int64", name) for name in names)
    size = getattr(config, "image_size", None)
    if model.main_input_name == "pixel_values" and isinstance(size, int):
        return (InputSpec((getattr(config, "num_channels", 3), size, size), None, "pixel_values"),)
    return ()


HUBS: Mapping[str, Callable[[Target, Path], Callable[[], Built]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _transformers,
}
