"""Models as people have them: odd attributes, frozen and exported ones, weights that are shared among processes."""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributions as dis
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.test_record import Calls
from tests.versions import before, needs, skip_before
from torchscan import InputError, NeedsValuesError, RecordError, crawl_module, from_json, record
from torchscan.analyses.totals import total_cost
from torchscan.notes import Note
from torchscan.trace.trace import Trace


def parameters_of(info: Any) -> int:
    overall = info["overall"]
    return int(overall["grad_params"] + overall["nograd_params"])


# -- objects that answer with exceptions ---------------------------------------------------------------------------------


class NoLength(tuple):
    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError


class NoLengthEither(frozenset):
    def __len__(self) -> int:
        raise NotImplementedError


class NoItems(dict):
    def __len__(self) -> int:
        raise NotImplementedError

    def items(self) -> Any:
        raise NotImplementedError


class NoComparison:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class NoClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise NotImplementedError


hostile = pytest.mark.parametrize(
    "make",
    [
        lambda: NoLength((1, 2)),
        lambda: NoLengthEither({1}),
        lambda: NoItems(a=1),
        NoComparison,
        NoClass,
    ],
    ids=["tuple", "set", "dict", "object", "class"],
)


class Holds(nn.Module):
    """Keeps an object in all kinds of places, and writes to one of them."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        vars(self)["value"] = value
        self.values = [value]
        self.named = {"value": value}
        self.queue = collections.deque([value])

    def forward(self, x: Tensor, given: Any = None) -> Any:
        self.values.append(1)
        return self.layer(x), given


@hostile
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_attributes_that_cannot_be_read_are_passed_over(make: Any, execute: Any) -> None:
    value = make()
    model = Holds(value)
    info = crawl_module(model, (4,), execute=execute)
    assert (parameters_of(info), info["overall"]["macs"]) == (20, 16)
    assert len(model.values) == 1
    assert model.values[0] is value


@hostile
def test_and_so_are_arguments_and_results(make: Any) -> None:
    info = crawl_module(Holds(1), args=(torch.ones(2, 4), make()))
    assert info["overall"]["macs"] == 32


def test_items_of_a_container_that_cannot_be_measured_are_put_back() -> None:
    class Forgets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = NoItems(mask=None)

        def forward(self, x: Tensor) -> Tensor:
            self.kept["mask"] = x
            return x

    model = Forgets()
    crawl_module(model, (4,))
    assert dict.__getitem__(model.kept, "mask") is None


class Unusual(nn.Module):
    """Says of its parameters what it likes, and raises when it is asked for anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def __getattr__(self, name: str) -> Any:
        if name in ("one", "other"):
            return super().__getattr__(name)
        raise NotImplementedError(name)

    def parameters(self, recurse: bool = True) -> Any:
        return self.one.parameters()

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        return self.other(self.one(x))


def test_what_a_module_says_of_itself_does_not_matter() -> None:
    info = crawl_module(nn.Sequential(Unusual()), (4,))
    assert (parameters_of(info), info["overall"]["macs"]) == (40, 32)


# -- scripts and programs ------------------------------------------------------------------------------------------------


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("mode", ["eval", "train", "same"])
def test_a_frozen_script_has_costs_and_says_that_its_weights_are_out_of_sight(mode: Any) -> None:
    frozen = torch.jit.freeze(torch.jit.script(convolutional()))
    info = crawl_module(nn.Sequential(frozen), (3, 8, 8), mode=mode)
    assert info["overall"]["macs"] == 8 * 27 * 36
    assert info["provenance"]["unreadable_weights"] == [
        {"code": "frozen-weights", "values": {"path": "0"}}
    ]
    assert not hasattr(frozen, "training")
    # 3·8·8 elements, windows of 3·3·3 for 8·6·6 results, weights and biases; the results are written, read, written
    assert info["overall"]["dmas"] == 288 * 27 + 216 + 8 + 3 * 288


@pytest.fixture
def legacy_executor() -> Iterator[None]:
    """Run scripts as speechbrain does, which sets this for the process when it is imported."""
    before = torch._C._jit_set_profiling_executor(False)
    yield
    torch._C._jit_set_profiling_executor(before)


