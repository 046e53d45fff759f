"""Does it fit: peaks worked out by hand, verdicts that hold at their own bound, and a model that is as before."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torchscan
from tests.observables import process_state
from tests.recording.test_record import Calls
from torchscan import InputError, NeedsValuesError, RecordError, Scan, estimate_memory
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest
from torchscan.trace.trace import Trace

GIB = 2**30


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(100, 200, bias=False), nn.ReLU(), nn.Linear(200, 10, bias=False))


WEIGHTS = 4 * (100 * 200 + 200 * 10)


def test_an_inference_by_hand() -> None:
    """The input (400 bytes a sample), the result of the first layer and that of the ReLU (800 each) are alive at once."""
    estimate = estimate_memory(two_layers(), (100,), batch_size=8)
    assert estimate.peak_bytes == WEIGHTS + 8 * (400 + 800 + 800)
    assert (estimate.peak_layer, estimate.peak_phase) == ("1", "forward")
    assert estimate.by_kind["parameters"] == WEIGHTS
    assert estimate.by_kind["inputs"] == 8 * 400


def test_a_training_step_by_hand() -> None:
    """Largest when the gradient of the first weight is there: a ReLU's result is kept, a loss is held."""
    estimate = estimate_memory(
        two_layers(), (100,), batch_size=8, training=True, loss=torch.sum, optimizer="SGD"
    )
    gradient = WEIGHTS
    held = 8 * 400 + 4 + 4  # input, loss, and the loss's own gradient
    assert estimate.peak_by_phase["backward"] == WEIGHTS + gradient + held + 8 * 800
    assert estimate.by_kind["gradients"] == gradient


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        ("SGD", 0),
        ("AdamW", 2),
        (torch.optim.RMSprop, 1),
        (lambda p: torch.optim.SGD(p, momentum=0.9), 1),
    ],
)
def test_the_state_of_an_optimizer(optimizer: Any, states: int) -> None:
    """So many numbers per weight, besides a step count of 4 bytes for each tensor."""
    estimate = estimate_memory(two_layers(), (100,), training=True, optimizer=optimizer)
    assert states * WEIGHTS <= estimate.by_kind["optimizer"] <= states * WEIGHTS + 8


def test_on_a_gpu_step_counts_stay_on_the_host_and_updates_take_a_copy_of_all() -> None:
    """With many tensors at once AdamW holds a second copy of the weights' size for a moment."""
    model = two_layers()
    estimate = estimate_memory(model, (100,), training=True, optimizer="AdamW", device="H100 PCIe")
    assert estimate.by_kind["optimizer"] == 2 * WEIGHTS
    assert estimate.peak_by_phase["optimizer"] >= 5 * WEIGHTS
    fused = estimate_memory(
        model,
        (100,),
        training=True,
        optimizer=lambda p: torch.optim.AdamW(p, fused=True),
        device="H100 PCIe",
    )
    assert fused.peak_by_phase["optimizer"] < 4.1 * WEIGHTS


def test_an_optimizer_that_exists_is_taken_with_its_groups_and_left_alone() -> None:
    """The second layer is not in it; nothing of it has a state afterwards."""
    model = two_layers()
    optimizer = torch.optim.Adam([{"params": [model[0].weight], "amsgrad": True}], lr=0.1)
    estimate = estimate_memory(model, (100,), training=True, optimizer=optimizer)
    assert estimate.by_kind["optimizer"] == 3 * 4 * 100 * 200 + 4
    assert (dict(optimizer.state), model[0].weight.grad) == ({}, None)
    converted = estimate_memory(model, (100,), training=True, optimizer=optimizer, precision="bf16")
    assert converted.by_kind["optimizer"] == 3 * 2 * 100 * 200 + 4


class WithoutSpare(nn.Module):
    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model[2](self.model[1](self.model[0](x)))


def test_frozen_and_unused_parameters_are_there_and_need_nothing() -> None:
    model = two_layers()
    model.spare = nn.Linear(50, 50, bias=False)
    model[0].weight.requires_grad_(False)
    estimate = estimate_memory(WithoutSpare(model), (100,), training=True, optimizer="AdamW")
    assert estimate.by_kind["parameters"] == WEIGHTS + 4 * 2500
    assert estimate.by_kind["optimizer"] == 2 * 4 * 2000 + 4


def test_tied_weights_are_there_once() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    model[1].weight = model[0].weight
    estimate = estimate_memory(model, (64,), training=True, optimizer="SGD", precision="fp16")
    at_end = estimate.timeline[-1].by_kind
    assert (at_end["parameters"], at_end["gradients"]) == (2 * 64 * 64, 2 * 64 * 64)


