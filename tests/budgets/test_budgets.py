"""Limits, the budget file, baselines: what is too much, what is wrong, and which layers are named."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchscan
from torchscan import (
    Budget,
    BudgetError,
    InputError,
    MissingFormulaError,
    TorchscanError,
    analyze_roofline,
    assert_budget,
    estimate_memory,
    from_json,
)
from torchscan.budgets import check_budget, check_built, find_budget_file, read_budgets
from torchscan.budgets.budget_definition import GenerationBudget, StepLimit
from torchscan.targets import Built

OLD_REPORT = Path(__file__).parents[1] / "report" / "report_of_0_1_0.json"
NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8, extra=False):
        super().__init__()
        self.fc = nn.Linear(4, width)
        self.head = nn.Linear(width, 2)
        if extra:
            self.extra = nn.Linear(2, 2)

    def forward(self, x):
        x = self.head(self.fc(x))
        return self.extra(x) if hasattr(self, "extra") else x
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [
        each for each in sys.modules if each == "nets" or each.startswith("_torchscan_target_")
    ]:
        del sys.modules[name]


def model(width: int = 8) -> nn.Module:
    """4·w + w parameters in the first layer, 2·w + 2 in the second: 58 for 8, and as many MACs less the biases: 48."""
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))


# -- assert_budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("max_params", 58),
        ("max_trainable_params", 18),
        ("max_model_size", 4 * 58),
        ("max_macs", 48),
        ("max_flops", 2 * 48),  # a bias is where the sum begins
        ("max_dmas", (4 + 40 + 8) + (8 + 18 + 2)),
        ("max_activation_memory", 4 * (8 + 2)),  # both results at once
        ("max_peak_memory", 4 * (58 + 4 + 8 + 2)),
    ],
)
def test_a_limit_holds_to_the_last_unit(limit: str, most: int) -> None:
    net = model()
    net[0].requires_grad_(False)  # type: ignore[index]
    assert_budget(net, (4,), **{limit: most})  # type: ignore[arg-type]
    assert_budget(net, (4,), **{limit: str(most)})  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match=f"at most {most - 1}"):
        assert_budget(net, (4,), **{limit: most - 1})  # type: ignore[arg-type]


def test_the_error_names_the_layers_and_is_an_assertion() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_budget(model(1000), (4,), max_params="1k", max_macs="1M")
    lines = str(caught.value).splitlines()
    assert lines == [
        "Sequential exceeds its budget",
        "  Parameters: 7.00 k, at most 1.00 k (+600.20 %)",
        "    0 (Linear): 5.00 k",
        "    1 (Linear): 2.00 k",
    ]
    assert isinstance(caught.value, TorchscanError)


def test_the_batch_and_the_step_count() -> None:
    assert_budget(model(), (4,), batch_size=3, max_macs=3 * 48)
    with pytest.raises(BudgetError):
        assert_budget(model(), (4,), batch_size=3, max_macs=3 * 48 - 1)
    inference = estimate_memory(model(), (4,)).peak_bytes
    assert_budget(model(), (4,), max_peak_memory=inference)
    with pytest.raises(BudgetError, match=r"Peak memory: .*\n    peak in the model"):
        assert_budget(model(), (4,), training=True, optimizer="AdamW", max_peak_memory=inference)


def test_a_batch_is_named_and_its_samples_can_be_limited() -> None:
    """48 MACs a sample."""
    with pytest.raises(BudgetError, match=r"MACs: 1.54 k for a batch of 32, at most 48 \(\+3,100"):
        assert_budget(model(), (4,), batch_size=32, max_macs=48)
    assert_budget(model(), (4,), batch_size=32, max_macs=48, per_sample=True)
    with pytest.raises(BudgetError, match=r"MACs: 48 per sample, at most 47"):
        assert_budget(model(), (4,), batch_size=32, max_macs=47, per_sample=True)
    with pytest.raises(
        InputError, match="per_sample is True, and the batch size is not known: give"
    ):
        assert_budget(model(), args=(torch.zeros(32, 4),), max_macs=48, per_sample=True)


def test_limits_per_sample_divide_costs_and_nothing_else() -> None:
    """Of one sample: 48 MACs, 96 FLOPs, 80 DMAs less the weights that all samples share.

    58 parameters are read once for the batch: with 32 samples, 22 elements each and 58 in all.
    """
    options: dict[str, Any] = {"batch_size": 32, "per_sample": True}
    dmas = 22 + 58 / 32
    limits: dict[str, Any] = {"max_macs": 48, "max_flops": 96, "max_dmas": dmas}
    assert_budget(model(), (4,), **limits, **options)
    for name, limit in limits.items():
        with pytest.raises(BudgetError, match=" per sample, at most "):
            assert_budget(model(), (4,), **{name: 0.99 * limit}, **options)
    # parameters, weights and 32 times input and results: 4 · (58 + 32 · (4 + 8 + 2)) bytes
    peak = 4 * (58 + 32 * 14)
    assert_budget(model(), (4,), max_macs=48, max_params=58, max_peak_memory=peak, **options)
    with pytest.raises(BudgetError, match=r"Peak memory: [\d.,]+( KiB| B)?, at most"):
        assert_budget(model(), (4,), max_macs=48, max_peak_memory=peak - 1, **options)


@pytest.mark.parametrize("limit", [{"max_params": 58}, {"max_peak_memory": "1 GiB"}])
def test_per_sample_without_a_limit_to_divide_is_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(
        InputError,
        match="per_sample is True, and no limit of a model is divided: "
        "give max_macs, max_flops, max_dmas, max_latency, or leave it out",
    ):
        assert_budget(model(), (4,), batch_size=32, per_sample=True, **limit)


def test_a_latency_per_sample_is_that_of_the_batch_divided() -> None:
    options: dict[str, Any] = {"device": "NVIDIA H200", "batch_size": 8}
    roofline = torchscan.analyze_roofline(model(), (4,), **options)
    each = roofline.time_estimate / 8
    assert_budget(model(), (4,), max_latency=each, per_sample=True, **options)
    assert_budget(roofline, max_latency=each, per_sample=True)
    with pytest.raises(BudgetError, match=r"Latency \(batch 8\): .* per sample, at most"):
        assert_budget(model(), (4,), max_latency=0.99 * each, per_sample=True, **options)
    with pytest.raises(BudgetError, match=r"Latency \(batch 8\): .* per sample, at most"):
        assert_budget(roofline, max_latency=0.99 * each, per_sample=True)


# -- results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("max_params", 58),
        ("max_trainable_params", 18),
        ("max_model_size", 4 * 58),
        ("max_macs", 48),
        ("max_flops", 2 * 48),
        ("max_dmas", (4 + 40 + 8) + (8 + 18 + 2)),
    ],
)
def test_an_info_dict_has_the_limits_of_counts(limit: str, most: int) -> None:
    net = model()
    net[0].requires_grad_(False)  # type: ignore[index]
    info = torchscan.crawl_module(net, (4,))
    assert_budget(info, **{limit: most})  # type: ignore[arg-type]
    assert_budget(dict(info), **{limit: most})  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match=f"at most {most - 1}"):
        assert_budget(info, **{limit: most - 1})  # type: ignore[arg-type]


def test_limits_of_costs_can_be_checked_with_a_dict_of_an_older_version() -> None:
    info = json.loads(OLD_REPORT.read_text())
    assert "unpriced" in info
    assert_budget(info, max_macs="1T")
    with pytest.raises(BudgetError, match="MACs"):
        assert_budget(info, max_macs=1)


def test_another_dict_is_not_an_info_dict() -> None:
    others: list[Any] = [{}, {"layers": []}, torchscan.types.Info(overall={"macs": 3})]
    for other in others:
        with pytest.raises(InputError, match="this dict is not an info dict of crawl_module"):
            assert_budget(other, max_params=1)


def test_a_selection_of_layers_is_not_named_after_the_first() -> None:
    """A linear layer of 20 parameters, before one without."""
    info = torchscan.crawl_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (4,))
    with pytest.raises(BudgetError, match=r"^The model exceeds its budget\n  Parameters: 20,"):
        assert_budget(torchscan.select_layers(info, match="ReLU"), max_params=1)


def test_an_info_dict_names_the_layers_and_can_be_divided() -> None:
    info = torchscan.crawl_module(model(), (4,), batch_size=32)
    with pytest.raises(BudgetError) as caught:
        assert_budget(info, max_macs=47, per_sample=True)
    assert str(caught.value).splitlines() == [
        "Sequential exceeds its budget",
        "  MACs: 48 per sample, at most 47 (+2.13 %)",
        "    0 (Linear): 32",
        "    1 (Linear): 16",
    ]
    with pytest.raises(BudgetError, match=r"MACs: 1\.54 k for a batch of 32, at most 48"):
        assert_budget(info, max_macs=48)
    given = torchscan.crawl_module(model(), args=(torch.zeros(32, 4),))
    with pytest.raises(InputError, match="the batch size is not known: give input_shape="):
        assert_budget(given, max_macs=48, per_sample=True)


def test_a_memory_estimate_has_the_limits_of_memory() -> None:
    estimate = torchscan.estimate_memory(model(), (4,))
    most = {"max_activation_memory": 4 * (8 + 2), "max_peak_memory": 4 * (58 + 4 + 8 + 2)}
    assert_budget(estimate, **most)  # type: ignore[arg-type]
    for name, limit in most.items():
        with pytest.raises(BudgetError) as caught:
            assert_budget(estimate, **{name: limit - 1})  # type: ignore[arg-type]
        assert str(caught.value).splitlines()[0] == "The memory estimate exceeds its budget"
        assert str(caught.value).splitlines()[2].startswith("    peak in ")


def test_a_roofline_has_a_latency_with_its_range() -> None:
    roofline = torchscan.analyze_roofline(model(), (4,), device="NVIDIA H200")
    assert_budget(roofline, max_latency=roofline.time_estimate)
    share = f"{100 * roofline.error_margin.share:.0f}"
    with pytest.raises(
        BudgetError, match=rf"Latency \(batch 1\): [\d.]+ µs ± {share} %, at most 1.00 µs"
    ):
        assert_budget(roofline, max_latency="1 us")


def test_a_scan_has_the_limits_of_a_model() -> None:
    scan = torchscan.Scan(model(), (4,), batch_size=3)
    assert_budget(scan, max_macs=3 * 48, max_params=58)
    with pytest.raises(BudgetError, match=r"Sequential exceeds its budget\n  MACs: 144 for a "):
        assert_budget(scan, max_macs=143)
    with pytest.raises(InputError, match="batch_size is for a model, and this is a Scan: give it"):
        assert_budget(scan, batch_size=4, max_macs=1)


def test_a_result_that_is_a_lower_bound_is_within_no_limit() -> None:
    info = torchscan.crawl_module(Unpriced(), (4, 4))
    with pytest.raises(
        MissingFormulaError, match=r"only a lower bound is known for FLOPs.*bessel_j0"
    ):
        assert_budget(info, max_flops="1G")
    assert_budget(info, max_flops="1G", strict=False)
    assert_budget(info, max_params=0)  # which are known
    roofline = torchscan.analyze_roofline(Unpriced(), (4, 4), device="NVIDIA H200")
    with pytest.raises(
        MissingFormulaError, match=r"only a lower bound is known for Latency.*bessel_j0"
    ):
        assert_budget(roofline, max_latency="1 s")
    assert_budget(roofline, max_latency="1 s", strict=False)


@pytest.mark.parametrize(
    ("result", "given", "says"),
    [
        (
            "memory",
            {"max_params": 1},
            "max_params is not a limit of a memory estimate: give max_activation_memory or "
            "max_peak_memory, or what crawl_module(module, …) returns",
        ),
        (
            "roofline",
            {"max_sent": 1},
            "max_sent is not a limit of a roofline: give max_latency, or what "
            "torchscan.parallel.plan(…) returns",
        ),
        (
            "roofline",
            {},
            'there is no limit for a roofline: give one, such as max_latency="12 ms"',
        ),
        (
            "info",
            {"max_latency": 1},
            "max_latency is not a limit of an info dict: give max_params, max_trainable_params, "
            "max_model_size, max_macs, max_flops or max_dmas, or what analyze_roofline(module, …)",
        ),
        (
            "info",
            {"max_macs": 1, "training": True},
            "training is for a model, and this is an info dict: leave it out, or give the model",
        ),
        (
            "info",
            {"max_macs": 1, "input_shape": (4,)},
            "input_shape is for a model, and this is an info dict",
        ),
        (
            "memory",
            {"max_peak_memory": 1, "per_sample": True},
            "per_sample is True, and no limit of a memory estimate is divided: leave it out",
        ),
        (
            "info",
            {"max_params": 1, "per_sample": True},
            "per_sample is True, and no limit of an info dict is divided: give max_macs, "
            "max_flops, max_dmas, or leave it out",
        ),
    ],
)
def test_a_limit_of_another_result_is_refused(
    result: str, given: dict[str, Any], says: str
) -> None:
    scan = torchscan.Scan(model(), (4,), device="NVIDIA H200")
    with pytest.raises(InputError) as caught:
        assert_budget(getattr(scan, result), **given)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_a_limit_of_a_result_is_not_one_of_a_model() -> None:
    with pytest.raises(InputError) as caught:
        assert_budget(model(), (4,), max_time_per_token="60 ms")
    assert str(caught.value) == (
        "max_time_per_token is not a limit of a model: give max_params, max_trainable_params, "
        "max_model_size, max_macs, max_flops, max_dmas, max_activation_memory, max_peak_memory or "
        "max_latency, or what analyze_generation(module, …) returns"
    )


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ({"max_latency": 60}, "max_latency is 60, a number without a unit: give '60 ms' or '60 s'"),
        ({"max_peak_memory": 2**51}, "give bytes, or a text such as '16 GiB'"),
    ],
)
def test_a_number_above_any_sense_needs_a_unit(limit: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        assert_budget(model(), (4,), device="H100", **limit)
    assert_budget(model(), (4,), device="H100", max_latency="60 ms")
    assert_budget(model(), (4,), device="H100", max_latency=0.06)


def test_launches_are_to_blame_where_operators_are_short() -> None:
    with pytest.raises(BudgetError) as caught:
        assert_budget(nn.Sequential(*[nn.ReLU()] * 9), (4,), device="H100", max_latency="1 us")
    lines = str(caught.value).splitlines()
    assert lines[-2].startswith("    launch overhead of 9 operators: ")
    assert lines[-1].startswith("    try torch.compile, which launches fewer kernels")
    with pytest.raises(BudgetError, match="try a larger batch, or torch"):
        assert_budget(
            nn.ReLU(), (4,), batch_size=2, device="H100", max_latency="0.001 us", per_sample=True
        )


def test_a_latency_within_its_limit_has_its_range(folder: Path) -> None:
    made = check_budget(replace(budget(folder, device="H100", max_latency="1 s"), baseline=None))
    assert re.fullmatch(r"net: Latency \(batch 1\) [\d.]+ .s ± \d+ %", str(made))
    options: dict[str, Any] = {"device": "H100", "batch_size": 8, "precision": "fp16"}
    outcome = check_budget(replace(budget(folder, max_latency="1 s", **options), baseline=None))
    assert re.fullmatch(r"net: Latency \(batch 8, fp16\) [\d.]+ .s ± \d+ %", str(outcome))


@pytest.mark.slow
def test_the_slowest_layers_come_first() -> None:
    """Weights are streamed: 268 MB, then 134 MB at 4.8 TB/s are 56 µs and 28 µs, then 0.3 MB."""
    net = nn.Sequential(nn.Linear(8, 8192), nn.Linear(8192, 8192), nn.Linear(8192, 4096))
    with pytest.raises(BudgetError) as caught:
        assert_budget(net, (8,), device="NVIDIA H200", max_latency="1 us")
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[2:]] == [
        "1",
        "2",
        "0",
    ]


def test_activations_are_those_of_the_memory_estimate() -> None:
    """Not what the optimizer works in, nor copies of weights."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    kept = 2 * 64 * 4  # the result of ReLU, of which the backward pass is made, and the output
    assert_budget(net, (64,), training=True, optimizer="AdamW", max_activation_memory=kept)
    with pytest.raises(BudgetError, match="Activations: 512 B, at most 511 B"):
        assert_budget(
            net, (64,), training=True, optimizer=torch.optim.AdamW, max_activation_memory=kept - 1
        )


