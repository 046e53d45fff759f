"""Kernels of Liger and Unsloth: operators, and what they keep for the backward pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.versions import needs
from torchscan import InputError, Scan

WIDTH, INNER, HEADS, BATCH, LENGTH, LAYERS = 64, 128, 4, 2, 32, 2
ROWS = BATCH * LENGTH
RANK = 8
GPU = "NVIDIA H100 80GB HBM3"


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.variance_epsilon = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * scale).to(x.dtype)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def half(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    return q * cos + half(q) * sin, k * cos + half(k) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.ones(LENGTH, WIDTH // HEADS, dtype=x.dtype, device=x.device)
        query, key = (
            each(x).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
            for each in (self.q_proj, self.k_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, angles, angles)
        return (query + key).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, INNER, bias=False)
        self.up_proj = nn.Linear(WIDTH, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = RMSNorm(), Attention(), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def scan(**recipe: Any) -> Scan:
    with torch.device("meta"):
        model = Decoder().bfloat16()
    return Scan(model, (LENGTH, WIDTH), batch_size=BATCH, training=True, device=GPU, **recipe)


def operators(found: Scan) -> Counter[str]:
    return Counter(op.signature.operator for op in found.steps.ops)


def kept(found: Scan) -> int:
    """Return the bytes that the forward pass has made and the backward pass finds."""
    ops = found.steps.ops
    end = next(index for index, op in enumerate(ops) if op.phase == "backward")
    made = [each for each in found.steps.storages if each.born is not None and each.born < end]
    return sum(each.size for each in made if each.died is None or each.died > end)


@pytest.mark.parametrize(
    ("kernel", "forward", "backward", "num"),
    [
        pytest.param(
            *("rms_norm", "aten._fused_rms_norm", "aten._fused_rms_norm_backward", 1),
            marks=needs("ops.aten._fused_rms_norm_backward"),
        ),
        ("swiglu", "torchscan.swiglu", "torchscan.swiglu_backward", 1),
    ],
)
def test_a_kernel_replaces_operators_of_each_layer(
    kernel: str, forward: str, backward: str, num: int
) -> None:
    found = scan(fused_kernels=kernel)
    names = operators(found)
    assert names[forward] == names[backward] == num * LAYERS
    assert found.steps_without_formula == ()
    assert kept(found) < kept(scan())


def test_queries_and_keys_are_rotated_in_place() -> None:
    found = scan(fused_kernels="rope")
    names = operators(found)
    assert names["torchscan.rotate_"] == 2 * 2 * LAYERS
    assert names["aten.cat"] == 0
    (load,) = [each for name, each in found.roofline.by_kind.items() if "rotate_" in name]
    assert load.bytes_written == 2 * 2 * LAYERS * ROWS * WIDTH * 2


@needs("ops.aten._fused_rms_norm_backward")
def test_a_norm_keeps_its_input_and_a_number_for_each_row() -> None:
    """Plain ones keep rows in 32 bits, that number, and normalized rows in 16.

    The input of the first layer needs no gradient, so that only the last of these is kept.
    """
    fused, plain = scan(fused_kernels="rms_norm"), scan()
    first = ROWS * WIDTH * 2 - ROWS * 4
    second = ROWS * WIDTH * (4 + 2) + ROWS * 4 - (ROWS * WIDTH * 2 + ROWS * 4)
    assert kept(plain) - kept(fused) == first + second


def test_a_gated_layer_keeps_two_products() -> None:
    """Plain ones keep the SiLU of the gate, too."""
    fused, plain = scan(fused_kernels="swiglu"), scan()
    assert kept(plain) - kept(fused) == LAYERS * ROWS * INNER * 2


def test_an_adapter_is_multiplied_in_the_type_of_its_input() -> None:
    """Rows of 16 bits with dropped elements are kept; peft keeps them in 32, without a mask."""
    found, plain = scan(fused_kernels="lora", lora=RANK), scan(lora=RANK)
    num_adapters = 5 * LAYERS
    assert operators(plain)["aten.native_dropout"] == num_adapters
    # per adapter, forward: the base and two low-rank products; backward: one that both gradients
    # need, one and two for those of the adapter, two for that of the input
    assert operators(found)["aten.mm"] == num_adapters * (3 + 6)
    products = [op for op in found.steps.ops if op.signature.operator == "aten.mm"]
    assert {op.signature.outputs[0].dtype for op in products} == {torch.bfloat16}
    assert kept(found) < kept(plain)


@pytest.mark.parametrize("weights", ["nf4-dq", "gptq"])
def test_a_packed_weight_is_dequantized_for_each_product(weights: Any) -> None:
    names = operators(scan(fused_kernels="lora", lora=RANK, weights=weights))
    assert names["torchscan.dequantize_4bit"] == 2 * 5 * LAYERS
    assert names["torchscan.product_of_4bit"] == 0


@needs("ops.aten._fused_rms_norm_backward")
def test_kernels_are_the_same_with_checkpoints() -> None:
    names = operators(scan(fused_kernels=["rms_norm", "rope"], checkpoint=True))
    assert names["aten._fused_rms_norm"] == 2 * LAYERS
    assert names["torchscan.rotate_"] == 3 * 2 * LAYERS


@pytest.mark.parametrize(
    ("kernels", "says"),
    [
        (["rms_norm", "rmsnorm"], "fused_kernels is 'rmsnorm': choose from 'rms_norm', 'rope'"),
        ("lora", "fused_kernels has 'lora', and Decoder has no low-rank adapter"),
    ],
)
def test_kernels_that_have_no_place_are_refused(kernels: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        scan(fused_kernels=kernels).steps  # noqa: B018
    assert says in str(caught.value)


@needs("ops.aten._fused_rms_norm_backward")
def test_the_model_is_unchanged() -> None:
    with torch.device("meta"):
        model = Decoder().bfloat16()
    Scan(  # noqa: B018
        model,
        (LENGTH, WIDTH),
        batch_size=BATCH,
        training=True,
        fused_kernels=["rms_norm", "rope", "swiglu"],
    ).steps
    assert type(model.layers[0]) is Layer
    assert {type(each) for each in model.modules()} >= {RMSNorm, Attention, MLP}
