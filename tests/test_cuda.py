"""What only a machine with a CUDA device can show; elsewhere these tests are skipped, and say so."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tests.torchvision_cpu  # noqa: F401 - makes torchvision importable
import torchscan
from tests.models.catalogue import SMALL, Case
from tests.observables import process_state
from tests.recording.test_higher_order import Flexible
from tests.recording.test_record import Calls
from torchscan import analyze_roofline, crawl_module, estimate_memory, record
from torchscan.analyses.totals import total_cost
from torchscan.hardware.device_catalog import known_devices
from torchscan.hardware.device_files import save_entry
from torchscan.hardware.measuring import measure
from torchscan.hardware.process_memory import cuda_overhead

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

CASES = ["resnet18", "efficientnet_b0", "swin_t", "timm vit", "BERT", "GPT-2", "Llama", "T5"]


def test_a_model_on_cuda_runs_for_real_there_and_says_so() -> None:
    model = nn.Linear(4, 2).cuda()
    provenance = crawl_module(model, (4,))["provenance"]
    assert provenance["execution"] == "real"
    assert provenance["reasons"] == [{"code": "model-on-cuda", "values": {}}]


@pytest.mark.parametrize("name", CASES)
def test_the_record_on_cuda_is_the_record_on_shapes(name: str) -> None:
    case: Case = SMALL[name]
    model = case.build().cuda()
    inputs = dict(case.inputs)
    on_shapes = crawl_module(model, **inputs, execute="abstract")
    if "kwargs" in inputs:
        inputs["kwargs"] = {key: value.cuda() for key, value in inputs["kwargs"].items()}
    on_cuda = crawl_module(model, **inputs, execute="real")
    for one, other in zip(on_shapes["layers"], on_cuda["layers"], strict=True):
        for key in (
            "path",
            "macs",
            "flops",
            "input_shape",
            "output_shape",
            "grad_params",
            "num_buffers",
        ):
            assert one[key] == other[key], (one["path"], key)


KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: str(kernel.name))
def test_attention_costs_the_same_in_every_kernel(kernel: SDPBackend) -> None:
    """2 samples · 4 heads · 64 · 64 scores of 32 + 32 products; backwards 5 products, of which step by step 4."""
    scores = 2 * 4 * 64 * 64
    args = tuple(
        torch.zeros(2, 4, 64, 32, device="cuda", dtype=torch.float16, requires_grad=True)
        for _ in range(3)
    )
    with sdpa_kernel(kernel):
        trace = record(
            Calls(lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v)),
            args=args,
            training=True,
            mode="eval",
        )
    forward, backward = (
        total_cost(trace, phase=phase, strict=True).macs for phase in ("forward", "backward")
    )
    assert forward == scores * 64
    assert backward == scores * 32 * (4 if kernel is SDPBackend.MATH else 5)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "swin_t", "BERT", "GPT-2"])
def test_a_training_step_has_no_operator_without_a_price(name: str) -> None:
    case: Case = SMALL[name]
    inputs = dict(case.inputs)
    if "kwargs" in inputs:
        inputs["kwargs"] = {key: value.cuda() for key, value in inputs["kwargs"].items()}
    trace = record(case.build().cuda(), **inputs, mode="train", training=True)
    cost = total_cost(trace, strict=True)
    assert cost.macs > 2 * total_cost(trace, phase="forward").macs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_by_cudnn(kind: Any) -> None:
    layer = kind(7, 3).cuda()
    args = (torch.zeros(5, 2, 7, device="cuda", requires_grad=True),)
    trace = record(layer, args=args, mode="train", training=True)
    forward, backward = (
        total_cost(trace, phase=phase, strict=True).macs for phase in ("forward", "backward")
    )
    assert forward == 10 * sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert backward == 2 * forward


def test_flex_attention() -> None:
    """2 samples · 4 heads · 128 · 128 scores of 32 + 32."""
    trace = record(Flexible(), args=(torch.zeros(2, 4, 128, 32, device="cuda"),))
    assert total_cost(trace, strict=True).macs == 2 * 4 * 128 * 128 * 64


def test_the_random_state_of_the_device_is_as_before() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
    before = (torch.cuda.get_rng_state().tolist(), process_state())
    crawl_module(model, (4,), mode="train")
    assert (torch.cuda.get_rng_state().tolist(), process_state()) == before


def test_a_pass_on_shapes_takes_no_memory_of_the_device() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    crawl_module(model, (1024,), batch_size=4096, execute="abstract")
    assert torch.cuda.max_memory_allocated() == before


def test_a_model_on_cuda_has_overheads() -> None:
    """A context takes hundreds of MiB, torch's allocator keeps at least a segment; after the pass not less than before."""
    overheads = crawl_module(nn.Linear(1024, 1024).cuda(), (1024,))["overheads"]
    assert (
        overheads["cuda"]["fwd"] is None
        or 50 < overheads["cuda"]["pre"] <= overheads["cuda"]["fwd"] < 4096
    )
    assert overheads["framework"]["fwd"] > 0


