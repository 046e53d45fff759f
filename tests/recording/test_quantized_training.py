"""Frozen layers in 4 and 8 bits under adapters: what they hold, and what a step computes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import InputError, Scan
from torchscan.recording.training.quantized_linear import Int8Linear

WIDTH, BATCH, NUM_LAYERS, RANK = 256, 8, 3, 4
NUM_WEIGHTS = NUM_LAYERS * WIDTH * WIDTH
ADAPTED = NUM_LAYERS * 2 * RANK * WIDTH
GPU = "NVIDIA H100 80GB HBM3"


class Layered(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(NUM_LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return x


def scan(weights: str, width: int = WIDTH, **options: Any) -> Scan:
    with torch.device("meta"):
        model = Layered(width).bfloat16()
    step: dict[str, Any] = {"training": True, "device": GPU, "lora": RANK, "weights": weights}
    return Scan(model, (), torch.long, batch_size=BATCH, **step | options)


def operators(weights: str) -> Counter[str]:
    return Counter(op.signature.operator for op in scan(weights).steps.ops)


def held(weights: str, **options: Any) -> tuple[int, int]:
    """Bytes of parameters and buffers."""
    memory = scan(weights, **options).memory
    return tuple(  # type: ignore[return-value]
        max(each.by_kind[kind] for each in memory.timeline) for kind in ("parameters", "buffers")
    )


def test_4_bits_hold_half_a_byte_a_weight_and_a_scale_for_64() -> None:
    rest = 16 * WIDTH * 2 + ADAPTED * 4
    table = NUM_LAYERS * 16 * 4
    assert held("nf4") == (NUM_WEIGHTS // 2 + rest, NUM_WEIGHTS // 64 * 4 + table)
    # Scales of one byte, for 256 of which there is one of 4; a table of 256, and an offset.
    scales = NUM_WEIGHTS // 64 + NUM_LAYERS * (4 * (WIDTH * WIDTH // 64 // 256) + 256 * 4 + 4)
    assert held("nf4-dq") == (NUM_WEIGHTS // 2 + rest, scales + table)
    assert held("int8") == (NUM_WEIGHTS + rest, NUM_LAYERS * WIDTH * 4)
    # A scale of two bytes and a zero point of 4 bits for 128 weights, and the group of each row.
    groups = NUM_WEIGHTS // 128 * 2 + NUM_WEIGHTS // 128 // 2
    assert held("awq") == (NUM_WEIGHTS // 2 + rest, groups)
    assert held("gptq") == (NUM_WEIGHTS // 2 + rest, groups + NUM_LAYERS * WIDTH * 4)


def test_autocast_has_the_rest_in_32_bits_as_peft_prepares_it() -> None:
    parameters, _ = held("nf4", precision="bf16-mixed")
    assert parameters == NUM_WEIGHTS // 2 + 16 * WIDTH * 4 + ADAPTED * 4
    parameters, _ = held("gptq", precision="bf16-mixed")
    assert parameters == NUM_WEIGHTS // 2 + 16 * WIDTH * 2 + ADAPTED * 4


#: the first layer's input is that of frozen weights, so it gets no gradient
BACKWARD = NUM_LAYERS - 1


def test_weights_are_dequantized_for_each_product() -> None:
    """Forward and backward; beside them, adapters have two products forward and four backward."""
    adapters = 2 * NUM_LAYERS + 4 * NUM_LAYERS - 1
    found = operators("nf4")
    assert found["torchscan.dequantize_4bit"] == NUM_LAYERS + BACKWARD
    assert found["aten.mm"] == NUM_LAYERS + BACKWARD + adapters
    found = operators("nf4-dq")
    assert found["torchscan.dequantize_blockwise"] == NUM_LAYERS + BACKWARD
    found = operators("gptq")
    assert found["torchscan.product_of_4bit"] == NUM_LAYERS
    assert found["torchscan.transposed_product_of_4bit"] == BACKWARD
    assert found["aten.mm"] == adapters
    found = operators("int8")
    assert found["aten._int_mm"] == found["torchscan.int8_vectorwise_quant"] == NUM_LAYERS
    assert found["aten.mm"] == BACKWARD + adapters


@pytest.mark.parametrize("weights", ["nf4", "gptq"])
def test_widths_are_no_multiple_of_what_an_integer_packs(weights: str) -> None:
    adapted = NUM_LAYERS * 2 * RANK * (WIDTH - 4)
    gradients = scan(weights, WIDTH - 4).memory.timeline[-1].by_kind["gradients"]
    assert gradients >= 4 * adapted


@pytest.mark.parametrize("weights", ["nf4", "nf4-dq", "int8", "gptq", "awq"])
def test_every_operator_has_a_cost_formula(weights: str) -> None:
    assert scan(weights).steps_without_formula == ()


def test_a_kernel_that_dequantizes_does_the_work_of_its_product() -> None:
    kinds = scan("gptq").roofline.by_kind
    assert kinds["torchscan.product_of_4bit"].macs == BATCH * NUM_WEIGHTS
    assert kinds["torchscan.transposed_product_of_4bit"].macs == BATCH * WIDTH * WIDTH * BACKWARD
    assert kinds["torchscan.product_of_4bit"].precision == "bf16"


def test_8_bits_stand_for_shares_of_the_largest_value_of_a_row() -> None:
    """The largest values, of 127 steps each, are 2 and 254."""
    layer: Any = Int8Linear(nn.Linear(3, 2, bias=False))
    layer.weight.copy_(torch.tensor([[127, -127, 0], [127, 1, -2]], dtype=torch.int8))
    layer.scales.copy_(torch.tensor([2.0, 254.0]))
    assert layer.dequantize().tolist() == [
        pytest.approx([2, -2, 0]),
        pytest.approx([254, 2, -4]),
    ]


def test_a_fused_adapter_dequantizes_8_bits_in_both_passes() -> None:
    """To 32 bits, and then to those of the product, whose gradient the first layer does not need."""
    ops = scan("int8", fused_kernels="lora").steps.ops
    copied = Counter(
        op.phase
        for op in ops
        if op.signature.operator == "aten._to_copy"
        and op.signature.outputs[0].shape == (WIDTH, WIDTH)
        and op.signature.outputs[0].dtype == torch.float32
    )
    assert copied == {"forward": NUM_LAYERS, "backward": NUM_LAYERS}


def test_weights_need_frozen_layers() -> None:
    with pytest.raises(
        InputError, match="no linear layer in the model's layers is frozen: give lora=16"
    ):
        assert scan("nf4", lora=None).memory
