"""A pass on shapes alone: what keeps values, what does not, and what is done about it."""

from __future__ import annotations

import copy
import resource
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import torchscan
from tests.recording.test_record import Calls, op_names, output_shapes
from tests.versions import before
from torchscan import (
    NeedsValuesError,
    RecordError,
    Scan,
    TorchscanError,
    crawl_module,
    record,
)
from torchscan.analyses.totals import total_cost
from torchscan.ops import compute_cost
from torchscan.trace.events import TensorSpec


def both(
    model: nn.Module, *args: Any, **kwargs: Any
) -> tuple[torchscan.types.Trace, torchscan.types.Trace]:
    return (
        record(model, *args, execute="abstract", **kwargs),
        record(model, *args, execute="real", **kwargs),
    )


def described(trace: torchscan.types.Trace) -> list[Any]:
    """Operators with the shapes and types of what they return."""
    return [
        (str(op.signature.op), [(out.shape, out.dtype) for out in op.signature.outputs])
        for op in trace.ops
    ]


MODELS: list[tuple[nn.Module, tuple[int, ...], Any]] = [
    (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2)
        ),
        (3, 9, 9),
        None,
    ),
    (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 8, 8), None),
    (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (5, 16), None),
    (nn.Transformer(16, 4, 1, 1, 32, batch_first=True), [(5, 16), (3, 16)], None),  # type: ignore[list-item]
    (nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True), (5, 8), None),
    (nn.GRU(8, 16), (5, 8), None),
    (nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4)), (6,), torch.long),
    (
        nn.Sequential(nn.ConvTranspose1d(4, 8, 3), nn.GELU(), nn.Upsample(scale_factor=2)),
        (4, 10),
        None,
    ),
    (Calls(lambda _, x: torch.einsum("bi,bj->bij", x, x).softmax(-1).cumsum(1)), (4,), None),
    (Calls(lambda _, x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), (2, 6, 8), None),
    (
        Calls(
            lambda _, x: (
                torch.fft.rfft(x).abs() + torch.stft(x, 8, return_complex=True).abs().mean()
            )
        ),
        (64,),
        None,
    ),
    (
        Calls(
            lambda _, x: F.interpolate(
                F.grid_sample(x, x.permute(0, 2, 3, 1)[..., :2]), size=(7, 7)
            )
        ),
        (3, 4, 4),
        None,
    ),
]


@pytest.mark.filterwarnings("ignore:Default grid_sample", "ignore:A window was not provided")
@pytest.mark.parametrize(
    ("model", "shape", "dtype"), MODELS, ids=lambda value: getattr(value, "_get_name", lambda: "")()
)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_shapes_alone_give_the_operators_and_shapes_of_a_real_pass(
    model: nn.Module, shape: Any, dtype: Any, mode: Any
) -> None:
    abstract, real = both(model, shape, dtype, batch_size=2, mode=mode)
    assert described(abstract) == described(real)
    assert output_shapes(abstract) == output_shapes(real)


