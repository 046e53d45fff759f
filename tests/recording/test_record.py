"""What a record says of the module calls and operators of a pass."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torchscan import crawl_module, record
from torchscan.recording.recorder import Recorder
from torchscan.types import Trace

BOTH_WAYS = pytest.mark.parametrize("execute", ["abstract", "real"])


def paths(trace: Trace) -> list[str]:
    return [call.path for call in trace.modules]


def op_names(trace: Trace) -> list[str]:
    return [str(op.signature.op.overloadpacket).removeprefix("aten.") for op in trace.ops]


def output_shapes(trace: Trace) -> list[tuple[int, ...]]:
    return [trace.tensors[index].spec.shape for index in trace.root.outputs]


class Calls(nn.Module):
    """A module made of a function of itself and its input."""

    def __init__(self, forward: Any, **children: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.body = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


@BOTH_WAYS
def test_a_chain_is_a_root_with_its_children_in_call_order(execute: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    trace = record(model, (3, 8, 8), execute=execute)
    assert paths(trace) == ["", "0", "1", "2", "3"]
    assert [call.type_name for call in trace.modules] == [
        "Sequential",
        "Conv2d",
        "ReLU",
        "Flatten",
        "Linear",
    ]
    assert trace.root.children == (1, 2, 3, 4)
    assert op_names(trace) == ["conv2d", "relu", "flatten", "linear"]
    assert output_shapes(trace) == [(1, 10)]
    assert trace.provenance.execution == execute


@BOTH_WAYS
def test_every_invocation_of_a_module_has_its_own_entry(execute: Any) -> None:
    model = Calls(lambda self, x: self.layer(self.layer(x)), layer=nn.Linear(4, 4))
    trace = record(model, (4,), execute=execute)
    assert [(call.path, call.call) for call in trace.modules] == [
        ("", 0),
        ("layer", 0),
        ("layer", 1),
    ]


def test_a_module_under_two_names_has_the_path_of_the_first() -> None:
    layer = nn.Linear(4, 4)
    trace = record(nn.Sequential(OrderedDict(first=layer, again=layer)), (4,))
    assert [(call.path, call.call) for call in trace.modules[1:]] == [("first", 0), ("first", 1)]


def test_a_module_that_calls_itself_is_deeper_each_time() -> None:
    def halve(self: Calls, x: Tensor, times: int = 3) -> Tensor:
        return x if times == 0 else self(x / 2, times - 1)

    trace = record(Calls(halve), (4,))
    assert [(call.depth, call.call) for call in trace.modules] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [len(call.ops) for call in trace.modules] == [1, 1, 1, 0]


def test_operators_of_a_forward_called_directly_belong_to_the_caller() -> None:
    model = Calls(lambda self, x: self.layer.forward(x), layer=nn.Linear(4, 2))
    trace = record(model, (4,))
    assert paths(trace) == [""]
    assert crawl_module(model, (4,))["layers"][0]["macs"] == 4 * 2
    assert crawl_module(model, (4,))["layers"][0]["grad_params"] == 4 * 2 + 2


def test_a_slice_of_a_sequential_leaves_its_layers_their_paths() -> None:
    model = Calls(
        lambda self, x: self.layers[1:](x),
        layers=nn.Sequential(nn.Linear(9, 9), nn.Linear(4, 4), nn.ReLU()),
    )
    assert paths(record(model, (4,))) == ["", "layers.1", "layers.2"]


def test_raw_parameters_and_parameter_lists_are_counted_where_they_are_used() -> None:
    model = Calls(
        lambda self, x: sum(x @ weight for weight in self.weights) @ self.last,
        weights=nn.ParameterList([nn.Parameter(torch.ones(4, 4)) for _ in range(3)]),
        last=nn.Parameter(torch.ones(4, 2)),
    )
    (layer,) = crawl_module(model, (4,))["layers"]
    assert layer["grad_params"] == 3 * 16 + 8
    assert layer["macs"] == 3 * 16 + 8


def test_functions_in_place_operators_and_views_need_no_module() -> None:
    def forward(_: Calls, x: Tensor) -> Tensor:
        y = F.relu(x + 1, inplace=True)
        y[:, 0] = 0
        y.view(-1)[1:3].mul_(2)
        return y.t()

    trace = record(Calls(forward), (4,))
    assert output_shapes(trace) == [(4, 1)]
    storages = {trace.tensors[index].storage for op in trace.ops[1:] for index in op.outputs}
    assert {trace.tensors[trace.root.outputs[0]].storage} <= storages


def test_each_tensor_knows_its_producer_and_views_share_their_storage() -> None:
    trace = record(Calls(lambda _, x: (x * 2).view(-1).relu_()), (4,))
    multiplied, viewed, rectified = (trace.tensors[op.outputs[0]] for op in trace.ops)
    assert [each.producer for each in (multiplied, viewed, rectified)] == [0, 1, 2]
    assert multiplied.storage == viewed.storage == rectified.storage
    assert trace.tensors[trace.ops[0].inputs[0]].kind == "input"
    assert trace.tensors[trace.ops[0].inputs[0]].name == "args[0]"
    assert trace.ops[1].inputs == trace.ops[0].outputs
    assert trace.ops[2].inputs == trace.ops[1].outputs


def test_parameters_are_named_in_the_record() -> None:
    trace = record(nn.Sequential(nn.Linear(4, 2)), (4,))
    assert [(trace.tensors[i].kind, trace.tensors[i].name) for i in trace.ops[0].inputs[1:]] == [
        ("parameter", "0.weight"),
        ("parameter", "0.bias"),
    ]


@dataclass
class Answer:
    score: Tensor
    rest: dict[str, Tensor]


Pair = namedtuple("Pair", "left right")


@BOTH_WAYS
@pytest.mark.parametrize(
    ("answer", "shapes"),
    [
        (lambda x: [x, (x[:, :2], {"a": x[0]})], [(1, 4), (1, 2), (4,)]),
        (lambda x: Answer(x, {"more": x[0]}), [(1, 4), (4,)]),
        (lambda x: Pair(x, x[0]), [(1, 4), (4,)]),
        (lambda _: None, []),
        (lambda _: "a word", []),
        (lambda x: x.shape[1], []),
    ],
)
def test_outputs_of_any_nesting(answer: Any, shapes: list[tuple[int, ...]], execute: Any) -> None:
    trace = record(Calls(lambda _, x: answer(x * 2)), (4,), execute=execute)
    assert output_shapes(trace) == shapes


def test_arguments_of_any_nesting() -> None:
    def forward(
        _: Calls, x: Tensor, extra: Any, flag: bool, mask: Tensor | None = None, *, ids: Tensor
    ) -> Tensor:
        assert flag
        assert mask is None
        return x + extra["list"][0] + F.one_hot(ids, 4).sum()

    trace = record(
        Calls(forward),
        args=(torch.ones(2, 4), {"list": [torch.ones(4)]}, True, None),
        kwargs={"ids": torch.tensor([1, 3])},
    )
    assert output_shapes(trace) == [(2, 4)]
    assert [each.name for each in trace.provenance.inputs] == [
        "args[0]",
        "args[1]['list'][0]",
        "kwargs['ids']",
    ]


@BOTH_WAYS
def test_several_inputs_with_a_type_each(execute: Any) -> None:
    model = Calls(lambda self, x, ids: x + self.table(ids), table=nn.Embedding(10, 4))
    trace = record(model, [(4,), ()], [torch.float32, torch.long], batch_size=3, execute=execute)
    assert [each.shape for each in trace.provenance.inputs] == [(3, 4), (3,)]
    assert output_shapes(trace) == [(3, 4)]


@BOTH_WAYS
def test_inputs_by_name(execute: Any) -> None:
    model = Calls(
        lambda self, *, ids, x, scale: x * scale + self.table(ids), table=nn.Embedding(10, 4)
    )
    shapes, kwargs = {"x": (4,), "ids": ()}, {"scale": 2.0}
    trace = record(model, shapes, {"ids": torch.long}, kwargs=kwargs, batch_size=3, execute=execute)
    inputs = {each.name: (each.shape, each.dtype) for each in trace.provenance.inputs}
    assert inputs == {"kwargs['x']": ((3, 4), torch.float32), "kwargs['ids']": ((3,), torch.long)}
    assert crawl_module(model, shapes, {"ids": torch.long}, kwargs=kwargs)["layers"][0][
        "output_shape"
    ] == [-1, 4]


@BOTH_WAYS
def test_a_packed_sequence_as_argument_and_inside(execute: Any) -> None:
    def forward(self: Any, packed: PackedSequence, padded: Tensor) -> Tensor:
        inner = pack_padded_sequence(padded, torch.tensor([5, 2]), batch_first=True)
        first, _ = self.lstm(packed)
        second, _ = self.lstm(inner)
        joined, _ = pad_packed_sequence(second, batch_first=True)
        return torch.cat([first.data.flatten(), joined.flatten()])

    model = Calls(forward, lstm=nn.LSTM(3, 4, batch_first=True))
    packed = pack_padded_sequence(torch.ones(2, 3, 3), torch.tensor([3, 1]), batch_first=True)
    trace = record(model, args=(packed, torch.ones(2, 5, 3)), execute=execute)
    assert output_shapes(trace) == [(4 * 4 + 2 * 5 * 4,)]


def test_a_cache_handed_in_is_not_filled() -> None:
    class Cache:
        def __init__(self) -> None:
            self.states: list[Tensor] = [torch.ones(1, 4)]

    def forward(_: Calls, x: Tensor, cache: Cache) -> Tensor:
        cache.states.append(x)
        return torch.cat(cache.states)

    cache = Cache()
    trace = record(Calls(forward), args=(torch.ones(1, 4),), kwargs={"cache": cache})
    assert output_shapes(trace) == [(2, 4)]
    assert len(cache.states) == 1


@BOTH_WAYS
def test_a_lazy_module_is_recorded_and_stays_lazy(execute: Any) -> None:
    model = nn.Sequential(
        nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10), nn.Linear(10, 2)
    )
    info = crawl_module(model, (3, 8, 8), execute=execute)
    assert [layer["type"] for layer in info["layers"][1:]] == [
        "Conv2d",
        "BatchNorm2d",
        "Flatten",
        "Linear",
        "Linear",
    ]
    assert info["overall"]["grad_params"] == (3 * 9 * 8 + 8) + 16 + (8 * 36 * 10 + 10) + 22
    assert isinstance(model[0], nn.LazyConv2d)
    assert isinstance(model[3].weight, nn.UninitializedParameter)


@BOTH_WAYS
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_script_module_is_recorded(execute: Any) -> None:
    scripted: Any = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    for _ in range(3):  # its interpreter changes its ways after the first calls
        info = crawl_module(scripted, (4,), execute=execute)
        assert info["overall"]["macs"] == 4 * 8 + 8 * 2
        assert info["overall"]["grad_params"] == 4 * 8 + 8 + 8 * 2 + 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_module_is_recorded_as_its_original() -> None:
    inner: Any = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    compiled: Any = torch.compile(nn.Sequential(inner, nn.Linear(8, 2)))
    trace = record(compiled, (4,))
    assert trace.root.type_name == "Sequential"
    assert op_names(trace) == ["linear", "relu", "linear"]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


@BOTH_WAYS
def test_a_custom_autograd_function_is_recorded_as_what_it_does(execute: Any) -> None:
    trace = record(Calls(lambda _, x: Double.apply(x)), (4,), execute=execute)
    assert op_names(trace) == ["mul"]


@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_inputs_have_the_type_of_the_model(dtype: torch.dtype, execute: Any) -> None:
    trace = record(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(dtype), (3, 8, 8), execute=execute
    )
    assert {trace.tensors[index].spec.dtype for index in trace.root.outputs} == {dtype}


def test_complex_and_boolean_inputs() -> None:
    trace = record(
        Calls(lambda _, x, m: torch.where(m, x, -x)), [(4,), (4,)], [torch.complex64, torch.bool]
    )
    assert trace.tensors[trace.root.outputs[0]].spec.dtype == torch.complex64


def test_a_model_on_the_meta_device_and_one_half_loaded() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    assert output_shapes(record(model, (4,))) == [(1, 2)]
    model[0] = nn.Linear(4, 8)
    assert output_shapes(record(model, (4,))) == [(1, 2)]


def test_modes_reach_the_operators() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[0].eval()

    def training(trace: Trace) -> list[bool]:
        called = {str(op.signature.op): op.signature.args for op in trace.ops}
        return [called["aten.batch_norm.default"][5], called["aten.dropout.default"][2]]

    assert training(record(model, (4,), batch_size=2)) == [False, False]
    assert training(record(model, (4,), batch_size=2, mode="train")) == [True, True]
    assert training(record(model, (4,), batch_size=2, mode="same")) == [False, True]


def test_a_record_can_be_compared_copied_and_sent_elsewhere() -> None:
    trace, again = (record(nn.Linear(4, 2), (4,)) for _ in range(2))
    assert again == trace
    assert copy.deepcopy(trace) == trace
    assert pickle.loads(pickle.dumps(trace)) == trace  # noqa: S301
    assert record(nn.Linear(4, 3), (4,)) != trace
    assert "1 module calls, 1 operator calls, abstract pass" in repr(trace)


@BOTH_WAYS
def test_a_model_that_differentiates_inside_its_forward_pass(execute: Any) -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                return -torch.autograd.grad(self.energy(x).tanh().sum(), x)[0]

    model = Force()
    trace = record(model, (3,), execute=execute)
    assert output_shapes(trace) == [(1, 3)]
    assert any(each.code == "gradients-in-forward" for each in trace.provenance.reasons)
    assert "tanh_backward" in op_names(trace)
    assert all(parameter.grad is None for parameter in model.parameters())


@BOTH_WAYS
def test_a_generator_is_run_to_its_end(execute: Any) -> None:
    class Yields(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Any:
            for part in self.parts:
                x = part(x) + 1
                yield x

    info = crawl_module(Yields(), (4,), execute=execute)
    assert info["overall"]["macs"] == 3 * 16
    assert info["layers"][0]["flops"] == 3 * 4


@BOTH_WAYS
def test_modules_inside_vmap(execute: Any) -> None:
    model = Calls(lambda self, x: torch.vmap(self.layer)(x), layer=nn.Linear(4, 2))
    assert paths(record(model, (3, 4), execute=execute)) == ["", "layer"]


def test_a_complex_model_gets_complex_inputs() -> None:
    trace = record(nn.Linear(4, 2, dtype=torch.complex64), (4,))
    assert trace.tensors[trace.root.outputs[0]].spec.dtype == torch.complex64


def test_known_repeats_of_unknown_data_have_a_known_shape() -> None:
    model = Calls(
        lambda _, x: (
            x.repeat_interleave(torch.tensor([1, 2]), 1),
            x.repeat_interleave(torch.tensor([3, 2]), 1),
        )
    )
    assert output_shapes(record(model, (2, 4), execute="abstract")) == [
        (1, 3, 4),
        (1, 5, 4),
    ]


def test_numbers_that_are_equal_but_of_another_kind_are_told_apart() -> None:
    trace = record(Calls(lambda _, x: (x.mul(1), x.mul(1 + 0j))), (4,), execute="abstract")
    assert [trace.tensors[index].spec.dtype for index in trace.root.outputs] == [
        torch.float32,
        torch.complex64,
    ]


@pytest.mark.slow
def test_what_made_a_record_is_gone_when_the_record_is_made() -> None:
    """It is in no cycle of references, so the memory that it knows does not wait for the garbage collector."""
    before = {id(each) for each in gc.get_objects() if type(each) is Recorder}
    gc.disable()
    try:
        record(nn.Sequential(nn.Linear(4, 3)), (4,))
        assert not [
            each for each in gc.get_objects() if type(each) is Recorder and id(each) not in before
        ]
    finally:
        gc.enable()
