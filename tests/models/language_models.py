"""Transformers and a state-space model as published, with their parameters and MACs worked out by hand.

Every figure is derived from the numbers of the configuration, never from a record. The rules:

- A matrix of ``a × b`` parameters takes ``a · b`` MACs for each position that it meets. Its bias takes none.
- An embedding table takes none where it is looked up. As the head, also if it is tied, it is a matrix like any other.
- Attention takes ``heads · queries · keys`` products of ``width`` for the scores, and as many to weigh the values, whatever
  the mask. Where queries share keys (grouped queries), the query heads count.
- Norms, activations, the softmax of a router and rotary positions are no contractions. (The rotary angles are positions times
  frequencies, element by element; releases of transformers that take them as a matrix product with an inner dimension of one
  have ``batch · tokens · head width / 2`` MACs more for the whole model.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.models.catalogue import Case

# isort: split
import transformers  # after torchvision, which the catalogue imports beside a CPU build of torch


@dataclass(frozen=True)
class LanguageModel:
    """A published model, what a pass of it is given, and what that has to come to."""

    name: str
    case: Case
    #: as published, to the last one
    published: int
    #: by hand, from the configuration
    parameters: int
    #: likewise
    macs: int


def _attention(heads: int, queries: int, keys: int, width: int) -> int:
    return heads * queries * keys * 2 * width


def _attention_of_both_sides(heads: int, source: int, target: int, width: int) -> int:
    """The source's to itself, the target's to itself and to the source: of one layer on each side."""
    pairs = [(source, source), (target, target), (target, source)]
    return sum(_attention(heads, queries, keys, width) for queries, keys in pairs)


def _biased(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with a bias."""
    return inputs * outputs + outputs


def _layer_norm(width: int) -> int:
    """Its weight and its bias."""
    return 2 * width


def _ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.zeros(batch, tokens, dtype=torch.long)