def test_lbfgs_steps_without_values() -> None:
    """After two steps of 20 iterations it knows two times that many directions and gradient differences, but for the first."""
    estimate = estimate_memory(two_layers(), (100,), training=True, optimizer="LBFGS")
    assert estimate.by_kind["optimizer"] > 2 * 10 * WEIGHTS


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_a_converted_model(precision: Any, size: int) -> None:
    model = two_layers()
    estimate = estimate_memory(model, (100,), precision=precision)
    assert estimate.peak_bytes * 4 == size * estimate_memory(model, (100,)).peak_bytes
    assert model[0].weight.dtype is torch.float32


def test_a_converted_model_on_arguments() -> None:
    """Floating-point arguments are converted too, integers are not."""
    model = nn.Sequential(nn.Linear(100, 200))
    estimate = estimate_memory(model, args=(torch.zeros(8, 100),), precision="bf16")
    assert estimate.by_kind["inputs"] == 8 * 200


def test_autocast_keeps_weights_and_casts_them() -> None:
    """For the gradients are kept: the casts of the input and of the second weight, the ReLU's result, the output."""
    estimate = estimate_memory(
        two_layers(), (100,), batch_size=8, training=True, precision="bf16-mixed"
    )
    at_end_of_forward = [moment for moment in estimate.timeline if moment.phase == "forward"][
        -1
    ].by_kind
    assert at_end_of_forward["parameters"] == WEIGHTS
    assert at_end_of_forward["activations"] == 2 * 200 * 10 + 8 * (200 + 400 + 20)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = x.unbind(0)
        return F.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_attention_of_a_gpu_saves_no_scores(dtype: torch.dtype, size: int) -> None:
    """Beside its input and output one number of 4 bytes per row, and the state of a generator."""
    x = torch.zeros(3, 2, 4, 128, 64, dtype=dtype, requires_grad=True)
    estimate = estimate_memory(Attention(), args=(x,), training=True, device="H200")
    kept = [moment for moment in estimate.timeline if moment.phase == "forward"][-1].by_kind[
        "activations"
    ]
    assert 0 <= kept - (2 * 4 * 128) * (64 * size + 4) <= 32


def kept_by(call: Any, *args: Tensor, device: str | None = "H200", **options: Any) -> int:
    """What the forward pass of a function leaves for its gradient, its result included."""
    estimate = estimate_memory(
        Calls(lambda _, *given: call(*given)), args=args, training=True, device=device, **options
    )
    return [moment for moment in estimate.timeline if moment.phase == "forward"][-1].by_kind[
        "activations"
    ]


DROPOUTS: dict[str, Any] = {
    "a function": lambda x: F.dropout(x, 0.3),
    "a module": nn.Dropout(0.3),
    "torch's": lambda x: torch.dropout(x, 0.3, True),
    "by keywords": lambda x: torch.dropout(x, p=0.3, train=True),
    "an operator": lambda x: torch.ops.aten.dropout.default(x, 0.3, True),
    "an operator without its overload": lambda x: torch.ops.aten.dropout(x, 0.3, True),
    "a checkpoint": lambda x: checkpoint(
        lambda y: F.dropout(y * 2, 0.3), x, use_reentrant=False
    ).clone(),
}


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_dropout_of_a_gpu_keeps_a_byte_per_element(
    name: str, dtype: torch.dtype, size: int
) -> None:
    """Its result and a mask of booleans. A checkpoint keeps no mask until it computes again."""
    x = torch.zeros(8, 50, dtype=dtype, requires_grad=True)
    assert kept_by(DROPOUTS[name], x) == 400 * (size + (name != "a checkpoint"))


def test_a_dropout_of_a_cpu_keeps_a_mask_of_its_own_type() -> None:
    x = torch.zeros(8, 50, requires_grad=True)
    assert kept_by(DROPOUTS["a function"], x, device=None) == 400 * (4 + 4)


def test_a_dropout_of_a_gpu_under_autocast() -> None:
    """Of the product's result of 16 bits: 8·20 of them, and as many bytes. The product keeps its operands, cast."""
    x, weight = torch.zeros(8, 50, requires_grad=True), torch.zeros(20, 50, requires_grad=True)
    kept = kept_by(lambda x, w: F.dropout(F.linear(x, w), 0.3), x, weight, precision="bf16-mixed")
    assert kept == 2 * (8 * 50 + 20 * 50) + 8 * 20 * (2 + 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, 1.0),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.dropout(x * 2, 0.5, inplace=True),
        lambda x: F.alpha_dropout(x, 0.5),
        lambda x: F.dropout1d(x, 0.5),
        lambda x: F.dropout(x[:0], 0.5),
    ],
    ids=[
        "nothing is dropped",
        "all is dropped",
        "in evaluation",
        "in place",
        "alpha",
        "of channels",
        "of nothing",
    ],
)
def test_a_dropout_that_no_kernel_fuses(call: Any) -> None:
    """Torch does these step by step on any device."""
    x = torch.zeros(8, 5, 10, requires_grad=True)
    estimate = estimate_memory(Calls(lambda _, x: call(x)), args=(x,), training=True, device="H200")
    assert not [
        moment.operator for moment in estimate.timeline if "native_dropout" in moment.operator
    ]


