"""Denoisers, autoencoders and control networks of diffusers, with two layers of each kind.

All other sizes are those of the default config. The arguments of a call are found by their names
and the config; latents have the first of some layouts that the model accepts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from field_cases import Built, Case, NoInputKnownError
from field_diffusers_calls import CALLS, SIDE, TEXT, TOKENS, Call

#: models with more parameters are not built with data
_MAX_WITH_DATA = 1_200_000_000

_DEPTHS = (
    *("num_layers", "num_single_layers", "num_refiner_layers", "n_layers", "n_refiner_layers"),
    *("num_double_layers", "num_decoder_blocks", "num_text_blocks", "num_visual_blocks"),
    *("num_encoder_layers", "num_decoder_layers", "num_mmdit_layers", "num_single_dit_layers"),
)
#: sizes of the input that a model is built for
_SIZES = {
    "sample_width": SIDE,
    "sample_height": SIDE,
    "sample_frames": 5,
    "max_text_seq_length": TEXT,
}
_CHANNELS = ("in_channels", "in_visual_dim", "latent_channels", "in_dim", "audio_channels")
_SAMPLE_CHANNELS = ("in_channels", "input_channels", "num_channels", "audio_channels")
_TEXT_WIDTHS = (
    *("joint_attention_dim", "text_embed_dim", "text_dim", "encoder_hid_dim", "caption_channels"),
    *("cap_feat_dim", "text_embedding_dim", "in_text_dim", "context_in_dim", "condition_dim"),
    *("text_hidden_dim", "context_dim", "encoder_hidden_size", "cross_attention_dim"),
)


def cases() -> Iterator[Case]:
    """Yield each class of the library that has weights."""
    from diffusers import ModelMixin, models

    for name in sorted(dir(models)):
        model_class = getattr(models, name, None)
        is_model = inspect.isclass(model_class) and issubclass(model_class, ModelMixin)
        if is_model and model_class is not ModelMixin and "Multi" not in name:
            call = CALLS.get(name, Call())
            if {"hidden_states", "sample", "x", "decoder_input_tokens"} & set(call.arguments):
                layouts = _LATENTS[:1]
            else:
                layouts = _SAMPLES if "autoencoders" in model_class.__module__ else _LATENTS
            builds = tuple(partial(_build, model_class, call, layout) for layout in layouts)
            yield Case(name=f"diffusers:{name}", builds=builds, devices=("meta", "cpu"))


def _build(
    model_class: Any,
    call: Call,
    layout: Callable[[int], torch.Tensor],
    device: str,
    is_small: bool,
) -> Built:
    del is_small
    known = inspect.signature(model_class).parameters
    options: dict[str, Any] = {name: 2 for name in _DEPTHS if _is_deep(known.get(name))}
    options |= {name: size for name, size in _SIZES.items() if name in known}
    options |= call.options
    with torch.device("meta"):
        model = model_class(**options)
    num_parameters = sum(each.numel() for each in model.parameters())
    if device == "cpu":
        if num_parameters > _MAX_WITH_DATA:
            raise NoInputKnownError(f"a model of {num_parameters:,} parameters with data")
        model = model_class(**options)
    return Built(model=model.eval(), kwargs=_arguments(model, call, layout))


def _is_deep(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and isinstance(parameter.default, int) and parameter.default > 2


def _arguments(model: Any, call: Call, layout: Callable[[int], torch.Tensor]) -> dict[str, Any]:
    """Return what the model requires, and what it does not work without."""
    tensors = call.tensors()
    makers = _makers(model.config, layout)
    parameters = inspect.signature(model.forward).parameters
    required = [name for name, each in parameters.items() if each.default is each.empty]
    unknown = set(required) - set(makers) - set(tensors) - {"self", "args", "kwargs"}
    if unknown:
        raise NoInputKnownError(", ".join(sorted(unknown)))
    names = [name for name in parameters if name in required or name in _NEEDED]
    if not model.config.get("guidance_embeds"):
        names = [name for name in names if name != "guidance"]
    return {name: makers[name]() for name in names if name not in tensors} | tensors


#: optional arguments that models do not work without
_NEEDED = {
    *("encoder_hidden_states", "timestep", "pooled_projections", "img_ids", "txt_ids", "guidance"),
    *("num_frames", "height", "width", "img_shapes", "encoder_hidden_states_mask"),
}


def _first(config: Mapping[str, Any], names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return default


def _makers(
    config: Mapping[str, Any], layout: Callable[[int], torch.Tensor]
) -> dict[str, Callable[[], Any]]:
    """Return what makes each known argument."""
    if layout in _SAMPLES:
        channels = _first(config, _SAMPLE_CHANNELS, 3)
    else:
        channels = _first(config, _CHANNELS, 4)
    width = _first(config, _TEXT_WIDTHS, 768)
    axes = len(config.get("axes_dims_rope") or config.get("axes_dim") or (1, 1, 1))
    mask = partial(torch.ones, 1, TEXT, dtype=torch.long)
    step = partial(torch.tensor, [10.0])
    size = partial(torch.full, (1, 2), 128.0)
    pooled = _first(config, ("pooled_projection_dim", "text_embed_2_dim", "in_text_dim2"), 768)
    seen = config.get("conditioning_channels")
    return {
        **dict.fromkeys(("hidden_states", "sample"), partial(layout, channels)),
        "encoder_hidden_states": partial(torch.rand, 1, TEXT, width),
        **dict.fromkeys(("timestep", "r_timestep", "timestep_r", "timesteps"), step),
        "pooled_projections": partial(torch.rand, 1, pooled),
        "img_ids": partial(torch.zeros, TOKENS, axes),
        "txt_ids": partial(torch.zeros, TEXT, axes),
        "guidance": partial(torch.ones, 1),
        **dict.fromkeys(
            ("encoder_attention_mask", "encoder_hidden_states_mask", "encoder_mask"), mask
        ),
        **dict.fromkeys(("original_size", "target_size"), size),
        "crop_coords": partial(torch.zeros, 1, 2),
        "controlnet_cond": partial(torch.rand, 1, seen, 8 * SIDE, 8 * SIDE)
        if seen
        else partial(layout, channels),
        "num_frames": lambda: 1,
        "height": lambda: 8,
        "width": lambda: 8,
        "img_shapes": lambda: [[(1, 8, 8)]],
        "added_time_ids": partial(torch.rand, 1, 3),
        "fps": partial(torch.tensor, [7]),
        "image_latents": partial(layout, channels),
        "proj_embedding": partial(torch.rand, 1, config.get("embedding_dim", channels)),
        "timestep_ratio": partial(torch.rand, 1),
        "clip_text_pooled": partial(
            torch.rand, 1, 1, config.get("clip_text_pooled_in_channels") or 1280
        ),
    }


def _of_shape(*shape: int) -> Callable[[int], torch.Tensor]:
    """Return what makes a tensor of this shape, in which -1 is the number of channels."""

    def make(channels: int) -> torch.Tensor:
        return torch.rand([channels if size == -1 else size for size in shape])

    return make


#: an image, a video, tokens, a video with frames first, a sound
_LATENTS = (
    _of_shape(1, -1, SIDE, SIDE),
    _of_shape(1, -1, 2, SIDE, SIDE),
    _of_shape(1, TOKENS, -1),
    _of_shape(1, 2, -1, SIDE, SIDE),
    _of_shape(1, -1, TOKENS),
)
_SAMPLES = (
    _of_shape(1, -1, 64, 64),
    _of_shape(1, -1, 9, 64, 64),
    _of_shape(1, -1, 16384),
)
