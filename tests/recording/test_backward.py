"""Records of a backward pass: whose operators they are, what they cost, and that nothing is left behind."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.observables import observables
from tests.recording.test_record import Calls
from torchscan import InputError, record, summary
from torchscan.analyses.totals import by_module, by_operator, total_cost
from torchscan.torch_versions import FUSES_GROUPED_QUERIES
from torchscan.types import Trace


def macs(trace: Trace, phase: Any = None) -> int:
    return total_cost(trace, phase=phase, strict=True).macs


CONTRACTIONS = [
    pytest.param(torch.mm, [(2, 3), (3, 5)], id="mm"),
    pytest.param(torch.bmm, [(4, 2, 3), (4, 3, 5)], id="bmm"),
    pytest.param(torch.matmul, [(4, 2, 3), (3, 5)], id="matmul"),
    pytest.param(F.linear, [(7, 3), (5, 3)], id="linear"),
    pytest.param(F.conv1d, [(2, 3, 8), (4, 3, 3)], id="conv1d"),
    pytest.param(
        lambda x, w: F.conv2d(x, w, stride=2, groups=2), [(2, 4, 9, 9), (6, 2, 3, 3)], id="conv2d"
    ),
    pytest.param(F.conv3d, [(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)], id="conv3d"),
    pytest.param(F.conv_transpose2d, [(1, 4, 5, 5), (4, 3, 3, 3)], id="transposed"),
    pytest.param(
        lambda a, b: torch.einsum("bik,bkj->bij", a, b), [(4, 2, 3), (4, 3, 5)], id="einsum"
    ),
    pytest.param(lambda a, b: torch.addmm(torch.zeros(5), a, b), [(2, 3), (3, 5)], id="addmm"),
]


@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize(("function", "shapes"), CONTRACTIONS)
def test_the_gradients_of_a_contraction_take_twice_its_products(
    function: Any, shapes: Any, execute: Any
) -> None:
    args = tuple(torch.zeros(shape, requires_grad=True) for shape in shapes)
    trace = record(
        Calls(lambda _, *inputs: function(*inputs)),
        args=args,
        training=True,
        mode="eval",
        execute=execute,
    )
    assert macs(trace, "backward") == 2 * macs(trace, "forward") > 0


@pytest.mark.parametrize(("function", "shapes"), CONTRACTIONS)
def test_one_gradient_takes_as_many(function: Any, shapes: Any) -> None:
    first, *others = (torch.zeros(shape) for shape in shapes)
    trace = record(
        Calls(lambda _, *inputs: function(*inputs)),
        args=(first.requires_grad_(), *others),
        training=True,
        mode="eval",
    )
    assert macs(trace, "backward") == macs(trace, "forward") > 0


def test_the_gradient_of_a_vector_product_is_elementwise() -> None:
    """∂matrix = g · vᵀ is a product without a sum: torch multiplies element by element, 2 · 3 FLOPs and no MACs."""
    args = (torch.zeros(2, 3, requires_grad=True), torch.zeros(3, requires_grad=True))
    trace = record(Calls(lambda _, a, b: torch.mv(a, b)), args=args, training=True, mode="eval")
    assert macs(trace, "backward") == macs(trace, "forward") == 6
    assert by_operator(trace, phase="backward")["aten.mul"].flops == 6


def block() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def test_a_gradient_belongs_to_the_layer_whose_it_is() -> None:
    """The first layer needs no gradient of its input: 64 outputs of 27 products; the last needs both, 64 · 5 each."""
    trace = record(block(), (3, 6, 6), batch_size=2, mode="train", training=True)
    backward = by_module(trace, phase="backward")
    assert backward["0"].macs == 2 * 64 * 27
    assert backward["4"].macs == 2 * (2 * 64 * 5)
    assert backward["1"].flops > backward["2"].flops > 0
    assert backward[""].macs == backward["0"].macs + backward["4"].macs


def test_a_layer_that_is_called_twice_has_the_gradients_of_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(self.layer(x))
            return y

    trace = record(Twice(), (4,), training=True, mode="eval")
    costs = [
        sum(
            torchscan.ops.compute_cost(op.signature).cost.macs
            for op in trace.ops
            if op.module_call == index and op.phase == "backward"
        )
        for index in (1, 2)
    ]
    assert costs == [16, 32]  # the first call's input needs no gradient


def test_frozen_layers_have_no_gradient_of_their_weight() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight.requires_grad_(False)
    backward = by_module(record(model, (4,), training=True, mode="eval"), phase="backward")
    assert (backward["0"].macs, backward["1"].macs) == (16, 16)


def test_a_loss_is_part_of_the_pass() -> None:
    model = nn.Linear(4, 3)
    target = torch.zeros(1, 3)
    trace = record(
        model, (4,), training=True, loss=lambda output: F.mse_loss(output, target), mode="eval"
    )
    # difference, square, two sums and a division of 3; and 3 each for the gradient
    assert by_operator(trace)["aten.mse_loss"].flops == 3 * 2 + 3
    assert by_operator(trace)["aten.mse_loss_backward"].flops == 3 * 3


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_nothing_is_left_behind(execute: Any) -> None:
    model = block()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = observables(model)
    record(model, (3, 6, 6), batch_size=2, mode="train", training=True, execute=execute)
    assert observables(model) == before
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


def test_attention_is_one_operator_with_and_without_data() -> None:
    """Four projections and their gradients; 2 heads · 25 scores of 8 + 8, and 3 · 8 + 2 · 8 backwards."""
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    traces = [
        record(
            layer,
            args=(x, x, x),
            kwargs={"need_weights": False},
            mode="train",
            training=True,
            execute=execute,
        )
        for execute in ("abstract", "real")
        for x in [torch.zeros(1, 5, 16, requires_grad=True)]
    ]
    for trace in traces:
        assert macs(trace, "forward") == 5 * 4 * 256 + 50 * 16
        assert macs(trace, "backward") == 2 * 5 * 4 * 256 + 50 * 40
        assert "aten._scaled_dot_product_flash_attention_for_cpu_backward" in by_operator(trace)


@pytest.mark.skipif(
    not FUSES_GROUPED_QUERIES, reason="this version of torch takes them apart on a CPU"
)
def test_grouped_queries_are_one_operator_too() -> None:
    """8 query heads · 25 scores of 4 + 4, and 3 · 4 + 2 · 4 backwards."""
    args = tuple(torch.zeros(1, heads, 5, 4, requires_grad=True) for heads in (8, 2))
    model = Calls(lambda _, q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    abstract, real = (
        record(model, args=args, training=True, mode="eval", execute=execute)
        for execute in ("abstract", "real")
    )
    assert macs(abstract, "forward") == 200 * 8
    assert macs(abstract, "backward") == 200 * 20
    assert by_operator(abstract) == by_operator(real)


def test_the_calls_of_a_checkpoint_stand_twice() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.body, x, use_reentrant=False)
            return y

    trace = record(
        Checkpointed(), args=(torch.zeros(1, 4, requires_grad=True),), mode="train", training=True
    )
    assert [call.path for call in trace.modules] == [
        "",
        "body",
        "body.0",
        "body.1",
        "body",
        "body.0",
        "body.1",
    ]
    assert macs(trace, "forward") == 16
    assert macs(trace, "backward") == 16 + 2 * 16
    assert by_module(trace)["body.0"].macs == 4 * 16


def test_nothing_to_differentiate_is_said() -> None:
    with pytest.raises(
        InputError, match="no output depends on a parameter or an input that requires a gradient"
    ):
        record(nn.ReLU(), (4,), training=True, mode="eval")


def test_a_model_that_is_not_differentiable_to_the_end() -> None:
    """Only the part that has gradients is differentiated."""
    model = Calls(
        lambda self, x: (self.a(x), self.b(x).detach()),
        a=nn.Linear(4, 2, bias=False),
        b=nn.Linear(4, 2),
    )
    assert macs(record(model, (4,), training=True, mode="eval"), "backward") == 8


# -- tensors that no function of torch is handed, and tensors from elsewhere -------------------------------------------------


class Product(torch.autograd.Function):
    """``x · wᵀ`` with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradients[0] @ w, gradients[0].t() @ x