def bert_base(batch: int = 1, tokens: int = 128) -> LanguageModel:
    """BERT-base uncased, as released: 109,482,240 parameters with the pooler (the paper: 110 M).

    A layer has 4 matrices of attention (768 × 768) and 2 of the MLP (768 × 3,072): 4 · 589,824 + 2 · 2,359,296 = 7,077,888;
    with biases and norms 7,087,872. Tables for words, positions and segments and their norm: 31,036 · 768 + 1,536 = 23,837,184.
    23,837,184 + 12 · 7,087,872 + 590,592 of the pooler = 109,482,240.
    MACs of a sample = tokens · 12 · 7,077,888 + 12 layers of attention + 768² of the pooler, which sees the first token alone.
    """
    hidden, mlp, layers, heads, vocabulary, positions, segments = 768, 3072, 12, 12, 30522, 512, 2
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=mlp,
        max_position_embeddings=positions,
        type_vocab_size=segments,
    )
    embeddings = (vocabulary + positions + segments) * hidden + _layer_norm(hidden)
    layer = (
        4 * _biased(hidden, hidden)
        + _biased(hidden, mlp)
        + _biased(mlp, hidden)
        + 2 * _layer_norm(hidden)
    )
    matrices = 4 * hidden**2 + 2 * hidden * mlp
    attention = _attention(heads, tokens, tokens, hidden // heads)
    return LanguageModel(
        name=f"BERT-base, {batch} × {tokens} tokens",
        case=Case(
            lambda: transformers.BertModel(config),
            {"input_shape": (tokens,), "dtype": torch.long, "batch_size": batch},
        ),
        published=109_482_240,
        parameters=embeddings + layers * layer + _biased(hidden, hidden),
        macs=batch * (layers * (tokens * matrices + attention) + hidden**2),
    )


def gpt2(tokens: int = 1024) -> LanguageModel:
    """GPT-2, the smallest, as released: 124,439,808 parameters, the tied head counted once (the paper says 117 M).

    A layer has 768 × 2,304 for queries, keys and values, 768 × 768, and 2 of 768 × 3,072: 12 · 768² = 7,077,888; with biases
    and norms 7,087,872. (50,257 + 1,024) · 768 of the tables + 12 · 7,087,872 + 1,536 of the last norm = 124,439,808.
    MACs = tokens · (12 · 7,077,888 + 50,257 · 768 of the head) + 12 layers of attention.
    """
    hidden, layers, heads, vocabulary, positions = 768, 12, 12, 50257, 1024
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=positions, n_embd=hidden, n_layer=layers, n_head=heads
    )
    attention_parameters = _biased(hidden, 3 * hidden) + _biased(hidden, hidden)
    mlp_parameters = _biased(hidden, 4 * hidden) + _biased(4 * hidden, hidden)
    layer = attention_parameters + mlp_parameters + 2 * _layer_norm(hidden)
    matrices = layers * (3 + 1 + 4 + 4) * hidden**2 + vocabulary * hidden
    return LanguageModel(
        name=f"GPT-2, {tokens} tokens",
        case=Case(
            lambda: transformers.GPT2LMHeadModel(config),
            {"input_shape": (tokens,), "dtype": torch.long},
        ),
        published=124_439_808,
        parameters=(vocabulary + positions) * hidden + layers * layer + _layer_norm(hidden),
        macs=tokens * matrices + layers * _attention(heads, tokens, tokens, hidden // heads),
    )


#: how Llama 3.1 stretches the rotary positions of Llama 3
_LLAMA_3_1_POSITIONS: Mapping[str, Any] = {
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


@dataclass(frozen=True)
class _Decoder:
    """The sizes of a Llama, and what they have in common with those of Mixtral."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    groups: int
    vocabulary: int

    @property
    def width(self) -> int:
        return self.hidden // self.heads

    @property
    def attention_matrices(self) -> int:
        """Queries and output: hidden × hidden; keys and values: hidden × (groups · width). Of one layer."""
        return 2 * self.hidden**2 + 2 * self.hidden * self.groups * self.width

    @property
    def expert(self) -> int:
        """Gate, up and down: 3 matrices of hidden × mlp."""
        return 3 * self.hidden * self.mlp

    @property
    def head(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def norms(self) -> int:
        """Two a layer and the last, without biases."""
        return (2 * self.layers + 1) * self.hidden

    def attention(self, tokens: int) -> int:
        return self.layers * _attention(self.heads, tokens, tokens, self.width)

    def config(self) -> dict[str, int]:
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "vocab_size": self.vocabulary,
        }


def _llama(
    name: str, sizes: _Decoder, published: int, tokens: int, **options: Any
) -> LanguageModel:
    """No bias anywhere, and a head of its own.

    parameters = embedding table + layers · (attention + MLP) + norms + head;
    MACs = tokens · (layers · (attention + MLP) + head) + attention.
    """
    config = transformers.LlamaConfig(**sizes.config(), **options)
    matrices = sizes.layers * (sizes.attention_matrices + sizes.expert) + sizes.head
    return LanguageModel(
        name=f"{name}, {tokens} tokens",
        case=Case(
            lambda: transformers.LlamaForCausalLM(config),
            {"input_shape": (tokens,), "dtype": torch.long},
        ),
        published=published,
        parameters=sizes.head + matrices + sizes.norms,
        macs=tokens * matrices + sizes.attention(tokens),
    )


def llama_2_7b(tokens: int = 2048) -> LanguageModel:
    """A layer: 4 · 4,096² + 3 · 4,096 · 11,008 = 202,375,168. Head and table: 131,072,000 each. Norms: 65 · 4,096.

    32 · 202,375,168 + 2 · 131,072,000 + 266,240 = 6,738,415,616 parameters, those of the released weights.
    """
    sizes = _Decoder(hidden=4096, mlp=11008, layers=32, heads=32, groups=32, vocabulary=32000)
    return _llama("Llama-2-7B", sizes, 6_738_415_616, tokens, max_position_embeddings=4096)


def llama_3_1_8b(tokens: int = 2048) -> LanguageModel:
    """A layer: 2 · 4,096² + 2 · 4,096 · 1,024 + 3 · 4,096 · 14,336 = 218,103,808. Head and table: 525,336,576 each.

    32 · 218,103,808 + 2 · 525,336,576 + 65 · 4,096 = 8,030,261,248 parameters, those of the released weights.
    """
    sizes = _Decoder(hidden=4096, mlp=14336, layers=32, heads=32, groups=8, vocabulary=128256)
    return _llama("Llama-3.1-8B", sizes, 8_030_261_248, tokens, **_LLAMA_3_1_POSITIONS)


def llama_3_1_70b(tokens: int = 2048) -> LanguageModel:
    """A layer: 2 · 8,192² + 2 · 8,192 · 1,024 + 3 · 8,192 · 28,672 = 855,638,016. Head and table: 1,050,673,152 each.

    80 · 855,638,016 + 2 · 1,050,673,152 + 161 · 8,192 = 70,553,706,496 parameters, those of the released weights.
    """
    sizes = _Decoder(hidden=8192, mlp=28672, layers=80, heads=64, groups=8, vocabulary=128256)
    return _llama("Llama-3.1-70B", sizes, 70_553_706_496, tokens, **_LLAMA_3_1_POSITIONS)


def llama_3_1_405b(tokens: int = 2048) -> LanguageModel:
    """A layer: 2 · 16,384² + 2 · 16,384 · 1,024 + 3 · 16,384 · 53,248 = 3,187,671,040. Head and table: 2,101,346,304 each.

    126 · 3,187,671,040 + 2 · 2,101,346,304 + 253 · 16,384 = 405,853,388,800 parameters, those of the released weights.
    """
    sizes = _Decoder(hidden=16384, mlp=53248, layers=126, heads=128, groups=8, vocabulary=128256)
    return _llama("Llama-3.1-405B", sizes, 405_853_388_800, tokens, **_LLAMA_3_1_POSITIONS)


def mixtral_8x7b(tokens: int = 512) -> LanguageModel:
    """8 experts a layer, each an MLP of 3 · 4,096 · 14,336 = 176,160,768; a token meets 2 of them, and the gate (4,096 × 8).

    A layer holds 2 · 4,096² + 2 · 4,096 · 1,024 = 41,943,040 of attention, 32,768 of the gate and 8 experts: 1,451,261,952.
    32 · 1,451,261,952 + 2 · 131,072,000 + 65 · 4,096 = 46,702,792,704 parameters, those of the released weights.
    MACs = tokens · (32 · (attention + gate + 2 experts) + head) + attention, whichever experts they are.
    """
    experts, chosen = 8, 2
    sizes = _Decoder(hidden=4096, mlp=14336, layers=32, heads=32, groups=8, vocabulary=32000)
    config = transformers.MixtralConfig(
        **sizes.config(),
        num_local_experts=experts,
        num_experts_per_tok=chosen,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )
    dense = sizes.attention_matrices + experts * sizes.hidden
    met = sizes.layers * (dense + chosen * sizes.expert) + sizes.head
    return LanguageModel(
        name=f"Mixtral-8x7B, {tokens} tokens",
        case=Case(
            lambda: transformers.MixtralForCausalLM(config),
            {"input_shape": (tokens,), "dtype": torch.long},
        ),
        published=46_702_792_704,
        parameters=2 * sizes.head + sizes.layers * (dense + experts * sizes.expert) + sizes.norms,
        macs=tokens * met + sizes.attention(tokens),
    )


def t5_base(batch: int = 1, source: int = 128, target: int = 64) -> LanguageModel:
    """T5-base: 12 layers each way, no biases, one table for both sides and the head. 222,903,552 parameters.

    That is what transformers' num_parameters() gives for the released weights (the paper: 220 M):
    32,128 · 768 + 12 · (7,079,424 of an encoder layer + 9,439,488 of a decoder layer) + 2 · (384 + 768).
    Attention has 4 matrices of 768 × (12 · 64) = 589,824, the MLP 2 of 768 × 3,072. The source meets the encoder's layers
    (4 and the MLP: 7,077,888) and the keys and values of cross attention (2); the target meets the decoder's self attention
    (4), the queries and the output of cross attention (2), the MLP, and the head (32,128 · 768).
    The table of relative positions (32 × 12, in the first layer of each side) is looked up: no MACs.
    """
    hidden, mlp, layers, heads, width, vocabulary, buckets = 768, 3072, 12, 12, 64, 32128, 32
    config = transformers.T5Config(
        vocab_size=vocabulary,
        d_model=hidden,
        d_kv=width,
        d_ff=mlp,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        relative_attention_num_buckets=buckets,
    )
    matrix, both = hidden * heads * width, 2 * hidden * mlp
    # norms: two a layer of the encoder, three of the decoder, one at the end of each
    encoder = layers * (4 * matrix + both + 2 * hidden) + buckets * heads + hidden
    decoder = layers * (8 * matrix + both + 3 * hidden) + buckets * heads + hidden
    by_source = layers * (4 * matrix + both + 2 * matrix)
    by_target = layers * (4 * matrix + 2 * matrix + both) + vocabulary * hidden
    attention = layers * _attention_of_both_sides(heads, source, target, width)
    return LanguageModel(
        name=f"T5-base, {batch} × ({source} → {target}) tokens",
        case=Case(
            lambda: transformers.T5ForConditionalGeneration(config),
            {
                "kwargs": {
                    "input_ids": _ids(batch, source),
                    "decoder_input_ids": _ids(batch, target),
                }
            },
        ),
        published=222_903_552,
        parameters=vocabulary * hidden + encoder + decoder,
        macs=batch * (source * by_source + target * by_target + attention),
    )


def whisper_small(tokens: int = 128) -> LanguageModel:
    """Whisper-small: 30 s of sound in 3,000 frames, halved to 1,500 positions by the second of two convolutions.

    241,734,912 parameters, as converted for transformers: the tied head counted once, with the table of the encoder's sinusoids
    (the paper says 244 M). A projection of keys has no bias, so that attention has 4 · 768² + 3 · 768 = 2,361,600.
    (51,865 + 1,500 + 448) · 768 of the tables + 185,088 and 1,770,240 of the convolutions
    + 12 · (7,087,104 of an encoder layer + 9,450,240 of a decoder layer) + 2 · 1,536 of the last norms.
    MACs = 3,000 · (3 · 80 · 768) + 1,500 · (3 · 768 · 768) of the convolutions
    + 1,500 · 12 · (4 + 8 of 768² in the encoder, 2 more for keys and values of cross attention)
    + tokens · (12 · (4 + 2 + 8 of 768²) + 51,865 · 768 of the head) + attention.
    """
    hidden, mlp, layers, heads, vocabulary, bands = 768, 3072, 12, 12, 51865, 80
    frames, positions, most_tokens, kernel = 3000, 1500, 448, 3
    config = transformers.WhisperConfig(
        vocab_size=vocabulary,
        num_mel_bins=bands,
        d_model=hidden,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=mlp,
        decoder_ffn_dim=mlp,
        max_source_positions=positions,
        max_target_positions=most_tokens,
    )
    convolutions = _biased(kernel * bands, hidden) + _biased(kernel * hidden, hidden)
    attention_parameters = 3 * _biased(hidden, hidden) + hidden**2
    mlp_parameters = _biased(hidden, mlp) + _biased(mlp, hidden)
    encoder_layer = attention_parameters + mlp_parameters + 2 * _layer_norm(hidden)
    decoder_layer = 2 * attention_parameters + mlp_parameters + 3 * _layer_norm(hidden)
    tables = (vocabulary + positions + most_tokens) * hidden
    front = frames * kernel * bands * hidden + positions * kernel * hidden * hidden
    by_sound = layers * (4 * hidden**2 + 2 * hidden * mlp + 2 * hidden**2)
    by_token = layers * (4 * hidden**2 + 2 * hidden**2 + 2 * hidden * mlp) + vocabulary * hidden
    attention = layers * _attention_of_both_sides(heads, positions, tokens, hidden // heads)
    return LanguageModel(
        name=f"Whisper-small, {tokens} tokens",
        case=Case(
            lambda: transformers.WhisperForConditionalGeneration(config),
            {
                "kwargs": {
                    "input_features": torch.zeros(1, bands, frames),
                    "decoder_input_ids": _ids(1, tokens),
                }
            },
        ),
        published=241_734_912,
        parameters=tables
        + convolutions
        + layers * (encoder_layer + decoder_layer)
        + 2 * _layer_norm(hidden),
        macs=front + positions * by_sound + tokens * by_token + attention,
    )


@dataclass(frozen=True)
class _Tower:
    """One of CLIP's two encoders. Its layers are those of BERT, with the norms before."""

    hidden: int
    mlp: int
    heads: int
    positions: int
    layers: int = 12

    @property
    def parameters(self) -> int:
        attention = 4 * _biased(self.hidden, self.hidden)
        mlp = _biased(self.hidden, self.mlp) + _biased(self.mlp, self.hidden)
        return self.layers * (attention + mlp + 2 * _layer_norm(self.hidden))

    @property
    def macs(self) -> int:
        matrices = self.positions * (4 * self.hidden**2 + 2 * self.hidden * self.mlp)
        attention = _attention(
            self.heads, self.positions, self.positions, self.hidden // self.heads
        )
        return self.layers * (matrices + attention)

    def config(self) -> dict[str, int]:
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
        }


def clip_vit_b_32(images: int = 1, texts: int = 1) -> LanguageModel:
    """CLIP ViT-B/32: 151,277,313 parameters, as released, of which one is the temperature.

    Image tower: 2,359,296 of the patches + 51 · 768 of positions and class + 12 · 7,087,872 + 2 norms = 87,456,000.
    Text tower: 49,485 · 512 of the tables + 12 · 3,152,384 + 1 norm = 63,165,952. Projections: (768 + 512) · 512 = 655,360.
    The image tower sees 7 × 7 patches, each a product with 3 · 32 · 32 × 768 weights, and one class position: 50 positions of
    width 768. The text tower sees 77 tokens of width 512. One position of each is projected to 512, and each text is compared
    with each image: texts · images · 512.
    """
    joint, side, patch, channels, vocabulary = 512, 224, 32, 3, 49408
    patches = (side // patch) ** 2
    image = _Tower(hidden=768, mlp=3072, heads=12, positions=patches + 1)
    text = _Tower(hidden=512, mlp=2048, heads=8, positions=77)
    config = transformers.CLIPConfig(
        text_config={
            **text.config(),
            "vocab_size": vocabulary,
            "max_position_embeddings": text.positions,
        },
        vision_config={**image.config(), "image_size": side, "patch_size": patch},
        projection_dim=joint,
    )
    patch_weights = channels * patch**2 * image.hidden
    # the class position is a vector of its own; the image tower has a norm before and one after, the text tower one after
    image_parameters = (
        patch_weights
        + (1 + image.positions) * image.hidden
        + image.parameters
        + 2 * _layer_norm(image.hidden)
    )
    text_parameters = (
        (vocabulary + text.positions) * text.hidden + text.parameters + _layer_norm(text.hidden)
    )
    projections = (image.hidden + text.hidden) * joint
    of_an_image = patches * patch_weights + image.macs + image.hidden * joint
    of_a_text = text.macs + text.hidden * joint
    return LanguageModel(
        name=f"CLIP ViT-B/32, {images} images, {texts} texts",
        case=Case(
            lambda: transformers.CLIPModel(config),
            {
                "kwargs": {
                    "input_ids": _ids(texts, text.positions),
                    "pixel_values": torch.zeros(images, channels, side, side),
                }
            },
        ),
        published=151_277_313,
        parameters=image_parameters + text_parameters + projections + 1,
        macs=images * of_an_image + texts * of_a_text + texts * images * joint,
    )


def mamba_130m(tokens: int = 64) -> LanguageModel:
    """Mamba-130M, with its tied head: 129,135,360 parameters, those of the released weights.

    A layer works at the inner width of 2 · 768 = 1,536. Each token meets the projections: in (768 × 3,072), to the step and to
    what enters and leaves the state (1,536 × (48 + 16 + 16)), of the step (48 × 1,536), out (1,536 × 768): 3,735,552.
    50,280 · 768 of the table + 24 · (3,735,552 + 36,096 besides) + 768 of the last norm = 129,135,360.
    The convolution is causal because 3 more positions are computed and cut off: (tokens + 3) · 1,536 · 4.
    The scan multiplies decay, state and input element by element, which is no contraction; to read the state out is one: 16
    products for each of the 1,536 channels and each token.
    MACs = 24 layers of that + tokens · 50,280 · 768 of the head.
    """
    hidden, layers, state, kernel, rank, vocabulary = 768, 24, 16, 4, 48, 50280
    inner = 2 * hidden
    config = transformers.MambaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        state_size=state,
        expand=inner // hidden,
        conv_kernel=kernel,
        time_step_rank=rank,
    )
    projections = hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden
    # besides: biases of the convolution and of the step, decay rates (inner × state), one skip per channel, one norm
    layer = projections + _biased(kernel, inner) + inner + inner * state + inner + hidden
    convolution = (tokens + kernel - 1) * inner * kernel
    read_out = tokens * inner * state
    return LanguageModel(
        name=f"Mamba-130M, {tokens} tokens",
        case=Case(
            lambda: transformers.MambaForCausalLM(config),
            {"input_shape": (tokens,), "dtype": torch.long},
        ),
        published=129_135_360,
        parameters=vocabulary * hidden + layers * layer + hidden,
        macs=layers * (tokens * projections + convolution + read_out)
        + tokens * vocabulary * hidden,
    )


LANGUAGE_MODELS = [
    bert_base(),
    bert_base(batch=2, tokens=512),
    gpt2(),
    llama_2_7b(),
    llama_3_1_8b(),
    llama_3_1_70b(),
    llama_3_1_405b(),
    mixtral_8x7b(),
    t5_base(),
    t5_base(batch=2, source=512, target=114),
    whisper_small(),
    clip_vit_b_32(),
    clip_vit_b_32(images=2, texts=3),
    mamba_130m(),
]
