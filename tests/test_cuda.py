"""What only a machine with a CUDA device can show; elsewhere these tests are skipped, and say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from tests.models.catalogue import SMALL, Case
from tests.observables import process_state

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
