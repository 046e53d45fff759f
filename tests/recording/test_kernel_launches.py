"""Triton kernels are recorded where they are launched, without a GPU, and priced by name."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchscan import cost_of, crawl_module, estimate_memory, format_info, record, summary
from torchscan.errors import InputError, RecordError
from torchscan.ops import registry
from torchscan.recording.kernel_access import find_access
from torchscan.types import Work
from torchscan.user_warnings import TorchscanWarning

pytest.importorskip("triton")
from tests.recording import triton_kernels as kernels

LAUNCHES: tuple[type[nn.Module], ...] = (
    kernels.Bare,
    kernels.OnDevice,
    kernels.Wrapped,
    kernels.Operator,
)


@pytest.fixture
def _own_formulas() -> Iterator[None]:
    """Leave no formula behind."""
    before = copy.copy(registry._entries)
    yield
    registry._entries.clear()
    registry._entries.update(before)


def _operators(model: nn.Module, **options: Any) -> list[str]:
    trace = record(model, args=(torch.rand(128),), **options)
    return [op.signature.operator for op in trace.ops]


@pytest.mark.parametrize("model", LAUNCHES)
def test_a_launch_is_named_and_makes_totals_lower_bounds(model: type[nn.Module]) -> None:
    info = crawl_module(model(), args=(torch.rand(128),))
    assert info["without_formula"] == {"triton.exponential": 1}
    assert info["overall"]["complete"] is False


@pytest.mark.usefixtures("_own_formulas")
@pytest.mark.parametrize("model", LAUNCHES)
def test_a_formula_is_found_by_the_name_of_the_kernel(model: type[nn.Module]) -> None:
    """The kernel reads 128 elements and writes 128; each takes an operation."""

    @cost_of("triton::exponential")
    def cost(*, x_ptr: Any, out_ptr: Any, n: int, BLOCK: int, out: Any) -> Work:  # noqa: N803
        assert (x_ptr.shape, out_ptr.shape, BLOCK) == ((128,), (128,), 64)
        assert out == out_ptr
        return Work(other_flops=n)

    overall = crawl_module(model(), args=(torch.rand(128),))["overall"]
    assert (overall["flops"], overall["macs"], overall["dmas"]) == (128, 0, 256)


@pytest.mark.usefixtures("_own_formulas")
def test_positional_parameters_of_a_formula_are_those_of_the_kernel() -> None:
    """The second one is only written to."""

    @cost_of("triton::exponential")
    def cost(x: Any, result: Any, n: int, *, out: Any) -> Work:
        assert (x.shape, result, n) == ((128,), out, 128)
        return Work(other_flops=n)

    overall = crawl_module(kernels.Bare(), args=(torch.rand(128),))["overall"]
    assert (overall["flops"], overall["dmas"]) == (128, 256)


@pytest.mark.slow
def test_the_operator_of_a_kernel_does_not_depend_on_earlier_launches() -> None:
    """Kernels of one name have overloads by their parameters."""
    first, second = "Tensor x_ptr, int n", "Tensor? x_ptr, int n"
    program = (
        "from torchscan.trace.kernel_operators import kernel_operator\n"
        "for each in {}: print(kernel_operator('shared', each)._overloadname)"
    )
    listed = []
    for order in ((first, second), (second, first)):
        command = [sys.executable, "-c", program.format(order)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        listed.append(done.stdout.split())
    assert listed[0] == listed[1][::-1]
    assert len(set(listed[0])) == 2


@pytest.mark.usefixtures("_own_formulas")
def test_a_formula_that_fails_warns_at_the_line_that_asked() -> None:
    @cost_of("triton::exponential")
    def cost(*, wrong: Any, out: Any) -> Work:
        return Work(other_flops=out.numel)

    with pytest.warns(TorchscanWarning, match="the cost formula .* failed on") as warned:
        crawl_module(kernels.Bare(), args=(torch.rand(128),))
    assert {each.filename for each in warned} == {__file__}
    text = str(warned[0].message)
    assert "failed on triton.exponential(float32 [128]): TypeError(" in text
    assert text.endswith("; totals are lower bounds")


@pytest.mark.usefixtures("_own_formulas")
def test_a_formula_with_a_misspelt_name_of_a_kernel_is_pointed_out() -> None:
    @cost_of("triton::exponentials", "triton::softmax")
    def cost(*, out: Any) -> Work:
        return Work(other_flops=out.numel)

    info = crawl_module(kernels.Bare(), args=(torch.rand(128),))
    assert info["formula_problems"] == [
        {
            "code": "formula-unused",
            "values": {"formula": "triton::exponentials", "meant": "triton::exponential"},
        }
    ]
    text = format_info(info, width=400)
    assert "have no cost formula: triton.exponential (1×)." in text
    assert (
        "The cost formula of triton::exponentials is not used: it may be meant for "
        "triton::exponential." in text
    )


def test_a_kernel_in_place_of_its_name_is_refused() -> None:
    with pytest.raises(InputError, match="give the name of a Triton kernel as 'triton::my_kernel'"):
        cost_of(kernels.exponential)(lambda **_: Work())


def test_the_name_of_a_kernel_without_its_namespace_is_completed() -> None:
    record(kernels.Bare(), args=(torch.rand(128),))
    with pytest.raises(InputError, match="give 'triton::exponential' for the Triton kernel"):
        cost_of("exponential")(lambda **_: Work())
    with pytest.raises(InputError, match="or its name, 'mylib::my_op'"):
        cost_of("never_launched")(lambda **_: Work())


@pytest.mark.usefixtures("_own_formulas")
def test_an_operator_with_a_formula_hides_its_kernels() -> None:
    @cost_of("torchscan_tests::exponential")
    def cost(*_: Any, out: Any) -> Work:
        return Work(other_flops=2 * out.numel)

    assert _operators(kernels.Operator()) == ["torchscan_tests.exponential"]
    assert crawl_module(kernels.Operator(), args=(torch.rand(128),))["overall"]["flops"] == 256


def test_kernels_of_gradients_are_recorded_without_data() -> None:
    """Parameters that a custom function is given have substitutes on the meta device."""
    model = kernels.Weighted()
    trace = record(model, args=(torch.rand(128),), training=True, loss=torch.sum)
    assert trace.provenance.execution == "abstract"
    launches = [op for op in trace.ops if op.signature.op.namespace == "triton"]
    assert [(op.signature.operator, op.phase) for op in launches] == [
        ("triton.weighted", "forward"),
        ("triton.weighted", "backward"),
        ("triton.exponential", "backward"),
    ]
    assert model.weight.grad is None
    assert torch.equal(model.weight, torch.ones(128))


def test_functions_of_other_threads_get_their_own_tensors() -> None:
    """A thread that trains meanwhile has its gradient."""
    gradients: list[Any] = []
    weight = nn.Parameter(torch.ones(3))

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            return given[0] * 2

    def train() -> None:
        Double.apply(weight).sum().backward()
        gradients.append(weight.grad)

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()
            return x * 1

    record(Waits(), args=(torch.rand(3, requires_grad=True),), training=True, loss=torch.sum)
    assert [each.tolist() for each in gradients] == [[2.0, 2.0, 2.0]]


def test_pointers_in_a_tuple_are_arguments_of_their_own() -> None:
    trace = record(kernels.Tuple(), args=(torch.rand(128),))
    (launch,) = [op for op in trace.ops if op.signature.op.namespace == "triton"]
    assert set(launch.signature.arguments) == {"pointers__0", "pointers__1", "n"}
    assert len(launch.outputs) == 2


def test_what_tuners_and_heuristics_choose_is_an_argument() -> None:
    trace = record(kernels.Weighted(), args=(torch.rand(128),))
    launch = next(op for op in trace.ops if op.signature.operator == "triton.weighted")
    arguments = launch.signature.arguments
    assert (arguments["n"], arguments["BLOCK"], arguments["IS_EVEN"]) == (128, 64, True)


def test_a_kernel_with_many_parameters_has_an_operator_without_strides() -> None:
    trace = record(kernels.Strided(), args=(torch.rand(128),))
    launch = next(op for op in trace.ops if op.signature.operator == "triton.strided")
    assert set(launch.signature.arguments) | set(launch.signature.kwargs) == {
        *("x_ptr", "out_ptr", "n", "BLOCK")
    }


def test_code_reads_the_configuration_of_a_tuner_after_a_launch() -> None:
    """128 elements in rows of 64; Triton sets the attribute itself on a GPU."""
    trace = record(kernels.Tuned(), args=(torch.rand(128),), execute="abstract")
    assert trace.tensors[trace.ops[-1].outputs[0]].spec.shape == (64,)
    assert torch.cuda.is_available() or not hasattr(kernels.weighted, "best_config")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_code_reads_the_properties_of_an_assumed_gpu() -> None:
    """An H100 has 132 multiprocessors."""
    trace = record(kernels.PerMultiprocessor(), args=(torch.rand(8),))
    assert trace.tensors[trace.ops[-1].outputs[0]].spec.shape == (132,)
    (assumption,) = trace.provenance.assumptions
    assert assumption.code == "kernels-for-gpu"
    trace = record(kernels.PerMultiprocessorOfCurrent(), args=(torch.rand(8),))
    assert trace.tensors[trace.ops[-1].outputs[0]].spec.shape == (264,)
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        torch.cuda.get_device_properties(torch.device("cpu"))


def test_memory_of_a_step_with_kernels() -> None:
    """Weights, inputs and outputs have 512 bytes each; a sum, the loss and its gradient have 4."""
    estimate = estimate_memory(
        kernels.Weighted(), args=(torch.rand(128),), training=True, optimizer="SGD", loss=torch.sum
    )
    forward = 3 * 512 + 4  # weight, input, output; the sum
    backward = 4 * 512 + 3 * 4  # weight, input and the gradients of both; loss, its gradient, sum
    assert estimate.to_dict()["peak_by_phase"] == {
        "forward": forward,
        "backward": backward,
        "optimizer": 3 * 512 + 4,  # weight, its gradient, input; the loss
    }


@pytest.mark.parametrize(
    ("kernel", "pointers", "read", "written"),
    [
        (kernels.exponential, ["x_ptr", "out_ptr"], {"x_ptr"}, {"out_ptr"}),
        (
            kernels.weighted.fn.fn,
            ["x_ptr", "weight_ptr", "out_ptr", "sum_ptr"],
            {"x_ptr", "weight_ptr", "sum_ptr"},
            {"out_ptr", "sum_ptr"},
        ),
        (kernels.turned, ["x_ptr", "out_ptr"], {"x_ptr"}, {"out_ptr"}),
        (kernels.exchanged, ["x_ptr", "y_ptr"], {"x_ptr", "y_ptr"}, {"x_ptr", "y_ptr"}),
        (kernels.unreadable, ["x_ptr", "out_ptr"], {"x_ptr", "out_ptr"}, {"x_ptr", "out_ptr"}),
    ],
    ids=["by a function", "by a block", "by one variable", "in turns", "unknown"],
)
def test_what_a_kernel_reads_and_writes(
    kernel: Any, pointers: list[str], read: set[str], written: set[str]
) -> None:
    access = find_access(kernel, pointers)
    assert (set(access.read), set(access.written)) == (read, written)


def test_a_trace_with_launches_survives_pickling() -> None:
    trace = record(kernels.Weighted(), args=(torch.rand(128),))
    again = pickle.loads(pickle.dumps(trace))  # noqa: S301 - our own
    assert again.ops == trace.ops


def test_launches_are_triton_s_own_again_after_a_pass() -> None:
    from triton.runtime.jit import KernelInterface

    before = KernelInterface.__getitem__
    summary(kernels.Bare(), args=(torch.rand(128),), width=80)
    assert KernelInterface.__getitem__ is before
    # without a driver the one is refused, with a driver the other
    with pytest.raises((RuntimeError, ValueError), match=r"active drivers|cannot be accessed"):
        kernels.Bare()(torch.rand(128))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver here")
def test_a_missing_driver_is_the_cause_and_named_so() -> None:
    """The values that a kernel writes are unknown without a GPU."""
    with pytest.raises(RecordError) as failed:
        record(kernels.Chosen(), args=(torch.rand(128),))
    assert "try: run it on a machine with a GPU: without one, Triton cannot run kernels" in str(
        failed.value
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver here")
@pytest.mark.parametrize("training", [False, True])
def test_an_error_on_shapes_is_the_cause_rather_than_the_missing_driver(training: bool) -> None:
    with pytest.raises(RecordError, match=r"ValueError: torch\.float32 is not supported"):
        crawl_module(kernels.Refusing(), args=(torch.rand(128),), training=training)
    with pytest.raises(RecordError, match=r"ValueError: torch\.float32 is not supported"):
        estimate_memory(kernels.Refusing(), args=(torch.rand(128),), training=training)
