"""Every architecture of transformers from its default config, and steps of decoding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from tests.torchvision_cpu import torchvision  # noqa: F401 - which transformers imports

# isort: split
import transformers
from field_cases import MAX_WITH_DATA, Built, Case, NoInputKnownError
from field_inputs import inputs_for, tokens
from transformers.models.auto import modeling_auto

#: heads first, where there is a choice: what people run
_MAPPINGS = (
    *(
        "SEQ_TO_SEQ_CAUSAL_LM",
        "SPEECH_SEQ_2_SEQ",
        "CAUSAL_LM",
        "OBJECT_DETECTION",
        "UNIVERSAL_SEGMENTATION",
    ),
    *(
        "IMAGE_TEXT_TO_TEXT",
        "DEPTH_ESTIMATION",
        "SEMANTIC_SEGMENTATION",
        "CTC",
        "MASK_GENERATION",
        "TEXT_TO_WAVEFORM",
    ),
    *(
        "KEYPOINT_DETECTION",
        "IMAGE_TO_IMAGE",
        "TEXT_RECOGNITION",
        "POSE_ESTIMATION",
        "IMAGE_MATTING",
    ),
)

_ROTATED_HALF = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [8, 12, 12],
        "partial_rotary_factor": 0.5,
    }
}
_FORECAST = {"prediction_length": 24}
_HEAD = {"head_dim": 128}
#: what a config has no default for, or none that works
_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "autoformer": _FORECAST,
    "aya_vision": {
        "vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}
    },
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "glm46v": {"text_config": {"model_type": "glm4v_text", **_ROTATED_HALF}},
    "glm4v": {"text_config": _ROTATED_HALF},
    "glm4v_moe": {"text_config": _ROTATED_HALF | _HEAD},
    "glm4v_moe_text": _ROTATED_HALF | _HEAD,
    "glm4v_text": _ROTATED_HALF,
    "glm_image": {"text_config": _ROTATED_HALF},
    "glm_image_text": _ROTATED_HALF,
    "granitemoehybrid": {"layer_types": ["mamba"] * 31 + ["attention"]},
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "hunyuan_vl": {"text_config": _HEAD},
    "hunyuan_vl_text": _HEAD,
    "informer": _FORECAST,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": _HEAD,
    "nemotron": {"num_key_value_heads": 8},
    "time_series_transformer": _FORECAST,
    "timm_backbone": {"backbone": "resnet18"},
    "xmod": {"default_language": "en_XX"},
}


def cases() -> Iterator[Case]:
    """Yield every type of model, then steps of decoding."""
    for kind, names in architectures().items():
        yield Case(
            name=f"transformers:{kind}",
            builds=tuple(partial(_called, kind, name) for name in names),
            devices=("meta", "cpu"),
        )
    for kind, cache in DECODING.items():
        yield Case(name=f"transformers:{kind}, decoding", builds=(partial(_decoding, kind, cache),))


def architectures() -> dict[str, list[str]]:
    """Type of model -> the names of its classes, with a head and without. Types with the same classes are one architecture."""
    found: dict[str, list[str]] = {}
    tables = [getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES") for name in _MAPPINGS]
    for table in (*tables, modeling_auto.MODEL_MAPPING_NAMES):
        for kind, classes in table.items():
            found.setdefault(kind, []).append(
                classes if isinstance(classes, str) else str(classes[0])
            )
    distinct = {
        names[0]: (kind, [names[0], *names[-1:]])
        for kind, names in sorted(found.items(), reverse=True)
    }
    return dict(sorted((kind, list(dict.fromkeys(names))) for kind, names in distinct.values()))


def _called(kind: str, class_name: str, device: str, is_small: bool) -> Built:
    model = _transformers_model(kind, class_name, device, is_small)
    return Built(model=model, kwargs=inputs_for(model))


def _transformers_model(kind: str, class_name: str, device: str, is_small: bool) -> Any:
    """The architecture from its default config; with few layers if it has data."""
    model_class = getattr(transformers, class_name)
    config_class = transformers.CONFIG_MAPPING[kind]
    if not isinstance(config_class(**_CONFIGS.get(kind, {})), model_class.config_class or object):
        config_class = (
            model_class.config_class
        )  # the class takes a part of the config, of the text say
    config = config_class(**_CONFIGS.get(kind, {}))
    if is_small or device == "cpu":
        _shrink(config)
    if device == "cpu":
        with torch.device("meta"):
            num_parameters = sum(each.numel() for each in model_class(config).parameters())
        if num_parameters > MAX_WITH_DATA:
            raise NoInputKnownError(f"a model of {num_parameters:,} parameters with data")
    with torch.device(device):
        return model_class(config).eval()


_DEPTHS = (
    *(
        "num_hidden_layers",
        "num_layers",
        "encoder_layers",
        "decoder_layers",
        "n_layer",
        "n_layers",
        "num_encoder_layers",
    ),
    *("num_decoder_layers", "depth", "num_blocks"),
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def _shrink(config: Any) -> None:
    """Two layers and at most sixteen experts; lists that have an item for each layer are cut to two."""
    for name in _DEPTHS:
        layers = getattr(config, name, None)
        if isinstance(layers, int) and layers > 2:
            _cut_lists(config, layers)
            with contextlib.suppress(Exception):  # some are read-only names of others
                setattr(config, name, 2)
    for name in _EXPERTS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(16, getattr(config, name)))
    for inner in vars(config).values():
        if hasattr(inner, "model_type"):
            _shrink(inner)


def _cut_lists(config: Any, layers: int) -> None:
    """Keep the last two, which are rarely the exception."""
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == layers:
            setattr(config, name, value[-2:])


_PAST = 64


def _after_prefill(model: Any, device: str) -> dict[str, Any]:
    """What the model itself keeps of 64 tokens, under the name that it takes it by."""
    with torch.no_grad():
        output = model(
            input_ids=torch.zeros(1, _PAST, dtype=torch.long, device=device), use_cache=True
        )
    return {name: output[name] for name in ("past_key_values", "cache_params") if name in output}


def _filled_by_hand(model: Any, device: str) -> dict[str, Any]:
    """As many keys and values, put into a new cache."""
    config = model.config.get_text_config()
    cache = transformers.DynamicCache(config=config)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.zeros(1, heads, _PAST, head, device=device) for _ in range(2))
        cache.update(keys, values, layer)
    return {"past_key_values": cache}


#: one new token after 64 others, in models with caches of several kinds
DECODING: Mapping[str, Callable[[Any, str], dict[str, Any]]] = {
    "llama": _after_prefill,
    "mistral": _after_prefill,
    "qwen3": _after_prefill,
    "gemma3_text": _after_prefill,
    "phi3": _after_prefill,
    "gpt2": _after_prefill,
    "falcon": _after_prefill,
    "gpt_neox": _after_prefill,
    "bloom": _after_prefill,
    "opt": _filled_by_hand,
    "mixtral": _filled_by_hand,
    "starcoder2": _filled_by_hand,
    "mamba2": _after_prefill,
    "falcon_h1": _after_prefill,
    "cohere2": _after_prefill,
    "gpt_bigcode": _after_prefill,
}


def _decoding(
    kind: str, cache: Callable[[Any, str], dict[str, Any]], device: str, is_small: bool
) -> Built:
    model = _transformers_model(
        kind, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind], device, is_small
    )
    return Built(
        model=model,
        kwargs={
            "input_ids": tokens(model.config)[:, :1],
            "use_cache": True,
            **cache(model, device),
        },
    )
