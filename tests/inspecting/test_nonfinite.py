"""Who made the first NaN: a suite of faults in known places, and what is said about them."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from tests.inspecting.faults import FAULTS, Attention, Fault, Log, Of, Scaled
from tests.inspecting.test_inspection import hooks
from tests.recording.test_record import Calls
from tests.torchvision_cpu import torchvision
from torchscan import InputError, NonFiniteError, inspect
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.run import RunFacts
from torchscan.notes import Note

T = TypeVar("T")


def found_in(fault: Fault) -> NonFinite:
    torch.manual_seed(0)
    model = fault.model()
    with inspect(model) as run:
        fault.run(model, *fault.inputs())
    return run.facts.nonfinite[0]


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", FAULTS)
def test_the_first_producer_is_named(name: str) -> None:
    fault = FAULTS[name]
    found = found_in(fault)
    said = str(found)
    assert (found.path, found.phase, found.invocation) == (
        fault.path,
        fault.phase,
        fault.invocation,
    ), said
    assert found.kind == fault.what, said
    source = found.operator if found.origin is None else found.origin.code
    if fault.operator is None:
        assert source is None, said
    else:
        assert source is not None, said
        assert fault.operator in source, said
    assert tuple(each.name for each in found.weights) == fault.weights, said


# -- drawn by chance -----------------------------------------------------------------------------------------------------


def pick(choices: list[T]) -> T:
    return choices[int(torch.randint(len(choices), ()))]


def _resnet() -> tuple[nn.Module, Tensor]:
    """Return ResNet-18 with one block of each width."""
    block = torchvision.models.resnet.BasicBlock
    return torchvision.models.ResNet(block, [1, 1, 1, 1]), torch.rand(2, 3, 32, 32)


MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.sweep) for seed in range(2, 8)]


def _mobilenet() -> tuple[nn.Module, Tensor]:
    return torchvision.models.mobilenet_v3_small(), torch.rand(2, 3, 32, 32)


def _encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.rand(2, 5, 16)


@pytest.mark.slow
@pytest.mark.parametrize("make", [_resnet, _mobilenet, _encoder])
@pytest.mark.parametrize("seed", [0, 1, *MORE_SEEDS])
def test_a_parameter_drawn_by_chance_is_named(
    make: Callable[[], tuple[nn.Module, Tensor]], seed: int
) -> None:
    torch.manual_seed(seed)
    model, x = make()
    name, parameter = pick(list(model.named_parameters()))
    with torch.no_grad():
        parameter.fill_(math.nan)
    with inspect(model) as run:
        model(x).square().mean().backward()
    (found,) = run.facts.nonfinite
    owner = name.rpartition(".")[0].removesuffix(
        ".out_proj"
    )  # which is never called: attention takes its weight
    assert (found.path, found.phase) == (owner, "forward")
    assert [f"{found.path}.{each.name}" for each in found.weights] == [name]


@pytest.mark.slow
@pytest.mark.parametrize("make", [_resnet, _mobilenet, _encoder])
@pytest.mark.parametrize("seed", [0, *MORE_SEEDS[:3]])
def test_a_gradient_drawn_by_chance_is_named(
    make: Callable[[], tuple[nn.Module, Tensor]], seed: int
) -> None:
    """Some module's result goes through a function whose gradient is too large."""
    torch.manual_seed(seed)
    model, x = make()
    leaves = [
        path
        for path, each in model.named_modules()
        if not list(each.children()) and "out_proj" not in path
    ]
    path = pick(leaves)
    parent = model.get_submodule(path.rpartition(".")[0])
    name = path.rpartition(".")[2]
    parent.register_module(name, nn.Sequential(getattr(parent, name), Scaled(math.inf)))
    with inspect(model) as run:
        model(x).square().mean().backward()
    (found,) = run.facts.nonfinite
    assert (found.path, found.phase, found.operator) == (f"{path}.1", "backward", "_ScaleBackward")


# -- what is as it should be ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [_resnet, _mobilenet, _encoder])
def test_nothing_is_found_where_nothing_is(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = make()
    with inspect(model) as run:
        for _ in range(2):
            model(x).square().mean().backward()
    assert run.facts.nonfinite == ()


def test_masks_are_made_on_purpose() -> None:
    """Infinities below softmax: filled in by the model, added by it, made by a module, given to it."""
    fine = [
        (Attention(), (torch.rand(2, 3, 4), torch.ones(3, 3).triu(1).bool())),
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            (torch.rand(2, 3, 8), torch.full((3, 3), -math.inf).triu(1)),
        ),
        (
            Of(lambda x: (x + torch.full((3, 3), -math.inf).triu(1)).softmax(-1)),
            (torch.rand(3, 3, requires_grad=True),),
        ),
        (
            nn.Sequential(
                Of(lambda x: x.masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf)),
                nn.Softmax(-1),
            ),
            (torch.rand(3, 3, requires_grad=True),),
        ),
    ]
    for model, inputs in fine:
        with inspect(model) as run:
            model(*inputs).square().mean().backward()
        assert run.facts.nonfinite == ()