def test_the_dropouts_of_an_encoder_layer() -> None:
    """Three masks of a byte per element, of 8·16 rows, and one kernel each in both directions; attention has its own."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    on_card, on_cpu = (
        estimate_memory(layer, (16, 64), batch_size=8, training=True, device=each)
        for each in ("H200", None)
    )
    operators = [moment.operator for moment in on_card.timeline]
    assert (
        operators.count("aten.native_dropout")
        == operators.count("aten.native_dropout_backward")
        == 3
    )
    assert not any("dropout" in moment.operator for moment in on_cpu.timeline)
    for name, width in (("dropout", 128), ("dropout1", 64), ("dropout2", 64)):
        masks = [
            next(each for each in estimate.layers if each.path == name)
            for estimate in (on_card, on_cpu)
        ]
        assert masks[1].activation_bytes - masks[0].activation_bytes == 8 * 16 * width * 3


def test_cudnn_takes_a_recurrent_layer_as_one_operator() -> None:
    layer = nn.GRU(32, 64, 2)
    estimate = estimate_memory(
        layer, (10, 32), training=True, loss=lambda out: out[0].sum(), device="H200"
    )
    operators = [moment.operator for moment in estimate.timeline]
    assert operators.count("aten._cudnn_rnn") == operators.count("aten._cudnn_rnn_backward") == 1


@pytest.mark.parametrize(
    ("options", "dtype", "kernels"),
    [
        pytest.param({"num_layers": 2}, torch.float32, 2, id="one for each layer"),
        pytest.param({}, torch.float64, 0, id="none in double precision"),
        pytest.param({"proj_size": 3}, torch.float32, 0, id="none with projections"),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_onednn_has_a_kernel_for_some_lstms(
    options: dict[str, int], dtype: torch.dtype, kernels: int
) -> None:
    layer = nn.LSTM(5, 7, **options).to(dtype)
    given = torch.zeros(4, 3, 5, dtype=dtype)
    trace = record_pass(PassRequest(module=layer, args=(given,), is_decomposed=True))
    operators = [op.signature.operator for op in trace.ops]
    assert operators.count("aten.mkldnn_rnn_layer") == kernels


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(7, 3, 2, proj_size=2, bidirectional=True),
        nn.LSTM(7, 3, bias=False),
        nn.RNN(7, 3),
        nn.GRU(7, 3),
    ],
    ids=["projected", "without biases", "plain", "gated"],
)
def test_recurrent_layers_on_a_card_have_the_shapes_of_real_ones(layer: nn.RNNBase) -> None:
    def shapes_of(output: Any) -> list[torch.Size]:
        result, last = output
        return [each.shape for each in (result, *(last if isinstance(last, tuple) else (last,)))]

    def loss(output: Any) -> Tensor:
        assert shapes_of(output) == expected
        result: Tensor = output[0].sum()
        return result

    x = torch.zeros(5, 2, 7)
    expected = shapes_of(layer(x))
    estimate = estimate_memory(layer, args=(x,), training=True, loss=loss, device="H200")
    assert estimate.by_kind["parameters"] == sum(4 * each.numel() for each in layer.parameters())


# -- where ---------------------------------------------------------------------------------------------------------------


def test_what_a_layer_leaves_behind() -> None:
    """Inference: its result. Training: what is kept for the gradients, here only what the ReLU returns; its input is not."""
    layers = {
        layer.path: layer.activation_bytes
        for layer in estimate_memory(two_layers(), (100,), batch_size=8).layers
    }
    assert layers == {"": 8 * 40, "0": 8 * 800, "1": 8 * 800, "2": 8 * 40}
    estimate = estimate_memory(two_layers(), (100,), batch_size=8, training=True, loss=torch.sum)
    activations = {layer.path: layer.activation_bytes for layer in estimate.layers}
    assert activations == {"": 6404, "0": 0, "1": 6400, "2": 0}


def test_the_peak_of_a_layer_is_that_of_all_memory_meanwhile() -> None:
    layers = {
        layer.path: layer.peak_bytes
        for layer in estimate_memory(two_layers(), (100,), batch_size=8).layers
    }
    at_start = WEIGHTS + 8 * 400
    assert layers == {
        "": at_start + 8 * 1600,
        "0": at_start + 8 * 800,
        "1": at_start + 8 * 1600,
        "2": at_start + 8 * 840,
    }


def test_checkpoints_save_memory() -> None:
    class Deep(nn.Module):
        def __init__(self, *, checkpoints: bool) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                *(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(16))
            )
            self.checkpoints = checkpoints

        def forward(self, x: Tensor) -> Tensor:
            if self.checkpoints:
                return checkpoint_sequential(self.layers, 4, x, use_reentrant=False)
            return self.layers(x)

    with_all, with_few = (
        estimate_memory(Deep(checkpoints=checkpoints), (64,), batch_size=1000, training=True)
        for checkpoints in (False, True)
    )
    assert with_few.by_kind["activations"] < 0.45 * with_all.by_kind["activations"]


# -- on a device ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_the_largest_batch_fits_and_the_next_one_does_not(training: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 62 * 62, 10),
    )
    options: Any = {
        "training": training,
        "optimizer": "AdamW" if training else None,
        "device": "GTX 1650 Ti",
    }
    options["largest_batch"] = True
    verdict = estimate_memory(model, (3, 64, 64), **options).verdict
    assert verdict is not None
    assert verdict.fits
    assert verdict.largest_batch_size is not None
    largest = verdict.largest_batch_size
    for batch_size, fits in ((largest, True), (largest + 1, False)):
        again = estimate_memory(model, (3, 64, 64), batch_size=batch_size, **options).verdict
        assert again is not None
        assert (again.fits, again.largest_batch_size) == (fits, largest)
        assert (again.left_bytes >= 0) == fits


def test_a_model_that_is_too_large_for_any_batch() -> None:
    with torch.device("meta"):
        model = nn.Linear(100_000, 100_000)
    verdict = estimate_memory(model, (100_000,), device="RTX 3090", largest_batch=True).verdict
    assert verdict is not None
    assert (verdict.fits, verdict.largest_batch_size) == (False, 0)
    assert verdict.left_bytes < -13 * GIB  # 40 GB of weights


def test_the_largest_batch_is_looked_for_only_where_it_is_asked() -> None:
    verdict = estimate_memory(two_layers(), (100,), device="H200").verdict
    assert verdict is not None
    assert verdict.largest_batch_size is None


def test_where_there_is_no_largest_batch_the_question_is_refused() -> None:
    with pytest.raises(InputError, match="needs inputs made from shapes: give input_shape="):
        estimate_memory(
            two_layers(), args=(torch.zeros(8, 100),), device="H200", largest_batch=True
        )
    with pytest.raises(InputError, match="the largest batch depends on the device: give device="):
        estimate_memory(two_layers(), (100,), largest_batch=True)


class Pairs(nn.Module):
    """Scores of all pairs of tokens, so that twice as many take four times as much; fewer where a mask says so."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 64)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        words = self.words(tokens)
        scores = words @ words.transpose(1, 2)
        return scores if mask is None else scores.masked_fill(~mask[:, None], 0)


