"""Styles of modules that engines divide, for small modules by hand.

Attention has 4 query heads and 2 of keys, of 8 numbers each, and a hidden size of 16.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchscan import InputError
from torchscan.recording.attention_heads import Heads
from torchscan.recording.engine_plan import EnginePlan, divisible_experts, experts_in

HIDDEN, HEADS, INNER = 16, 4, 24


def linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias)


class Attention(nn.Module):
    """Projections of 4 query heads of 8 numbers and 2 of keys and values."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        projections = {
            "q_proj": linear(HIDDEN, 32),
            "k_proj": linear(HIDDEN, 16),
            "v_proj": linear(HIDDEN, 16),
            "o_proj": linear(32, HIDDEN),
        }
        for name, child in (projections | children).items():
            self.add_module(name, child)


class Holder(nn.Module):
    """Modules and parameters by name."""

    def __init__(self, **members: Any) -> None:
        super().__init__()
        for name, member in members.items():
            setattr(self, name, member)


class Experts(Holder):
    def forward(self, states: Any, picks: Any, weights: Any) -> Any:
        raise NotImplementedError


class Language(nn.Module):
    """A language model of these modules, with the plan of transformers if there is one."""

    def __init__(self, plan: dict[str, str] | None = None, **children: nn.Module) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=HIDDEN)
        self.tp_plan = plan
        self._expand_parallel_plan = dict
        for name, child in children.items():
            self.add_module(name, child)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def styles_of(model: nn.Module, heads: Heads | None = None) -> dict[str, str]:
    """The styles of modules and of the parameters that they have."""
    styles = EnginePlan(model, heads).styles
    missing = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name, parameter in module._parameters.items()
        if parameter is None
    }
    return {path: style for path, style in styles.items() if path not in missing}


def heads() -> Any:
    return SimpleNamespace(queries=HEADS)


def attention_styles(**children: nn.Module) -> dict[str, str]:
    styles = styles_of(Language(attn=Attention(**children)), heads())
    return {path.removeprefix("attn").removeprefix("."): style for path, style in styles.items()}


PLAIN = {
    "": "own_heads",
    **{f"{name}_proj": "colwise" for name in "qkv"},
    **{f"{name}_proj.weight": "colwise" for name in "qkv"},
    "o_proj": "rowwise",
    "o_proj.weight": "rowwise",
}


def test_attention_is_divided_by_heads() -> None:
    assert attention_styles() == PLAIN


def test_a_gate_of_heads_is_divided_with_them() -> None:
    """One with as many outputs as ``o_proj`` has inputs, or several times as many."""
    gate = {"g_proj": "colwise", "g_proj.weight": "colwise"}
    assert attention_styles(g_proj=linear(HIDDEN, 32)) == PLAIN | gate
    assert attention_styles(g_proj=linear(HIDDEN, 64)) == PLAIN | gate


@pytest.mark.parametrize(
    "children",
    [
        {"g_proj": linear(HIDDEN, 20)},  # of no whole number of heads
        {"o_proj": linear(32, HIDDEN + 1)},
        {"o_proj": nn.Identity()},
        {"q_proj": nn.Identity()},
        {"q_proj": linear(HIDDEN, 34)},
        {"q_norm": nn.LayerNorm(7, bias=False)},  # of no part of the heads
    ],
)
def test_attention_that_is_not_of_heads_stays_whole(children: dict[str, nn.Module]) -> None:
    with pytest.raises(InputError, match=r"no attention whose heads can be told: give apply="):
        attention_styles(**children)


def test_norms_of_each_head_stay_and_norms_over_all_heads_add_squares() -> None:
    each = attention_styles(q_norm=nn.RMSNorm(8), k_norm=nn.RMSNorm(8))
    assert each == PLAIN
    every = attention_styles(q_norm=nn.RMSNorm(32), k_norm=nn.RMSNorm(16))
    norms = {
        f"{name}_norm{end}": f"{name}_norm_over_heads" for name in "qk" for end in ("", ".weight")
    }
    assert every == PLAIN | norms