def with_own_function() -> nn.Module:
    product = Calls(lambda self, x: Product.apply(x, self.w), w=nn.Parameter(torch.randn(8, 8)))
    return nn.Sequential(product, nn.ReLU(), nn.Linear(8, 4, bias=False))


def mapped() -> nn.Module:
    weights = nn.Parameter(torch.randn(3, 8, 8))
    return Calls(lambda self, x: torch.vmap(lambda w: F.linear(x, w))(self.w), w=weights)


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))


def with_list() -> nn.Module:
    tensors = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    return Calls(lambda _, x: x @ tensors[0] @ tensors[1])


@pytest.mark.parametrize(
    ("build", "products"),
    [
        # 5 rows: both gradients of the function, 5 · 64 each; both of the last layer, 5 · 32 each
        pytest.param(with_own_function, 2 * 5 * 64 + 2 * 5 * 32, id="autograd function"),
        pytest.param(mapped, 3 * 5 * 64, id="vmap"),
        pytest.param(scripted, 5 * 64 + 2 * 5 * 32, id="ScriptModule"),
        pytest.param(with_list, 5 * 64 + 2 * 5 * 64, id="tensors in a list"),
    ],
)
@pytest.mark.parametrize("execute", ["auto", "real"])
def test_no_gradient_is_lost(build: Any, products: int, execute: Any) -> None:
    model, x = build(), torch.randn(5, 8)
    before = observables(model)
    trace = record(model, args=(x,), training=True, mode="eval", execute=execute)
    assert macs(trace, "backward") == products
    assert observables(model) == before