@pytest.mark.usefixtures("legacy_executor")
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_script_that_the_executor_would_fuse_is_recorded_on_shapes() -> None:
    def snake(x: Tensor, alpha: Tensor) -> Tensor:
        return x + torch.sin(alpha * x).pow(2) / alpha

    class Snake(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha = nn.Parameter(torch.ones(8, 1))
            self.function = torch.jit.script(snake)

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x, self.alpha)

    trace = record(nn.Sequential(nn.Conv1d(3, 8, 5), Snake()), (3, 14))
    assert trace.provenance.execution == "abstract"
    # 8·10 results of 3·5 products and a bias; of them, a product, sine, power, quotient and sum each
    assert total_cost(trace).flops == 2 * 80 * 15 + 5 * 80
    is_optimizing = torch._C._get_graph_executor_optimize()
    assert is_optimizing


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_what_was_optimised_out_of_sight_is_refused() -> None:
    optimised = torch.jit.optimize_for_inference(torch.jit.script(convolutional()))
    if not any("mkldnn" in node.kind() for node in optimised.graph.nodes()):
        pytest.skip("this build of torch has no kernels of oneDNN")
    with pytest.raises(
        InputError, match=r"optimize_for_inference.*give the model from before that call"
    ):
        crawl_module(optimised, (3, 8, 8))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_is_asked_for_its_module() -> None:
    program = torch.export.export(convolutional(), (torch.ones(1, 3, 8, 8),))
    with pytest.raises(InputError, match=r"program\.module\(\)"):
        crawl_module(program, (3, 8, 8))  # type: ignore[arg-type]
    assert crawl_module(program.module(), (3, 8, 8))["overall"]["macs"] == 8 * 27 * 36


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            convolutional().state_dict(),
            "give the torch.nn.Module that this state dict belongs to",
        ),
        (
            torch.relu,
            "give a torch.nn.Module: what this function returns, or one that calls it",
        ),
    ],
    ids=["a state dict", "a function"],
)
def test_what_is_no_module_is_told_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        crawl_module(given, (3, 8, 8))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_sparse_parameter_takes_what_it_stores() -> None:
    """8 of 64 elements, each with a row and a column."""

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(8).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(self.weight, x)

    info = crawl_module(Sparse(), args=(torch.ones(8, 2),))
    assert (parameters_of(info), info["overall"]["param_size"]) == (64, 8 * 4 + 8 * 2 * 8)


def test_a_module_that_was_not_initialised_is_told() -> None:
    class Forgets(nn.Module):
        def __init__(self) -> None:
            self.size = 4

    with pytest.raises(
        InputError, match=r"Forgets is not initialized: call super\(\).__init__\(\)"
    ):
        crawl_module(Forgets(), (4,))


def test_a_module_without_forward() -> None:
    with pytest.raises(
        RecordError,
        match="try: define forward in its class; a ModuleList or ModuleDict is not called",
    ):
        crawl_module(nn.ModuleList([nn.Linear(4, 4)]), (4,))


# -- several processes ---------------------------------------------------------------------------------------------------

