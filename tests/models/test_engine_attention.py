"""Attention of models of transformers as inference engines run it, by hand."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from torchscan import analyze_generation
from torchscan.notes import Note
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest
from torchscan.types import Generation, Roofline

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore", "error:.*torchscan"
    ),  # transformers warns of what it will change
]

CARD = "H100 SXM"
#: batch, tokens of a prompt and new tokens; a token in the middle attends to 45 keys
BATCH, PROMPT, NEW = 3, 40, 8
KEYS = PROMPT + NEW // 2 + 1
#: 4 query heads of 16 numbers share 2 key heads; windows of 16 keys
HEADS, KEY_HEADS, WIDTH, WINDOW = 4, 2, 16, 16
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "vocab_size": 100,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": KEY_HEADS, "head_dim": WIDTH}
#: latents of 24 numbers and 8 that are rotated; keys of 16 and 8, values of 12
LATENT, NOPE, ROPE, VALUE = 24, 16, 8, 12
LATENTS: dict[str, Any] = {
    **SIZES,
    "num_key_value_heads": HEADS,
    "q_lora_rank": 20,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "GptOss": {**GROUPED, **EXPERTS, "sliding_window": WINDOW},
    "Gemma2": {**GROUPED, "sliding_window": WINDOW, "tie_word_embeddings": False},
    "Mistral": {**GROUPED, "sliding_window": WINDOW},
    "DeepseekV3": LATENTS,
}


def model_of(name: str, device: str = "meta", **others: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(**{**CONFIGS[name], **others})
    with torch.device(device):
        model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.eval()


@functools.cache
def served(name: str, engine: str = "vllm", **others: Any) -> Generation:
    model = model_of(name, **others).to(torch.bfloat16)
    return analyze_generation(
        model, PROMPT, NEW, batch_size=BATCH, device=CARD, engine=engine, progress=False
    )


def calls(roofline: Roofline, operator: str) -> list[Any]:
    return [each for each in roofline.operators if each.operator == operator]


def prompts(found: Generation) -> Roofline:
    """The pass over one prompt."""
    return found.prefill


# -- what is computed is what the model computes -----------------------------------------------------------------------------


def outputs(model: nn.Module, **given: Any) -> tuple[Tensor, bool]:
    """Return the scores of a pass on data, and whether an operator of engines has run."""
    kept: list[Tensor] = []
    handle = model.register_forward_hook(lambda *call: kept.append(call[-1].logits.clone()))
    request = PassRequest(
        module=model, kwargs=given, execute="real", has_engine_attention=True, is_decomposed=True
    )
    trace = record_pass(request)
    handle.remove()
    operators = {op.signature.operator for op in trace.ops}
    return kept[0], any(each.startswith("torchscan.") for each in operators)


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_those_of_the_model(name: str) -> None:
    torch.manual_seed(0)
    model = model_of(name, "cpu")
    tokens = torch.randint(1, 100, (2, PROMPT))
    with torch.no_grad():
        expected = model(tokens).logits
        cache = model(tokens[:, :-1]).past_key_values
    prompt, is_replaced = outputs(model, input_ids=tokens)
    torch.testing.assert_close(prompt, expected)
    assert is_replaced
    last, is_replaced = outputs(model, input_ids=tokens[:, -1:], past_key_values=cache)
    torch.testing.assert_close(last[:, -1], expected[:, -1])
    assert is_replaced == (name != "Mistral")  # whose cache has no more keys than the window


# -- costs by hand -----------------------------------------------------------------------------------------------------------


def test_sinks_and_windows_of_gpt_oss_are_one_kernel_in_each_layer() -> None:
    """The first of two layers has a window."""
    found = served("GptOss")
    assert Note.of("engine-attention") in found.assumptions
    window, full = calls(found.decode, "torchscan.fused_attention")
    for call, keys in ((window, WINDOW), (full, KEYS)):
        assert call.macs == BATCH * HEADS * keys * 2 * WIDTH
        read = HEADS * WIDTH + 2 * KEY_HEADS * keys * WIDTH
        assert call.bytes_read == 2 * (BATCH * read + HEADS)
        assert call.bytes_written == 2 * BATCH * HEADS * WIDTH
    window, full = calls(prompts(found), "torchscan.fused_attention")
    assert window.macs == HEADS * PROMPT * WINDOW * 2 * WIDTH
    assert full.macs == HEADS * PROMPT * PROMPT * 2 * WIDTH
    assert window.bytes_read == full.bytes_read
    assert full.bytes_read == 2 * ((HEADS + 2 * KEY_HEADS) * PROMPT * WIDTH + HEADS)
    assert not calls(found.decode, "aten.bmm")


def test_a_window_of_mistral_skips_scores_of_a_prompt() -> None:
    """While tokens are generated, the cache has no more keys than the window."""
    found = served("Mistral")
    for call in calls(prompts(found), "torchscan.fused_attention"):
        assert call.macs == HEADS * PROMPT * WINDOW * 2 * WIDTH
    tokens = calls(found.decode, "aten._scaled_dot_product_flash_attention")
    assert [call.macs for call in tokens] == [BATCH * HEADS * WINDOW * 2 * WIDTH] * 2


@pytest.mark.sweep
def test_a_window_that_no_prompt_fills_changes_nothing() -> None:
    wide, none = served("Mistral", sliding_window=4096), served("Mistral", sliding_window=None)
    assert wide.first_token == none.first_token
    assert wide.per_token == none.per_token
    assert Note.of("engine-attention") not in wide.assumptions


def test_generated_tokens_attend_to_the_latent_cache() -> None:
    """Queries become latents, attend to 45 of them with their rotated parts, and become values."""
    found = served("DeepseekV3")
    assert Note.of("latent-attention") in found.assumptions
    for call in calls(found.decode, "torchscan.latent_attention"):
        assert call.macs == BATCH * HEADS * KEYS * (LATENT + ROPE + LATENT)
        assert call.bytes_read == 2 * BATCH * (HEADS + KEYS) * (LATENT + ROPE)
        assert call.bytes_written == 2 * BATCH * HEADS * LATENT
    keys, values, *_ = products = calls(found.decode, "aten.bmm")
    assert len(products) == 2 * 2
    assert keys.macs == BATCH * HEADS * NOPE * LATENT
    assert values.macs == BATCH * HEADS * LATENT * VALUE
    assert keys.bytes_read == 2 * HEADS * (BATCH * NOPE + NOPE * LATENT)
    assert not [each for each in found.decode.operators if "kv_b_proj" in each.layer]


def test_prompts_expand_latents_into_keys_and_values() -> None:
    attended = calls(prompts(served("DeepseekV3")), "torchscan.fused_attention")
    assert [call.macs for call in attended] == [HEADS * PROMPT**2 * (NOPE + ROPE + VALUE)] * 2


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_runs_the_code_of_the_model(name: str) -> None:
    found = served(name, "transformers")
    operators = {each.operator for each in (*found.decode.operators, *prompts(found).operators)}
    assert not [each for each in operators if each.startswith("torchscan.")]
    codes = {note.code for note in found.assumptions}
    assert not codes & {"engine-attention", "latent-attention"}


def test_own_keys_and_values_of_transformers_are_expanded_for_each_token() -> None:
    found = served("DeepseekV3", "transformers")
    expanded = [each for each in found.decode.operators if each.layer.endswith("kv_b_proj")]
    assert [call.macs for call in expanded] == [BATCH * KEYS * LATENT * HEADS * (NOPE + VALUE)] * 2


# -- the model, folding and meshes ---------------------------------------------------------------------------------------------


def test_a_model_and_its_library_are_left_as_they_were() -> None:
    model = model_of("DeepseekV3")
    attention = model.model.layers[0].self_attn
    interface = transformers.modeling_utils.AttentionInterface
    before = type(attention).expand_kv, interface.get_interface, dict(vars(attention))
    served.__wrapped__("DeepseekV3")  # anew
    assert before == (type(attention).expand_kv, interface.get_interface, dict(vars(attention)))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["GptOss", "DeepseekV3"])
def test_equal_layers_are_recorded_once(name: str) -> None:
    """Twelve layers more have six times the attention of two more."""
    operator = "fused" if name == "GptOss" else "latent"

    def macs(**layers: int) -> int:
        found = served(name, **layers)
        return sum(each.macs for each in calls(found.decode, f"torchscan.{operator}_attention"))

    assert macs(num_hidden_layers=14) == 7 * macs()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["Mistral", "Gemma2"])
def test_heads_are_divided_among_the_gpus_of_tensor_parallelism(name: str) -> None:
    def macs(tp: int) -> list[int]:
        found = analyze_generation(
            model_of(name).to(torch.bfloat16),
            PROMPT,
            NEW,
            device=CARD,
            engine="vllm",
            mesh={"tp": tp} if tp > 1 else None,
            progress=False,
        )
        attended = calls(prompts(found), "torchscan.fused_attention")
        return [call.macs for call in attended]

    divided = macs(2)
    assert divided == [each // 2 for each in macs(1)]
    assert divided[0] == HEADS // 2 * PROMPT * WINDOW * 2 * WIDTH