def _pairs(length: int, **options: Any) -> Any:
    arguments = {
        "tokens": torch.zeros(2, length, dtype=torch.long),
        "mask": torch.ones(2, length, dtype=torch.bool),
    }
    options = {"device": "GTX 1650 Ti", "loss": torch.sum, **options}
    return estimate_memory(Pairs(), kwargs=arguments, training=True, **options).verdict


@pytest.mark.slow
@pytest.mark.parametrize("known", [7, 40_000])
def test_the_longest_sequence_fits_and_the_next_one_does_not(known: int) -> None:
    longest = _pairs(known, longest_sequence=True).longest_sequence
    assert _pairs(longest).fits
    assert not _pairs(longest + 1).fits


def test_the_longest_sequence_is_the_one_whose_segments_fill_the_card() -> None:
    """2 MiB for the table, 20 MiB for the workspace of products and the tokens, 2 MiB for each 128 rows of 4,096 numbers."""
    model = nn.Embedding(50, 4096)
    asked: dict[str, Any] = {
        "dtype": torch.long,
        "device": "24 GiB",
        "cuda_context": 0,
        "longest_sequence": True,
    }
    verdict = estimate_memory(model, (100,), **asked).verdict
    assert verdict is not None
    assert verdict.longest_sequence == 128 * (verdict.capacity_bytes // 2**21 - 1 - 10)


def test_the_longest_sequence_has_a_position_for_each_token() -> None:
    model: Any = Pairs()
    model.config = SimpleNamespace(max_position_embeddings=96)
    scan = torchscan.Scan(model, {"tokens": (64,)}, torch.long, device="H200")
    assert scan.longest_sequence() == 96
    assert scan.memory.verdict is not None
    assert scan.memory.verdict.longest_sequence is None


def test_where_there_are_no_tokens_there_is_no_longest_sequence() -> None:
    with pytest.raises(
        InputError, match=r"needs an input of tokens, integers of the shape \[batch, length\]"
    ):
        estimate_memory(two_layers(), (100,), device="H200", longest_sequence=True)
    with pytest.raises(
        InputError, match="the longest sequence depends on the device: give device="
    ):
        estimate_memory(Pairs(), (100,), dtype=torch.long, longest_sequence=True)


def test_a_loss_that_knows_the_length_says_why_there_is_no_longest() -> None:
    target = torch.zeros(2, 8, 8)
    arguments = {"tokens": torch.zeros(2, 8, dtype=torch.long)}
    loss: Any = partial(F.mse_loss, target=target)
    estimate = estimate_memory(
        Pairs(), kwargs=arguments, training=True, loss=loss, device="H200", longest_sequence=True
    )
    assert estimate.verdict is not None
    assert estimate.verdict.longest_sequence is None
    assert estimate.assumptions[-1].code == "no-longest-sequence"


def test_the_verdict_adds_up() -> None:
    """A context, two workspaces of cuBLAS for a training step, segments of 2 MiB for what is small."""
    verdict = estimate_memory(two_layers(), (100,), training=True, device="H200").verdict
    assert verdict is not None
    assert verdict.allocated_bytes - 2 * 32 * 2**20 < 2**20
    assert verdict.reserved_bytes == 64 * 2**20 + 2 * 2**20
    assert (
        verdict.left_bytes
        == verdict.capacity_bytes - verdict.cuda_context_bytes - verdict.reserved_bytes
    )


def test_a_convolution_copies_what_is_not_channels_last() -> None:
    """Its input, weight and result, while it runs; nothing that is channels-last, has groups, or is no convolution."""

    def allocated(layer: nn.Module, layout: torch.memory_format) -> int:
        x = torch.zeros(4, 64, 32, 32, device="meta").to(memory_format=layout)
        verdict = estimate_memory(layer, args=(x,), device="H200").verdict
        assert verdict is not None
        return verdict.allocated_bytes - 32 * 2**20  # the workspace of cuBLAS

    images, weights = 2 * 4 * 64 * 32 * 32 * 4, 64 * 64 * 9 * 4
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    assert allocated(layer, torch.channels_last) == images + weights
    assert allocated(layer, torch.contiguous_format) == 2 * (images + weights)
    assert allocated(nn.ReLU(), torch.contiguous_format) == images
    for groups, size in ((2, weights // 2), (64, 5 * 512)):  # the latter 2,304 bytes, rounded up
        grouped = nn.Conv2d(64, 64, 3, padding=1, bias=False, groups=groups)
        assert allocated(grouped, torch.contiguous_format) == images + size


# -- nothing left behind -------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = process_state()
    for precision in (None, "bf16", "fp16-mixed"):
        estimate_memory(
            model, (4,), batch_size=4, training=True, optimizer="AdamW", precision=precision
        )
    assert process_state() == before
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_an_earlier_batch_has_gradients_and_costs_nothing() -> None:
    """They are there from the beginning, and one addition for each of their elements comes in."""
    step: dict[str, Any] = {"batch_size": 32, "training": True, "device": "H100", "progress": False}
    first, after_another = (
        Scan(two_layers(), (100,), **step, accumulate=accumulate) for accumulate in (False, True)
    )
    params = sum(each.numel() for each in two_layers().parameters())
    macs, flops = (
        [
            sum(getattr(each, name) for each in scan.roofline.operators)
            for scan in (first, after_another)
        ]
        for name in ("macs", "flops")
    )
    assert macs[1] == macs[0]
    assert flops[1] == flops[0] + params
    assert len(after_another.steps.modules) == len(first.steps.modules)
    at_start = [scan.memory.timeline[0].by_kind["gradients"] for scan in (first, after_another)]
    assert at_start == [0, 4 * params]


def test_a_held_output_is_the_difference_that_the_assumptions_name() -> None:
    step: dict[str, Any] = {"batch_size": 32, "training": True, "loss": lambda output: output.sum()}
    dropped, held = (
        estimate_memory(two_layers(), (100,), **step, holds_output=holds) for holds in (False, True)
    )
    after = [estimate.timeline[-1].total for estimate in (dropped, held)]
    assert after[1] - after[0] == 4 * 32 * two_layers()(torch.zeros(1, 100)).numel()
    assert any(each.code == "output-dropped" for each in dropped.assumptions)
    assert not any(each.code == "output-dropped" for each in held.assumptions)
    without_loss = estimate_memory(two_layers(), (100,), batch_size=32, training=True)
    assert not any(each.code == "output-dropped" for each in without_loss.assumptions)


def test_gradients_that_were_there_stay() -> None:
    model = two_layers()
    model(torch.randn(2, 100)).sum().backward()
    before = [parameter.grad for parameter in model.parameters()]
    estimate_memory(model, (100,), training=True, optimizer="SGD", accumulate=True)
    assert all(
        parameter.grad is gradient
        for parameter, gradient in zip(model.parameters(), before, strict=True)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "AdamW"}, "give training=True"),
        ({"training": True, "optimizer": "admw"}, "did you mean 'AdamW'. Give the name of a class"),
        ({"training": True, "optimizer": "AdmW8bit"}, "'AdmW8bit': did you mean 'AdamW8bit'"),
        ({"training": True, "optimizer": "Newton"}, "'Newton': give the name of a class in torch"),
        ({"training": True, "optimizer": 3}, "optimizer is 3"),
        ({"training": True, "optimizer": [torch.optim.SGD]}, "optimizer is a list of 1"),
        (
            {"training": True, "optimizer": lambda p: p},
            "give a function that returns a torch.optim.Optimizer",
        ),
        (
            {"training": True, "optimizer": lambda p: torch.optim.SGD(p, lr=-1.0)},
            "Invalid learning rate",
        ),
        ({"training": True, "optimizer": "SparseAdam"}, "does not support dense gradients"),
        (
            {"training": True, "optimizer": torch.optim.SGD([torch.zeros(1)])},
            "no parameter of this model",
        ),
        ({"precision": "int8"}, "precision is 'int8'"),
        ({"device": "abacus"}, "is not known"),
    ],
)
def test_what_cannot_be_answered_is_said(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate_memory(two_layers(), (100,), **options)


def test_a_frozen_model_has_nothing_to_train() -> None:
    with pytest.raises(InputError, match="unfreeze a parameter"):
        estimate_memory(two_layers().requires_grad_(False), (100,), training=True, optimizer="SGD")


def test_the_estimate_as_plain_data(as_json: Any) -> None:
    estimate = estimate_memory(two_layers(), (100,), training=True, optimizer="SGD", device="H200")
    data = estimate.to_dict()
    assert as_json(data) == data
    columns = data["timeline"]
    kinds = [values for kind, values in columns.items() if kind in data["by_kind"]]
    assert max(map(sum, zip(*kinds, strict=True))) == data["peak_bytes"] == estimate.peak_bytes
    assert len(columns["operator"]) == len(columns["phase"]) == len(estimate.timeline)


def test_the_short_form_says_how_much_and_where() -> None:
    assert (
        repr(estimate_memory(two_layers(), (100,)))
        == "<MemoryEstimate: 87.89 KiB at aten.relu of 1 (forward)>"
    )


def test_cuda_is_asked_for_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(InputError, match="this machine has no CUDA device"):
        estimate_memory(two_layers(), (100,), device="cuda")


class Picky(nn.Module):
    """Keeps the rows whose sum is positive: how many, only data can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(100, 200, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[x.sum(1) > 0])


def test_a_model_that_asks_for_values_runs_on_data() -> None:
    """Of 4 rows 3 are picked, and kept for the gradient. Its weights are as before; the optimizer has updated copies."""
    model, x = Picky(), torch.ones(4, 100)
    x[0] = -1
    before = model.layer.weight.detach().clone()
    estimate = estimate_memory(model, args=(x,), training=True, loss=torch.sum, optimizer="AdamW")
    at_end_of_forward = [moment for moment in estimate.timeline if moment.phase == "forward"][
        -1
    ].by_kind
    assert at_end_of_forward["activations"] >= 3 * 400
    assert estimate.by_kind["optimizer"] == 2 * 4 * 100 * 200 + 4
    assert estimate.by_kind["gradients"] == 4 * 100 * 200
    assert estimate.assumptions[-1].code == "runs-on-data"
    assert torch.equal(model.layer.weight, before)
    assert model.layer.weight.grad is None


def test_a_model_that_asks_for_values_and_cannot_be_copied_runs_on_data() -> None:
    model = Picky()
    vars(model)["lock"] = threading.Lock()
    estimate = estimate_memory(model, args=(torch.ones(2, 100),))
    assert estimate.assumptions[-1].code == "runs-on-data"


def test_a_model_that_asks_for_values_and_has_none_says_where() -> None:
    with torch.device("meta"):
        model = Picky()
    with pytest.raises(NeedsValuesError, match="data"):
        estimate_memory(model, (100,), batch_size=4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences(kind: Any) -> None:
    """5 + 3 + 2 rows of 8, in one kernel of cuDNN's for all steps."""
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 8), torch.tensor([5, 3, 2]))
    shapes = []

    def loss(output: Any) -> Tensor:
        shapes.append(tuple(output[0].data.shape))
        result: Tensor = output[0].data.sum()
        return result

    layer = kind(8, 4, 2, dropout=0.5, bidirectional=True)
    estimate = estimate_memory(layer, args=(packed,), training=True, loss=loss, device="H200")
    operators = [moment.operator for moment in estimate.timeline]
    assert operators.count("aten._cudnn_rnn") == operators.count("aten._cudnn_rnn_backward") == 1
    assert shapes[-1] == (10, 2 * 4)
    assert estimate.by_kind["parameters"] == sum(4 * each.numel() for each in layer.parameters())
    assert estimate.by_kind["gradients"] <= estimate.by_kind["parameters"]


