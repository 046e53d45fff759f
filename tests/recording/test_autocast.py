"""What autocast casts to: as torch's documentation lists it, and on the CPU as torch itself does it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.recording.test_record import Calls
from torchscan import Scan, estimate_memory
from torchscan.precisions import Precision

Function = Callable[[Tensor], Tensor]

#: of a tensor of 2 × 3 × 4; losses have it as both operands
LOSSES: dict[str, Function] = {
    "l1_loss": lambda x: F.l1_loss(x, x),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "huber_loss": lambda x: F.huber_loss(x, x),
    "kl_div": lambda x: F.kl_div(x, x, reduction="sum"),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, x),
    "nll_loss": lambda x: F.nll_loss(x[0], torch.zeros(3, dtype=torch.long, device=x.device)),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x[0], x[1], x[0, :, 0]),
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, x),
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x, x, x),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(
        x[0], torch.zeros(3, 4, dtype=torch.long, device=x.device)
    ),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, x),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, x, x),
    "multi_margin_loss": lambda x: F.multi_margin_loss(
        x[0], torch.zeros(3, dtype=torch.long, device=x.device)
    ),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
}
#: further functions that compute in single precision on CUDA
SINGLE: dict[str, Function] = {
    **{
        name: getattr(torch, name)
        for name in ("acos", "asin", "cosh", "sinh", "tan", "erfinv", "exp", "expm1")
    },
    **{
        name: getattr(torch, name)
        for name in ("log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "norm")
    },
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "pow": lambda x: x.pow(3),
    "**": lambda x: x**3,
    "number **": lambda x: 2.0**x,
    "softplus": F.softplus,
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "dist": lambda x: torch.dist(x, x),
    "pdist": lambda x: F.pdist(x[0]),
    "cdist": lambda x: torch.cdist(x, x),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    # told to return it
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmin": lambda x: F.softmin(x, -1),
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
}
#: of a tensor of 32 bits, what computes in 16 on CUDA
LOWER: dict[str, Function] = {
    "matmul": lambda x: x @ x.mT,
    "linear": lambda x: F.linear(x, x[0]),
    "bmm": lambda x: torch.bmm(x, x.mT),
    "baddbmm": lambda x: torch.baddbmm(x[:, :, :3], x, x.mT),
    "mm": lambda x: torch.mm(x[0], x[0].T),
    "addmm": lambda x: torch.addmm(x[0, :, :3], x[0], x[0].T),
    "addbmm": lambda x: torch.addbmm(x[0, :, :3], x, x.mT),
    "mv": lambda x: torch.mv(x[0], x[0, 0]),
    "addmv": lambda x: torch.addmv(x[0, :, 0], x[0], x[0, 0]),
    "addr": lambda x: torch.addr(x[0], x[0, :, 0], x[0, 0]),
    "chain_matmul": lambda x: torch.linalg.multi_dot([x[0], x[0].T, x[0]]),
    "einsum": lambda x: torch.einsum("abc,adc->abd", x, x),
    "prelu": lambda x: F.prelu(x, x[0, 0, :1]),
    "conv1d": lambda x: F.conv1d(x, x[:, :, :2]),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x, x[0, :, None, :2].expand(3, 2, 2)),
    "vecdot": lambda x: torch.linalg.vecdot(x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}


def made(function: Function, dtype: torch.dtype, device: str) -> torch.dtype:
    """The type of the result."""
    found: list[torch.dtype] = []

    def run(_: object, x: Tensor) -> Tensor:
        result = function(x)
        found.append(result.dtype)
        return result

    x = torch.zeros(2, 3, 4, dtype=dtype, device="meta")
    on_cuda = device == "H200"
    precision: Precision = "fp16-mixed" if on_cuda else "bf16-mixed"
    estimate_memory(Calls(run), args=(x,), precision=precision, device=device if on_cuda else None)
    return found[-1]


@pytest.mark.parametrize("name", [*LOSSES, *SINGLE])
def test_cuda_computes_in_single_precision(name: str) -> None:
    function = {**LOSSES, **SINGLE}[name]
    assert made(function, torch.float16, "H200") is torch.float32


@pytest.mark.parametrize("name", LOWER)
def test_cuda_computes_in_half_precision(name: str) -> None:
    assert made(LOWER[name], torch.float32, "H200") is torch.float16


@pytest.mark.parametrize("name", ["relu", "mul", "tanh", "sigmoid", "cat", "maximum"])
def test_what_stands_in_no_list_keeps_its_types(name: str) -> None:
    calls: dict[str, Function] = {
        "relu": torch.relu, "mul": lambda x: x * x, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
        "cat": lambda x: torch.cat([x, x]), "maximum": lambda x: torch.maximum(x, x),
    }  # fmt: skip
    for dtype in (torch.float16, torch.float32):
        assert made(calls[name], dtype, "H200") is dtype


@pytest.mark.parametrize(
    "name", sorted({*LOSSES, *SINGLE, *LOWER} - {"pdist"})
)  # which the CPU can't do in 16 bits
def test_the_cpu_casts_as_torch_does(name: str) -> None:
    function = {**LOSSES, **SINGLE, **LOWER}[name]
    for dtype in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", torch.bfloat16):
            expected = function(torch.full((2, 3, 4), 0.5, dtype=dtype)).dtype
        assert made(function, dtype, "cpu") is expected


class AsksItsDevice(nn.Module):
    """As models do that keep a part in single precision, wherever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer out of autocast, one under it."""
        assert torch.is_autocast_enabled(x.device.type)
        with torch.autocast(x.device.type, enabled=False):
            x = self.inner(x)
        return self.outer(x)


@pytest.mark.parametrize("home", ["cpu", "meta"])
def test_models_that_ask_their_device_about_autocast_are_told_of_the_one_they_will_be_on(
    home: str,
) -> None:
    model = AsksItsDevice().to(home)
    steps = Scan(model, (4,), device="RTX 4090", precision="fp16-mixed").steps
    products = [
        op.signature.outputs[0].dtype
        for op in steps.ops
        if op.signature.operator in ("aten.addmm", "aten.linear")
    ]
    assert products == [torch.float32, torch.float16]


class AutocastInside(nn.Module):
    """A model that switches autocast on itself, and recomputes its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            result: Tensor = checkpoint(self.layer, x, use_reentrant=False)
            return result

    def layer(self, x: Tensor) -> Tensor:
        result: Tensor = self.into(self.norm(x))
        return result


