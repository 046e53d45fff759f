"""Options and arguments of diffusers models with inconsistent defaults, or with inputs besides latents.

They have the sizes of published configs, and two layers of each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

#: text tokens, places of an image along each side, and tokens of such an image
TEXT, SIDE, TOKENS = 16, 16, 64


@dataclass(frozen=True, kw_only=True)
class Call:
    """Options of a model, and what its call needs besides the arguments that are found by name."""

    options: Mapping[str, Any] = field(default_factory=dict)
    #: a tuple is the shape of random numbers; tensors and other values are given as they are
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            name: torch.rand(value) if isinstance(value, tuple) else value
            for name, value in self.arguments.items()
        }


def _latents(channels: int, frames: int = 2, side: int = SIDE) -> tuple[int, ...]:
    return (1, channels, frames, side, side)


def _ids(*shape: int, number: int = 1) -> torch.Tensor:
    return torch.full(shape, number)


_TEXT_MASK = _ids(1, TEXT)

CALLS: Mapping[str, Call] = {
    # images
    "HunyuanDiT2DModel": Call(
        options={"in_channels": 4, "patch_size": 2, "num_layers": 2, "hidden_size": 1408},
        arguments={
            "hidden_states": (1, 4, 32, 32),
            "encoder_hidden_states": (1, 77, 1024),
            "text_embedding_mask": _ids(1, 77),
            "encoder_hidden_states_t5": (1, 256, 2048),
            "text_embedding_mask_t5": _ids(1, 256),
            "image_meta_size": (1, 6),
            "style": _ids(1, number=0),
            "image_rotary_emb": [torch.rand(256, 88), torch.rand(256, 88)],
        },
    ),
    "HunyuanDiT2DControlNetModel": Call(
        options={"in_channels": 4, "patch_size": 2, "hidden_size": 1408},
        arguments={
            "hidden_states": (1, 4, 32, 32),
            "controlnet_cond": (1, 4, 32, 32),
            "encoder_hidden_states": (1, 77, 1024),
            "text_embedding_mask": _ids(1, 77),
            "encoder_hidden_states_t5": (1, 256, 2048),
            "text_embedding_mask_t5": _ids(1, 256),
            "image_meta_size": (1, 6),
            "style": _ids(1, number=0),
            "image_rotary_emb": [torch.rand(256, 88), torch.rand(256, 88)],
        },
    ),
    "HiDreamImageTransformer2DModel": Call(
        options={
            "in_channels": 16,
            "out_channels": 16,
            "patch_size": 2,
            "caption_channels": [4096, 4096],
            "llama_layers": [0, 1, 2, 3],
            "axes_dims_rope": (64, 32, 32),
            "num_layers": 2,
            "num_single_layers": 2,
        },
        arguments={
            "hidden_states": (1, 16, SIDE, SIDE),
            "timesteps": torch.tensor([10]),
            "encoder_hidden_states_t5": (1, TEXT, 4096),
            "encoder_hidden_states_llama3": (4, 1, TEXT, 4096),
            "pooled_embeds": (1, 2048),
        },
    ),
    "ControlNetUnionModel": Call(
        options={
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "block_out_channels": (320, 640, 1280),
            "transformer_layers_per_block": (1, 2, 2),
            "attention_head_dim": (5, 10, 20),
            "cross_attention_dim": 2048,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
        arguments={
            "sample": (1, 4, SIDE, SIDE),
            "encoder_hidden_states": (1, 77, 2048),
            "controlnet_cond": [torch.rand(1, 3, 8 * SIDE, 8 * SIDE)],
            "control_type": torch.tensor([[1.0, 0, 0, 0, 0, 0]]),
            "control_type_idx": [0],
            "added_cond_kwargs": {
                "text_embeds": torch.rand(1, 1280),
                "time_ids": torch.rand(1, 6),
            },
        },
    ),
    "GlmImageTransformer2DModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, 16, SIDE, SIDE),
            "prior_token_id": _ids(1, TOKENS),
            "prior_token_drop": torch.zeros(1, TOKENS, dtype=torch.bool),
        },
    ),
    "BriaFiboTransformer2DModel": Call(
        options={"in_channels": 48, "num_layers": 2, "num_single_layers": 2},
        arguments={
            "hidden_states": (1, TOKENS, 48),
            "text_encoder_layers": [torch.rand(1, TEXT, 2048) for _ in range(4)],
        },
    ),
    "Kandinsky3UNet": Call(
        arguments={"sample": (1, 4, SIDE, SIDE), "encoder_attention_mask": _TEXT_MASK},
    ),
    "Krea2Transformer2DModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, TOKENS, 64),
            "encoder_hidden_states": (1, TEXT, 12, 2560),
            "timestep": torch.tensor([0.5]),
            "position_ids": (TEXT + TOKENS, 3),
        },
    ),
    "Ideogram4Transformer2DModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, TEXT + TOKENS, 128),
            "encoder_hidden_states": (1, TEXT + TOKENS, 53248),
            "timestep": torch.tensor([0.5]),
            "position_ids": _ids(1, TEXT + TOKENS, 3),
            "segment_ids": _ids(1, TEXT + TOKENS),
            "indicator": torch.cat([_ids(1, TEXT, number=3), _ids(1, TOKENS, number=2)], dim=1),
        },
    ),
    "LuminaNextDiT2DModel": Call(
        options={"num_kv_heads": 8, "num_layers": 2},
        arguments={
            "hidden_states": (1, 4, SIDE, SIDE),
            "encoder_mask": _TEXT_MASK,
            "cross_attention_kwargs": {},
            "image_rotary_emb": torch.ones(SIDE, SIDE, 36, dtype=torch.complex64),
        },
    ),
    "OmniGenTransformer2DModel": Call(
        options={
            "num_layers": 2,
            "rope_scaling": {"short_factor": [1.0] * 48, "long_factor": [1.0] * 48},
        },
        arguments={
            "hidden_states": (1, 4, SIDE, SIDE),
            "input_ids": _TEXT_MASK,
            "input_img_latents": [],
            "input_image_sizes": {},
            "attention_mask": _ids(1, TEXT + 1 + TOKENS, TEXT + 1 + TOKENS),
            "position_ids": torch.arange(TEXT + 1 + TOKENS)[None],
        },
    ),
    "Transformer2DModel": Call(
        options={"in_channels": 320, "attention_head_dim": 40, "num_attention_heads": 8}
        | {"cross_attention_dim": 768},
        arguments={
            "hidden_states": (1, 320, SIDE, SIDE),
            "encoder_hidden_states": (1, 77, 768),
        },
    ),
    "TransformerTemporalModel": Call(
        options={"in_channels": 320, "attention_head_dim": 40, "num_attention_heads": 8},
        arguments={
            "hidden_states": (4, 320, SIDE, SIDE),
            "num_frames": 4,
            "encoder_hidden_states": None,
        },
    ),
    "T2IAdapter": Call(arguments={"x": (1, 3, 256, 256)}),
    "UVit2DModel": Call(
        options={"num_hidden_layers": 2},
        arguments={
            "input_ids": _ids(1, SIDE, SIDE),
            "encoder_hidden_states": (1, 77, 768),
            "pooled_text_emb": (1, 768),
            "micro_conds": (1, 5),
        },
    ),
    "ZImageTransformer2DModel": Call(
        options={"n_layers": 2},
        arguments={
            "x": [torch.rand(16, 1, SIDE, SIDE)],
            "t": torch.tensor([0.5]),
            "cap_feats": [torch.rand(TEXT, 2560)],
        },
    ),
    "PriorTransformer": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, 768),
            "proj_embedding": (1, 768),
            "encoder_hidden_states": (1, 77, 768),
        },
    ),
    "StableCascadeUNet": Call(
        arguments={
            "sample": (1, 16, SIDE, SIDE),
            "timestep_ratio": torch.tensor([0.5]),
            "clip_text_pooled": (1, 1, 1280),
        },
    ),
    "ErnieImageTransformer2DModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, 128, SIDE, SIDE),
            "text_bth": (1, TEXT, 2560),
            "text_lens": torch.tensor([TEXT]),
        },
    ),
    # videos
    "EasyAnimateTransformer3DModel": Call(
        options={"in_channels": 16, "out_channels": 16, "patch_size": 2}
        | {"num_layers": 2, "mmdit_layers": 2},
        arguments={
            "hidden_states": _latents(16),
            "encoder_hidden_states": (1, TEXT, 3584),
        },
    ),
    "I2VGenXLUNet": Call(
        arguments={
            "sample": _latents(4, frames=4, side=32),
            "image_latents": _latents(4, frames=4, side=32),
            "fps": torch.tensor([16]),
            "image_embeddings": (1, 1024),
            "encoder_hidden_states": (1, 77, 1024),
        },
    ),
    "Kandinsky5Transformer3DModel": Call(
        options={"num_text_blocks": 2, "num_visual_blocks": 2},
        arguments={
            "hidden_states": (1, 2, SIDE, SIDE, 4),
            "visual_rope_pos": [torch.arange(2), torch.arange(8), torch.arange(8)],
            "text_rope_pos": torch.arange(TEXT),
        },
    ),
    "CosmosTransformer3DModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": _latents(16),
            "encoder_hidden_states": (1, TEXT, 1024),
            "fps": 24,
            "padding_mask": (1, 1, SIDE, SIDE),
        },
    ),
    "HunyuanVideoFramepackTransformer3DModel": Call(
        options={"num_layers": 2, "num_single_layers": 2}
        | {"has_image_proj": True, "has_clean_x_embedder": True},
        arguments={
            "hidden_states": _latents(16),
            "image_embeds": (1, 729, 1152),
            "indices_latents": torch.arange(2),
            "latents_clean": _latents(16),
            "indices_latents_clean": torch.arange(2),
            "latents_history_2x": _latents(16),
            "indices_latents_history_2x": torch.arange(2),
            "latents_history_4x": _latents(16, frames=4),
            "indices_latents_history_4x": torch.arange(4),
        },
    ),
    "LTX2VideoTransformer3DModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, 128, 128),
            "audio_hidden_states": (1, 16, 128),
            "encoder_hidden_states": (1, TEXT, 3840),
            "audio_encoder_hidden_states": (1, TEXT, 3840),
            "num_frames": 2,
            "height": 8,
            "width": 8,
            "audio_num_frames": 16,
        },
    ),
    "LatteTransformer3DModel": Call(
        options={
            "in_channels": 4,
            "out_channels": 8,
            "patch_size": 2,
            "attention_head_dim": 72,
            "num_layers": 2,
            "cross_attention_dim": 1152,
            "caption_channels": 4096,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "activation_fn": "gelu-approximate",
            "num_embeds_ada_norm": 1000,
            "sample_size": SIDE,
            "video_length": 4,
            "attention_bias": True,
        },
        arguments={
            "hidden_states": _latents(4, frames=4),
            "encoder_hidden_states": (1, TEXT, 4096),
        },
    ),
    "UNetMotionModel": Call(
        arguments={
            "sample": _latents(4, frames=4),
            "encoder_hidden_states": (4, 77, 1280),
        },
    ),
    "WanVACETransformer3DModel": Call(
        options={"num_layers": 2, "vace_layers": [0, 1]},
        arguments={
            "hidden_states": _latents(16),
            "encoder_hidden_states": (1, TEXT, 4096),
            "control_hidden_states": _latents(96),
        },
    ),
    "HunyuanVideo15Transformer3DModel": Call(
        options={"num_layers": 2, "num_attention_heads": 8},
        arguments={
            "hidden_states": _latents(65),
            "encoder_hidden_states_2": (1, TEXT, 1472),
            "encoder_attention_mask_2": _TEXT_MASK,
            "image_embeds": (1, 729, 1152),
        },
    ),
    "AnyFlowTransformer3DModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, 2, 16, SIDE, SIDE),
            "timestep": torch.full((1, 2), 10.0),
            "r_timestep": torch.full((1, 2), 5.0),
        },
    ),
    "SparseControlNetModel": Call(
        arguments={
            "sample": _latents(4),
            "encoder_hidden_states": (2, 77, 768),
            "controlnet_cond": _latents(4),
            "conditioning_mask": _latents(1),
        },
    ),
    "UNetControlNetXSModel": Call(
        arguments={
            "sample": (1, 4, SIDE, SIDE),
            "controlnet_cond": (1, 3, 8 * SIDE, 8 * SIDE),
        },
    ),
    "DreamLiteTransformer2DModel": Call(
        options={"in_channels": 320, "attention_head_dim": 40, "num_attention_heads": 8}
        | {"cross_attention_dim": 768},
        arguments={
            "hidden_states": (1, 320, SIDE, SIDE),
            "encoder_hidden_states": (1, 77, 768),
        },
    ),
    # sounds
    "T5FilmDecoder": Call(
        options={"num_layers": 2},
        arguments={
            "encodings_and_masks": [(torch.rand(1, TEXT, 768), _TEXT_MASK)],
            "decoder_input_tokens": (1, 256, 128),
            "decoder_noise_time": torch.tensor([0.5]),
        },
    ),
    "MMAudioVAE": Call(arguments={"sample": (1, 16384)}),
    "Cosmos3AVAEAudioTokenizer": Call(arguments={"sample": (1, 2, 16384)}),
    "AutoencoderKLMiniMaxH3Audio": Call(arguments={"sample": (1, 1, 16384)}),
    "StableAudioDiTModel": Call(
        options={"num_layers": 2},
        arguments={
            "hidden_states": (1, 64, 128),
            "encoder_hidden_states": (1, TEXT, 768),
            "global_hidden_states": (1, 1, 1536),
            "rotary_embedding": [torch.rand(129, 32), torch.rand(129, 32)],
        },
    ),
    "StableAudio3DiTModel": Call(
        options={"depth": 2},
        arguments={
            "hidden_states": (1, 256, 128),
            "encoder_hidden_states": (1, TEXT, 768),
            "global_hidden_states": (1, 768),
        },
    ),
    # autoencoders
    "AutoencoderKLMochi": Call(arguments={"sample": (1, 3, 13, 64, 64)}),
    "AutoencoderRAE": Call(arguments={"sample": (1, 3, 224, 224)}),
    "AutoencoderKLHunyuanImage": Call(
        options={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 64,
            "block_out_channels": (128, 256, 512, 512, 1024, 1024),
            "layers_per_block": 2,
            "spatial_compression_ratio": 32,
            "sample_size": 384,
        },
        arguments={"sample": (1, 3, 64, 64)},
    ),
}
