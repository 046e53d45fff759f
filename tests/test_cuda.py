"""What only a machine with a CUDA device can show; elsewhere these tests are skipped, and say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchscan
from tests.models.catalogue import SMALL, Case
from tests.observables import process_state
from tests.trace.test_higher_order import Flexible
from tests.trace.test_record import Calls

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore"),
]

CASES = ["resnet18", "efficientnet_b0", "swin_t", "timm vit", "BERT", "GPT-2", "Llama", "T5"]


def test_a_model_on_cuda_runs_for_real_there_and_says_so() -> None:
    model = nn.Linear(4, 2).cuda()
    provenance = torchscan.crawl_module(model, (4,))["provenance"]
    assert (provenance["execution"], provenance["reason"]) == ("real", "the model is on CUDA")


@pytest.mark.parametrize("name", CASES)
def test_the_record_on_cuda_is_the_record_on_shapes(name: str) -> None:
    case: Case = SMALL[name]
    model = case.build().cuda()
    inputs = dict(case.inputs)
    if "kwargs" in inputs:
        inputs["kwargs"] = {key: value.cuda() for key, value in inputs["kwargs"].items()}
    on_shapes, on_cuda = (torchscan.crawl_module(model, **inputs, execute=how) for how in ("abstract", "real"))
    for one, other in zip(on_shapes["layers"], on_cuda["layers"], strict=True):
        for key in ("path", "macs", "flops", "input_shape", "output_shape", "grad_params", "num_buffers"):
            assert one[key] == other[key], (one["path"], key)


KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: str(kernel.name))
def test_attention_costs_the_same_in_every_kernel(kernel: SDPBackend) -> None:
    """2 samples · 4 heads · 64 · 64 scores of 32 + 32 products; backwards 5 products, of which step by step 4."""
    scores = 2 * 4 * 64 * 64
    args = tuple(torch.zeros(2, 4, 64, 32, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
    with sdpa_kernel(kernel):
        trace = torchscan.record(Calls(lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v)), args=args, backward=True)
    forward, backward = (torchscan.total_cost(trace, phase=phase, strict=True).macs for phase in ("forward", "backward"))
    assert forward == scores * 64
    assert backward == scores * 32 * (4 if kernel is SDPBackend.MATH else 5)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "swin_t", "BERT", "GPT-2"])
def test_a_training_step_has_no_operator_without_a_price(name: str) -> None:
    case: Case = SMALL[name]
    inputs = dict(case.inputs)
    if "kwargs" in inputs:
        inputs["kwargs"] = {key: value.cuda() for key, value in inputs["kwargs"].items()}
    trace = torchscan.record(case.build().cuda(), **inputs, mode="train", backward=True)
    cost = torchscan.total_cost(trace, strict=True)
    assert cost.macs > 2 * torchscan.total_cost(trace, phase="forward").macs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_by_cudnn(kind: Any) -> None:
    layer = kind(7, 3).cuda()
    args = (torch.zeros(5, 2, 7, device="cuda", requires_grad=True),)
    trace = torchscan.record(layer, args=args, mode="train", backward=True)
    forward, backward = (torchscan.total_cost(trace, phase=phase, strict=True).macs for phase in ("forward", "backward"))
    assert forward == 10 * sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert backward == 2 * forward


def test_flex_attention() -> None:
    """2 samples · 4 heads · 128 · 128 scores of 32 + 32."""
    trace = torchscan.record(Flexible(), args=(torch.zeros(2, 4, 128, 32, device="cuda"),))
    assert torchscan.total_cost(trace, strict=True).macs == 2 * 4 * 128 * 128 * 64


def test_the_random_state_of_the_device_is_as_before() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
    before = (torch.cuda.get_rng_state().tolist(), process_state())
    torchscan.crawl_module(model, (4,), mode="train")
    assert (torch.cuda.get_rng_state().tolist(), process_state()) == before


def test_a_pass_on_shapes_takes_no_memory_of_the_device() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    torchscan.crawl_module(model, (1024,), batch_size=4096, execute="abstract")
    assert torch.cuda.max_memory_allocated() == before