PROCESSES = 4


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Of the first of four processes, which the others never answer."""
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=PROCESSES)
    try:
        yield dist.device_mesh.init_device_mesh("cpu", (PROCESSES,))
    finally:
        dist.destroy_process_group()


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))


ELEMENTS = 16 * 64 + 64 + 64 * 16 + 16


def notes_of_ranks(trace: Trace) -> list[Note]:
    codes = ("rank-share", "gradients-not-reduced")
    return [each for each in trace.provenance.assumptions if each.code in codes]


@pytest.mark.filterwarnings("ignore")
@before("2.7", "torch shards parameters fully on GPUs only")
def test_fully_sharded_parameters_are_counted_whole_and_by_process(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model = two_layers()
    for each in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(each, mesh=mesh)
    trace = record(model, (16,))
    assert sum(each.numel for each in trace.parameters) == ELEMENTS
    assert sum(each.local_numel for each in trace.parameters) == ELEMENTS // PROCESSES
    assert sum(each.stored_bytes for each in trace.parameters) == 4 * ELEMENTS // PROCESSES
    assert notes_of_ranks(trace) == [Note.of("rank-share", held=532, params=2128)]
    assert (total_cost(trace).macs, total_cost(trace).is_complete) == (2 * 16 * 64, True)
    assert all(each.is_used for each in trace.parameters)
    assert all(type(each).__name__ == "DTensor" for each in model.parameters())


class Counting(nn.Module):
    """A layer that counts its calls in a buffer of which each rank has a part."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.tensor import DTensor, Shard

        parts = [Shard(0)]
        self.calls: Any
        self.register_buffer("calls", DTensor.from_local(torch.zeros(3), mesh, parts))
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        result: Tensor = self.layer(x)
        return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_a_sharded_buffer_that_a_pass_writes_to_stays_as_it_is(mesh: Any, execute: Any) -> None:
    model = Counting(mesh)
    trace = record(model, (2,), execute=execute)
    assert trace.ops[0].signature.operator == "aten.add_"
    assert model.calls.to_local().tolist() == [0.0, 0.0, 0.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_what_works_out_placements_is_no_part_of_the_pass(mesh: Any, execute: Any) -> None:
    """Each process has a quarter of both layers: 16 · 16 of 16 · 64."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = parallelize_module(two_layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    trace = record(model, (16,), execute=execute)
    assert total_cost(trace).macs == 2 * 16 * 64 // PROCESSES
    assert (
        sum(each.local_numel for each in trace.parameters)
        == (16 * 64 + 64 + 64 * 16) // PROCESSES + 16
    )


@needs("_C._distributed_c10d._get_work_registry_size")
def test_collectives_of_an_output_and_a_loss_are_awaited(mesh: Any) -> None:
    """Torch warns of others when the process ends. This model returns one, and its loss another."""
    from torch.distributed._functional_collectives import all_reduce

    def loss(output: tuple[Tensor, Tensor]) -> Any:
        states, _ = output
        return [states.sum(), all_reduce(states.detach().mean(), "sum", mesh)]

    def run(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(x), all_reduce(x, "sum", mesh)

    num_in_flight = torch._C._distributed_c10d._get_work_registry_size
    num_before = num_in_flight()
    trace = record(Calls(run, fc=nn.Linear(4, 4)), (4,), training=True, loss=loss, execute="real")
    operators = [op.signature.operator for op in trace.ops]
    assert operators.count("_c10d_functional.all_reduce") == 2
    assert num_in_flight() == num_before


def test_one_process_says_nothing_of_others() -> None:
    trace = record(two_layers(), (16,))
    assert notes_of_ranks(trace) == []
    assert sum(each.local_numel for each in trace.parameters) == ELEMENTS


# -- what is known without data ------------------------------------------------------------------------------------------


class Made(nn.Module):
    """A linear layer of 4 · 4, and something that is made of its result."""

    def __init__(self, make: Callable[[Tensor], Any], device: str = "cpu") -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, device=device)
        self.make = make

    def forward(self, x: Tensor) -> Any:
        made = self.layer(x)
        return made, self.make(made)


ON_CPU_AND_META = pytest.mark.parametrize("device", ["cpu", "meta"])

DISTRIBUTIONS: dict[str, Callable[[Tensor], Any]] = {
    "normal": lambda y: dis.Normal(y, y.exp()).rsample(),
    "log_prob": lambda y: dis.Normal(y, y.exp(), validate_args=True).log_prob(y),
    "categorical": lambda y: dis.Categorical(logits=y).sample(),
    "beta": lambda y: dis.Beta(y.exp(), y.exp()).rsample(),
    "several variables": lambda y: dis.MultivariateNormal(
        y, scale_tril=torch.diag_embed(y.exp())
    ).rsample(),
    "transformed": lambda y: dis.TransformedDistribution(
        dis.Normal(y, y.exp()), [dis.TanhTransform()]
    ).rsample(),
    "divergence": lambda y: dis.kl_divergence(
        dis.Categorical(logits=y), dis.Categorical(logits=-y)
    ),
}


@ON_CPU_AND_META
@pytest.mark.parametrize("make", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_distributions_take_values_in_range_for_granted(
    make: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        dis.Distribution, "_validate_args", True
    )  # torch's compiler switches it off when it is imported
    found, real = (
        crawl_module(Made(make, device), (4,)),
        crawl_module(Made(make), (4,), execute="real"),
    )
    assert found["provenance"]["execution"] == "abstract"
    (assumption,) = found["provenance"]["assumptions"]
    assert assumption["code"] == "distribution-arguments-valid"
    assert real["provenance"]["assumptions"] == []
    assert found["overall"] == real["overall"]


def test_what_else_distributions_read_is_not() -> None:
    """How many outcomes there are is no question of what is in range."""
    model = Made(
        lambda y: dis.Binomial(
            y.sum().abs().round(), logits=y, validate_args=False
        ).enumerate_support()
    )
    assert crawl_module(model, (4,), execute="auto")["provenance"]["execution"] == "real"


def test_a_loop_until_samples_are_accepted_is_not_taken_for_granted() -> None:
    """Von Mises draws by rejection: how often, the values tell."""
    info = crawl_module(Made(lambda y: dis.VonMises(y, y.exp()).sample()), (4,))
    assert info["provenance"]["execution"] == "real"


def masked(self: Any, x: Tensor, mask: Tensor) -> Tensor:
    if (mask == 0).all():
        raise ValueError("nothing is left")
    return self.layer(x)[mask > 0]


def test_a_mask_of_floats_is_known_where_it_was_given() -> None:
    trace = record(
        Calls(masked, layer=nn.Linear(4, 4)), args=(torch.ones(3, 4), torch.tensor([1.0, 0.0, 1.0]))
    )
    assert trace.provenance.execution == "abstract"
    assert trace.ops[-1].signature.outputs[0].shape == (2, 4)


def extended_mask(y: Tensor) -> bool:
    """As of 512 tokens, read as Longformer does."""
    mask = 1 - torch.ones(1, 512, dtype=torch.long)[:, None, None, :].expand(1, 1, 512, 512).to(
        torch.float32
    )
    return bool((mask[:, 0, 0, :] > 0).flatten().any().item())


KNOWN: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda y: int(torch.tensor([3, 4], device=y.device).sum()),
    "as_tensor": lambda y: int(torch.as_tensor([3, 4], device=y.device).sum()),
    "asarray": lambda y: int(torch.asarray([3, 4], device=y.device).sum()),
    "new_tensor": lambda y: int(y.new_tensor([3, 4], dtype=torch.long).sum()),
    "by name": lambda y: int(torch.tensor(data=[3], device="meta" if y.is_meta else "cpu")),
    "float": lambda y: float(torch.tensor(3.0, device=y.device)),
    "mask": extended_mask,
}


@ON_CPU_AND_META
@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_constants_that_follow_an_activation_keep_their_values(make: Any, device: str) -> None:
    assert record(Made(make, device), (4,)).provenance.execution == "abstract"


@pytest.mark.parametrize("name", ["tensor", "as_tensor", "new_tensor"])
def test_integers_do_in_training_too(name: str) -> None:
    trace = record(
        Made(KNOWN[name], "meta"), (4,), training=True, loss=lambda output: output[0].sum()
    )
    assert trace.provenance.execution == "abstract"


def test_whoever_asks_for_no_values_after_the_pass_gets_none() -> None:
    record(Made(KNOWN["tensor"], "meta"), (4,))
    assert torch.tensor([1], device="meta").is_meta
    assert "new_tensor" not in vars(Tensor)


WHERE: dict[str, Callable[[Tensor, Tensor], bool]] = {
    "argument": lambda x, y: x.device == y.device,
    "constant": lambda x, y: torch.tensor([1.0], device=y.device).device == y.device,
    "ids": lambda x, y: y.new_tensor([1], dtype=torch.long).device == y.device,
    "kind": lambda x, y: x.is_meta == y.is_meta,
    "CPU": lambda x, y: x.is_cpu and y.is_cpu and not y.is_cuda and not y.is_meta,
    "type": lambda x, y: y.device.type == "cpu",
    "name": lambda x, y: f"{x.device} {y.device}" == "cpu cpu",
    "made there": lambda x, y: torch.zeros(3, device=y.device).device == x.device,
    "moved there": lambda x, y: y.to(x.device).device == x.to(y).device,
}


@pytest.mark.parametrize(
    "options", [{}, {"training": True}, {"execute": "real"}], ids=["shapes", "training", "data"]
)
@pytest.mark.parametrize("is_there", WHERE.values(), ids=WHERE)
def test_what_has_values_is_where_activations_are(is_there: Any, options: Any) -> None:
    """A branch that compares devices is the one that is taken on data: 4 · 4, and 4 · 100 or 4 · 10."""

    class Compares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.wide, self.narrow = (
                nn.Linear(4, 4),
                nn.Linear(4, 100),
                nn.Linear(4, 10),
            )

        def forward(self, x: Tensor) -> Any:
            made = self.layer(x)
            return self.wide(made) if is_there(x, made) else self.narrow(made)

    trace = record(Compares(), args=(torch.ones(2, 4),), **options)
    assert [each.path for each in trace.modules] == ["", "layer", "wide"]
    assert not any("to_copy" in str(call.signature.op) for call in trace.ops)


def test_a_model_on_the_meta_device_is_told_that_it_is() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.is_meta and x.device.type == "meta" else x + 1

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Asks())
    assert total_cost(record(model, (4,))).flops == 2 * 16


def test_torch_itself_sees_meta_tensors() -> None:
    """Else it would copy what is not there."""

    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            made = self.layer(x)
            return copy.deepcopy(made) + len(repr(made)[:0])

    assert record(Copies(), (4,)).provenance.execution == "abstract"


def test_what_given_values_make_torch_raise_does_not_matter_on_shapes() -> None:
    class Solves(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return torch.linalg.inv(x), torch.linalg.cholesky(x)

    trace = record(Solves(), args=(torch.zeros(3, 3),), execute="abstract")
    assert [each.shape for each in trace.ops[-1].signature.outputs] in ([(3, 3)], [(3, 3), ()])


def test_given_values_are_not_written_to() -> None:
    class Writes(nn.Module):
        def forward(self, mask: Tensor) -> Tensor:
            mask.zero_()
            if mask.any():
                raise ValueError("it was written to")
            return mask

    mask = torch.ones(3)
    assert record(Writes(), args=(mask,)).provenance.execution == "abstract"
    assert mask.tolist() == [1, 1, 1]


def turned(y: Tensor) -> Tensor:
    """Views made in place of a tensor whose rows are one and the same."""
    wide = y[:, None].expand(-1, 3, -1)
    return wide.unsqueeze_(0).transpose_(1, 2).squeeze_(0)


def images(y: Tensor) -> Tensor:
    """Of 4 channels, 2 · 2 in size."""
    return torch.stack([y, y, y, y], -1).reshape(2, 4, 2, 2)


def assigned(y: Tensor) -> Tensor:
    """By an index, in place."""
    made = y.clone()
    made[:, torch.tensor([0, 2])] = y[:, :2]
    return made


BOTH = pytest.mark.parametrize(
    "loss",
    [None, lambda output: output[0].sum() + output[1].sum()],
    ids=["forward", "backward"],
)

ALIKE: dict[str, Callable[[Tensor], Any]] = {
    "views in place": turned,
    "sorted": lambda y: torch.take_along_dim(y, y.argsort(-1), -1),
    "largest": lambda y: y.take_along_dim(y.argmax(-1, keepdim=True), dim=-1),
    "flat": lambda y: y.take_along_dim(y.argsort(-1)),
    "shuffled": lambda y: F.channel_shuffle(images(y), 2),
    "shuffled in the layout of images": lambda y: F.channel_shuffle(
        images(y).contiguous(memory_format=torch.channels_last), 2
    ),
    "layers in 16 bits": lambda y: F.layer_norm(y.bfloat16(), [4]),
    "groups in 16 bits": lambda y: F.group_norm(y.bfloat16(), 2),
    "groups in 16 bits, parameters in 32": lambda y: F.group_norm(
        y.bfloat16(), 2, torch.ones(4), torch.zeros(4)
    ),
    "instances in 16 bits": lambda y: F.instance_norm(images(y).bfloat16()),
    "batches in 16 bits": lambda y: F.batch_norm(images(y).bfloat16(), None, None, training=True),
    "assigned": assigned,
}


@BOTH
@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_shapes_lead_where_data_do(make: Any, loss: Any) -> None:
    traces = [
        record(
            Made(make),
            (4,),
            batch_size=2,
            training=loss is not None,
            loss=loss,
            mode="eval",
            execute=way,
        )
        for way in ("abstract", "real")
    ]
    found, real = (
        [(str(op.signature.op), op.signature.outputs) for op in trace.ops] for trace in traces
    )
    assert found == real


def test_writing_to_what_is_expanded_is_refused_as_before() -> None:
    with pytest.raises(RecordError, match="an expanded tensor"):
        record(Made(lambda y: y[:, None].expand(-1, 3, -1).add_(1)), (4,), execute="abstract")


REFUSED: dict[str, tuple[Callable[[Tensor], Any], type[Exception]]] = {
    "a product of two types": (lambda y: y @ y.double().T, RuntimeError),
    "an expanded tensor": (lambda y: y[:, None].expand(-1, 3, -1).add_(1), RuntimeError),
    "a mask": (lambda y: F.scaled_dot_product_attention(y, y, y, torch.zeros(5, 5)), RuntimeError),
    "a type of a norm": (lambda y: F.layer_norm(y, [4], torch.ones(4).double()), RuntimeError),
    "fractions as ids": (lambda y: F.embedding(y, torch.ones(3, 4)), RuntimeError),
    "an id too large": (lambda y: F.embedding(torch.tensor([5]), y), IndexError),
    "an index too large": (lambda y: y[torch.tensor([7])], IndexError),
    "a place too large": (lambda y: y.scatter(1, torch.tensor([[7]]), y), RuntimeError),
    "a row too large": (lambda y: y.index_add(0, torch.tensor([7]), y), RuntimeError),
    "an element too far": (lambda y: y.take(torch.tensor([7])), IndexError),
    "fractions as an index": (lambda y: y[torch.ones(2)], IndexError),
    "a position too large": (lambda y: y.gather(1, torch.tensor([[7]])), RuntimeError),
}


@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize(("make", "kind"), REFUSED.values(), ids=REFUSED)
def test_a_model_catches_what_torch_would_raise(make: Any, kind: Any, execute: Any) -> None:
    def caught(y: Tensor) -> bool:
        with pytest.raises(kind):
            make(y)
        return True

    assert record(Made(caught), (4,), execute=execute).modules


# -- recurrent layers ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *itertools.product(
            (nn.LSTM, nn.GRU, nn.RNN),
            ({}, {"batch_first": True}, {"bidirectional": True}, {"num_layers": 2}),
        ),
        (nn.LSTM, {"proj_size": 3}),
    ],
)
def test_a_recurrent_layer_on_shapes_is_what_it_is_on_data(
    kind: Any, options: Any, steps: int
) -> None:
    model = kind(5, 7, **options)
    traces = [
        record(model, args=(torch.ones(4, steps, 5),), execute=way) for way in ("abstract", "real")
    ]
    found, real = (
        [(str(op.signature.op), op.signature.outputs) for op in trace.ops] for trace in traces
    )
    assert found == real


def test_its_steps_are_not_gone_through_one_by_one() -> None:
    """A sequence of 100,000 steps would take minutes."""
    trace = record(nn.LSTM(8, 8, batch_first=True), (100_000, 8))
    assert trace.ops[-1].signature.outputs[0].shape == (1, 100_000, 8)


# -- nested tensors ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_recorded_on_data(layout: Any) -> None:
    """3 + 5 rows of 4 · 6; for the gradient as many for the weight, and as many for the other layer with its weight."""
    given = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=layout)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 6))
    info = crawl_module(model, args=(given,))
    assert info["provenance"]["reasons"][-1]["values"]["error"].endswith(
        "args[0] is a nested tensor, which has no counterpart on the meta device"
    )
    assert info["overall"]["macs"] == 8 * (4 * 4 + 4 * 6)
    assert from_json(info.to_json()) == info

    def loss(output: Tensor) -> Tensor:
        return output.to_padded_tensor(0.0).sum()

    trained = crawl_module(model, args=(given,), training=True, loss=loss, mode="eval")
    assert trained["overall"]["macs"] == 8 * (2 * 4 * 4 + 3 * 4 * 6)
    assert trained["overall"]["complete"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_without_samples_costs_nothing() -> None:
    model = Calls(lambda _, x: x * 2)
    info = crawl_module(model, args=(torch.nested.nested_tensor([]),))
    assert info["overall"]["complete"]
    assert info["overall"]["flops"] == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_products_of_rows_with_rows_count_by_sample(layout: Any) -> None:
    """The layer has 8 · 8 · 8 MACs for 3 and 5 rows.

    Each sample has 8 for each pair of its rows. Attention has twice these.
    """
    if layout is torch.jagged:
        skip_before("2.7", "jagged tensors cannot be split into heads")

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            heads = self.layer(x)
            if x.layout == torch.strided:
                return heads @ heads.transpose(1, 2)
            heads = heads.unflatten(-1, [2, 4]).transpose(1, 2)
            return F.scaled_dot_product_attention(heads, heads, heads)

    given = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=layout)
    info = crawl_module(Attends(), args=(given,), strict=True)
    products = 1 if layout is torch.strided else 2
    assert info["overall"]["macs"] == 8 * 8 * 8 + products * (3 * 3 + 5 * 5) * 8

    if layout is torch.strided:

        def loss(output: Tensor) -> Tensor:
            return output.to_padded_tensor(0.0).sum()

        trained = crawl_module(Attends(), args=(given,), training=True, loss=loss, mode="eval")
        # both operands, and the weight
        assert trained["overall"]["macs"] == 2 * 8 * 8 * 8 + 3 * (3 * 3 + 5 * 5) * 8
        assert trained["overall"]["complete"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_times_a_dense_one_is_a_lower_bound() -> None:
    given = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)])
    model = Calls(lambda _, x: torch.bmm(x, torch.ones(2, 8, 4)))
    info = crawl_module(model, args=(given,))
    assert info["overall"]["macs"] == 0
    assert not info["overall"]["complete"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attention_says_what_to_give_it_instead() -> None:
    given = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)])
    with pytest.raises(RecordError, match="try: give it a padded tensor and a mask"):
        record(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), args=(given,))


# -- reading -------------------------------------------------------------------------------------------------------------

WRITTEN: dict[str, Callable[[], Tensor]] = {
    "tensor": lambda: torch.tensor([0, 0]),
    "as_tensor": lambda: torch.as_tensor([0, 0]),
    "zeros": lambda: torch.zeros(2, dtype=torch.long),
}


@pytest.mark.parametrize(
    "options", [{}, {"execute": "real"}, {"training": True}], ids=["shapes", "data", "training"]
)
@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("read", [Tensor.tolist, Tensor.numpy, list])
def test_what_is_read_was_written(read: Any, make: Any, options: Any) -> None:
    """To a constant, and to a buffer of the model's, which stays as it was."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.steps = nn.Buffer(torch.zeros(2, dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            made = make()
            made += 5
            self.steps[:] = 7
            found.append(
                [int(each) for values in (read(made), read(self.steps)) for each in values]
            )
            return self.layer(x)

    found: list[list[int]] = []
    model = Counts()
    record(model, (4,), **options)
    assert found == [[5, 5, 7, 7]]
    assert model.steps.tolist() == [0, 0]


class Cuts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept = nn.Buffer(torch.tensor(3))

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)[:, : int(self.kept)]