def test_a_norm_of_a_single_key_head_is_not_over_heads() -> None:
    """Two heads of 8 numbers would be 16; one head of 16 numbers is its own."""
    attention: Any = Attention(k_norm=nn.RMSNorm(16))
    attention.head_dim = 16
    styles = styles_of(Language(attn=attention), heads())
    assert "attn.k_norm" not in styles


def test_parameters_of_heads_are_divided() -> None:
    attention = Attention()
    attention.sinks = weight(HEADS)
    attention.other = weight(HEADS + 1)
    styles = styles_of(Language(attn=attention), heads())
    assert styles["attn.sinks"] == "colwise"
    assert "attn.other" not in styles


def test_biases_have_the_style_of_their_product() -> None:
    styles = attention_styles(q_proj=linear(HIDDEN, 32, bias=True))
    assert styles["q_proj.bias"] == "colwise"


def test_latent_attention_divides_what_follows_the_latent_states() -> None:
    attention = Holder(
        q_a_proj=linear(HIDDEN, 6),
        q_a_layernorm=nn.RMSNorm(6),
        q_b_proj=linear(6, 48),
        kv_a_proj_with_mqa=linear(HIDDEN, 10),
        kv_b_proj=linear(6, 64),
        o_proj=linear(32, HIDDEN),
    )
    styles = styles_of(Language(attn=attention), heads())
    divided = {path: style for path, style in styles.items() if not path.endswith(".weight")}
    assert divided == {
        "attn.q_b_proj": "colwise",
        "attn.kv_b_proj": "colwise",
        "attn.o_proj": "rowwise",
        "attn": "own_heads",
    }


def test_attention_that_the_plan_divides_keeps_its_plan() -> None:
    plan = {"attn.q_proj": "colwise", "attn.o_proj": "rowwise"}
    assert styles_of(Language(plan, attn=Attention()), heads()) == plan


def test_a_norm_of_what_several_devices_compute_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"attn\.norm norms what several GPUs compute.*give apply="
    ):
        attention_styles(norm=nn.RMSNorm(32))
    mlp = Holder(
        up_proj=linear(HIDDEN, INNER), down_proj=linear(INNER, HIDDEN), norm=nn.RMSNorm(INNER)
    )
    with pytest.raises(InputError, match=r"mlp\.norm norms what several GPUs compute"):
        styles_of(Language({"x": "colwise"}, mlp=mlp))
    outer = Holder(
        up_proj=linear(HIDDEN, INNER), down_proj=linear(INNER, HIDDEN), norm=nn.RMSNorm(HIDDEN)
    )
    assert styles_of(Language({"x": "colwise"}, mlp=outer))["mlp.up_proj"] == "colwise"


# -- experts -------------------------------------------------------------------------------------


def experts(first: str, up: tuple[int, ...], down: tuple[int, ...], **others: Any) -> Experts:
    return Experts(**{first: weight(*up), "down_proj": weight(*down), **others})


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (experts("gate_up_proj", (3, 48, 16), (3, 16, 24)), (3, "gate_up_proj", False)),
        (experts("gate_up_proj", (3, 16, 48), (3, 24, 16)), (3, "gate_up_proj", True)),
        (experts("up_proj", (3, 24, 16), (3, 16, 24)), (3, "up_proj", False)),
        (experts("up_proj", (3, 24, 16), (3, 16, 24), is_transposed=False), (3, "up_proj", False)),
        (experts("up_proj", (3, 16, 24), (3, 24, 16), is_transposed=True), (3, "up_proj", True)),
        # inner and outer dimensions are equal
        (experts("gate_up_proj", (3, 32, 16), (3, 16, 16)), (3, "gate_up_proj", False)),
        (experts("gate_up_proj", (3, 16, 32), (3, 16, 16)), (3, "gate_up_proj", True)),
        (experts("gate_up_proj", (48, 16), (16, 24)), None),
        (Experts(gate_up_proj=weight(3, 48, 16)), None),
        (Experts(down_proj=weight(3, 16, 24)), None),
        (Experts(gate_up_proj=None), None),
    ],
)
def test_experts_are_told_by_their_stacked_matrices(module: nn.Module, expected: Any) -> None:
    assert experts_in(module) == expected