def test_the_memory_of_this_process_is_what_nvidia_smi_shows() -> None:
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("no nvidia-smi here")
    kept = torch.zeros(2**28, device="cuda")
    query = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    rows = [
        line.split(", ")
        for line in subprocess.run(  # noqa: S603
            query, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]
    shown = [
        float(used) for pid, used in rows if int(pid) == os.getpid() and used.strip().isdigit()
    ]
    if not shown:
        pytest.skip("nvidia-smi does not list this process")
    assert torchscan.get_process_gpu_ram() == pytest.approx(sum(shown), abs=2)
    del kept


MEASURED = ["resnet18", "resnet50", "densenet121", "mobilenet_v3_large", "efficientnet_b0"]
MEASURED += ["convnext_tiny", "swin_t", "vit_b_16", "regnet_y_400mf", "shufflenet_v2_x1_0"]


def _measured_peak(model: nn.Module, x: torch.Tensor) -> int:
    """What torch's allocator has had in use at most during the second step of a training."""
    # Earlier tests have left workspaces of cuBLAS, and x is not counted twice.
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated() - x.nbytes
    optimizer = torch.optim.AdamW(model.train().cuda().parameters())
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        output = model(x)
        loss = output.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del output, loss
    return torch.cuda.max_memory_allocated() - before


def test_the_peak_of_a_training_step_is_what_the_allocator_had_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ten models at three batch sizes; the error of each is printed, and so is the median."""
    models = pytest.importorskip("torchvision.models")
    errors = []
    for name, batch_size in itertools.product(MEASURED, (4, 16, 32)):
        torch.cuda.empty_cache()
        options: Any = {"training": True, "optimizer": "AdamW", "loss": torch.sum, "device": "cuda"}
        verdict = estimate_memory(
            getattr(models, name)(), (3, 224, 224), batch_size=batch_size, **options
        ).verdict
        measured = _measured_peak(
            getattr(models, name)(), torch.randn(batch_size, 3, 224, 224, device="cuda")
        )
        assert verdict is not None
        errors.append(verdict.allocated_bytes / measured - 1)
        with capsys.disabled():
            print(  # noqa: T201 - a figure to be read
                f"{name:20} {batch_size:3} {measured:14,} {verdict.allocated_bytes:14,} {errors[-1]:+.1%}"
            )
    median = statistics.median(map(abs, errors))
    with capsys.disabled():
        print(f"median error {median:.1%}")  # noqa: T201 - a figure to be read
    assert median < 0.1


def test_the_device_at_hand_has_a_roofline() -> None:
    """Measured times beside it are printed by scripts/benchmark --at-hand."""
    if torch.cuda.get_device_name() not in known_devices():
        pytest.skip(
            f"no rates of {torch.cuda.get_device_name()} are known: torchscan devices --measure"
        )
    model = nn.Linear(1024, 1024).half()
    for device in ("auto", "cuda"):
        result = analyze_roofline(model, (1024,), batch_size=4096, device=device)
        assert result.device == torch.cuda.get_device_name()
        assert 0 < result.time_bound <= result.time_estimate


def test_what_the_context_of_the_device_at_hand_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML's figure of this process, less what is reserved. What is kept is used, as one number."""
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path / "devices.json"))
    name, entry = measure()
    held = cuda_overhead().cuda
    if not held:
        pytest.skip("NVML does not tell what this process holds")
    assert 100 < entry["cuda_context_mb"] < 4096
    assert entry["cuda_context_mb"] == pytest.approx(held, abs=64)
    save_entry(name, entry)
    verdict = estimate_memory(nn.Linear(8, 8), (8,), device="cuda").verdict
    assert verdict is not None
    assert verdict.cuda_context_range == (
        entry["cuda_context_mb"] * 2**20,
        entry["cuda_context_mb"] * 2**20,
    )