def test_a_buffer_whose_values_never_were_is_named() -> None:
    """Where it has some, on the CPU, the rest of the model may be without."""
    with torch.device("meta"):
        model = Cuts()
    with pytest.raises(
        NeedsValuesError, match="try: a model whose buffer kept has values: register it on the CPU"
    ):
        record(model, (4,))
    model.kept = nn.Buffer(torch.tensor(2, device="cpu"))
    assert record(model, (4,)).ops[-1].signature.outputs[0].shape == (1, 2)


class Strided(nn.Module):
    """Keeps its config, as models of transformers do, and its stride in a buffer."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.Linear(4, 4)
        self.stride = nn.Buffer(torch.tensor(config["stride"]))
        torch.rand(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, :: int(self.stride)])


@pytest.mark.parametrize("options", [{}, {"training": True}], ids=["forward", "training"])
def test_buffers_that_a_constructor_can_make_again_are_known(options: Any) -> None:
    """Every third of 9 rows is taken. Nothing is left of the second model."""
    with torch.device("meta"):
        model = Strided({"stride": 3})
    register, state = nn.Module.register_parameter, torch.get_rng_state()
    trace = record(model, (9, 4), **options)
    assert total_cost(trace).macs == 3 * 4 * 4 * (2 if options else 1)
    assert trace.provenance.execution == "abstract"
    assert Note.of("rebuilt-buffers") in trace.provenance.assumptions
    assert model.stride.is_meta
    assert all(each.is_meta for each in model.parameters())
    assert nn.Module.register_parameter is register
    assert torch.equal(torch.get_rng_state(), state)


def test_of_a_model_that_takes_more_than_its_config_the_buffer_is_named() -> None:
    class Particular(Strided):
        def __init__(self, config: dict[str, int], more: int) -> None:
            super().__init__(config)

    with torch.device("meta"):
        model = Particular({"stride": 3}, 1)
    with pytest.raises(NeedsValuesError, match="try: a model whose buffer stride has values"):
        record(model, (9, 4))
