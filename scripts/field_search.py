"""Architectures of packages that do not list them: the modules that they define, with arguments found by their names.

Constructors get small values by the name of each required argument. The call gets the first
tensors, out of a few shapes by the name of each required argument, that the module accepts. Neither
asks torchscan. A class does not count if it has fewer than two layers with parameters, or if it is
a part of another class of its package.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from field_arguments import DIM, IMAGE, LENGTH, LIMIT, VOCABULARY, find_arguments, limited
from field_cases import Built, Case, NoInputKnownError
from torch import nn
from torch.nn.parameter import is_lazy

#: seconds for the import of one module
_LIMIT_TO_IMPORT = 60
#: larger ones are not built with data
_MAX_PARAMETERS = 400_000_000

#: value -> names of required arguments that get it
_VALUES: tuple[tuple[Any, str], ...] = (
    (
        DIM,
        "dim d_model hidden_size embed_dim emb_dim embedding_dim embed_size n_embd hidden_dim "
        "model_dim n_features num_features features channels hidden_channels dim_in dim_out in_dim "
        "out_dim in_features out_features input_dim output_dim input_size d_in d_out hidden "
        "feature_dim dims n_hidden nhid ninp emb_size d_embed width num_hidden inp_dim "
        "encoder_dim decoder_dim d_token base_channels latent_dim dim_latent codebook_dim",
    ),
    (
        3,
        "in_channels in_ch in_chans c_in input_channels n_channels num_in_ch in_nc num_in_channels "
        "channels_in inp_channels kernel_size n_bins spatial_size colors",
    ),
    (
        10,
        "num_classes n_classes c_out n_outputs out_channels num_out_ch out_nc out_ch "
        "output_channels num_labels classes channels_out n_class output_size nclass",
    ),
    (IMAGE, "image_size img_size resolution size input_resolution imgsize fmap_size"),
    (8, "patch_size image_patch_size bucket_size window_size window_padding num_buckets"),
    (
        2,
        "depth num_layers n_layers n_layer nlayers layers n_blocks num_blocks num_stages scale "
        "upscale num_resolutions depths spatial_dims enc_depth dec_depth text_enc_depth "
        "visual_enc_depth num_upsample n_flows num_transforms patch_stride frame_patch_size stages "
        "num_hidden_layers num_hiddens cls_depth upscale_factor num_iterations dimension n_dim",
    ),
    (4, "heads num_heads nhead n_heads n_head num_experts groups frames num_frames num_slots"),
    (16, "dim_head head_dim codebook_size seq_len_kv num_latents n_modes modes"),
    (128, "mlp_dim ff_dim dim_feedforward d_ffn ffn_dim d_ff dim_ff hidden_features"),
    (
        VOCABULARY,
        "num_tokens vocab_size n_tokens ntoken ntokens num_embeddings n_vocab num_text_tokens "
        "vocab n_token num_image_tokens",
    ),
    (
        LENGTH,
        "max_seq_len seq_len max_len seq_length sequence_length context_length max_length "
        "block_size num_patches target_window c_seq_len",
    ),
)
VALUES: Mapping[str, Any] = {name: value for value, names in _VALUES for name in names.split()}


class Search:
    """The architectures of one package, by the modules that define them."""

    def __init__(self, package: str, *modules: str, **options: Any) -> None:
        self.package, self.modules = package, modules or (package,)
        self.options = options

    def __call__(self) -> Iterator[Case]:
        """Yield a case for each class that can be constructed and is not a part of another."""
        classes = self._classes()
        parts: set[type] = set()
        whole: dict[str, Callable[..., Any]] = {}
        for name, each in classes.items():
            model = self._sketch(each)
            if model is None:
                continue
            parts |= {type(inner) for inner in model.modules() if inner is not model}
            if _has_layers(model):
                whole[name] = each
        for name, each in whole.items():
            if each not in parts:
                yield self.case(name, each)

    def case(self, name: str, model_class: Callable[..., Any]) -> Case:
        """Return the case of one class."""
        return Case(
            name=f"{self.package}:{name}",
            builds=(partial(self._build, model_class),),
            devices=("meta", "cpu"),
        )

    def _classes(self) -> dict[str, Callable[..., Any]]:
        """Return the classes by name, with the module's name where two have the same."""
        found: dict[Any, str] = {}
        for module in self._modules():
            for each in list(vars(module).values()):
                if _is_own(each, self.modules):
                    found.setdefault(each, each.__module__)
        counts = Counter(each.__name__ for each in found)
        named = {}
        for each, module_name in found.items():
            is_unique = counts[each.__name__] == 1
            tail = module_name.rpartition(".")[2]
            named[each.__name__ if is_unique else f"{tail}.{each.__name__}"] = each
        return dict(sorted(named.items()))

    def _modules(self) -> Iterator[Any]:
        for name in self.modules:
            module = importlib.import_module(name)
            yield module
            for each in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
                if _NOT_MODELS.isdisjoint(each.name.lower().split(".")):
                    with contextlib.suppress(BaseException), limited(_LIMIT_TO_IMPORT):
                        yield importlib.import_module(each.name)

    def _sketch(self, model_class: Callable[..., Any]) -> nn.Module | None:
        """Return a module, if possible without data, or None if no arguments for it are known."""
        for device in ("meta", "cpu"):
            with contextlib.suppress(Exception):
                return self._construct(model_class, device)
        return None

    def _construct(self, model_class: Callable[..., Any], device: str) -> nn.Module:
        torch.manual_seed(0)
        with limited(LIMIT), torch.device(device):
            model = model_class(**self._values(model_class))
        if not isinstance(model, nn.Module):  # a function that makes something else
            raise TypeError(f"{model_class} is not a module")
        return model.eval()

    def _values(self, model_class: Callable[..., Any]) -> dict[str, Any]:
        values = {}
        for each in inspect.signature(model_class).parameters.values():
            if each.name in self.options:
                values[each.name] = self.options[each.name]
            elif each.default is each.empty and each.kind not in (
                each.VAR_POSITIONAL,
                each.VAR_KEYWORD,
            ):
                if each.name not in VALUES:
                    raise NoInputKnownError(f"{model_class.__name__}({each.name}=…)")
                values[each.name] = VALUES[each.name]
        return values

    def _build(self, model_class: Callable[..., Any], device: str, is_small: bool) -> Built:
        del is_small
        if device == "cpu":
            self._check_size(model_class)
        model = self._construct(model_class, device)
        sizes = {
            each.name: each.default
            for each in inspect.signature(model_class).parameters.values()
            if isinstance(each.default, (int, tuple, list))
        }
        args = find_arguments(model, sizes | self._values(model_class), device)
        return Built(model=model, args=args)

    def _check_size(self, model_class: Callable[..., Any]) -> None:
        """Raise if the model is too large for this machine, as far as that is known without data."""
        try:
            model = self._construct(model_class, "meta")
        except Exception:  # its constructor needs values
            return
        num_parameters = sum(p.numel() for p in model.parameters() if not is_lazy(p))
        if num_parameters > _MAX_PARAMETERS:
            raise NoInputKnownError(f"a model of {num_parameters:,} parameters with data")


#: names of modules that have no models, or do something when they are imported
_NOT_MODELS = {
    *("tests", "test", "testing", "__main__", "cli", "scripts", "train", "trainer", "data"),
    *("datasets", "examples", "trainers", "benchmarks", "optimizer", "app", "demo", "setup"),
}


def _is_own(value: Any, modules: tuple[str, ...]) -> bool:
    """Return whether this is a module's class of the package, or a function named like one."""
    is_class = isinstance(value, type) and issubclass(value, nn.Module)
    return (
        (is_class or inspect.isfunction(value))
        and value.__module__.startswith(modules)
        and value.__name__[0].isupper()
    )


def _has_layers(model: nn.Module) -> bool:
    """Return whether at least two modules have parameters of their own."""
    owners = [
        each for each in model.modules() if next(each.parameters(recurse=False), None) is not None
    ]
    return len(owners) >= 2