def test_a_latency_says_how_far_it_may_be_off() -> None:
    """As none of its launches was compared, which are most of this pass."""
    share = analyze_roofline(model(), (4,), device="NVIDIA H200").error_margin.share
    with pytest.raises(
        BudgetError,
        match=rf"Latency \(batch 1\): [\d.]+ µs ± {100 * share:.0f} %, at most 1.00 µs \(\+",
    ):
        assert_budget(model(), (4,), device="NVIDIA H200", max_latency="1 us")


def test_a_latency_is_that_of_a_device() -> None:
    assert_budget(model(), (4,), device="NVIDIA H200", max_latency="1 s")
    with pytest.raises(BudgetError, match=r"Latency \(batch 1\): "):
        assert_budget(model(), (4,), device="NVIDIA H200", max_latency="1 us")
    with pytest.raises(InputError, match="a latency needs a device"):
        assert_budget(model(), (4,), max_latency="1 s")


class Unpriced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


def test_what_is_only_known_from_below_is_within_no_limit() -> None:
    with pytest.raises(
        MissingFormulaError, match=r"only a lower bound is known for FLOPs.*bessel_j0"
    ):
        assert_budget(Unpriced(), (4, 4), max_flops="1G")
    assert_budget(Unpriced(), (4, 4), max_flops="1G", strict=False)
    assert_budget(Unpriced(), (4, 4), max_params=0)  # which are known
    with pytest.raises(MissingFormulaError, match="only a lower bound is known for Latency"):
        assert_budget(Unpriced(), (4, 4), max_latency="1 s", device="NVIDIA H200")


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, "there is no limit for"),
        ({"max_params": "many"}, "max_params is 'many', which is not a valid count: give "),
        (
            {"max_model_size": "3 apples"},
            "max_model_size is '3 apples', which is not a valid amount of memory",
        ),
        ({"max_macs": "4 GB"}, "max_macs is '4 GB', which is not a valid count: give 25000000, "),
        ({"max_macs": "9" * 400}, "max_macs is '9{90,}…, which is too large: give a smaller"),
        ({"max_params": -1}, "give a number"),
        ({"max_params": float("nan")}, "give a number"),
        ({"max_params": True}, "give a number"),
    ],
)
def test_limits_that_are_none(limits: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        assert_budget(model(), (4,), **limits)


def test_nothing_of_the_model_changes() -> None:
    net = model().train()
    state = {key: value.clone() for key, value in net.state_dict().items()}
    assert_budget(net, (4,), max_params=58, max_peak_memory="1GB")
    assert net.training
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())


