"""Linear layers in 8 bits: their operators, products, memory and values, against counts by hand."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from tests.versions import before, lacks, needs
from torchscan import Scan, TorchscanError, analyze_roofline, estimate_memory
from torchscan.recording.execution.block_scales import quantize_mx
from torchscan.recording.training.float8 import Float8, Float8Linear, convert_to_float8
from torchscan.recording.training.float8_all_gather import hold_in_8_bits

ROWS, INNER, OUTER = 128, 256, 512
MACS = ROWS * INNER * OUTER
IN_BLOCKS = pytest.param("mx", marks=needs("float4_e2m1fn_x2"))
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp", IN_BLOCKS]


def layer(recipe: Float8, *, device: str = "meta", dtype: torch.dtype = torch.bfloat16) -> Any:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(INNER, OUTER, bias=False, device=device, dtype=dtype))
    convert_to_float8(model, recipe)
    return model


@functools.cache
def scan(recipe: Float8) -> Scan:
    rows = torch.zeros(ROWS, INNER, device="meta", dtype=torch.bfloat16, requires_grad=True)
    return Scan(layer(recipe), args=(rows,), training=True)


@pytest.mark.parametrize(
    ("recipe", "in_8_bits"),
    [
        ("tensorwise", 3),
        ("rowwise", 3),
        ("rowwise_with_gw_hp", 2),
        pytest.param("mx", 3, marks=needs("float4_e2m1fn_x2")),
    ],
)
def test_a_step_has_three_products_of_which_some_are_in_8_bits(
    recipe: Float8, in_8_bits: int
) -> None:
    costs = scan(recipe).costs()
    assert costs["aten._scaled_mm"].macs == in_8_bits * MACS
    assert sum(each.macs for each in costs.values()) == 3 * MACS
    assert not scan(recipe).without_formula


def test_gradients_have_more_exponent_with_scales_of_tensors() -> None:
    """torchao: e5m2 for gradients of "tensorwise", e4m3 for everything else."""

    def types(recipe: Float8) -> Counter[str]:
        narrow = (torch.float8_e4m3fn, torch.float8_e5m2)
        return Counter(
            f"{op.phase} {op.signature.outputs[0].dtype}".replace("torch.float8_", "")
            for op in scan(recipe).steps.ops
            if op.signature.operator == "aten._to_copy" and op.signature.outputs[0].dtype in narrow
        )

    # forward: input and weight; backward: gradient and weight, then gradient and input
    assert types("tensorwise") == {
        "forward e4m3fn": 2,
        "backward e4m3fn": 2,
        "backward e5m2": 2,
    }
    assert types("rowwise") == {"forward e4m3fn": 2, "backward e4m3fn": 4}
    assert types("rowwise_with_gw_hp") == {"forward e4m3fn": 2, "backward e4m3fn": 2}


@pytest.mark.parametrize(
    ("recipe", "forward", "backward"),
    [
        # torchao rounds scales of rows only: of input and weight, then of two operands of each
        # product in 8 bits
        ("tensorwise", 0, 0),
        ("rowwise", 2, 4),
        ("rowwise_with_gw_hp", 2, 2),
    ],
)
def test_scales_of_rows_are_rounded_to_powers_of_two(
    recipe: Float8, forward: int, backward: int
) -> None:
    ops = [op for op in scan(recipe).steps.ops if op.signature.operator == "aten.exp2"]
    phases = Counter(op.phase for op in ops)
    assert (phases["forward"], phases["backward"]) == (forward, backward)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_backward_pass_has_input_and_weight_in_16_bits(recipe: Float8) -> None:
    """Nothing in 8 bits outlives the forward pass: the peak of the activations is the output."""
    trace = scan(recipe).steps
    end = next(index for index, op in enumerate(trace.ops) if op.phase == "backward")
    alive = [
        each
        for each in trace.storages
        if each.kind == "intermediate"
        and each.born is not None
        and each.born < end
        and (each.died is None or each.died > end + 1)
    ]
    assert [each.size for each in alive] in ([], [2 * ROWS * OUTER])


@needs("nn.Parameter.grad_dtype")
def test_a_weight_gathered_in_8_bits_has_its_gradient_in_the_16_of_the_product() -> None:
    """FSDP2 stores the weight in 32 bits, and reduces gradients in 16."""
    model = nn.Sequential(nn.Linear(INNER, OUTER, bias=False, device="meta"))
    convert_to_float8(model, "tensorwise", all_gather=True)
    hold_in_8_bits(model)
    rows = torch.zeros(ROWS, INNER, device="meta", dtype=torch.bfloat16)
    trace = Scan(model, args=(rows,), training=True).steps
    sizes = [each.size for each in trace.storages if each.kind == "gradient"]
    assert sizes == [2 * INNER * OUTER]


@before("2.13", "_scaled_mm does not run on a CPU, or takes scales of tensors only")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_values_and_gradients_are_near_those_of_the_layer(recipe: Float8) -> None:
    """8 bits with 3 (2) of mantissa: errors of 1/16 (1/8) of a factor, which average out in a sum."""
    narrow = layer(recipe, device="cpu")
    wide = nn.Linear(INNER, OUTER, bias=False, dtype=torch.bfloat16)
    wide.weight = nn.Parameter(narrow[0].weight.detach().clone())
    rows = torch.randn(2, ROWS // 2, INNER, dtype=torch.bfloat16)
    found = []
    for model in (narrow, wide):
        given = rows.clone().requires_grad_()
        output = model(given)
        (output.float() * torch.linspace(-1, 1, OUTER)).sum().backward()
        found.append((output, given.grad, next(model.parameters()).grad))
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert (one.float() - other.float()).norm() < 0.06 * other.float().norm()


@needs("float4_e2m1fn_x2")
@pytest.mark.parametrize("dim", [0, -1])
def test_blocks_of_32_share_a_power_of_two(dim: int) -> None:
    matrix = torch.randn(64, 96) * torch.logspace(-3, 3, 96)
    values, scales = quantize_mx(matrix, dim)
    rows = matrix if dim == -1 else matrix.t()
    assert values.shape == rows.shape
    # scales lie in tiles of 128 rows and 4 columns
    assert scales.numel() == 128 * 4
    tiles = scales.float().reshape(32, 4, 4).transpose(0, 1).reshape(128, 4)
    own = tiles[: rows.shape[0], : rows.shape[1] // 32].repeat_interleave(32, 1)
    # 3 bits of mantissa: half of 1/8 of the value, or of the smallest one at this scale
    error = (values.float() * own - rows).abs()
    assert bool((error <= rows.abs() / 16 + own * 2**-9).all())


def test_layers_are_left_out_by_name_and_by_size() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(32, 48)
            self.odd = nn.Linear(48, 40)
            self.lm_head = nn.Linear(48, 64)
            self.tied = self.first

    def converted(recipe: Float8, **options: Any) -> list[str]:
        model = Head()
        convert_to_float8(model, recipe, **options)
        assert model.tied is model.first
        named = model.named_modules()
        return [name for name, each in named if isinstance(each, Float8Linear)]

    assert converted("tensorwise") == ["first"]
    assert converted("rowwise", skip=()) == ["first", "lm_head"]
    assert converted("tensorwise", skip=["first", "tied"]) == ["lm_head"]


@pytest.mark.slow
def test_estimates_take_a_recipe_and_leave_the_model() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).bfloat16()
    options: dict[str, Any] = {"batch_size": 64, "training": True, "device": "H100"}
    found = analyze_roofline(model, (256,), float8="rowwise", **options)
    products = [each for each in found.operators if each.operator == "aten._scaled_mm"]
    assert {each.precision for each in products} == {"fp8"}
    # the first input needs no gradient
    assert sum(each.macs for each in products) == 5 * 64 * 256 * 512
    assert type(model[0]) is nn.Linear
    kept = analyze_roofline(model, (256,), float8="rowwise", float8_skip=["2"], **options)
    assert sum(each.operator == "aten._scaled_mm" for each in kept.operators) == 2
    wide, narrow = (
        estimate_memory(model, (256,), float8=recipe, **options) for recipe in (None, "tensorwise")
    )
    assert narrow.by_kind["parameters"] == wide.by_kind["parameters"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"float8": "blockwise"}, "float8 is 'blockwise'"),
        ({"float8": "rowwise", "device": "A100-SXM4-80GB"}, "has no 8-bit products"),
        ({"float8": "mx"}, "has no products with scales of blocks: give device='NVIDIA B200'"),
        ({"float8": "tensorwise", "float8_skip": ["0"]}, "no layer can be converted"),
        ({"float8": "tensorwise"}, "multiple of 16 rows .* and there are 1"),
    ],
)
def test_a_recipe_without_products_is_refused(options: dict[str, Any], message: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(TorchscanError, match=message):
        analyze_roofline(model, (64,), **{"training": True, "device": "H100", **options})


@pytest.mark.skipif(not lacks("float4_e2m1fn_x2"), reason="this version of torch has them")
def test_blocks_need_products_with_their_scales() -> None:
    with pytest.raises(
        TorchscanError, match=r"float8 is 'mx', and torch .* has no matrix products with MX scales"
    ):
        layer("mx")


def test_a_recomputed_layer_casts_its_input_as_before() -> None:
    """Autocast is on in the backward pass, too, where a checkpoint computes again."""
    layers = [nn.Sequential(nn.Linear(64, 64, bias=False)) for _ in range(2)]
    model = Stack(layers).to("meta")
    shared: dict[str, Any] = {"training": True, "device": "H100", "precision": "bf16-mixed"}
    found = [
        Counter(
            op.signature.operator
            for op in Scan(
                model, (64,), batch_size=64, float8="rowwise", checkpoint=checkpoint, **shared
            ).steps.ops
        )["aten._scaled_mm"]
        for checkpoint in (False, True)
    ]
    assert found[1] == found[0] + 2


@pytest.mark.slow
def test_selective_checkpoints_keep_every_second_product() -> None:
    """And the largest values, as torchtitan: one of the input and one of the weight."""
    layers = [nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(2))) for _ in range(2)]
    model = Stack(layers).to("meta", torch.bfloat16)
    options: dict[str, Any] = {"batch_size": 16, "training": True, "float8": "tensorwise"}

    def calls(**more: Any) -> Counter[str]:
        ops = Scan(model, (64,), **options, **more).steps.ops
        return Counter(op.signature.operator for op in ops)

    plain, selective, full = calls(), calls(checkpoint="selective"), calls(checkpoint=True)
    assert selective["aten._scaled_mm"] < full["aten._scaled_mm"]
    assert selective["aten.max"] == plain["aten.max"] < full["aten.max"]


def test_the_largest_batch_has_rows_for_products_in_8_bits() -> None:
    model = nn.Sequential(nn.Linear(64, 64)).to("meta")
    scan = Scan(model, (64,), batch_size=48, training=True, device="H100", float8="tensorwise")
    assert scan.largest_batch() % 16 == 0


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Sequential]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for each in self.layers:
            states = each(states)
        return states


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_operators_are_those_of_torchao(recipe: Float8) -> None:
    float8 = pytest.importorskip("torchao.float8", reason="torchao is not installed")
    linear = pytest.importorskip("torchao.float8.float8_linear")
    base = nn.Linear(INNER, OUTER, bias=False, device="meta", dtype=torch.bfloat16)
    theirs = linear.Float8Linear.from_float(
        base, float8.Float8LinearConfig.from_recipe_name(recipe)
    )
    options: dict[str, Any] = {"training": True}
    rows = torch.zeros(ROWS, INNER, device="meta", dtype=torch.bfloat16, requires_grad=True)
    found = [
        [
            (
                op.signature.operator.replace("contiguous", "clone"),
                [(each.shape[-2:], each.dtype, each.stride) for each in op.signature.outputs],
            )
            for op in each.steps.ops
            if not op.signature.is_view
        ]
        for each in (scan(recipe), Scan(theirs, args=(rows,), **options))
    ]
    assert found[0] == found[1]


def test_a_compiler_casts_an_input_of_several_layers_once() -> None:
    """Kernels of the forward pass on the input: one for the amax, one for the cast."""

    class Fork(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Linear(4096, 16, bias=False, device="meta", dtype=torch.bfloat16)
                for _ in range(number)
            )
            convert_to_float8(self, "tensorwise")

        def forward(self, rows: torch.Tensor) -> list[torch.Tensor]:
            return [each(rows) for each in self.layers]

    def moved(number: int) -> int:
        rows = torch.zeros(4096, 4096, device="meta", dtype=torch.bfloat16)
        scan = Scan(Fork(number), args=(rows,), device="H100", compiled=True)
        casts = (each for each in scan.roofline.operators if not each.macs)
        return sum(each.bytes_read + each.bytes_written for each in casts)

    size = 4096 * 4096
    assert moved(1) == pytest.approx((2 + 2 + 1) * size, rel=0.02)
    assert moved(3) == pytest.approx((2 + 2 + 1) * size, rel=0.04)


class Gated(nn.Module):
    """A norm, two layers with the same input, and a third one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(256)
        self.gate = nn.Linear(256, 512, bias=False)
        self.up = nn.Linear(256, 512, bias=False)
        self.down = nn.Linear(512, 256, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        normed = self.norm(states)
        inner = torch.nn.functional.silu(self.gate(normed)) * self.up(normed)
        return states + self.down(inner)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("recipe", "forward", "backward"),
    [
        # two inputs and three weights; in the backward pass these along the other dimension, and
        # three gradients along both
        ("rowwise", 5, 5 + 2 * 3),
        # gradients alone
        ("tensorwise", 5, 3),
    ],
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep
def test_a_compiler_computes_as_many_largest_values_as_the_roofline_has(
    recipe: Float8, forward: int, backward: int
) -> None:
    """In graphs as torch's compiler divides them between the passes."""
    aot = pytest.importorskip("torch._dynamo.backends.common")
    partitioners = pytest.importorskip("functorch.compile")
    operators = ("aten.max", "aten.amax")
    model = Gated().bfloat16()
    options: dict[str, Any] = {"float8": recipe, "compiled": True, "device": "H100"}
    rows = torch.zeros(64, 256, device="meta", dtype=torch.bfloat16, requires_grad=True)
    found = analyze_roofline(model, args=(rows,), training=True, **options)
    estimated = Counter(each.phase for each in found.operators if each.operator in operators)

    compiled: list[int] = []

    def count(graph: Any, _inputs: Any) -> Any:
        names = [str(each.target).removesuffix(".default") for each in graph.graph.nodes]
        compiled.append(sum(name in operators for name in names))
        return partitioners.make_boxed_func(graph.forward)

    backend = aot.aot_autograd(
        fw_compiler=count,
        bw_compiler=count,
        partition_fn=partitioners.min_cut_rematerialization_partition,
    )
    convert_to_float8(model, recipe)
    torch._dynamo.reset()
    data = torch.randn(64, 256, dtype=torch.bfloat16, requires_grad=True)
    torch.compile(model, backend=backend)(data).sum().backward()
    assert compiled == [forward, backward]
    assert estimated == {"forward": forward, "backward": backward}