def test_hooks_of_all_optimizers_hear_nothing_of_it() -> None:
    heard: list[object] = []
    handle = register_optimizer_step_pre_hook(lambda *args: heard.append(args))
    estimate_memory(two_layers(), (100,), training=True, optimizer="SGD")
    handle.remove()
    assert heard == []


# -- found by others -----------------------------------------------------------------------------------------------------


def test_an_unused_parameter_is_there_once() -> None:
    """Its weight of 40,000 bytes is a parameter and nothing else, besides a layer of 80, its gradient and input."""
    model = nn.Linear(4, 4)
    model.spare = nn.Linear(100, 100, bias=False)
    estimate = estimate_memory(model, (4,), training=True, loss=torch.sum, optimizer="SGD")
    at_end = estimate.timeline[-1].by_kind
    assert {kind: size for kind, size in at_end.items() if size} == {
        "parameters": 40_080,
        "inputs": 16,
        "gradients": 80,
        "activations": 4,
    }


def test_copies_that_an_optimizer_updates_take_no_memory() -> None:
    """The step of a model that runs on data ends with its loss, gradients and state."""
    estimate = estimate_memory(
        Picky(), args=(torch.ones(2, 100),), training=True, loss=torch.sum, optimizer="AdamW"
    )
    at_end = estimate.timeline[-1].by_kind
    assert at_end["activations"] == 4
    assert (at_end["gradients"], at_end["optimizer"]) == (80_000, 160_004)