# -- the file ------------------------------------------------------------------------------------------------------------

FULL = """
[budgets.net]
target = "nets.py:Net(width=8)"
input = ["4:float32"]
dtype = "float32"
batch_size = 2
mode = "train"
training = true
optimizer = "SGD"
precision = "bf16"
device = "NVIDIA H200"
strict = false
max_params = "58"
max_latency = "1s"
baseline = "sub/net.json"
tolerance = { macs = "1%", params = 0.5 }
max_step_time = "120 ms"
measured_on = "H100"
step_time_tolerance = "10%"

[budgets.net.generation]
prompt = 2048
new = 256
weights = "int4"
cache = "fp8"
compute = "fp4"
engine = "vllm"
max_time_per_token = "60 ms"
max_first_token = 0.5
min_tokens_per_second = "1.2k"
max_weights = "20 GiB"
max_cache_per_token = "128 KiB"
min_context = "8k"
min_batch_size = 16
"""


def test_every_key_is_read(folder: Path) -> None:
    path = folder / "torchscan.toml"
    path.write_text(FULL)
    budget = read_budgets(path)["net"]
    assert budget.target is not None
    assert budget.target.kwargs == {"width": 8}
    assert budget.inputs[0].shape == (4,)
    assert (budget.batch_size, budget.mode, budget.training, budget.strict) == (
        2,
        "train",
        True,
        False,
    )
    assert (budget.optimizer, budget.precision, budget.device) == ("SGD", "bf16", "NVIDIA H200")
    assert budget.limits == {"params": 58, "latency": 1}
    assert budget.baseline == folder / "sub" / "net.json"
    assert budget.tolerance == {"macs": 0.01, "params": 0.5}
    assert budget.step_time == StepLimit(most=0.12, measured_on="H100", tolerance=0.1)
    limits = {
        "time_per_token": 0.06,
        "first_token": 0.5,
        "tokens_per_second": 1200,
        "weights": 20 * 2**30,
    }
    limits |= {"cache_per_token": 128 * 2**10, "context": 8192, "batch_size": 16}
    assert budget.generation == GenerationBudget(
        prompt=2048,
        new=256,
        weights="int4",
        cache="fp8",
        compute="fp4",
        engine="vllm",
        limits=limits,
    )