def test_integers_decide_control_flow() -> None:
    def forward(_: Calls, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        longest = int((ids == 0).sum(1).max())
        if (positions < 3).all():
            raise AssertionError("there are six positions")
        mask = positions[None, :] >= positions[:, None]
        lengths = torch.full((2,), longest, dtype=torch.long) / 2
        frames = lengths.floor().long().tolist()
        return pad_sequence([torch.ones(length, 3) for length in frames])[mask[0, : frames[0]]]

    abstract, real = both(Calls(forward), (6,), torch.long, batch_size=2)
    assert output_shapes(abstract) == output_shapes(real) == [(3, 2, 3)]


def test_what_is_known_stays_known_after_the_like_of_what_is_not() -> None:
    """Two tensors of three floats: of one only the shape is known, of the other the values, 1 + 2 + 4, too."""

    def forward(_: Calls, x: Tensor) -> Tensor:
        unknown = x.abs()
        known = torch.tensor([1.0, -2.0, 4.0]).abs()
        return torch.zeros(int(known.sum())) + unknown.sum()

    abstract, real = both(Calls(forward), args=(torch.zeros(3),))
    assert output_shapes(abstract) == output_shapes(real) == [(7,)]


def test_a_factory_that_asks_for_the_device_of_the_input_keeps_its_values() -> None:
    def forward(_: Calls, x: Tensor) -> Tensor:
        ids = torch.arange(3, device=x.device)
        ids[1:] += torch.ones_like(ids[1:])
        assert ids.tolist() == [0, 2, 3]
        assert x.new_zeros(2, dtype=torch.long).tolist() == [0, 0]
        assert torch.zeros_like(x, dtype=torch.bool).any().item() is False
        assert ids.to(x.device).max().item() == 3
        return x[:, ids]

    assert output_shapes(record(Calls(forward), (4,), execute="abstract")) == [(1, 3)]


def test_a_known_mask_gives_a_known_shape_and_an_unknown_one_none() -> None:
    known = Calls(lambda _, x: x[:, torch.tensor([True, False, True])])
    assert output_shapes(record(known, (3,), execute="abstract")) == [(1, 2)]
    unknown = Calls(lambda _, x: x[x > 0])
    with pytest.raises(NeedsValuesError, match="depend on the data"):
        record(unknown, (3,), execute="abstract")


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: x * x.sum().item(),
        lambda _, x: x if (x > 100).any() else -x,
        lambda _, x: x[: int(x.argmax().float().mean()) + 1] if x.mean() > -1e9 else x,
        lambda _, x: x + torch.tensor(x.tolist()),
        lambda _, x: x + torch.from_numpy(x.cpu().numpy()),
        lambda _, x: (x > 0).nonzero(),
        lambda _, x: torch.unique(x),
        lambda _, x: torch.masked_select(x, x > 0),
        lambda _, x: x * torch.zeros(3).copy_(x[0]).tolist()[0],
    ],
)
def test_what_asks_for_values_falls_back_to_a_real_pass_and_says_so(forward: Any) -> None:
    with pytest.raises(TorchscanError):
        record(Calls(forward), (3,), execute="abstract")
    trace = record(Calls(forward), (3,))
    assert trace.provenance.execution == "real"
    (reason,) = trace.provenance.reasons
    assert reason.code == "abstract-pass-failed"
    assert "\n" not in str(reason)  # the advice is followed already


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((3, 5), True), ((1, 5), True), ((2, 3, 5), True), ((3, 4), False), ((2, 2, 3, 5), False)],
)
def test_a_mask_fits_the_scores_on_shapes_as_it_does_on_data(shape: Any, fits: bool) -> None:
    """Two batches of three queries and five keys; three dimensions are no kernel's."""
    model = Calls(lambda _, q, k, mask: F.scaled_dot_product_attention(q, k, k, mask))
    args = (torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.zeros(shape))
    if fits:
        assert [output_shapes(trace) for trace in both(model, args=args)] == [[(2, 3, 4)]] * 2
        return
    for execute in ("abstract", "real"):
        with pytest.raises(RecordError):
            record(model, args=args, execute=execute)


def test_the_kernel_of_a_step_adds_a_mask_of_booleans_as_numbers() -> None:
    """Of 2 · 2 queries and keys of 4 numbers, there are 3 and 5; the mask has a number per pair."""
    model = Calls(
        lambda self, q, k, mask: F.scaled_dot_product_attention(self.fc(q), k, k, mask),
        fc=nn.Linear(4, 4),
    )
    mask = torch.ones(2, 2, 3, 5, dtype=torch.bool)
    args = (torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 5, 4), mask)
    steps = Scan(model, args=args, training=True, loss=torch.sum).steps
    operator = "aten._scaled_dot_product_flash_attention_for_cpu"
    (attention,) = (op for op in steps.ops if op.signature.operator == operator)
    specs = [steps.tensors[each].spec for each in attention.inputs]
    assert [spec.numel for spec in specs] == [48, 80, 80, 60]
    assert {spec.dtype for spec in specs} == {torch.float32}