def test_finite_values_whose_sum_is_too_large_are_finite() -> None:
    """In the forward pass and backward: the first sum says otherwise."""
    model = nn.Sequential(nn.Identity(), Scaled(1.0))
    x = torch.full((4,), 3e38, requires_grad=True)
    with inspect(model) as run:
        model(x).backward(x.detach())
    assert run.facts.nonfinite == ()


def test_what_a_hook_of_the_users_makes_is_its_callers() -> None:
    """It runs after the module has returned, and not in a replay."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].register_forward_hook(lambda _module, _given, result: result / 0)
    with inspect(model) as run:
        model(torch.rand(2, 4)).sum().backward()
    (found,) = run.facts.nonfinite
    assert (found.path, found.kind, found.operator) == ("", "Inf", None)
    assert found.unknown is not None


def test_what_cannot_be_looked_at_passes() -> None:
    """Nested, quantised, sparse, meta and complex tensors, and those inside vmap."""
    nested = torch.nested.nested_tensor([torch.rand(2, 4), torch.rand(3, 4)], layout=torch.jagged)
    fine: list[tuple[nn.Module, Tensor]] = [
        (nn.Linear(4, 4), nested),
        (nn.Linear(4, 4, dtype=torch.complex64), torch.rand(2, 4, dtype=torch.complex64)),
        (nn.Linear(4, 4, device="meta"), torch.rand(2, 4, device="meta")),
        (nn.Embedding(4, 4, sparse=True), torch.tensor([1, 2])),
        (Of(torch.vmap(nn.Linear(4, 4))), torch.rand(3, 2, 4)),
        (Of(torch.Tensor.to_sparse), torch.rand(3, 3)),
    ]
    for model, x in fine:
        with inspect(model) as run:
            result = model(x)
            if result.requires_grad and not result.is_nested and not result.is_meta:
                result.abs().sum().backward()
        assert run.facts.steps == 1
        assert run.facts.nonfinite == ()


# -- what is said and done -----------------------------------------------------------------------------------------------


def test_the_sentence_says_what_where_and_from_what() -> None:
    model = nn.Sequential(nn.Linear(1, 1), Log())
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(-2.0)
        model.get_parameter("0.bias").fill_(0.0)
    with inspect(model) as run:
        model(torch.ones(3, 1)).sum().backward()
    (found,) = run.facts.nonfinite
    assert str(found) == (
        "step 0: first NaN in the output of 1 (Log), forward pass: 3 of 3 values are NaN; "
        f"source: aten.log at {found.line}; module 1 was given input 0: -2 … -2"
    )
    assert found.line is not None
    assert found.line.startswith("faults.py:")
    assert found.line.endswith("(in Log.forward)")


def test_who_passes_it_on_is_counted_apart() -> None:
    first = nn.Linear(4, 4)
    nn.init.ones_(first.weight)  # all results are below 0
    model = nn.Sequential(first, Log(), nn.Linear(4, 2))
    with inspect(model) as run:
        model(torch.full((1, 4), -1e9)).sum().backward()
    counts = {
        call.path: tuple(map(bool, (call.forward_nan, call.grad_out_nan, call.grad_in_nan)))
        for call in run.facts.calls
    }
    assert counts["2"] == (True, False, False)
    assert counts["0"][0] is False
    assert counts["1"][:2] == (True, False)


def test_gradients_are_counted_as_they_enter_and_leave_modules() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Sequential(Scaled(math.nan), nn.Linear(4, 4)), nn.Linear(4, 2)
    )
    with inspect(model) as run:
        model(torch.rand(1, 4, requires_grad=True)).sum().backward()
    counts = {call.path: (call.grad_out_nan, call.grad_in_nan) for call in run.facts.calls}
    assert counts == {
        "": (0, 0),
        "0": (4, 0),
        "1": (0, 4),
        "1.0": (0, 4),
        "1.1": (0, 0),
        "2": (0, 0),
    }


@pytest.mark.parametrize(
    "name",
    [
        "NaN in a weight",
        "1 / 0",
        "between two modules",
        "gradient of a root at 0",
        "NaN in the input",
    ],
)
def test_it_is_raised_where_it_is_made(name: str) -> None:
    fault, before = FAULTS[name], hooks()
    model = fault.model()
    with (
        pytest.raises(NonFiniteError, match=f"first {fault.what} "),
        inspect(model, on_nonfinite="raise") as run,
    ):
        fault.run(model, *fault.inputs())
    assert hooks() == before
    assert len(run.facts.nonfinite) == 1


def test_a_step_after_one_that_raised_is_watched() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Log(), nn.Linear(4, 2))
    with inspect(model, on_nonfinite="raise", warm_up=0) as run:
        for value in (-1e9, 1e9):
            with contextlib.suppress(NonFiniteError):
                model(
                    torch.full((1, 4), value) * model.get_parameter("0.weight").detach().sign()
                ).sum().backward()
    assert run.facts.steps == 2
    assert [call.path for call in run.facts.calls][:2] == ["", "0"]


def test_it_is_warned_of_once() -> None:
    fault = FAULTS["NaN in a weight"]
    model = fault.model()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with inspect(model, on_nonfinite="warn") as run:
            for _ in range(3):
                fault.run(model, *fault.inputs())
    assert len(told) == 1
    assert [found.step for found in run.facts.nonfinite] == [0, 1, 2]


def test_another_reaction_is_refused() -> None:
    with pytest.raises(InputError, match="'record', 'warn', 'raise'"):
        inspect(nn.Linear(1, 1), on_nonfinite="explode")  # type: ignore[arg-type]


# -- nothing is changed --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_looked_for_without_a_trace(name: str) -> None:
    """Random numbers, parameters, buffers, gradients and hooks of the user's are as without it, also after replays."""
    fault, heard, calls = FAULTS[name], list[bool](), dict[bool, int]()

    def run(*, is_watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = fault.model()
        for each in model.modules():
            each.register_forward_hook(lambda *_: heard.append(is_watched))
        with inspect(model) if is_watched else contextlib.nullcontext():
            fault.run(model, *fault.inputs())
            calls[is_watched] = len(heard)
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        return [*model.state_dict().values(), *gradients, torch.rand(1)]

    for one, other in zip(run(is_watched=False), run(is_watched=True), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert calls[True] == 2 * calls[False]


# -- what must not happen on the way -------------------------------------------------------------------------------------


def steps_of(model: nn.Module, *inputs: Any, **options: Any) -> RunFacts:
    with inspect(model, expected=False, **options) as run:
        for each in inputs:
            result = model(each)
            if result.requires_grad:
                result.sum().backward()
    return run.facts


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_tensors_without_memory_are_not_read() -> None:
    """Reading one ends the process."""
    masked = torch.masked.masked_tensor(torch.rand(2, 2), torch.ones(2, 2).bool())
    assert steps_of(Of(lambda x: x), masked).nonfinite == ()


def test_a_call_that_cannot_be_copied_is_not_repeated() -> None:
    norm, items = nn.BatchNorm1d(4), iter([torch.rand(2, 4), torch.rand(2, 4)])
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    by_argument = steps_of(Of(lambda each: torch.log(next(each) - 9)), items)
    by_closure = steps_of(Of(lambda x: torch.log(norm(x) * 0 - 9)), torch.rand(2, 4))
    by_generator = steps_of(Of(lambda x: torch.log(x - 9)), torch.rand(2, 4))
    assert "iterator" in str(by_argument.nonfinite[0].unknown)
    assert "BatchNorm1d" in str(by_closure.nonfinite[0].unknown)
    assert by_generator.nonfinite[0].operator == "aten.log"
    assert torch.equal(generator.get_state(), state)
    assert norm.num_batches_tracked == 1
    assert len(list(items)) == 1


def test_a_replay_writes_to_no_parameter() -> None:
    model = Calls(lambda self, x: torch.log(x - 9) * self.inner.weight, inner=nn.Linear(2, 2))

    def halve(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.inner.weight.mul_(0.5)
        return torch.log(x - 9) @ self.inner.weight

    model = Calls(halve, inner=nn.Linear(2, 2))
    before = model.get_parameter("inner.weight").detach().clone()
    assert steps_of(model, torch.rand(2, 2)).nonfinite[0].operator == "aten.log"
    assert torch.equal(model.get_parameter("inner.weight"), before / 2)


def test_each_step_has_an_operator_of_its_own() -> None:
    model = Of(lambda x: torch.log(x - 9) if x.sum() > 0 else torch.sqrt(x - 9))
    found = steps_of(model, torch.ones(2), -torch.ones(2)).nonfinite
    assert [each.operator for each in found] == ["aten.log", "aten.sqrt"]


def test_random_numbers_of_a_replay_are_others_and_said_to_be() -> None:
    found = steps_of(Of(lambda x: torch.log(torch.rand(2) * 0 - x)), torch.ones(2)).nonfinite[0]
    assert "other random numbers" in str(found)


def test_infinities_that_nothing_comes_of_are_no_fault() -> None:
    """A mask made by a logarithm; one in a buffer; one that is written anew in each step."""
    keep = torch.ones(3, 3).tril()
    model = Calls(lambda self, x: self.softmax(x + self.mask), softmax=nn.Softmax(-1))
    model.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    x = torch.rand(3, 3, requires_grad=True)
    assert steps_of(model, x, x, x).nonfinite == ()
    assert (
        steps_of(
            Calls(lambda self, x: self.softmax(x + keep.log()), softmax=nn.Softmax(-1)), x, x
        ).nonfinite
        == ()
    )


def test_a_mask_in_a_buffer_that_nobody_uses_is_none_either() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    model.register_buffer("mask", torch.full((2, 2), -math.inf))
    assert steps_of(model, torch.rand(2, 2), on_nonfinite="raise").nonfinite == ()


def test_a_buffer_that_is_spoiled_again_is_told_of_again() -> None:
    model = Calls(lambda self, x: self.inner(x), inner=nn.Linear(2, 1))
    model.register_buffer("state", torch.zeros(1))
    with inspect(model, expected=False) as run:
        for value in (math.nan, 0.0, 0.0, math.nan):
            model(torch.rand(2, 2)).sum().backward()
            model.get_buffer("state").fill_(value)
    assert [(each.step, each.phase) for each in run.facts.nonfinite] == [
        (0, "update"),
        (3, "update"),
    ]


def test_what_others_write_to_is_not_held_against_it_for_certain() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        y.data.fill_(math.nan)  # which no version tells of
        return self.last(y)

    found = steps_of(
        Calls(forward, first=nn.Linear(2, 2), last=nn.Linear(2, 1)), torch.rand(2, 2)
    ).nonfinite[0]
    assert "other code may have written to them" in str(found)


def test_what_is_written_to_in_inference_mode_is_seen() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Of(lambda x: x.div_(0)), nn.Linear(2, 2))
    with torch.inference_mode():
        found = steps_of(model, torch.rand(2, 2)).nonfinite[0]
    assert found.path == "1"


def test_a_bad_keyword_was_given() -> None:
    model = Calls(lambda self, x: self.inner(x), inner=nn.Linear(2, 2))
    with inspect(model) as run:
        model(x=torch.full((2, 2), math.nan))
    assert run.facts.nonfinite[0].phase == "input"


def test_what_else_is_added_to_the_gradient_of_a_parameter() -> None:
    model = nn.Linear(2, 1)
    with inspect(model) as run:
        loss = model(torch.rand(2, 2)).sum() + (model.weight * 0).square().sum().sqrt()
        loss.backward()
    (found,) = run.facts.nonfinite
    assert (found.phase, found.path, found.operator) == ("backward", "", None)
    assert found.origin == Note.of("gradient-accumulated", name="weight")


def test_gradients_that_accumulate_are_spoiled_once() -> None:
    model = nn.Linear(2, 1)
    with inspect(model) as run:
        for scale in (1.0, math.nan, 1.0):
            (model(torch.rand(2, 2)).sum() * scale).backward()
    assert [(each.step, each.phase) for each in run.facts.nonfinite] == [(1, "loss")]


def test_a_loss_that_is_kept_aside_is_followed() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.aside = self.root(self.zero(x)).sum()
        return self.last(x)

    model = Calls(
        forward,
        zero=nn.Linear(2, 2),
        root=Of(lambda x: torch.sqrt(x - x.detach())),
        last=nn.Linear(2, 1),
    )
    with inspect(model) as run:
        result = model(torch.rand(2, 2)).sum()
        (result + model.aside).backward()
    (found,) = run.facts.nonfinite
    assert (found.path, found.phase, found.operator) == ("root", "backward", "SqrtBackward0")


@pytest.mark.slow
def test_an_inferred_source_says_so() -> None:
    """A second loss uses the result of a module whose gradient shows in the next one's parameters only."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    kept: list[Tensor] = []
    model[0].register_forward_hook(lambda _module, _given, result: kept.append(result))
    with inspect(model) as run:
        (model(torch.rand(2, 4)).sum() + (kept[0] * 0).sqrt().sum()).backward()
    (found,) = run.facts.nonfinite
    assert found.unsure is not None or found.origin == Note.of("gradients-summed")


def test_a_mistake_of_ours_ends_the_watching_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hooks()

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("torchscan.inspecting.call_memory.MemoryWatch.note_end", fail)
    model, x = nn.Linear(2, 1), torch.rand(2, 2)
    with pytest.warns(UserWarning, match="ZeroDivisionError: ours"):
        facts = steps_of(model, x, x)
    assert hooks() == before
    assert facts.steps == 0
    assert model.weight.grad is not None