def test_a_budget_that_says_nothing_is_for_an_inference(folder: Path) -> None:
    path = folder / "torchscan.toml"
    path.write_text('[budgets.net]\ntarget = "nets.py:Net"\ninput = "4"\nmax_params = 58\n')
    budget = read_budgets(path)["net"]
    assert (budget.batch_size, budget.mode, budget.training, budget.optimizer) == (
        1,
        None,
        False,
        None,
    )


def test_inputs_by_name_take_the_place_of_shapes() -> None:
    assert_budget(nn.Linear(4, 2), kwargs={"input": torch.zeros(3, 4)}, max_macs=24)
    with pytest.raises(AssertionError):
        assert_budget(nn.Linear(4, 2), kwargs={"input": torch.zeros(3, 4)}, max_macs=23)


def test_the_file_is_looked_for_upwards(folder: Path) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    with pytest.raises(InputError, match=r"there is no torchscan\.toml"):
        find_budget_file(inner)
    (folder / "torchscan.toml").write_text(FULL)
    (folder / "a" / "pyproject.toml").write_text("[project]\nname = 'x'")
    assert find_budget_file(inner) == folder / "torchscan.toml"
    (folder / "a" / "pyproject.toml").write_text(
        "[tool.torchscan.budgets.x]\ntarget = 'nets:Net'\nmax_params = 1"
    )
    assert find_budget_file(inner) == folder / "a" / "pyproject.toml"
    assert list(read_budgets(folder / "a" / "pyproject.toml")) == ["x"]