def test_what_asks_for_values_of_a_model_without_data_says_where() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), Calls(lambda _, x: x * x.sum().item()))
    with pytest.raises(NeedsValuesError, match=r"1 \(Calls\) failed in aten\.item"):
        record(model, (3,))


def test_a_router_without_scores_is_balanced_and_noted() -> None:
    """8 tokens, 2 experts each of 4: every expert gets 8 · 2 / 4 = 4 tokens."""
    sizes: list[int] = []

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(6, 4, bias=False)
            self.experts = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = self.router(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                token, slot = torch.where(chosen == index)
                sizes.append(len(token))
                out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
            return out

    info = crawl_module(Mixture(), (6,), batch_size=8, execute="abstract")
    assert sizes == [4, 4, 4, 4]
    assert info["overall"]["macs"] == 8 * 6 * 4 + 8 * 2 * 6 * 6
    assert any(each["code"] == "balanced-routing" for each in info["provenance"]["assumptions"])


def test_nothing_is_computed() -> None:
    """A matrix product of 10¹⁸ multiply-accumulates takes no time and no memory."""
    with torch.device("meta"):
        model = nn.Linear(10**6, 10**6, bias=False)
    assert crawl_module(model, (10**6,), batch_size=10**6)["overall"]["macs"] == 10**18


def test_real_passes_run_what_the_model_says() -> None:
    seen: list[float] = []

    def forward(_: Calls, x: Tensor) -> Tensor:
        seen.append(float(x.sum()))
        return x * 2

    record(Calls(forward), args=(torch.ones(3),), execute="real")
    assert seen == [3.0]


def test_random_numbers_of_a_generator_of_the_users_are_not_drawn() -> None:
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    trace = record(
        Calls(lambda _, x: x + torch.rand(4, generator=generator)), (4,), execute="abstract"
    )
    assert op_names(trace) == ["rand", "add"]
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize(
    "grow",
    [
        lambda known: known.tile(10**12),
        lambda known: known.repeat(10**12),
        lambda known: known.repeat_interleave(10**12),
        lambda known: F.pad(known, (0, 10**12)),
        lambda known: known.new_zeros(10**12),
    ],
    ids=["tile", "repeat", "repeat_interleave", "pad", "new_zeros"],
)
def test_known_integers_do_not_grow_beyond_memory(grow: Any) -> None:
    """8 TB and more on shapes alone are shapes."""
    trace = record(
        Calls(lambda _, x: x.sum() + grow(torch.arange(3)).sum()), (4,), execute="abstract"
    )
    assert max(each.spec.numel for each in trace.tensors) >= 10**12


def test_on_data_the_models_own_generator_draws_what_it_would_draw() -> None:
    generator, drawn = torch.Generator().manual_seed(3), []

    def forward(_: Calls, x: Tensor) -> Tensor:
        noise = torch.rand(2, generator=generator)
        drawn.append(noise.tolist())
        return x + noise.sum()

    record(Calls(forward), (4,), execute="real")
    assert drawn[-1] == torch.rand(2, generator=generator).tolist()


def test_an_active_autocast_makes_the_pass_a_real_one() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        chosen, on_shapes = (
            record(nn.Linear(4, 2), (4,), execute=how) for how in ("auto", "abstract")
        )
    assert [each.code for each in chosen.provenance.reasons] == ["autocast-active"]
    assert chosen.tensors[chosen.root.outputs[0]].spec.dtype == torch.bfloat16
    assert any(each.code == "autocast-ignored" for each in on_shapes.provenance.assumptions)
    assert on_shapes.tensors[on_shapes.root.outputs[0]].spec.dtype == torch.float32


def test_large_results_of_known_values_are_not_computed() -> None:
    """Each would take gigabytes."""
    large: list[Any] = [
        lambda _, ids: F.one_hot(ids, 2**20),
        lambda _, ids: ids.new_ones(2**16, 2**16),
        lambda _, ids: ids.bool().repeat(2**24, 2),
        lambda _, ids: F.pad(ids, (0, 2**31)),
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for forward in large:
        record(Calls(forward), (2048,), torch.long, execute="abstract")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB


def test_indices_that_nobody_uses_are_no_assumption() -> None:
    trace = record(Calls(lambda _, x: x.max(1)[0] * 2), (4,))
    assert trace.provenance.assumptions == ()


@pytest.mark.parametrize("tokens", [5, 7, 8])
def test_each_token_goes_to_one_expert_however_the_mask_is_read(tokens: int) -> None:
    """A router of 8 · 4 and one expert of 8 · 8 for each token."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.expert = nn.Linear(8, 4), nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            chosen = self.router(x).argmax(-1)
            return torch.cat([self.expert(x[torch.where(chosen == expert)]) for expert in range(4)])

    info = crawl_module(Experts(), args=(torch.zeros(tokens, 8),), execute="abstract")
    assert info["overall"]["macs"] == tokens * (32 + 64)


def test_repeating_by_other_numbers_gives_other_lengths() -> None:
    model = Calls(
        lambda _, x: [
            x.repeat_interleave(torch.tensor(times), 0) @ x.t() for times in ([1, 2], [3, 4])
        ]
    )
    info = crawl_module(model, args=(torch.zeros(2, 6),), execute="abstract")
    assert info["overall"]["macs"] == (3 + 7) * 6 * 2


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_write_the_same_on_shapes_as_on_data(mode: str) -> None:
    bag = nn.EmbeddingBag(10, 4, mode=mode)
    abstract, real = both(bag, args=(torch.zeros(6, dtype=torch.long), torch.tensor([0, 2, 4])))
    assert total_cost(abstract) == total_cost(real)
    assert total_cost(real).elements_written == 3 * 4


def test_a_known_mask_is_recorded_as_a_mask() -> None:
    """4 bytes for the mask, 2 rows of 3 floats."""
    model = Calls(lambda _, x: x[torch.tensor([True, False, True, False])])
    abstract, real = both(model, args=(torch.zeros(4, 3),))
    assert total_cost(abstract) == total_cost(real)
    assert total_cost(real).bytes_read == 4 + 24


def test_a_model_may_ask_for_autocast_on_the_device_of_its_input() -> None:
    """As rotary embeddings do; of a tensor without data that is the device which it stands for."""

    def forward(_: nn.Module, x: Tensor) -> Tensor:
        assert not torch.is_autocast_enabled(x.device.type)
        with torch.autocast(x.device.type, enabled=False):
            return x + 1

    trace = record(Calls(forward), (4,))
    assert (trace.provenance.execution, op_names(trace)) == ("abstract", ["add"])
    with pytest.raises(RuntimeError):
        torch.is_autocast_enabled("meta")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", ["input", "weight", "none"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 8, 3),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.ConvTranspose2d(6, 8, 2),
        nn.Conv2d(6, 8, 1),
    ],
)
def test_convolutions_keep_the_layout(layer: Any, kind: str, backward: bool) -> None:
    x = torch.randn(2, 6, 8, 8).to(
        memory_format=torch.channels_last if kind == "input" else torch.contiguous_format
    )
    layer = copy.deepcopy(layer)
    if kind == "weight":
        layer.to(memory_format=torch.channels_last)
    abstract, real = both(
        nn.Sequential(layer, nn.ReLU()),
        args=(x.requires_grad_(backward),),
        training=backward,
        mode="eval",
    )
    assert layouts(abstract) == layouts(real)


def layouts(trace: torchscan.types.Trace) -> list[list[tuple[int, ...]]]:
    """The strides of all results, without those along which nothing follows: a 1 × 1 weight has either layout.

    Which of the two its gradient is said to have depends on the kernel, and so on the number of threads.
    """
    return [[_strides(out) for out in op.signature.outputs] for op in trace.ops]


def _strides(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(step for step, size in zip(spec.stride, spec.shape, strict=True) if size > 1)


# -- found by random modules (tests/test_random_modules.py) --------------------------------------------------------------


def test_gradients_without_elements_have_no_values_either() -> None:
    """For a part without elements torch makes a gradient of shape (0,), which has to be on the device of the others."""
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Flatten(0), Calls(lambda _, x: torch.cat([x[:0], x * 2]))
    )
    abstract, real = both(model, (3,), batch_size=2, training=True, mode="eval")
    assert described(abstract) == described(real)
    assert [
        op.signature.outputs[0].shape for op in abstract.ops if op.signature.operator == "aten.cat"
    ] == [(8,)]


@before("2.13", "gradients start in another way")
def test_gradients_that_start_from_a_number() -> None:
    """The number has a value in inference mode, and torch compares devices, so the model is recorded with gradients."""
    model = Calls(lambda _, x: torch.func.vjp(lambda y: y.tanh().sum(), x)[1](torch.ones(()))[0])
    trace = record(model, (4,), execute="abstract")
    assert op_names(trace) == ["tanh", "sum", "ones", "expand", "tanh_backward"]
    assert output_shapes(trace) == [(1, 4)]


def test_assumed_indices_are_laid_out_as_the_operator_says() -> None:
    """They are counted through along the dimension that is sorted, which is not the last one."""
    abstract, real = both(Calls(lambda _, x: x.argsort(1).float()), (4, 3), batch_size=2)
    assert layouts(abstract) == layouts(real) == [[(12, 3, 1)], [(12, 3, 1)]]


@before("2.13", "a recurrent layer of the CPU keeps other memory")
def test_zeros_as_large_as_the_weights_stand_for_the_biases_of_an_lstm() -> None:
    """What torch makes for oneDNN, those for the state first: 4·5 rows of 5, then of 3."""
    abstract, real = both(
        nn.LSTM(3, 5, bias=False), args=(torch.randn(7, 2, 3),), training=True, mode="eval"
    )
    assert described(abstract) == described(real)
    shapes = [
        op.signature.outputs[0].shape
        for op in abstract.ops
        if op.signature.operator == "aten.zeros"
    ]
    assert shapes[-2:] == [(20, 5), (20, 3)]


def test_an_lstm_without_gradients_keeps_nothing_for_them() -> None:
    def quiet(module: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            states: Tensor = module.lstm(x)[0]
        return states * module.scale

    model = Calls(quiet, lstm=nn.LSTM(3, 5), scale=nn.Parameter(torch.ones(())))
    abstract, real = both(model, args=(torch.randn(7, 2, 3),), training=True, mode="eval")
    assert described(abstract) == described(real)
    (layer,) = (op for op in abstract.ops if op.signature.operator == "aten.mkldnn_rnn_layer")
    assert [out.shape for out in layer.signature.outputs] == [(7, 2, 5), (2, 5), (2, 5)]


@pytest.mark.parametrize("is_buffer", [True, False])
def test_a_composite_operator_on_the_input_and_on_known_values(is_buffer: bool) -> None:
    """A window of 4 every 2 of 40 + 2·2 samples: 21 of them, with 4/2 + 1 frequencies each."""

    def forward(module: Any, x: Tensor) -> Tensor:
        window = module.window if is_buffer else torch.hann_window(4)
        return torch.stft(x, 4, 2, window=window, return_complex=True).abs()

    model = Calls(forward)
    model.register_buffer("window", torch.hann_window(4))
    abstract, real = both(model, (40,), batch_size=3)
    assert described(abstract) == described(real)
    assert output_shapes(abstract) == [(3, 3, 21)]
    assert [slot.is_used for slot in abstract.parameters] == [is_buffer]


def test_what_only_a_cycle_holds_is_no_leftover() -> None:
    """A warning would be an error here."""

    class Knot:
        pass

    def forward(_: Any, x: Tensor) -> Tensor:
        knot: Any = Knot()
        knot.itself, knot.tensor = knot, x + 1
        return x * 2

    assert len(record(Calls(forward), (3,), execute="abstract").ops) == 2


def test_made_up_inputs_are_the_same_whatever_the_seed() -> None:
    seen: list[Tensor] = []
    model = Calls(lambda _, x: seen.append(x.clone()) or x)  # type: ignore[func-returns-value]
    for seed in (1, 2):
        torch.manual_seed(seed)
        record(model, (5,), execute="real")
    assert torch.equal(*seen)
    assert seen[0].unique().numel() == 5


def test_a_mask_that_decides_a_shape_is_noted_where_only_the_mask_is_made_up() -> None:
    model = Calls(lambda _, x: torch.masked_select(torch.arange(4.0), x > 0))
    (note,) = record(model, (4,)).provenance.assumptions
    assert "aten.masked_select" in str(note)


@pytest.mark.parametrize("wrong", range(4))
def test_batch_norm_with_a_wrong_number_of_channels_is_refused(wrong: int) -> None:
    vectors = [torch.ones(4 if position == wrong else 3) for position in range(4)]
    model = Calls(lambda _, x: F.batch_norm(x, vectors[0], vectors[1], vectors[2], vectors[3]))
    with pytest.raises(RecordError):
        record(model, (3, 8), execute="abstract")


def test_subclasses_are_recorded_as_what_they_are_made_of() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    model = Calls(lambda _, x: (TwoTensor(x, x + 1) * 2).a)  # type: ignore[attr-defined]
    names = [op.signature.operator for op in record(model, (4,), execute="abstract").ops]
    assert names.count("aten.mul") == 2


@pytest.mark.parametrize("backward", [False, True])
def test_a_buffer_that_is_handed_on_costs_nothing(backward: bool) -> None:
    class HandsOn(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("zero", torch.tensor(0.0))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(x), self.get_buffer("zero")

    abstract, real = both(nn.Sequential(HandsOn()), (4,), training=backward, mode="eval")
    assert described(abstract) == described(real)
    if not backward:
        assert op_names(abstract) == ["linear"]


EMPTY = [(0, 3), (3, 0), (0,), (2, 0, 3)]


@pytest.mark.parametrize("shape", EMPTY)
@pytest.mark.parametrize("dim", [0, -1])
def test_empty_tensors_are_broadcast_as_on_data(shape: tuple[int, ...], dim: int) -> None:
    def forward(_: Calls, x: Tensor) -> Tensor:
        y = torch.ones((), device=x.device) * x
        return F.cosine_similarity(y, y + 1, dim=dim) + (y - y.sum(dim, keepdim=True)).sum(dim)

    traces = [Costs(Unknown(forward), torch.rand(shape)).of(each) for each in ("abstract", "real")]
    assert traces[0] == traces[1]


class Unknown(nn.Module):
    """Calls a function with what a parameter makes of the input, so that no values are known."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x * self.scale)


class Costs:
    """The costs of each operator of a pass."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model = model
        self.x = x

    def of(self, execute: Any) -> list[Any]:
        trace = record(self.model, args=(self.x,), execute=execute)
        costs = [compute_cost(op.signature) for op in trace.ops]
        return [*zip(described(trace), costs, strict=True)]


def test_writing_to_what_is_expanded_and_empty_is_allowed() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        expanded = x[:1].expand(5, -1)
        return torch.empty_like(expanded).copy_(expanded)

    costs = Costs(Unknown(forward), torch.rand(3, 0))
    assert costs.of("abstract") == costs.of("real")


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weight_norm_keeps_norms_in_the_types_of_its_kernels(dtype: torch.dtype) -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)).to(dtype)
    costs = Costs(layer, torch.rand(2, 3, dtype=dtype))
    assert costs.of("abstract") == costs.of("real")