def test_checkpoints_compute_again_under_the_autocast_of_the_model() -> None:
    """The norm is in 32 bits both times, although the weights have 16."""
    with torch.device("meta"):
        model = AutocastInside().bfloat16()
    found = Scan(model, (4,), training=True, device="NVIDIA H100 80GB HBM3").steps
    norms = [op for op in found.ops if op.signature.operator == "aten.native_layer_norm"]
    assert [op.signature.outputs[0].dtype for op in norms] == [torch.float32] * 2


class PartlySingle(nn.Module):
    """Two layers, of which a model computes the second without autocast, in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the checkpointed result."""
        result: Tensor = checkpoint(self.compute, x, use_reentrant=False)
        return result.sum()

    def compute(self, x: Tensor) -> Tensor:
        """Return the result of both layers."""
        x = self.first(x)
        with torch.autocast("cuda", enabled=False):
            result: Tensor = self.second(x.float()).square()
            return result


def test_checkpoints_compute_without_autocast_what_a_model_excludes_from_it() -> None:
    """Each layer runs twice forward: in 16 bits the first, in 32 bits the second."""
    scan = Scan(PartlySingle(), (4, 8), training=True, device="A100", precision="bf16-mixed")
    products = [op for op in scan.steps.ops if op.signature.operator == "aten.addmm"]
    types = [op.signature.inputs[-1].dtype for op in products]
    assert types == [torch.bfloat16, torch.float32] * 2


class CastsItself(nn.Module):
    """Two products in a context of its own, and nothing after it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(512, 512, bias=False)
        self.b = nn.Linear(512, 512, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            result: Tensor = self.b(self.a(x))
            return result


def test_casts_of_a_context_inside_the_model_die_with_it() -> None:
    """Autocast holds both cast weights until the end of the context, and that of b is of b alone."""
    estimate = estimate_memory(CastsItself(), (512,), device="A100")
    cast = 512 * 512 * 2
    assert estimate.by_kind["temporary"] == cast
    assert cast < estimate.by_kind["activations"] < cast + 8192
