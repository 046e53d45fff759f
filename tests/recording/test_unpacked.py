"""Weights that a model stores as integers, several in one, as quantised checkpoints have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchscan
from torchscan import MissingFormulaError, assert_budget, crawl_module

INNER, OUTER, GROUP = 64, 32, 16
SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)


class Grouped(nn.Module):
    """As GPTQ stores it: 8 weights of 4 bits in an integer; each group of rows has a scale and a zero point for each column."""

    qweight: Tensor
    qzeros: Tensor
    scales: Tensor
    g_idx: Tensor

    def __init__(self) -> None:
        super().__init__()
        groups = INNER // GROUP
        self.register_buffer("qweight", torch.zeros(INNER // 8, OUTER, dtype=torch.int32))
        self.register_buffer("qzeros", torch.zeros(groups, OUTER // 8, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(groups, OUTER))
        self.register_buffer("g_idx", torch.arange(INNER, dtype=torch.int32) // GROUP)

    def weight(self) -> Tensor:
        """All of them, as fractions."""
        groups = self.g_idx.long()
        zeros = (self.qzeros[:, :, None] >> SHIFTS & 15).flatten(1)
        numbers = (self.qweight[:, None] >> SHIFTS[:, None] & 15).flatten(0, 1)
        return self.scales[groups] * (numbers - zeros[groups])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight()


class Interleaved(Grouped):
    """As AWQ stores it: 8 columns in an integer, in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.qweight = torch.zeros(INNER, OUTER // 8, dtype=torch.int32)

    def weight(self) -> Tensor:
        order = torch.arange(OUTER).view(-1, 2, 4).transpose(1, 2).flatten()
        zeros, numbers = (
            (each[:, :, None] >> SHIFTS & 15).flatten(1)[:, order]
            for each in (self.qzeros, self.qweight)
        )
        groups = self.g_idx.long()
        return (numbers - zeros[groups]) * self.scales[groups]


class Parted(Grouped):
    """It unpacks half of its columns at a time, and all of it for each sample."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.cat([each @ half for half in self._halves()], -1) for each in x])

    def _halves(self) -> list[Tensor]:
        groups, half = self.g_idx.long(), OUTER // 2
        columns = (self.qweight[:, :half], self.qweight[:, half:])
        return [
            ((each[:, None] >> SHIFTS[:, None] & 15).flatten(0, 1) * self.scales[groups, :half])
            for each in columns
        ]


class Blocks(nn.Module):
    """As gpt-oss stores it: two indices of a code book in a byte, and for each 32 of them an exponent in another."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Parameter(
            torch.zeros(OUTER, INNER // 32, 16, dtype=torch.uint8), requires_grad=False
        )
        self.scales = nn.Parameter(
            torch.full((OUTER, INNER // 32), 127, dtype=torch.uint8), requires_grad=False
        )
        self.book = torch.linspace(-6, 6, 16)

    def forward(self, x: Tensor) -> Tensor:
        weight = x.new_empty(OUTER, INNER // 32, 32)
        weight[..., 0::2] = self.book[(self.blocks & 15).int()]
        weight[..., 1::2] = self.book[(self.blocks >> 4).int()]
        weight = torch.ldexp(weight, self.scales[..., None].int() - 127)
        return functional.linear(x, weight.flatten(1))


@torch.library.custom_op("test_unpacked::product", mutates_args=())
def secret(x: Tensor, packed: Tensor) -> Tensor:
    """A kernel that unpacks, of which torchscan knows nothing."""
    return x.new_zeros(len(x), OUTER)


@secret.register_fake
def _(x: Tensor, packed: Tensor) -> Tensor:
    return x.new_empty(len(x), OUTER)


class Secret(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = secret(x, self.qweight)
        return result


class Packed(nn.Module):
    """A kernel of torch's own: 4 bits each, in the order that it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(OUTER, INNER // 2, dtype=torch.uint8))
        self.register_buffer("scales_and_zeros", torch.zeros(INNER // 32, OUTER, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, 32, self.scales_and_zeros)


class Relative(nn.Module):
    """Rows of a table for the distances of places: the integers say which, and hold no weights."""

    distances: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(15, 4))
        places = torch.arange(8, dtype=torch.int32)
        self.register_buffer("distances", places[:, None] - places + 7)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bqc,qkc->bqk", x, self.table[self.distances])


def _overall(model: nn.Module, *shape: int) -> dict[str, Any]:
    return dict(crawl_module(model, shape or (INNER,), torch.float32)["overall"])


@pytest.mark.parametrize("kind", [Grouped, Interleaved])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_integers_of_a_checkpoint_hold_eight_weights_each(
    device: str, kind: type[nn.Module]
) -> None:
    """Scales, zero points and places of groups stay buffers, with their bytes."""
    model = kind().to(device)
    found = _overall(model)
    assert (found["grad_params"], found["nograd_params"]) == (0, INNER * OUTER)
    assert found["param_size"] == INNER * OUTER // 2
    groups = INNER // GROUP
    assert found["num_buffers"] == groups * OUTER // 8 + groups * OUTER + INNER
    assert found["buffer_size"] == groups * OUTER // 2 + groups * OUTER * 4 + INNER * 4
    assert found["macs"] == INNER * OUTER


def test_a_code_book_makes_numbers_of_the_integers_that_pick_from_it() -> None:
    found = _overall(Blocks())
    scales = OUTER * INNER // 32
    assert found["nograd_params"] == INNER * OUTER + scales
    assert found["param_size"] == INNER * OUTER // 2 + scales


def test_a_kernel_says_by_its_price_how_many_weights_it_takes() -> None:
    assert _overall(Packed())["nograd_params"] == INNER * OUTER


def test_a_layer_that_is_called_twice_has_its_weights_once() -> None:
    layer = Grouped()
    layer.qweight = torch.zeros(INNER // 8, INNER, dtype=torch.int32)
    layer.qzeros = torch.zeros(INNER // GROUP, INNER // 8, dtype=torch.int32)
    layer.scales = torch.ones(INNER // GROUP, INNER)
    assert _overall(nn.Sequential(layer, nn.ReLU(), layer))["nograd_params"] == INNER * INNER


def test_parts_are_added_up_and_repetitions_are_not() -> None:
    info = crawl_module(Parted(), (3, INNER), batch_size=2)
    assert info["overall"]["nograd_params"] == INNER * OUTER
    assert info["overall"]["macs"] == 2 * 3 * INNER * OUTER


class Scaled(nn.Module):
    """As DeepSeek stores it: fp8, and a scale for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.zeros(OUTER, INNER).to(torch.float8_e4m3fn), requires_grad=False
        )
        self.weight_scale_inv = nn.Parameter(
            torch.ones(OUTER // 16, INNER // 16), requires_grad=False
        )

    def forward(self, x: Tensor) -> Tensor:
        scales = self.weight_scale_inv.repeat_interleave(16, 0).repeat_interleave(16, 1)
        return functional.linear(x, self.weight.to(x.dtype) * scales)


def test_eight_bits_of_fractions_are_a_weight_each() -> None:
    found = _overall(Scaled())
    scales = OUTER * INNER // 256
    assert (found["nograd_params"], found["param_size"]) == (
        OUTER * INNER + scales,
        OUTER * INNER + 4 * scales,
    )
    assert found["macs"] == OUTER * INNER


def test_what_a_hidden_kernel_unpacks_is_a_lower_bound() -> None:
    info = crawl_module(Secret(), (INNER,))
    elements = INNER // 8 * OUTER
    note = {"code": "packing-unknown", "values": {"path": "qweight", "elements": elements}}
    assert note in info["provenance"]["assumptions"]
    unread = {"code": "packed-numbers", "values": {"path": "qweight"}}
    assert info["provenance"]["unreadable_weights"] == [unread]
    with pytest.raises(MissingFormulaError, match="the numbers packed in qweight"):
        assert_budget(Secret(), (INNER,), max_params=10**9)


def test_places_are_no_weights() -> None:
    found = crawl_module(Relative(), (8, 4))
    assert (found["overall"]["grad_params"], found["overall"]["nograd_params"]) == (15 * 4, 0)
    assert found["overall"]["num_buffers"] == 64
    assert found["provenance"]["unreadable_weights"] == []


class Speaks(nn.Module):
    """It generates, and its weights are packed."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, INNER)
        self.inner = Grouped()
        self.out = nn.Linear(OUTER, 10)

    def forward(self, tokens: Tensor, cache: Tensor | None = None) -> dict[str, Tensor]:
        made = self.inner(self.words(tokens))
        seen = made if cache is None else torch.cat([cache, made], 1)
        return {"scores": self.out(seen.mean(1)), "cache": seen}


def test_a_generation_has_all_weights_and_the_bytes_of_their_integers() -> None:
    found = torchscan.analyze_generation(Speaks(), 4, 2, device="RTX 3090")
    words, groups = 10 * INNER + OUTER * 10 + 10, INNER // GROUP
    assert found.params == words + INNER * OUTER
    stored = INNER * OUTER // 2 + groups * OUTER // 2 + groups * OUTER * 4 + INNER * 4
    assert found.weights_bytes == 4 * words + stored + SHIFTS.numel() * 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch_size", [1, 8])
def test_blocks_of_4_bits_of_bitsandbytes(batch_size: int) -> None:
    kernels = pytest.importorskip("bitsandbytes")
    layer = kernels.nn.Linear4bit(
        INNER, OUTER, bias=False, quant_type="nf4", compute_dtype=torch.float32
    ).to("cpu")
    info = crawl_module(nn.Sequential(layer), (INNER,), batch_size=batch_size, strict=True)
    assert info["overall"]["nograd_params"] == INNER * OUTER
    assert info["overall"]["param_size"] == INNER * OUTER // 2
    assert info["overall"]["macs"] == batch_size * INNER * OUTER


@pytest.mark.filterwarnings("ignore")
def test_weights_of_8_bits_of_bitsandbytes() -> None:
    kernels = pytest.importorskip("bitsandbytes")
    layer = kernels.nn.Linear8bitLt(INNER, OUTER, bias=False, has_fp16_weights=False).to("cpu")
    found = crawl_module(nn.Sequential(layer), (INNER,), torch.float16, strict=True)["overall"]
    assert (found["nograd_params"], found["param_size"], found["macs"]) == (
        INNER * OUTER,
        INNER * OUTER,
        INNER * OUTER,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_of_torchao_have_their_shape_and_the_bytes_of_what_they_wrap(device: str) -> None:
    """A byte a weight, and for each row a scale in the type of the model and a zero point of a byte."""
    quantization = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(INNER, OUTER, bias=False)).bfloat16().to(device)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig(version=2))
    found = crawl_module(model, (INNER,), torch.bfloat16)["overall"]
    assert (found["nograd_params"], found["macs"]) == (INNER * OUTER, INNER * OUTER)
    weight: Any = model[0].weight
    wrapped = [getattr(weight, name) for name in weight.__tensor_flatten__()[0]]
    assert found["param_size"] == sum(
        each.numel() * each.element_size() for each in wrapped if each is not None
    )