def test_the_device_at_hand_can_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHSCAN_DEVICES", str(tmp_path / "devices.json"))
    name, entry = measure()
    save_entry(name, entry)
    device = known_devices()[name]
    assert device.is_measured
    assert device.flops_per_second["fp16"] > 1e12
    assert device.bytes_per_second is not None
    assert device.bytes_per_second > 5e10


# -- memory snapshots ------------------------------------------------------------------------------


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_a_snapshot_of_torch_agrees_with_its_counts(tmp_path: Path, stacks: str) -> None:
    """The sum of the parts is what torch reports, and parameters and states are all there.

    There are no biases: the kernel that reduces their gradients takes so much memory that the peak
    would be after the activations are freed.
    """
    gc.collect()  # what earlier tests have left may be more than what this one needs
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks=stacks, clear_history=True)
    try:
        first, second = nn.Linear(512, 2048, bias=False), nn.Linear(2048, 512, bias=False)
        model = nn.Sequential(first, nn.ReLU(), second).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.zeros(4096, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        reserved = torch.cuda.memory_reserved()
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    end = torchscan.read_snapshot(tmp_path / "snapshot.pickle", model, moment="end")
    assert end.reserved_bytes == reserved
    assert end.requested_bytes + end.rounding_bytes + end.free_bytes == reserved
    weights = sum(each.nbytes for each in model.parameters())
    assert end.by_kind["parameters"] == weights
    assert end.by_kind["optimizer"] == 2 * weights
    peak = torchscan.read_snapshot(tmp_path / "snapshot.pickle", model)
    assert peak.by_kind.get("activations", 0) >= 4096 * 2048 * 4, peak.by_kind
    assert peak.by_kind["backward"] > 0


@pytest.mark.parametrize("recorded", [False, True])
def test_an_error_of_a_full_gpu_is_explained(recorded: bool) -> None:
    """Without a recording, too: what the model and the step hold is known by address."""
    torch.cuda.empty_cache()
    if recorded:
        torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    _, total = torch.cuda.mem_get_info()
    limit = torch.cuda.memory_reserved() + 512 * 2**20
    torch.cuda.set_per_process_memory_fraction(limit / total)

    def train() -> None:
        for rows in (1024, 2**20):
            model(torch.zeros(rows, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    try:
        with pytest.raises(torch.OutOfMemoryError) as caught, torchscan.inspect(model) as run:
            train()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.memory._record_memory_history(enabled=None)
    found = run.out_of_memory
    assert found is not None
    weights = sum(each.nbytes for each in model.parameters())
    assert found.by_kind["parameters"] == weights
    assert found.by_kind["optimizer"] >= 2 * weights
    assert found.failed_bytes == 2**20 * 512 * 4  # of the inputs
    assert any(note.startswith("torchscan: a request of ") for note in caught.value.__notes__)
