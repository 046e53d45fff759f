"""Inputs for the models of transformers, by a few rules: what an argument of some name looks like, given the config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from field_cases import NoInputKnownError
from torch import Tensor

TOKENS = 16
_FRAMES = 128
_SAMPLES = 19200

#: tensors without data are enough for a model without data, but tokens and positions decide what models do
Maker = Callable[[Any], Any]


def inputs_for(model: Any) -> dict[str, Any]:
    """The arguments of the model by name: what it requires, what it takes first, and what goes with that."""
    config = model.config
    exception = EXCEPTIONS.get(str(config.model_type))
    if exception is not None:
        return dict(exception(config))
    wanted = _wanted(model)
    makers = (
        {**_MAKERS, "pixel_values": _patches}
        if {"grid_thw", "image_grid_thw"} & set(wanted)
        else _MAKERS
    )
    unknown = [name for name in wanted if name not in makers]
    if unknown:
        raise NoInputKnownError(", ".join(unknown))
    return {name: makers[name](config) for name in wanted}


def _wanted(model: Any) -> list[str]:
    """Required arguments, the main one, a decoder's; and both a text and an image where the model compares the two."""
    parameters = inspect.signature(model.forward).parameters
    named = [each for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    wanted = [each.name for each in named if each.default is each.empty]
    main = model.main_input_name
    if (
        main in parameters
        and (main not in wanted)
        and not ({"hidden_states", "pixel_values"} & set(wanted))
    ):
        wanted.append(main)
    if model.config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted.append("decoder_input_ids")
    return wanted + [
        name
        for name in _companions(model.config, wanted)
        if name in parameters and name not in wanted
    ]


def _companions(config: Any, wanted: list[str]) -> Iterator[str]:
    if {"input_ids", "pixel_values"} & set(wanted) and _compares(config):
        yield from ("input_ids", "pixel_values")
    if (
        {"input_ids", "input_features"} & set(wanted)
        and hasattr(config, "audio_config")
        and not _has_placeholders(config)
    ):
        yield from ("input_ids", "input_features")


def _compares(config: Any) -> bool:
    return (
        hasattr(config, "text_config")
        and hasattr(config, "vision_config")
        and not _has_placeholders(config)
    )


def _has_placeholders(config: Any) -> bool:
    """Whether images and sounds take the places of tokens in a text: such a model takes a text alone, too."""
    names = (
        "image_token_id",
        "image_token_index",
        "audio_token_id",
        "audio_token_index",
        "video_token_id",
    )
    return any(getattr(config, name, None) is not None for name in names)


def _configs(config: Any) -> Iterator[Any]:
    """A config and those inside it, the outermost first."""
    level = [config]
    while level:
        yield from level
        level = [
            inner
            for outer in level
            for inner in vars(outer).values()
            if hasattr(inner, "model_type")
        ]


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these attributes that the config or one inside it has."""
    for each in _configs(config):
        for name in names:
            if getattr(each, name, None) is not None:
                return getattr(each, name)
    return default


def _image_size(config: Any) -> tuple[int, int]:
    size = find(config, "image_size", "img_size", default=224)
    if isinstance(size, Mapping):
        size = (size.get("height", 224), size.get("width", 224))
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return int(height), int(width)


def tokens(config: Any) -> Tensor:
    """Sixteen tokens that are neither special nor equal."""
    vocabulary = find(config, "vocab_size", default=1000)
    vocabulary = vocabulary if isinstance(vocabulary, int) else 1000
    return torch.arange(10, 10 + TOKENS).remainder(vocabulary)[None]


def image(config: Any) -> Tensor:
    """One image of the model's own size."""
    return torch.rand(1, _channels(config), *_image_size(config))


def video(config: Any) -> Tensor:
    """One video of the model's own length."""
    frames = find(config, "num_frames", "frames_per_clip", default=8)
    return torch.rand(1, frames, _channels(config), *_image_size(config))


def _channels(config: Any) -> int:
    return int(find(config, "num_channels", "in_channels", "in_chans", default=3))


def waveform(config: Any) -> Tensor:
    """A second and a bit at 16 kHz: a multiple of the usual hops."""
    del config
    return torch.rand(1, _SAMPLES)


def features(config: Any) -> Tensor:
    """Mel bins over time: bins first for those that begin like Whisper, time first for others."""
    bins = find(
        config,
        "input_dim",
        "num_mel_bins",
        "feature_size",
        "input_feat_per_channel",
        "n_mels",
        default=80,
    )
    positions = find(config, "max_source_positions")
    if positions is not None and find(config, "input_feat_per_channel") is None:
        return torch.rand(1, bins, 2 * positions)
    return torch.rand(1, _FRAMES, bins)


def _patches(config: Any) -> Tensor:
    """Patches of an image of 4 by 4 of them, flat."""
    patch = find(config, "patch_size", default=14)
    depth = find(config, "temporal_patch_size", default=1)
    return torch.rand(16, _channels(config) * depth * patch * patch)


def _series(config: Any) -> Tensor:
    length = find(config, "context_length", "prediction_length", default=32)
    channels = find(config, "num_input_channels")
    if channels is not None:
        return torch.rand(1, length, channels)
    return torch.rand(1, length + max(find(config, "lags_sequence", default=[0])))


_MAKERS: Mapping[str, Maker] = {
    "input_ids": tokens,
    "decoder_input_ids": tokens,
    "qformer_input_ids": tokens,
    "pixel_values": image,
    "pixel_values_videos": video,
    "input_values": waveform,
    "input_features": features,
    "input_features_mask": lambda config: torch.ones(
        1, features(config).shape[-1], dtype=torch.long
    ),
    "grid_thw": lambda _: torch.tensor([[1, 4, 4]]),
    "image_grid_thw": lambda _: torch.tensor([[1, 4, 4]]),
    "hidden_states": _patches,
    "past_values": _series,
    "past_observed_mask": lambda config: torch.ones_like(_series(config)),
    "past_time_features": lambda config: torch.rand(
        *_series(config).shape[:2], find(config, "num_time_features", default=1)
    ),
    "latents": lambda config: torch.rand(1, find(config, "hidden_size", default=512), 25),
    "inputs_embeds": lambda config: torch.rand(1, TOKENS, find(config, "hidden_size", default=512)),
    "query_embeds": lambda config: torch.rand(1, 32, find(config, "hidden_size", default=768)),
}


def _codebooks(config: Any) -> dict[str, Any]:
    return {"input_ids": tokens(config).repeat(find(config, "num_codebooks", default=4), 1)}


def _one_channel(config: Any) -> dict[str, Any]:
    return {"input_values": torch.rand(1, find(config, "audio_channels", default=1), 24000)}


def _pair_of_images(config: Any) -> dict[str, Any]:
    del config
    return {"pixel_values": torch.rand(1, 2, 3, 480, 640)}


def _decisions(config: Any) -> dict[str, Any]:
    return {
        "states": torch.rand(1, 20, config.state_dim),
        "actions": torch.rand(1, 20, config.act_dim),
        "rewards": torch.rand(1, 20, 1),
        "returns_to_go": torch.rand(1, 20, 1),
        "timesteps": torch.arange(20)[None],
    }


def _bros(config: Any) -> dict[str, Any]:
    return {"input_ids": tokens(config), "bbox": torch.rand(1, TOKENS, 8)}


def _clap(config: Any) -> dict[str, Any]:
    return {
        "input_ids": tokens(config),
        "input_features": torch.rand(1, 1, 1001, find(config, "num_mel_bins", default=64)),
    }


def _lxmert(config: Any) -> dict[str, Any]:
    seen = {
        "visual_feats": torch.rand(1, 36, config.visual_feat_dim),
        "visual_pos": torch.rand(1, 36, config.visual_pos_dim),
    }
    return {"input_ids": tokens(config), **seen}


def _idefics(config: Any) -> dict[str, Any]:
    mask = torch.ones(1, TOKENS, 1, dtype=torch.long)
    return {
        "input_ids": tokens(config),
        "pixel_values": image(config)[:, None],
        "image_attention_mask": mask,
    }


def _spectrogram(config: Any) -> dict[str, Any]:
    return {"input_values": torch.rand(1, config.max_length, config.num_mel_bins)}


def _dia(config: Any) -> dict[str, Any]:
    return {
        "input_ids": tokens(config),
        "decoder_input_ids": tokens(config)[..., None].repeat(1, 1, 9),
    }


def _video_as_pixels(config: Any) -> dict[str, Any]:
    return {"pixel_values": video(config)}


def _mel(frames: int, bins: int) -> Callable[[Any], dict[str, Any]]:
    """Return what makes mel bins over time."""
    return lambda _: {"input_features": torch.rand(1, frames, bins)}


def _described_in_patches(config: Any) -> dict[str, Any]:
    """Return 256 patches of an image of unknown shape, with a text where the model has one."""
    patches = {
        "pixel_values": torch.rand(1, 256, 3 * find(config, "patch_size") ** 2),
        "pixel_attention_mask": torch.ones(1, 256, dtype=torch.long),
        "spatial_shapes": torch.tensor([[16, 16]]),
    }
    return {"input_ids": tokens(config), **patches} if hasattr(config, "text_config") else patches


def _grounded(config: Any) -> dict[str, Any]:
    """Return a text of 80 tokens, of which an image takes the first 64."""
    places = torch.arange(80)
    return {
        "pixel_values": image(config),
        "input_ids": (10 + places)[None],
        "image_embeds_position_mask": (places < 64).long()[None],
    }


def _flat_patches(config: Any) -> dict[str, Any]:
    """Return patches of two frames each."""
    size = 2 * 3 * find(config, "patch_size", default=14) ** 2
    return {"hidden_states": torch.rand(16, size), "grid_thw": torch.tensor([[1, 4, 4]])}


def _text_and_image(config: Any) -> dict[str, Any]:
    return {"input_ids": tokens(config), "pixel_values": image(config)}


def _prompted(config: Any) -> dict[str, Any]:
    names = ("pixel_values", "prompt_pixel_values", "prompt_masks")
    height, width = _image_size(config)
    return {name: torch.rand(1, 3, height // 2, width) for name in names}


#: what a rule would get wrong, by the type of the model
EXCEPTIONS: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
    "audio-spectrogram-transformer": _spectrogram,
    "audioflamingo3_encoder": lambda _: {
        "input_features": torch.rand(1, 128, 3000),
        "input_features_mask": torch.ones(1, 3000, dtype=torch.long),
    },
    "blip_2_qformer": lambda config: {
        "query_embeds": torch.rand(1, 32, config.hidden_size),
        "encoder_hidden_states": torch.rand(1, 50, config.encoder_hidden_size),
    },
    "bros": _bros,
    "clap": _clap,
    "clvp": lambda config: {"input_ids": tokens(config), "input_features": torch.rand(1, 80, 500)},
    "dac": _one_channel,
    "decision_transformer": _decisions,
    "depth_pro": lambda _: {"pixel_values": torch.rand(1, 3, 1536, 1536)},
    "dia": _dia,
    "fun_asr_nano_encoder": _mel(_FRAMES, 560),
    "gemma3n_audio": lambda _: {
        "audio_mel": torch.rand(1, _FRAMES, 128),
        "audio_mel_mask": torch.zeros(1, _FRAMES, dtype=torch.bool),
    },
    "granite_speech5_ctc": _mel(_FRAMES, 320),
    "granite_speech5_encoder": _mel(_FRAMES, 320),
    "higgs_audio_v2_tokenizer": _one_channel,
    "kosmos-2": _grounded,
    "muse_glimmer_vision": _flat_patches,
    "muse_spark_vision": _flat_patches,
    "pe_audio": lambda config: {"input_ids": tokens(config), **_one_channel(config)},
    "pe_audio_encoder": _one_channel,
    "pe_video": lambda config: {
        "input_ids": tokens(config),
        "pixel_values_videos": torch.rand(1, 4, 3, 336, 336),
    },
    "pe_video_encoder": lambda _: {"pixel_values_videos": torch.rand(1, 4, 3, 336, 336)},
    "pix2struct": lambda config: {
        "flattened_patches": torch.rand(1, 64, 2 + 768),
        "decoder_input_ids": tokens(config),
    },
    "pocket_tts_audio_tokenizer": _one_channel,
    "pocket_tts_audio_tokenizer_encoder": _one_channel,
    "qwen3_asr_encoder": lambda _: {"input_features": torch.rand(1, 128, 200)},
    "rf_detr": lambda _: {"pixel_values": torch.rand(1, 3, 504, 504)},
    "sam3_lite_text_text_model": lambda config: {"input_ids": tokens(config)},
    "seggpt": _prompted,
    "siglip2": _described_in_patches,
    "siglip2_vision_model": _described_in_patches,
    "timesformer": _video_as_pixels,
    "udop": lambda config: {
        "input_ids": tokens(config),
        "decoder_input_ids": tokens(config),
        "bbox": torch.rand(1, TOKENS, 4),
    },
    "efficientloftr": _pair_of_images,
    "encodec": _one_channel,
    "idefics": _idefics,
    "lightglue": _pair_of_images,
    "lxmert": _lxmert,
    "mimi": _one_channel,
    "mimi_encoder": _one_channel,
    "musicgen": _codebooks,
    "musicgen_decoder": _codebooks,
    "musicgen_melody": _codebooks,
    "musicgen_melody_decoder": _codebooks,
    "perceiver": lambda config: {"inputs": torch.rand(1, 64, config.d_model)},
    "superglue": _pair_of_images,
    "vibevoice_acoustic_tokenizer": _one_channel,
    "vibevoice_acoustic_tokenizer_encoder": _one_channel,
    "video_llama_3_vision": lambda _: {
        "pixel_values": torch.rand(16, 588),
        "grid_thw": torch.tensor([[1, 4, 4]]),
        "merge_sizes": torch.tensor([1]),
    },
    "videomae": _video_as_pixels,
    "vilt": _text_and_image,
    "vivit": _video_as_pixels,
    "wav2vec2-bert": _mel(_FRAMES, 160),
    "xclip": lambda config: {"input_ids": tokens(config), "pixel_values": video(config)},
    "xcodec": _one_channel,
}