def with_global() -> nn.Module:
    weights = torch.randn(8, 8, requires_grad=True)
    return Calls(lambda _, x: Product.apply(x, weights))


def returns_its_weight() -> nn.Module:
    return Calls(lambda self, x: (self.layer(x), self.layer.weight), layer=nn.Linear(8, 4))


def mapped_layer() -> nn.Module:
    return Calls(
        lambda self, x: self.last(x) + torch.vmap(self.first)(x),
        first=nn.Linear(8, 4),
        last=nn.Linear(8, 4),
    )


@pytest.mark.parametrize("execute", ["auto", "real"])
@pytest.mark.parametrize(
    "build", [scripted, with_global, returns_its_weight, with_own_function, mapped_layer]
)
def test_no_gradient_is_stored(build: Any, execute: Any) -> None:
    model, loss_weight = build(), torch.randn(4, requires_grad=True)
    tensors = [loss_weight, *model.parameters(), *(cell.cell_contents for cell in _cells(model))]
    trace = record(
        model, args=(torch.randn(5, 8),), training=True, loss=_summed, mode="eval", execute=execute
    )
    assert macs(trace, "backward") > 0
    assert all(tensor.grad is None for tensor in tensors)


def _cells(model: Any) -> Any:
    return getattr(model.body, "__closure__", None) or () if isinstance(model, Calls) else ()


def _summed(output: Any) -> Any:
    return [each.sum() for each in output] if isinstance(output, tuple) else output.sum()


def test_a_state_with_a_graph_can_be_written_to() -> None:
    first = nn.Linear(4, 4)
    model = Calls(
        lambda self, x: self.last(self.state.add_(self.first(x))), first=first, last=nn.Linear(4, 2)
    )
    state = first(torch.zeros(2, 4)) * 1
    model.state = state
    before = state.clone()
    both: tuple[Any, ...] = ("abstract", "real")
    for execute in both:
        # the last layer's two gradients, the first one's weight: its input needs none
        trace = record(
            model, args=(torch.randn(2, 4),), training=True, mode="eval", execute=execute
        )
        assert macs(trace, "backward") == 2 * 2 * 8 + 2 * 16
    assert torch.equal(before, state)