def test_a_weight_that_is_used_twice_by_linear() -> None:
    """Its gradients arrive as transposed views, which autograd does not add in place: three are there for a moment."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    estimate = estimate_memory(Twice(), (64,), training=True, loss=torch.sum)
    assert estimate.peak_bytes > 4 * 64 * 64 * 4


class Mutable(torch.optim.Optimizer):
    """Keeps a tensor and a list in its groups, and takes an argument that is no default."""

    def __init__(self, parameters: Any, extra: int = 1) -> None:
        super().__init__(parameters, {"extra": extra})
        for group in self.param_groups:
            group.setdefault("count", torch.zeros(()))
            group.setdefault("history", [])

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["count"].add_(1)
            group["history"].append(1)


def test_what_an_optimizer_keeps_in_its_groups_is_left_alone() -> None:
    model = two_layers()
    optimizer = Mutable(model.parameters())
    estimate_memory(model, (100,), training=True, optimizer=optimizer)
    assert (float(optimizer.param_groups[0]["count"]), optimizer.param_groups[0]["history"]) == (
        0,
        [],
    )


@pytest.mark.parametrize(
    "name", ["Adam", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
)
def test_capturable_optimizers(name: str) -> None:
    make = partial(getattr(torch.optim, name), capturable=True)
    assert (
        estimate_memory(two_layers(), (100,), training=True, optimizer=make, device="H200").by_kind[
            "optimizer"
        ]
        >= WEIGHTS
    )


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_optimizers_with_a_tensor_for_the_rate(name: str) -> None:
    make = partial(getattr(torch.optim, name), fused=True, lr=torch.tensor(0.1))
    estimate = estimate_memory(two_layers(), (100,), training=True, optimizer=make, device="H200")
    assert estimate.peak_by_phase["optimizer"] > 0


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] * weight, (gradients[0] * x).sum(0)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(100))

    def forward(self, x: Tensor) -> Tensor:
        return Scale.apply(x, self.weight)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [None, "bf16-mixed", "bf16"])
def test_a_custom_function_that_is_handed_a_parameter(precision: Any) -> None:
    model = nn.Sequential(nn.Linear(100, 100), Scaled())
    estimate = estimate_memory(
        model,
        (100,),
        batch_size=4,
        training=True,
        optimizer="AdamW",
        precision=precision,
        device="H200",
    )
    assert estimate.assumptions == ()
    assert estimate.timeline[-1].by_kind["gradients"] == estimate.by_kind["parameters"]
    assert model[1].weight.grad is None


def test_checkpoints_within_checkpoints() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            def inner(each: Tensor) -> Tensor:
                return self.layer(each).tanh()

            x = self.layer(x)
            return checkpoint(
                lambda each: checkpoint(inner, each, use_reentrant=True).sin(),
                x,
                use_reentrant=True,
            )

    assert estimate_memory(Nested(), (8,), training=True).by_kind["parameters"] == 288


@pytest.mark.parametrize("only_for", [16, 64])
def test_a_loss_that_knows_the_batch_keeps_its_answer_and_says_why_there_is_no_largest(
    only_for: int,
) -> None:
    target = torch.zeros(only_for, dtype=torch.long)

    def loss(output: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    estimate = estimate_memory(
        nn.Linear(8, 4),
        (8,),
        batch_size=only_for,
        training=True,
        device="4090",
        loss=loss,
        largest_batch=True,
    )
    assert estimate.verdict is not None
    assert (estimate.verdict.fits, estimate.verdict.largest_batch_size) == (True, None)
    assert f"match target batch_size ({only_for})" in str(estimate.assumptions[-1])


def test_token_ids_of_a_large_batch_take_no_memory_of_this_machine() -> None:
    estimate = estimate_memory(
        nn.Embedding(100, 4), (4096,), dtype=torch.long, device="H200", largest_batch=True
    )
    assert estimate.verdict is not None
    assert estimate.verdict.largest_batch_size is not None
    assert estimate.verdict.largest_batch_size > 100_000


def test_each_module_as_it_is_set() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).eval()
    operators = [
        moment.operator
        for moment in estimate_memory(model, (8,), training=True, mode="same").timeline
    ]
    assert "aten.native_dropout" not in operators
    operators = [moment.operator for moment in estimate_memory(model, (8,), training=True).timeline]
    assert any("bernoulli" in operator or "dropout" in operator for operator in operators)


@pytest.mark.parametrize("module", [nn.Linear, None, 3])
def test_what_is_no_module_is_said(module: Any) -> None:
    with pytest.raises(InputError, match="module is"):
        estimate_memory(module, (8,))


def test_a_loss_that_cannot_be_called_is_said() -> None:
    with pytest.raises(InputError, match="loss is a str"):
        estimate_memory(two_layers(), (100,), training=True, loss="mse")  # type: ignore[arg-type]


def test_what_is_wrapped_inside_vmap_takes_no_memory_of_its_own() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(self.layer)(x)

    assert estimate_memory(Mapped(), (8,), batch_size=4).by_kind["buffers"] == 0


def test_a_step_that_fails_on_shapes_is_run_on_data_and_says_so() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            if not y.data_ptr():
                raise RuntimeError("it wants data")
            return y

    estimate = estimate_memory(Picky(), (4,), training=True, optimizer="SGD")
    assert estimate.by_kind["parameters"] == 4 * 20
    assert any(
        "on shapes alone, Picky (the model itself) failed" in str(each)
        for each in estimate.assumptions
    )
    with pytest.raises(RecordError):  # there are no data in another precision
        estimate_memory(Picky(), (4,), training=True, optimizer="SGD", precision="bf16")


#: functions of one tensor that autocast computes in 32 bits on CUDA, as torch documents it
IN_SINGLE = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
]
IN_SINGLE += [
    "sinh",
    "tan",
    "cumprod",
    "cumsum",
    "prod",
    "sum",
    "softmax",
    "log_softmax",
    "renorm",
    "norm",
    "pow",
    "__pow__",
    "__rpow__",
]
ARGUMENTS = {
    "cumprod": (0,),
    "cumsum": (0,),
    "softmax": (0,),
    "log_softmax": (0,),
    "renorm": (2, 0, 1.0),
    "pow": (2,),
}
ARGUMENTS |= {"__pow__": (2,), "__rpow__": (2,)}


@pytest.mark.parametrize(("device", "names"), [("H200", IN_SINGLE), ("cpu", ["prod", "trace"])])
def test_autocast_computes_in_32_bits_what_torch_says(device: str, names: list[str]) -> None:
    for name in names:

        class Applies(nn.Module):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.linear, self.name = nn.Linear(4, 4), name

            def forward(self, x: Tensor) -> Tensor:
                low = self.linear(x)
                assert low.dtype == torch.bfloat16
                result: Tensor = getattr(low, self.name)(*ARGUMENTS.get(self.name, ()))
                assert result.dtype == torch.float32, self.name
                return result

        options: Any = {} if device == "cpu" else {"device": device}
        estimate_memory(Applies(name), args=(torch.ones(4, 4),), precision="bf16-mixed", **options)


def test_losses_of_probabilities_are_in_32_bits_on_a_cpu() -> None:
    def loss(output: Tensor) -> Tensor:
        result = F.binary_cross_entropy(output.sigmoid(), torch.ones(2, 4))
        assert result.dtype == torch.float32
        return result

    estimate_memory(
        nn.Linear(4, 4), (4,), batch_size=2, training=True, loss=loss, precision="bf16-mixed"
    )


def test_a_batch_may_be_added_up_by_a_model_that_runs_no_operator() -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.ones(8))

        def forward(self, _: Tensor) -> Tensor:
            return self.prompt

    estimate = estimate_memory(Prompt(), (8,), training=True, accumulate=True, loss=torch.sum)
    assert estimate.by_kind["gradients"] == 8 * 4


def test_a_search_for_the_largest_batch_takes_few_passes_more_for_the_error_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[int] = []

    def counting(request: PassRequest) -> Trace:
        recorded.append(request.batch_size)
        return record_pass(request)

    monkeypatch.setattr("torchscan.size_search.record_pass", counting)
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
    verdict = estimate_memory(net, (3, 64, 64), device="24 GiB", largest_batch=True).verdict
    assert verdict is not None
    assert verdict.safe_batch_size is not None
    assert verdict.largest_batch_size is not None
    assert 0 < verdict.safe_batch_size < verdict.largest_batch_size
    assert len(recorded) == len(set(recorded)) <= 25