def test_experts_are_divided_by_their_inner_dimension() -> None:
    joined = experts("gate_up_proj", (3, 48, 16), (3, 16, 24), gate_up_proj_bias=weight(3, 48))
    styles = styles_of(Language({"x": "colwise"}, experts=joined))
    assert styles == {
        "x": "colwise",
        "experts.gate_up_proj": "packed_colwise",
        "experts.gate_up_proj_bias": "packed_rowwise",
        "experts.down_proj": "rowwise",
        "experts": "moe_tp_experts",
    }
    turned = experts(
        "up_proj", (3, 16, 24), (3, 24, 16), up_proj_bias=weight(3, 24), is_transposed=True
    )
    assert styles_of(Language({"x": "colwise"}, experts=turned)) == {
        "x": "colwise",
        "experts.up_proj": "rowwise",
        "experts.up_proj_bias": "rowwise",
        "experts.down_proj": "colwise",
        "experts": "moe_tp_experts",
    }


def test_experts_that_the_plan_divides_keep_their_plan() -> None:
    plan = {"experts.gate_up_proj": "grouped_gemm", "experts.down_proj": "grouped_gemm"}
    joined = experts("gate_up_proj", (3, 48, 16), (3, 16, 24))
    assert styles_of(Language(plan, experts=joined)) == plan


def test_experts_with_three_arguments_can_be_divided() -> None:
    joined = experts("gate_up_proj", (3, 48, 16), (3, 16, 24))

    class Other(Holder):
        def forward(self, states: Any) -> Any:
            raise NotImplementedError

    other = Other(gate_up_proj=weight(3, 48, 16), down_proj=weight(3, 16, 24))
    found = divisible_experts(Language(experts=joined, other=other, layer=linear(2, 2)))
    assert [(path, module) for path, module, _ in found] == [("experts", joined)]
    assert found[0][2].number == 3


@pytest.mark.parametrize(("is_summed", "style"), [(True, "moe_tp_experts"), (False, "replicate")])
def test_kept_experts_are_not_divided_further(is_summed: bool, style: str) -> None:
    joined = experts("gate_up_proj", (3, 48, 16), (3, 16, 24))
    plan = EnginePlan(Language({"x": "colwise"}, experts=joined), None)
    plan.keep_experts(is_summed=is_summed)
    assert plan.styles == {"x": "colwise", "experts": style}


def test_outputs_of_experts_and_shared_experts_are_summed_once() -> None:
    shared = Holder(up_proj=linear(HIDDEN, INNER), down_proj=linear(INNER, HIDDEN))
    joined = experts("gate_up_proj", (3, 48, 16), (3, 16, 24))
    alone = experts("gate_up_proj", (3, 48, 16), (3, 16, 24))
    model = Language(
        {"x": "colwise"},
        moe=Holder(experts=joined, shared_experts=shared),
        plain=Holder(experts=alone),
    )
    plan = EnginePlan(model, None)
    plan.join_sums()
    assert plan.styles["moe"] == "all_reduce"
    assert plan.styles["moe.experts"] == "replicate"
    assert plan.styles["moe.shared_experts.down_proj"] == "replicate"
    assert plan.styles["moe.shared_experts.up_proj"] == "colwise"
    assert plan.styles["plain.experts"] == "moe_tp_experts"
    assert "plain" not in plan.styles