WRITER = "[budgets.x]\ndevice = 'NVIDIA L4'\n[budgets.x.generation]\n"
STEP = "[budgets.x]\nmeasured_on = 'CPU'\nmax_step_time = "


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "it has no budgets"),
        ("budgets = 3", "it has no budgets"),
        ("[budgets]\nx = 3", "it has no budgets"),
        ("[budget.x]\nmax_params = 1", "'budget' is not a key"),
        ("[budgets.x\n", "is not valid TOML"),
        ("[budgets.x]\n", "budgets.x: nothing is limited"),
        (
            "[budgets.x]\ntarget = 3\nmax_params = 1",
            "budgets.x.target: it is 3: give a string",
        ),
        (
            "[budgets.x]\ntarget = 'a b'\nmax_params = 1",
            "budgets.x.target: 'a b' is not a model",
        ),
        (
            "[budgets.x]\nmax_parms = 1",
            "budgets.x.max_parms: it is not a key: did you mean max_params?",
        ),
        (
            "[budgets.x]\nmax_params = 'lots'",
            'budgets.x.max_params: max_params is "lots", which is not a valid count',
        ),
        ("[budgets.x]\nmax_params = -1", "budgets.x.max_params: max_params is -1"),
        ("[budgets.x]\nmax_params = nan", "budgets.x.max_params: max_params is nan"),
        ("[budgets.x]\nmax_params = 1\nname = 'y'", "budgets.x.name: it is not a key"),
        ("[budgets.x]\nmax_params = 1\nlimits = {}", "budgets.x.limits: it is not a key"),
        ("[budgets.x]\nmax_params = 1\nstep_time = 1", "budgets.x.step_time: it is not a key"),
        ("[budgets.x]\nmax_params = 1\nplace = 'y'", "budgets.x.place: it is not a key"),
        ("[budgets.x]\nmax_params = 1\nfolder = 'y'", "budgets.x.folder: it is not a key"),
        ("[budgets.x]\nmax_params = true", "budgets.x.max_params: max_params is true"),
        ("[budgets.x]\nmax_params = [1]", "budgets.x.max_params"),
        ("[budgets.x]\nmax_params = 1\ninput = 3", "budgets.x.input"),
        ("[budgets.x]\nmax_params = 1\ninput = '3;4'", "budgets.x.input: '3;4' is not an input"),
        ("[budgets.x]\nmax_params = 1\nbatch_size = 0", "budgets.x.batch_size"),
        (
            "[budgets.x]\nmax_params = 1\nmode = 'test'",
            "budgets.x.mode: it is 'test': give one of eval",
        ),
        ("[budgets.x]\nmax_params = 1\nmode = []", "budgets.x.mode"),
        (
            "[budgets.x]\nmax_params = 1\nstrict = 1",
            "budgets.x.strict: it is 1: give true or false",
        ),
        (
            "[budgets.x]\nmax_params = 1\ndtype = 'float31'",
            "budgets.x.dtype: 'float31' is not a type",
        ),
        ("[budgets.x]\nmax_params = 1\nprecision = 'int3'", "budgets.x.precision"),
        ("[budgets.x]\nmax_params = 1\nbaseline = ''", "budgets.x.baseline"),
        (
            "[budgets.x]\nbaseline = 'a.json'\ntolerance = '1 apple'",
            'budgets.x.tolerance: it is "1 apple", which is not a valid share',
        ),
        ("[budgets.x]\nbaseline = 'a.json'\ntolerance = -1", "budgets.x.tolerance"),
        (
            "[budgets.x]\nbaseline = 'a.json'\ntolerance = { speed = 1 }",
            "budgets.x.tolerance.speed: it is not a key",
        ),
        ("[budgets.x]\nmax_latency = '1ms'", "budgets.x.max_latency: a latency needs a device"),
        (
            "[budgets.x]\nmax_params = 1\nper_sample = true",
            "budgets.x.per_sample: it divides max_macs, max_flops, max_dmas, max_latency and max_step_time: give",
        ),
        (
            "[budgets.x]\nmax_params = 1\nper_sample = 1",
            "budgets.x.per_sample: it is 1: give true or false",
        ),
        (
            "[budgets.x]\nmax_params = 1\ntolerance = 0.1",
            "a tolerance needs a baseline: give one",
        ),
        (
            "[budgets.x]\nmax_step_time = '1ms'",
            "budgets.x.max_step_time: it needs the device that it was measured on",
        ),
        (f"{STEP}'fast'\n", 'budgets.x.max_step_time: it is "fast", which is not a valid duration'),
        (
            f"{STEP}60\n",
            "budgets.x.max_step_time: it is 60, a number without a unit: give '60 ms' or '60 s'",
        ),
        (
            f"{STEP}-1\n",
            'budgets.x.max_step_time: it is -1: give a duration, such as "120 ms"',
        ),
        (f"{STEP}inf\n", "budgets.x.max_step_time: it is inf"),
        (f"{STEP}{'9' * 400}\n", "budgets.x.max_step_time: it is 9999"),
        (f"{STEP}true\n", "budgets.x.max_step_time: it is True"),
        (
            f"{STEP}'1 s'\nstep_time_tolerance = '1 apple'",
            'budgets.x.step_time_tolerance: it is "1 apple", which is not a valid share',
        ),
        (
            "[budgets.x]\nmax_params = 1\nmeasured_on = 'CPU'",
            "budgets.x.measured_on: it is for a max_step_time, and there is none",
        ),
        (
            "[budgets.x]\nmax_params = 1\nstep_time_tolerance = 1",
            "budgets.x.step_time_tolerance: it is for a max_step_time",
        ),
        (
            "[budgets.x]\ngeneration = 3",
            "budgets.x.generation: it is '3': give a table, [budgets.x.generation]",
        ),
        (
            "[budgets.x]\n[budgets.x.generation]\nmin_batch = 1",
            "budgets.x.generation: text generation needs a device",
        ),
        (
            f"{WRITER}",
            "budgets.x.generation: nothing is limited: give a limit, such as max_time_per_token",
        ),
        (
            f"{WRITER}speed = 3",
            "budgets.x.generation.speed: it is not a key: choose from prompt, new, weights",
        ),
        (
            f"{WRITER}max_context = 3",
            "budgets.x.generation.max_context: it is not a key: did you mean min_context?",
        ),
        (
            f"{WRITER}min_context = 'far'",
            'budgets.x.generation.min_context: min_context is "far", which is not a valid number of tokens',
        ),
        (f"{WRITER}max_weights = -1", "budgets.x.generation.max_weights: max_weights is -1"),
        (
            f"{WRITER}min_batch_size = 1\nprompt = 0",
            "budgets.x.generation.prompt: it is 0: give a positive integer",
        ),
        (
            f"{WRITER}min_batch_size = 1\nweights = 'int3'",
            'budgets.x.generation.weights: weights is "int3": give one of',
        ),
        (
            f"[budgets.x]\nbaseline = 'a.json'\ntolerance = {'9' * 400}",
            "budgets.x.tolerance: it is 9999",
        ),
        (f"[budgets.x]\nmax_params = {'9' * 400}", "give a number"),
        (f"[budgets.x]\nmax_params = '{'9' * 400}'", "is too large"),
        (f"[budgets.x]\nmax_params = {'9' * 5000}", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_line(folder: Path, content: str, says: str) -> None:
    path = folder / "torchscan.toml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_budgets(path)
    assert says in str(caught.value)
    assert "torchscan.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_budgets(folder / "nothing.toml")
    (folder / "torchscan.toml").write_bytes(b"\xff\xfe[budgets]")
    with pytest.raises(InputError, match="cannot be read"):
        read_budgets(folder / "torchscan.toml")
    (folder / "pyproject.toml").write_text("[tool]\ntorchscan = 3")
    with pytest.raises(InputError, match=r"tool\.torchscan is not a table"):
        read_budgets(folder / "pyproject.toml")


KEYS = (
    "target",
    "input",
    "dtype",
    "batch_size",
    "mode",
    "training",
    "baseline",
    "tolerance",
    "strict",
    "max_params",
    "max_macs",
    "max_step_time",
    "measured_on",
    "step_time_tolerance",
    "generation",
)
TEXTS = st.text(st.characters(codec="ascii", exclude_characters="'\\"), max_size=12)
SCALARS = st.booleans() | st.integers(-5, 10**12) | st.floats() | TEXTS


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(KEYS), SCALARS | st.lists(SCALARS, max_size=3), max_size=5))
def test_any_table_is_a_budget_or_is_refused_in_a_line(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"  # written again by each example
    path.write_text(
        "\n".join(["[budgets.x]", *(f"{key} = {_toml(value)}" for key, value in table.items())])
    )
    try:
        read = read_budgets(path)
    except InputError as error:
        read, said = {}, str(error)
        assert "\n" not in said
    assert all(isinstance(each, Budget) for each in read.values())


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def test_a_broken_pyproject_that_speaks_of_torchscan_is_not_passed_by(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "torchscan.toml").write_text(FULL)
    (inner / "pyproject.toml").write_text("tool = 5")
    assert find_budget_file(inner) == folder / "torchscan.toml"
    (inner / "pyproject.toml").write_text("[project\n")
    assert find_budget_file(inner) == folder / "torchscan.toml"
    (inner / "pyproject.toml").write_text("[tool.torchscan.budgets.x\n")
    with pytest.raises(InputError, match="is not valid TOML"):
        find_budget_file(inner)


def test_paths_are_seen_from_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder / "inner"
    inner.mkdir()
    made = budget(folder)
    monkeypatch.chdir(inner)
    check_budget(made, update=True)
    assert (folder / "net.json").exists()
    (folder / "torchscan.toml").write_text(
        '[budgets.net]\ntarget = "nets:Net"\ninput = "4"\nmax_params = 58\n'
    )
    monkeypatch.undo()
    monkeypatch.chdir(inner)
    assert check_budget(read_budgets(find_budget_file(inner))["net"]).is_fine


# -- baselines -----------------------------------------------------------------------------------------------------------


def budget(folder: Path, target: str = "nets.py:Net", **settings: Any) -> Budget:
    table = {"target": target, "input": "4", "baseline": "net.json", **settings}
    (folder / "torchscan.toml").write_text(
        "\n".join(["[budgets.net]", *(f"{key} = {_toml(each)}" for key, each in table.items())])
    )
    return read_budgets(folder / "torchscan.toml")["net"]


def test_a_baseline_is_recorded_and_kept(folder: Path) -> None:
    outcome = check_budget(budget(folder), update=True)
    assert outcome.is_fine
    assert outcome.remarks[0].code == "baseline-recorded"
    assert from_json((folder / "net.json").read_text())["overall"]["macs"] == 48
    assert check_budget(budget(folder)).is_fine
    assert [path.name for path in folder.iterdir() if "net.json" in path.name] == [
        "net.json"
    ]  # nothing is left beside it


def test_what_grew_is_named(folder: Path) -> None:
    check_budget(budget(folder), update=True)
    outcome = check_budget(budget(folder, "nets.py:Net(width=9, extra=True)"))
    assert not outcome.is_fine
    lines = str(outcome).splitlines()
    # 5 more in the first layer, 2 more in the second, and 6 in a third
    assert lines[:5] == [
        "net exceeds its budget",
        "  Parameters: 71, 58 before, at most 58 (+22.41 %)",
        "    extra (Linear): new, +6",
        "    fc (Linear): +5",
        "    head (Linear): +2",
    ]


@pytest.mark.parametrize(
    ("tolerance", "is_fine"), [("12%", False), ("13%", True), (0.125, True), ({"params": 1}, False)]
)
def test_a_tolerance_is_a_share_of_the_baseline(
    folder: Path, tolerance: Any, is_fine: bool
) -> None:
    check_budget(budget(folder), update=True)
    wider = budget(
        folder, "nets.py:Net(width=9)"
    )  # 48 -> 54 MACs: 12.5 %; 58 -> 65 parameters: 12.07 %; 106 -> 119 FLOPs: 12.3 %
    shares = (
        tolerance
        if isinstance(tolerance, dict)
        else dict.fromkeys(("params", "model_size", "macs", "flops"), tolerance)
    )
    table = (
        f"tolerance = {{ {', '.join(f'{key} = {_toml(value)}' for key, value in shares.items())} }}"
    )
    (folder / "torchscan.toml").write_text(f"{(folder / 'torchscan.toml').read_text()}\n{table}\n")
    assert check_budget(read_budgets(folder / "torchscan.toml")["net"]).is_fine == is_fine
    assert wider.tolerance["macs"] == 0


def test_a_tolerance_is_not_rounded_away(folder: Path) -> None:
    """15 % more than 100 is 115, though binary fractions make a little less of it."""
    shape = "nets.py:Net(width={})"  # 7·w + 2 parameters
    check_budget(budget(folder, shape.format(14)), update=True)  # 100
    made = budget(folder, shape.format(16), max_params=114)  # 114
    loose = replace(made, tolerance=dict.fromkeys(("params", "model_size", "macs", "flops"), 0.15))
    assert check_budget(loose).is_fine
    assert not check_budget(replace(loose, tolerance={**loose.tolerance, "params": 0.139})).is_fine
    assert check_budget(replace(loose, tolerance={**loose.tolerance, "params": 0.14})).is_fine


def test_a_file_has_limits_per_sample(folder: Path) -> None:
    """48 MACs a sample, 54 with a width of 9; all samples share 58 parameters."""
    limits: dict[str, Any] = {
        "batch_size": 32,
        "per_sample": True,
        "max_macs": 48,
        "max_params": 58,
    }
    outcome = check_budget(replace(budget(folder, **limits), baseline=None))
    assert str(outcome) == "net: MACs 48 per sample, Parameters 58"
    check_budget(budget(folder, **limits), update=True)
    assert check_budget(budget(folder, **limits)).is_fine
    wider = check_budget(budget(folder, "nets.py:Net(width=9)", batch_size=32, per_sample=True))
    lines = str(wider).splitlines()
    assert "  MACs: 54 per sample, 48 before, at most 48 (+12.50 %)" in lines
    assert lines[lines.index("  MACs: 54 per sample, 48 before, at most 48 (+12.50 %)") + 1] == (
        "    fc (Linear): +4"
    )
    assert "  Parameters: 65, 58 before, at most 58 (+12.07 %)" in lines


def test_what_shrank_is_said_and_fine(folder: Path) -> None:
    check_budget(budget(folder), update=True)
    outcome = check_budget(budget(folder, "nets.py:Net(width=7)"))
    assert outcome.is_fine
    text = str(outcome.remarks[0])
    assert "below the baseline: Parameters, Model size, MACs, FLOPs" in text
    assert not check_budget(budget(folder)).remarks


@pytest.mark.parametrize(
    ("baseline", "says"),
    [
        (None, "there is no baseline"),
        ("", "it is not JSON"),
        ("{}", "it is not a report of torchscan"),
        ('{"schema": "torchscan/info/99"}', "install a newer torchscan"),
        ('{"schema": "torchscan/info/1"}', "it is a broken report: the report has no"),
    ],
)
def test_a_baseline_that_cannot_be_used(folder: Path, baseline: str | None, says: str) -> None:
    if baseline is not None:
        (folder / "net.json").write_text(baseline)
    with pytest.raises(InputError) as caught:
        check_budget(budget(folder))
    assert says in str(caught.value)
    assert "net.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_baseline_of_other_inputs_is_none(folder: Path) -> None:
    check_budget(budget(folder), update=True)
    with pytest.raises(
        InputError, match="the baseline was recorded with other inputs, batch size: record it again"
    ):
        check_budget(budget(folder, batch_size=2))


def test_limits_and_a_baseline_together(folder: Path) -> None:
    check_budget(budget(folder), update=True)
    outcome = check_budget(budget(folder, "nets.py:Net(width=9)", max_params=60))
    assert [each.metric for each in outcome.excesses] == [
        "params",
        "params",
        "model_size",
        "macs",
        "flops",
    ]
    with pytest.raises(InputError, match="there is no target to build"):
        check_budget(Budget(name="x", limits={"params": 1}))


def test_a_budget_is_of_one_sample_unless_it_has_a_batch_size() -> None:
    """Products of 4 · 8 and 8 · 2."""
    budget = Budget(name="x", limits={"macs": 48})
    outcome = check_built(budget, Built(model()), input_shape=(4,))
    assert (outcome.values, outcome.is_fine) == ({"macs": 48}, True)
