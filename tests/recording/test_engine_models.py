"""What inference engines change in a model, on small models without transformers, by hand."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import InputError
from torchscan.recording.attention_heads import Heads, heads_of
from torchscan.recording.engine_sharding import as_engines_shard
from torchscan.recording.execution.engine_operators import compute_latent_attention
from torchscan.recording.expert_rows import all_rows, own_picks
from torchscan.recording.passes import record_pass
from torchscan.recording.pretended_group import pretended
from torchscan.recording.request import PassRequest

# -- picks of experts ------------------------------------------------------------------------------


def test_picks_hit_as_many_experts_as_are_expected() -> None:
    """Four rows pick 2 of 8: 8 · (1 − (3/4)⁴) = 5.5 experts are expected to be picked."""
    found = own_picks(torch.zeros(4, 2, dtype=torch.long), 8, 1)
    assert found.tolist() == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_picks_of_the_device_with_the_most_are_beyond_the_mean() -> None:
    """Of two devices with 4 of 8 experts, each has 4 of 8 picks on average.

    The device with the most has 4 + 0.59 · √4 = 5.2 of them, so three rows with two. An expert is
    picked with a probability of 0.68, and there with one of 0.68 + 0.59 · √(0.68 · 0.32 / 4) = 0.82,
    so that 3.3 of 4 are.
    """
    found = own_picks(torch.zeros(4, 2, dtype=torch.long), 4, 2)
    assert found.tolist() == [[0, 1], [2, 0], [1, 2]]


def test_rows_without_picks_are_zeros() -> None:
    assert all_rows(torch.ones(3, 2), 5).equal(torch.zeros(5, 2))


# -- heads and shards ------------------------------------------------------------------------------


def with_heads(queries: int, keys: int) -> nn.Module:
    model: Any = nn.Module()
    model.config = SimpleNamespace(num_attention_heads=queries, num_key_value_heads=keys)
    return model


@pytest.mark.parametrize(
    ("keys", "size", "repeated"),
    [
        pytest.param(8, 2, 8, id="four key heads on each device"),
        pytest.param(8, 8, 8, id="one on each"),
        pytest.param(2, 8, 8, id="four devices with the same one"),
    ],
)
def test_key_heads_are_divided_or_repeated(keys: int, size: int, repeated: int) -> None:
    assert heads_of(with_heads(16, keys), size) == Heads(16, keys, repeated)


def test_key_heads_that_neither_divide_nor_repeat_are_refused() -> None:
    with pytest.raises(InputError, match="6 key-value heads cannot be divided among tp 4"):
        heads_of(with_heads(16, 6), 4)


WIDTH, HEADS, KEY_HEADS, EXPERTS, INNER = 8, 4, 2, 4, 6


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER, WIDTH))
        self.down_proj = nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER))

    def forward(self, states: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError


class Mixture(nn.Module):
    """A layer with the names and shapes of transformers, which is only divided here."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, hidden_size=WIDTH
        )
        self.attention, self.experts = Attention(), Experts()


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in model.named_parameters()}


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_two_devices_divide_heads_and_either_experts_or_what_is_in_them(
    expert_parallel: bool,
) -> None:
    model = Mixture()
    with pretended({"tp": 2}, 0) as mesh:
        as_engines_shard(model, mesh, expert_parallel=expert_parallel)
    first, last = (EXPERTS, INNER, WIDTH), (EXPERTS, WIDTH, INNER // 2)
    if expert_parallel:
        first, last = (EXPERTS // 2, 2 * INNER, WIDTH), (EXPERTS // 2, WIDTH, INNER)
    assert shapes(model) == {
        "attention.q_proj.weight": (WIDTH // 2, WIDTH),
        "attention.k_proj.weight": (WIDTH // 4, WIDTH),
        "attention.v_proj.weight": (WIDTH // 4, WIDTH),
        "attention.o_proj.weight": (WIDTH, WIDTH // 2),
        "experts.gate_up_proj": first,
        "experts.down_proj": last,
    }
    assert model.attention.num_heads == HEADS // 2


def test_an_unknown_style_is_refused_with_expert_parallelism() -> None:
    model: Any = Mixture()
    model.tp_plan = {"attention": "diagonal"}
    model._expand_parallel_plan = dict
    with (
        pretended({"tp": 2}, 0) as mesh,
        pytest.raises(InputError, match="the plan of Mixture divides modules by 'diagonal'"),
    ):
        as_engines_shard(model, mesh, expert_parallel=True)


# -- latent attention ------------------------------------------------------------------------------


def test_latents_are_keys_together_with_their_rotary_part_and_alone_are_values() -> None:
    """Scores are 0 and ln 3, so the second of two latents has three quarters of the weight."""
    query, rotary_query = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[2.0]]]])
    latent = torch.tensor([[[[0.0, 4.0], [math.log(3), 8.0]]]])
    rotary_key = torch.tensor([[[[0.0], [0.0]]]])
    found = compute_latent_attention(query, rotary_query, latent, rotary_key, scale=1.0)
    expected = torch.tensor([[[[0.75 * math.log(3), 7.0]]]])
    torch.testing.assert_close(found, expected)
    # the same scores, of which the rotary parts are the source
    rotary_key[..., 1, 0] = math.log(3) / 2
    found = compute_latent_attention(0 * query, rotary_query, latent, rotary_key, scale=1.0)
    torch.testing.assert_close(found, expected)


class Interface:
    """The part of transformers that finds an attention function by its name."""

    def get_interface(self, _name: str, default: Any) -> Any:
        return default


def attend(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: None,
    *,
    scaling: float,
) -> tuple[Tensor, None]:
    """Return causal attention as transformers writes it out."""
    scores = scaling * query @ key.transpose(-1, -2)
    queries, keys = scores.shape[-2:]
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)
    shares = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return (shares @ value).transpose(1, 2), None


class LatentAttention(nn.Module):
    """Attention of 2 heads to latents of 3 numbers, which become keys of 2 and values of 5."""

    kv_lora_rank, qk_nope_head_dim, v_head_dim = 3, 2, 5
    is_causal = True

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = nn.Linear(3, 2 * (2 + 5), bias=False)

    def expand_kv(self, latent: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        by_head = self.kv_b_proj(latent[:, 0]).unflatten(-1, (2, 7)).transpose(1, 2)
        key, value = by_head.split([2, 5], dim=-1)
        return torch.cat([key, rotary.expand(-1, 2, -1, -1)], -1), value

    def forward(self, query: Tensor, latent: Tensor, rotary: Tensor) -> Tensor:
        key, value = self.expand_kv(latent, rotary)
        chosen = Interface().get_interface("eager", attend)
        output: Tensor = chosen(self, query, key, value, None, scaling=0.5)[0]
        return output


@pytest.mark.parametrize(
    ("queries", "operator"),
    [
        pytest.param(1, "torchscan.latent_attention", id="a token"),
        pytest.param(4, "torchscan.fused_attention", id="a prompt"),
    ],
)
def test_an_engine_computes_what_the_model_computes(
    queries: int, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token attends to 4 latents; in a prompt of 4 tokens, latents are expanded."""
    library = {
        "modeling_utils": SimpleNamespace(AttentionInterface=Interface),
        "masking_utils": SimpleNamespace(
            AttentionMaskInterface=SimpleNamespace(_global_mapping={})
        ),
    }
    for name, module in library.items():
        monkeypatch.setitem(sys.modules, f"transformers.{name}", module)
    torch.manual_seed(0)
    model = LatentAttention()
    given = torch.randn(2, 2, queries, 6), torch.randn(2, 1, 4, 3), torch.randn(2, 1, 4, 4)
    with torch.no_grad():
        expected = model(*given)
    outputs: list[Tensor] = []
    model.register_forward_hook(lambda *call: outputs.append(call[-1].clone()))
    request = PassRequest(
        module=model, args=given, execute="real", has_engine_attention=True, is_decomposed=True
    )
    trace = record_pass(request)
    assert operator in {op.signature.operator for op in trace.ops}
    torch.testing.assert_close(outputs[0], expected)