class Memory(nn.Module):
    """Writes what has a gradient into a buffer, and keeps a state from pass to pass."""

    bank: Tensor
    state: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("bank", torch.zeros(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        if self.state is not None:
            x = x + self.state
            self.state.detach_()
        self.state = self.layer(x)
        self.bank[:2] = self.state
        y: Tensor = self.state @ self.bank.clone().t()
        return y


@pytest.mark.parametrize("execute", ["auto", "abstract", "real"])
def test_the_graph_of_the_users_tensors_is_as_before(execute: Any) -> None:
    model = Memory()
    state = model.layer(torch.randn(2, 4))
    model.state = state
    trace = record(model, args=(torch.randn(2, 4),), training=True, mode="eval", execute=execute)
    assert trace.provenance.execution == ("real" if execute == "real" else "abstract")
    assert model.state is state
    assert state.grad_fn is not None
    state.sum().backward()  # its graph is still there
    assert not model.bank.requires_grad
    model.state = None
    copy.deepcopy(model)


@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_both_kinds_of_checkpoints(use_reentrant: bool, execute: Any) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.body, x, use_reentrant=use_reentrant)
            return y

    model = Checkpointed()
    trace = record(
        model,
        args=(torch.zeros(1, 4, requires_grad=True),),
        training=True,
        mode="eval",
        execute=execute,
    )
    assert macs(trace, "forward") == 16
    assert macs(trace, "backward") == 16 + 2 * 16
    assert by_module(trace)["body.0"].macs == 4 * 16
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_a_model_that_differentiates_on_its_way_is_recorded_with_its_gradients(
    execute: Any,
) -> None:
    """Also where it does not ask for gradients by itself: 5 · (64 + 8) products, and as many for the gradient of x."""

    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            energy = self.b(self.a(x).tanh())
            energy.register_hook(lambda gradient: gradient)
            return torch.autograd.grad(energy.sum(), x, create_graph=True)[0]

    model = Force()
    before = observables(model)
    trace = record(model, args=(torch.zeros(5, 8),), execute=execute)
    assert total_cost(trace, strict=True).macs == 2 * 5 * (64 + 8)
    assert any(each.code == "gradients-in-forward" for each in trace.provenance.reasons)
    assert observables(model) == before


def test_inside_inference_mode() -> None:
    with torch.inference_mode():
        assert macs(record(nn.Linear(4, 4), (4,), training=True, mode="eval")) == 32


def test_a_table_of_both_passes(capsys: pytest.CaptureFixture[str]) -> None:
    summary(nn.Linear(4, 4), (4,), mode="train", training=True)
    text = capsys.readouterr().out
    assert "32 MACs" in text
    assert "One pass, forward and backward, in training mode" in text


def test_a_loss_with_parameters_of_its_own() -> None:
    """8 · 4 products in the model, 4 · 2 in the loss; the gradients of both weights, and of what the loss is given."""
    critic = nn.Linear(4, 2, bias=False)
    trace = record(
        nn.Linear(8, 4, bias=False),
        (8,),
        training=True,
        loss=lambda output: critic(output).sum(),
        mode="eval",
    )
    assert macs(trace, "backward") == 32 + 2 * 8
    assert critic.weight.grad is None


def test_attention_by_its_own_name_is_one_operator() -> None:
    from torch.nn.functional import scaled_dot_product_attention as attend

    args = tuple(torch.zeros(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    model = Calls(lambda _, q, k, v: attend(q, k, v))
    abstract, real = (
        record(model, args=args, training=True, mode="eval", execute=execute)
        for execute in ("abstract", "real")
    )
    assert by_operator(abstract) == by_operator(real)


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (lambda output: output["loss"], "the loss failed on the model's output: IndexError"),
        (lambda _: 3.0, "no tensor to start the backward pass from: it is a float"),
        (lambda output: output.detach(), "unfreeze a parameter"),
        ("yes", "loss is a str: give a function"),
    ],
)
def test_a_loss_that_is_none_is_said(backward: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        record(nn.Linear(4, 2), (4,), training=True, loss=backward, mode="eval")


@pytest.mark.parametrize(
    "convert",
    [
        lambda x, _: x.to(torch.float64),
        lambda x, _: x.to("cpu", torch.float64),
        lambda x, _: x.to(x.new_zeros(1, dtype=torch.float64)),
        lambda x, known: known.to(torch.float64) * x,
        lambda x, known: known.to(x.double()) * x,
        lambda x, known: known.to(device=x.device, dtype=torch.float64) * x,
    ],
)
def test_conversions_on_shapes_alone_are_those_of_real_tensors(convert: Any) -> None:
    known = torch.arange(4)
    model = Calls(lambda _, x: convert(x, known))
    outputs = []
    for execute in ("abstract", "real"):
        trace = record(
            model,
            args=(torch.ones(4, requires_grad=True),),
            training=True,
            mode="eval",
            execute=execute,
        )
        outputs.append(trace.tensors[trace.root.outputs[0]].spec.dtype)
    assert outputs == [torch.float64, torch.float64]


def test_gradients_of_what_was_used_twice_are_added_up_by_the_engine() -> None:
    model = Calls(lambda _, x: (x + x * 2) * (x + 3))
    trace = record(model, args=(torch.ones(4, requires_grad=True),), training=True, mode="eval")
    sums = [op for op in trace.ops if op.phase == "backward" and op.origin == "engine"]
    assert len(sums) == 2  # x is used three times
    assert {op.signature.operator for op in sums} == {"aten.add"}
