"""From a target to a model: imported, called, and built without data where that can be."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from torchscan.errors import InputError, NeedsValuesError, RecordError, TorchscanError
from torchscan.targets.inputs import InputSpec, arguments_of, checked_dtype, torch_dtype
from torchscan.targets.parsing import Target

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Built:
    """A model, and the inputs that it is known to take, if any."""

    module: nn.Module
    inputs: tuple[InputSpec, ...] = ()
    #: whether it was built here, rather than found, so that it may be changed
    is_ours: bool = True

    def converted(self, dtype: str | None) -> Built:
        """In another floating type; what is not ours is copied."""
        if dtype is None or not torch_dtype(checked_dtype(dtype)).is_floating_point:
            return self
        module = self.module if self.is_ours else copy.deepcopy(self.module)
        return Built(module.to(torch_dtype(checked_dtype(dtype))), self.inputs)


def with_model(target: Target, verb: Callable[[Built], Result]) -> Result:
    """What ``verb`` says of the model: built on the meta device, and with data where its constructor or its pass needs them.

    The random state stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        factory = _factory(target)
        if isinstance(factory, Built):
            return verb(factory)
        hollow = _built_without_data(target, factory)
        if hollow is not None:
            try:
                return verb(hollow)
            except TorchscanError as error:
                if not _may_need_data(error):
                    raise
        return verb(_built(target, factory))


def _may_need_data(error: TorchscanError) -> bool:
    """A pass that read what a model on the meta device does not have, rather than one that is wrong."""
    if isinstance(error, NeedsValuesError):
        return True
    said = f"{error} {error.__cause__}".lower()
    return isinstance(error, RecordError) and ("meta" in said or "no data" in said)


def _built_without_data(target: Target, factory: Callable[[], Built]) -> Built | None:
    try:
        with torch.device("meta"):
            return _built(target, factory)
    except Exception:  # whatever a constructor does with values: it gets them then
        return None


def _built(target: Target, factory: Callable[[], Built]) -> Built:
    try:
        built = factory()
    except TorchscanError:
        raise
    except Exception as error:
        raise InputError(f"{target} could not be built: {type(error).__name__}: {error}") from error
    if not isinstance(built.module, nn.Module):
        raise InputError(f"{target} gives a {type(built.module).__name__}, which is no torch.nn.Module")
    return built


def _factory(target: Target) -> Callable[[], Built] | Built:
    makers = {"torchvision": _torchvision, "timm": _timm, "hf": _transformers}
    if target.kind in makers:
        return makers[target.kind](target)
    found = _attribute(_file(target) if target.kind == "file" else _module(target), target)
    if isinstance(found, nn.Module):
        if target.is_call:
            raise InputError(f"{target}: {target.name} is a model already, and takes no arguments here")
        return Built(found, is_ours=False)
    if not callable(found):
        raise InputError(f"{target}: {target.name} is a {type(found).__name__}: name a model, or what makes one")
    return lambda: Built(found(*target.args, **target.kwargs))


def asked(what: str, built: Built, specs: Sequence[InputSpec], dtype: str | None) -> dict[str, Any]:
    """``input_shape`` and ``dtype`` as :func:`torchscan.record` takes them: of the inputs named, else of those known."""
    inputs = specs or built.inputs
    if not inputs:
        raise InputError(f"{what}: its inputs are not known: give the shape of one sample, 3,224,224 say (--input, input =)")
    shapes, dtypes = arguments_of(inputs, None if dtype is None else checked_dtype(dtype))
    return {"input_shape": shapes, "dtype": dtypes}


# -- modules and files ---------------------------------------------------------------------------------------------------


def _module(target: Target) -> Any:
    """As ``python -m`` would find it: the folder at hand comes first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _imported(target.place, target)


def _imported(name: str, target: Target) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InputError(f"{target}: there is no module {error.name!r} here; install it, or name a file.py") from error
        raise InputError(f"{target}: importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{target}: importing {name} failed: {type(error).__name__}: {error}") from error


def _file(target: Target) -> Any:
    """The file as a module of its own; like a script, it can import what stands beside it."""
    path = Path(target.place).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"{target}: there is no file {target.place!r}")
    name = f"_torchscan_target_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    specification: Any = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{target}: running {target.place} failed: {type(error).__name__}: {error}") from error
    return module


def _attribute(module: Any, target: Target) -> Any:
    found = module
    for name in target.name.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise InputError(f"{target}: {target.place} has no {name!r}{_near(name, dir(found))}") from None
    return found


def _near(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, [each for each in known if not each.startswith("_")], 3)
    return f": did you mean {' or '.join(near)}?" if near else ""


# -- collections ---------------------------------------------------------------------------------------------------------


def _torchvision(target: Target) -> Callable[[], Built]:
    models = _imported("torchvision.models", target)
    if target.name not in models.list_models():
        raise InputError(f"{target}: torchvision has no model {target.name!r}{_near(target.name, models.list_models())}")

    def build() -> Built:
        options = {"weights": None, **target.kwargs}
        if "weights_backbone" in inspect.signature(models.get_model_builder(target.name)).parameters:
            options.setdefault("weights_backbone", None)
        return Built(models.get_model(target.name, **options), _torchvision_inputs(models, target.name))

    return build


def _torchvision_inputs(models: Any, name: str) -> tuple[InputSpec, ...]:
    """The size of image that its weights were made for; nothing of videos, boxes and flows."""
    try:
        crop = models.get_model_weights(name).DEFAULT.transforms().crop_size[-1]
    except (AttributeError, ValueError, TypeError, IndexError):
        return ()
    return () if ".video." in models.get_model_builder(name).__module__ else (InputSpec((3, crop, crop)),)


def _timm(target: Target) -> Callable[[], Built]:
    timm = _imported("timm", target)
    if not timm.is_model(target.name):
        raise InputError(f"{target}: timm has no model {target.name!r}{_near(target.name, timm.list_models())}")

    def build() -> Built:
        model = timm.create_model(target.name, **{"pretrained": False, **target.kwargs})
        size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
        return Built(model, () if size is None else (InputSpec(tuple(size)),))

    return build


def _transformers(target: Target) -> Callable[[], Built]:
    path = Path(target.place).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"{target}: there is no file {str(path)!r}; configs are read from disk, never from a hub")
    transformers = _imported("transformers", target)
    try:
        config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise InputError(f"{target}: {path} is no config that transformers knows: {said}") from error
    for name, value in target.kwargs.items():
        if not hasattr(config, name):
            raise InputError(f"{target}: {type(config).__name__} has no {name!r}{_near(name, dir(config))}")
        setattr(config, name, value)
    names = [name for name in getattr(config, "architectures", None) or () if hasattr(transformers, name)]

    def build() -> Built:
        model = getattr(transformers, names[0])(config) if names else transformers.AutoModel.from_config(config)
        return Built(model, _transformers_inputs(model))

    return build


def _transformers_inputs(model: Any) -> tuple[InputSpec, ...]:
    """Token ids, 512 of them or as many as it takes, or an image."""
    config = model.config
    if model.main_input_name == "input_ids":
        tokens = min(512, getattr(config, "max_position_embeddings", None) or 512)
        names = ["input_ids", *(["decoder_input_ids"] if config.is_encoder_decoder else [])]
        return tuple(InputSpec((tokens,), "int64", name) for name in names)
    size = getattr(config, "image_size", None)
    if model.main_input_name == "pixel_values" and isinstance(size, int):
        return (InputSpec((getattr(config, "num_channels", 3), size, size), None, "pixel_values"),)
    return ()