# -- MLPs and the vocabulary ---------------------------------------------------------------------


def test_mlps_are_divided_by_their_inner_dimension() -> None:
    gated = Holder(
        gate_proj=linear(HIDDEN, INNER),
        up_proj=linear(HIDDEN, INNER, bias=True),
        down_proj=linear(INNER, HIDDEN),
    )
    joined = Holder(gate_up_proj=linear(HIDDEN, 2 * INNER), down_proj=linear(INNER, HIDDEN))
    styles = styles_of(Language({"x": "colwise"}, gated=gated, joined=joined))
    assert styles == {
        "x": "colwise",
        **{f"gated.{name}": "colwise" for name in ("gate_proj", "up_proj")},
        **{f"gated.{name}.weight": "colwise" for name in ("gate_proj", "up_proj")},
        "gated.up_proj.bias": "colwise",
        "gated.down_proj": "rowwise",
        "gated.down_proj.weight": "rowwise",
        "joined.gate_up_proj": "packed_colwise",
        "joined.gate_up_proj.weight": "packed_colwise",
        "joined.down_proj": "rowwise",
        "joined.down_proj.weight": "rowwise",
    }


@pytest.mark.parametrize(
    "members",
    [
        {"up_proj": linear(HIDDEN, INNER), "down_proj": linear(INNER, HIDDEN + 1)},
        {"up_proj": linear(HIDDEN, INNER + 1), "down_proj": linear(INNER, HIDDEN)},
        {"gate_up_proj": linear(HIDDEN, INNER), "down_proj": linear(INNER, HIDDEN)},
        {"up_proj": nn.Identity(), "down_proj": linear(INNER, HIDDEN)},
        {"up_proj": linear(HIDDEN, INNER)},
    ],
)
def test_other_mlps_stay_whole(members: dict[str, nn.Module]) -> None:
    assert styles_of(Language({"x": "colwise"}, mlp=Holder(**members))) == {"x": "colwise"}


@pytest.mark.parametrize("style", ["rowwise", "replicate"])
def test_mlps_that_the_plan_divides_or_repeats_keep_their_plan(style: str) -> None:
    mlp = Holder(up_proj=linear(HIDDEN, INNER), down_proj=linear(INNER, HIDDEN))
    plan = {"mlp.down_proj": style}
    assert styles_of(Language(plan, mlp=mlp)) == plan


class Spoken(Language):
    """It names its embedding and the product of the vocabulary."""

    def get_input_embeddings(self) -> Any:
        return self._modules["embedding"]

    def get_output_embeddings(self) -> Any:
        return self._modules["head"]


def test_the_vocabulary_is_divided_by_rows() -> None:
    model = Spoken({"x": "colwise"}, embedding=nn.Embedding(10, 4), head=linear(4, 10))
    assert styles_of(model) == {
        "x": "colwise",
        "embedding": "embedding_rowwise",
        "embedding.weight": "embedding_rowwise",
        "head": "colwise_gather_output",
        "head.weight": "colwise_gather_output",
    }
    planned = Spoken(
        {"x": "colwise", "head": "colwise"}, embedding=nn.Identity(), head=linear(4, 9)
    )
    assert styles_of(planned) == {"x": "colwise", "head": "colwise"}


def test_a_plan_of_the_vocabulary_alone_is_none() -> None:
    with pytest.raises(InputError, match="Language has no plan for tensor parallelism"):
        styles_of(Language({"lm_head": "colwise"}))


def test_the_hidden_size_may_be_that_of_the_text() -> None:
    mlp = Holder(up_proj=linear(HIDDEN, INNER), down_proj=linear(INNER, HIDDEN))
    model = Language({"x": "colwise"}, mlp=mlp)
    text = SimpleNamespace(hidden_size=HIDDEN)
    model.config = SimpleNamespace(hidden_size=1, get_text_config=lambda: text)
    assert "mlp.up_proj" in styles_of(model)
