"""What a token of published language models takes, against closed forms of their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from tests.marked import rows_of
from tests.sweeps import some_of
from torchscan import InputError, TorchscanError, units
from torchscan.analyses.generation.formulas import figures_of
from torchscan.recording.folding.alike import difference
from torchscan.recording.generation_passes import Generating, Length

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore", "error:.*torchscan")]


@dataclass(frozen=True)
class Known:
    """A model by its sizes, and what follows from them. A number of the cache is 2 bytes."""

    kind: str
    sizes: dict[str, Any]
    params: int
    #: without what of the experts a token does not meet
    active: int
    cached_numbers: int
    #: longer than any window
    prompt: int = 16


def _llama(width: int, inner: int, layers: int, heads: int) -> Known:
    keys = 8 * width // heads
    layer = 2 * width * width + 2 * width * keys + 3 * width * inner + 2 * width
    params = 2 * 128256 * width + layers * layer + width
    sizes = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return Known(
        "llama",
        {**sizes, "num_key_value_heads": 8, "vocab_size": 128256},
        params,
        params,
        layers * 2 * keys,
    )


def _qwen3() -> Known:
    width, expert = 2048, 3 * 2048 * 768
    layer = 2 * width * 4096 + 2 * width * 512 + 2 * 128 + 128 * width + 2 * width
    outside = 2 * 151936 * width + width + 48 * layer
    sizes = {
        "hidden_size": width,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    }
    return Known(
        "qwen3_moe", sizes, outside + 48 * 128 * expert, outside + 48 * 8 * expert, 48 * 2 * 512
    )


def _deepseek_v3() -> Known:
    """Latent attention keeps 512 numbers and a key of 64 for all heads."""
    width, expert = 7168, 3 * 7168 * 2048
    queries = width * 1536 + 1536 + 1536 * 128 * 192
    attention = queries + width * (512 + 64) + 512 + 512 * 128 * 256 + 128 * 128 * width
    outside = (
        2 * 129280 * width
        + width
        + 61 * (attention + 2 * width)
        + 3 * 3 * width * 18432
        + 58 * (256 * width + expert)
    )
    sizes = {
        "hidden_size": width,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "vocab_size": 129280,
    }
    return Known(
        "deepseek_v3",
        sizes,
        outside + 58 * 256 * expert,
        outside + 58 * 8 * expert,
        61 * (512 + 64),
    )


def _gpt_oss() -> Known:
    """Every other layer sees a window of 128, and keeps no more."""
    width, expert = 2880, 2880 * 5760 + 5760 + 2880 * 2880 + 2880
    attention = width * 4096 + 4096 + 2 * (width * 512 + 512) + 4096 * width + width + 64
    outside = 2 * 201088 * width + width + 36 * (attention + 128 * width + 128 + 2 * width)
    sizes = {
        "hidden_size": width,
        "intermediate_size": width,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "vocab_size": 201088,
    }
    return Known(
        "gpt_oss",
        sizes,
        outside + 36 * 128 * expert,
        outside + 36 * 4 * expert,
        18 * 2 * 512,
        prompt=140,
    )


def _gemma3() -> Known:
    """One layer in six sees further than 1,024 tokens."""
    width = 3840
    layer = 2 * width * 4096 + 2 * width * 2048 + 2 * 256 + 3 * width * 15360 + 4 * width
    params = 262208 * width + 48 * layer + width
    sizes = {
        "hidden_size": width,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "sliding_window": 1024,
        "vocab_size": 262208,
    }
    return Known("gemma3_text", sizes, params, params, 8 * 2 * 2048, prompt=1100)


def _jamba() -> Known:
    """One layer in eight attends, the others have a state; one in two has experts."""
    width, inner, expert = 4096, 8192, 3 * 4096 * 14336
    attention = 2 * width * width + 2 * width * 1024
    state = (
        width * 2 * inner
        + 5 * inner
        + inner * (256 + 32)
        + 256 * inner
        + inner
        + 17 * inner
        + inner * width
        + 256
        + 32
    )
    outside = (
        2 * 65536 * width
        + width
        + 4 * attention
        + 28 * state
        + 32 * 2 * width
        + 16 * expert
        + 16 * 16 * width
    )
    sizes = {
        "hidden_size": width,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_dt_rank": 256,
        "vocab_size": 65536,
    }
    return Known(
        "jamba",
        sizes,
        outside + 16 * 16 * expert,
        outside + 16 * 2 * expert,
        4 * 2 * 1024,
        prompt=8,
    )


def _mamba2() -> Known:
    """A state alone, which does not grow."""
    width, inner, mixed = 2560, 5120, 5120 + 2 * 128
    layer = width * (inner + mixed + 80) + 5 * mixed + 3 * 80 + inner + inner * width + width
    params = 50288 * width + 64 * layer + width
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": 64,
        "num_heads": 80,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "vocab_size": 50288,
        "tie_word_embeddings": True,
    }
    return Known("mamba2", sizes, params, params, 0)


MODELS = {
    "Llama-3.1-8B": _llama(4096, 14336, 32, 32),
    "Llama-3.1-70B": _llama(8192, 28672, 80, 64),
    "Llama-3.1-405B": _llama(16384, 53248, 126, 128),
    "Qwen3-30B-A3B": _qwen3(),
    "DeepSeek-V3": _deepseek_v3(),
    "gpt-oss-120b": _gpt_oss(),
    "Gemma-3-12B": _gemma3(),
    "Jamba-mini": _jamba(),
    "Mamba-2-2.7B": _mamba2(),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", some_of(MODELS, {"Llama-3.1-70B", "Llama-3.1-405B", "Mamba-2-2.7B"})
)
def test_a_token_takes_what_follows_from_the_sizes(name: str) -> None:
    known = MODELS[name]
    config = transformers.AutoConfig.for_model(
        known.kind, **known.sizes, max_position_embeddings=2048
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    found = torchscan.analyze_generation(model.eval(), known.prompt, 2, device="NVIDIA H200")
    assert found.params == known.params
    assert found.active_params == known.active
    assert found.cache_bytes_per_token == 2 * known.cached_numbers


def test_the_docs_show_these_sizes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "generation.md").read_text()
    shown = rows_of(page[page.index("## Sizes of common models") :])
    assert shown == [_row(name, MODELS[name]) for name in MODELS if name != "Jamba-mini"]


def _row(name: str, known: Known) -> list[str]:
    sizes = known.sizes
    heads = (
        f"{sizes['num_attention_heads']} / {sizes['num_key_value_heads']}"
        if "num_attention_heads" in sizes
        else "–"
    )
    shape = [f"{sizes[size]:,}" for size in ("num_hidden_layers", "hidden_size")]
    counts = [units.count(number) for number in (known.params, known.active)]
    return [name, *counts, *shape, heads, units.memory(2 * known.cached_numbers)]


#: layers of each kind, and a length beyond its window
FEW: dict[str, tuple[int, int]] = {
    "Llama-3.1-8B": (2, 64),
    "Llama-3.1-70B": (2, 64),
    "Qwen3-30B-A3B": (2, 64),
    "DeepSeek-V3": (4, 64),
    "gpt-oss-120b": (2, 130),
    "Gemma-3-12B": (6, 1030),
    "Jamba-mini": (8, 8),
    "Mamba-2-2.7B": (2, 64),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", some_of(FEW, {"Llama-3.1-70B", "Jamba-mini"}))
def test_formulas_equal_records_elsewhere(name: str) -> None:
    """Those of experts' bytes and of chunked passes say that there is none; of the others, none is missing."""
    layers, near = FEW[name]
    known = MODELS[name]
    config = transformers.AutoConfig.for_model(
        known.kind, **{**known.sizes, "num_hidden_layers": layers}
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    costs = torchscan.symbolic_costs(model.eval(), near)
    assert costs.token["macs"] is not None
    assert (costs.prompt["macs"] is None) == (name == "Mamba-2-2.7B")  # in chunks of 256 tokens
    assert costs.token["cache_bytes"] is not None
    for batch, length in (
        (1, near + 7),
        (2, 2 * near + 1),
        (3, 3 * near),
        (4, near + 50),
        (5, 5 * near + 3),
    ):
        passes = Generating(
            model,
            batch_size=batch,
            precision=None,
            kernels={"device_type": "cuda", "has_flash": True},
        )
        for kept, found in ((passes.prompted, costs.prompt), (passes.continued, costs.token)):
            record = kept(Length(length))
            for figure, value in figures_of(record).items():
                polynomial = found[figure]
                assert polynomial is None or polynomial(batch, length) == value, (
                    figure,
                    batch,
                    length,
                )


def test_the_formula_of_a_cache_is_that_of_all_layers() -> None:
    """Of 32 layers, equal ones stand in for each other: a key and a value of 8 heads with 128 numbers of 2 bytes each."""
    known = MODELS["Llama-3.1-8B"]
    config = transformers.AutoConfig.for_model(known.kind, **known.sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    costs = torchscan.symbolic_costs(model.eval())
    assert costs.to_dict()["prompt"]["cache_bytes"] == {"1,1": str(2 * 32 * 8 * 128 * 2)}
    assert costs.to_dict()["token"]["cache_bytes"] == dict.fromkeys(
        ("1,0", "1,1"), str(2 * 32 * 8 * 128 * 2)
    )


@pytest.mark.sweep
@pytest.mark.few(2)
@pytest.mark.parametrize("name", some_of(FEW, {"Llama-3.1-70B", "Jamba-mini"}))
def test_equal_layers_stand_in_for_each_other(name: str) -> None:
    """Beyond windows, and with the cache that the pass without them returns."""
    layers, length = FEW[name]
    known = MODELS[name]
    config = transformers.AutoConfig.for_model(
        known.kind, **{**known.sizes, "num_hidden_layers": 6 * layers}
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    kernels = {"device_type": "cuda", "has_flash": True}
    whole, folded = (
        Generating(model, batch_size=2, precision=None, kernels=kernels) for _ in range(2)
    )
    folded.fold(Length(3))
    assert folded.folded is not None
    for one, other in (
        (whole.prompted(Length(length)), folded.prompted(Length(length))),
        (whole.continued(Length(length, 2)), folded.continued(Length(length, 2))),
    ):
        assert difference(one.trace, other.trace) is None
        assert other.operators < one.operators
        sizes = [
            sum(each.times.get(name, 1) * tensor.numel() for name, tensor in each.tensors.items())
            for each in (one, other)
        ]
        assert sizes[0] == sizes[1]


TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 200,
}
#: four patches
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}
PLACES = torch.full((1, 4), 199)
IMAGE = torch.zeros(1, 3, 28, 28)


def _built(kind: str, model: str, **sizes: Any) -> Any:
    with torch.device("meta"):
        return getattr(transformers, model)(transformers.AutoConfig.for_model(kind, **sizes)).eval()


def _generated(model: Any, **asked: Any) -> torchscan.types.Generation:
    found = torchscan.analyze_generation(model, 16, 4, device="RTX 3090", **asked)
    assert found.params == sum(each.numel() for each in model.parameters())
    return found


def _macs(roofline: torchscan.types.Roofline) -> int:
    return sum(each.macs for each in roofline.operators)


def test_llava_looks_at_an_image_whose_places_are_part_of_the_prompt() -> None:
    """CLIP: a convolution of 4 patches, 2 layers over 5 tokens; then a projection of the 4."""
    vision = {"model_type": "clip_vision_model", "projection_dim": 32, **VISION}
    text = {"model_type": "llama", **TEXT}
    model = _built(
        "llava",
        "LlavaForConditionalGeneration",
        text_config=text,
        vision_config=vision,
        image_token_index=199,
    )
    read, seen = (
        _generated(model),
        _generated(model, inputs={"pixel_values": IMAGE, "input_ids": PLACES}),
    )
    layer = 5 * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 5 * 5 * 32
    assert _macs(seen.prefill) - _macs(read.prefill) == 4 * 32 * 3 * 14 * 14 + 2 * layer + 4 * (
        32 * 64 + 64 * 64
    )
    assert seen.cache_bytes == read.cache_bytes == 20 * 2 * 2 * 2 * 16 * 4


@pytest.mark.sweep
def test_qwen_and_gemma_look_at_images() -> None:
    text = {**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "out_hidden_size": 64,
    }
    ids = {"image_token_id": 199, "video_token_id": 197, "vision_start_token_id": 196}
    qwen = _built(
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        text_config=text,
        vision_config={**vision, "fullatt_block_indexes": [1]},
        **ids,
    )
    grid = {
        "pixel_values": torch.zeros(16, 3 * 2 * 14 * 14),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "input_ids": PLACES,
    }
    sizes = {"text_config": {**TEXT, "head_dim": 16, "sliding_window": 64}, "vision_config": VISION}
    gemma = _built(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        **sizes,
        mm_tokens_per_image=4,
        image_token_index=199,
    )
    for model, inputs in ((qwen, grid), (gemma, {"pixel_values": IMAGE, "input_ids": PLACES})):
        read, seen = _generated(model), _generated(model, inputs=inputs)
        assert _macs(seen.prefill) > _macs(read.prefill)
        assert seen.cache_bytes == read.cache_bytes == 20 * 2 * 2 * 2 * 16 * 4


@pytest.mark.sweep
def test_what_translates_keeps_its_source_and_its_keys_and_values() -> None:
    """16 states of the encoder; keys and values of them in 2 layers, and of 5 tokens of the decoder: the first begins it."""
    both = {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    }
    inner = {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    bart = _built(
        "bart", "BartForConditionalGeneration", d_model=64, vocab_size=200, **both, **inner
    )
    t5 = _built(
        "t5",
        "T5ForConditionalGeneration",
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        vocab_size=200,
    )
    for model in (bart, t5):
        assert _generated(model).cache_bytes == 4 * 64 * (16 + 2 * 2 * (16 + 5))


def test_blip_2_which_returns_its_cache_inside_another_output_is_told_of_step() -> None:
    few = {"num_hidden_layers": 2}
    configs = {
        "vision_config": few,
        "qformer_config": few,
        "text_config": {"model_type": "opt", **few},
    }
    model = _built("blip-2", "Blip2ForConditionalGeneration", **configs)
    for inputs in (None, {"pixel_values": torch.zeros(1, 3, 224, 224)}):
        with pytest.raises(TorchscanError, match=r"^Blip2ForConditionalGeneration .*step=[^\n]*$"):
            _generated(model, inputs=inputs)


def test_whisper_is_given_a_sound_and_its_prompt_is_what_the_decoder_begins_with() -> None:
    both = {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    }
    sizes = {
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "max_source_positions": 50,
        "max_target_positions": 40,
    }
    tokens = {
        "vocab_size": 200,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    model = _built(
        "whisper",
        "WhisperForConditionalGeneration",
        d_model=64,
        num_mel_bins=8,
        **both,
        **sizes,
        **tokens,
    )
    with pytest.raises(
        InputError, match=r"^Whisper\w* encodes input_features, not tokens: give inputs="
    ):
        _generated(model)
    found = _generated(model, inputs={"input_features": torch.zeros(1, 8, 100)})
    assert found.cache_bytes == 4 * 64 * (50 + 2 * 2 * (50 + 20))
    assert found.cache_bytes_per_token == 4 * 64 * 2 * 2
