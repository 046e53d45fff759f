"""Values that a pass makes up, and where they leave the tensors: routers go on, branches are told, random inputs too."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchscan import crawl_module, estimate_memory, format_info, record
from torchscan.analyses.totals import total_cost
from torchscan.notes import Note


class Cascade(nn.Module):
    """Scores of 3 classes from 4 features (12 MACs a sample); what is done with them may lead on to 4 · 5 = 20 more."""

    def __init__(self, is_over: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.early = nn.Linear(4, 3, bias=False)
        self.late = nn.Linear(4, 5, bias=False)
        self.is_over = is_over

    def forward(self, x: Tensor) -> Tensor:
        return self.early(x) if self.is_over(self.early(x)) else self.late(x)


def line_of(function: Callable[..., Any]) -> str:
    """Where a function of one line reads."""
    return f"test_assumed.py:{inspect.getsourcelines(function)[1]}"


READS = [
    lambda scores: bool(scores.argmax() == 0),
    lambda scores: bool((scores.argmax(-1) == 0).all()),
    lambda scores: bool((scores.argmax(-1) == 0).any()),
    lambda scores: bool(torch.isin(scores.argmax(-1), torch.tensor([0, 2])).max() == 1),
    lambda scores: scores.argmax().item() == 0,
    lambda scores: scores.topk(2).indices.tolist()[0][0] == 0,
    lambda scores: scores.topk(2).indices.cpu().numpy()[0][0] == 0,
    lambda scores: torch.arange(int(scores.argmax())).numel() == 0,
    lambda scores: copy.deepcopy(scores.argmax(-1))[0].item() == 0,
    lambda scores: torch.equal(scores.max(-1).indices, torch.tensor([0])),
    lambda scores: bool(F.one_hot(scores.argmax(-1), 3)[0, 0]),
    lambda scores: bool(torch.arange(3)[scores.argmin(-1)] + 1 == 1),
    lambda scores: len(scores.argmax(-1).nonzero()) == 0,
    lambda scores: torch.ones(1).repeat_interleave(scores.argmax(-1)).numel() == 0,
    lambda scores: [True, False, False][scores.argmax()],
    lambda scores: bool(
        scores.new_zeros(1, 3, dtype=torch.long).scatter_(1, scores.argsort()[:, :1], 1)[0, 0] == 1
    ),
    lambda scores: bool((scores.argmax(-1) != 0).sum() == 0),
    lambda scores: bool((scores.argmax(-1) == 0).cumsum(0)[-1] == 1),
    lambda scores: bool((scores.topk(2).indices != 0).sum(-1).sum() == 1),
    lambda scores: bool(
        torch.ones(1, dtype=torch.long).mul((scores.argmax(-1) != 0).long()).max() == 0
    ),
    lambda scores: len((scores.argmax(-1) != 0).nonzero()) == 0,
    lambda scores: len(torch.where(scores.argmax(-1) != 0)[0]) == 0,
    lambda scores: len(scores[scores.argmax(-1) != 0]) == 0,
    lambda scores: len(torch.masked_select(torch.arange(1), scores.argmax(-1) != 0)) == 0,
    lambda scores: len((index := scores.argmax(-1))[index != 0]) == 0,
    lambda scores: bool(torch.searchsorted(torch.arange(3), scores.argmax(-1)) == 0),
    lambda scores: bool(torch.bucketize(scores.argmax(-1), torch.arange(3)) == 0),
]


@pytest.mark.parametrize("is_over", READS, ids=range(len(READS)))
@pytest.mark.parametrize("backward", [False, True])
def test_a_branch_that_reads_an_assumed_index_is_taken_on_data(
    is_over: Callable[[Tensor], Any], backward: bool
) -> None:
    trace = record(Cascade(is_over), args=(torch.ones(1, 4),), training=backward, mode="eval")
    assert trace.provenance.execution == "real"
    assert f"a branch at {line_of(is_over)} " in str(trace.provenance.reasons[-1])
    assert trace.provenance.assumptions == ()  # these are the user's own inputs


@pytest.mark.parametrize("is_over", READS, ids=range(len(READS)))
@pytest.mark.parametrize("backward", [False, True])
def test_a_branch_that_reads_an_assumed_index_is_named_where_there_are_no_data(
    is_over: Callable[[Tensor], Any], backward: bool
) -> None:
    trace = record(Cascade(is_over).to("meta"), (4,), training=backward, mode="eval")
    assert trace.provenance.execution == "abstract"
    (note,) = [each for each in trace.provenance.assumptions if each.code == "branch-on-pick"]
    assert f"a branch at {line_of(is_over)} (in <lambda>)" in str(note)


def test_the_other_way_is_counted_on_data() -> None:
    """The last class has the highest score, so both layers run: 12 + 20 MACs. Balanced indices would have ended it at 24."""
    model = Cascade(lambda scores: scores.argmax() == 0)
    with torch.no_grad():
        model.early.weight.copy_(torch.tensor([[0.0] * 4, [1.0] * 4, [2.0] * 4]))
    assert total_cost(record(model, args=(torch.ones(1, 4),))).macs == 12 + 20
    assert total_cost(record(model, args=(torch.ones(1, 4),), execute="abstract")).macs == 12 + 12


def test_an_estimate_takes_a_branch_on_data_too() -> None:
    model = Cascade(lambda scores: scores.argmax() == 0)
    estimate = estimate_memory(model, args=(torch.ones(1, 4),))
    (note,) = estimate.assumptions
    assert note.code == "runs-on-data"
    assert "a branch at test_assumed.py:" in str(note)
    estimate = estimate_memory(model.to("meta"), (4,))
    assert any("a branch at test_assumed.py:" in str(each) for each in estimate.assumptions)


class Search(nn.Module):
    """10 steps of 8 · 10 + 8 · 8 = 144 MACs a row, if none of them is the last."""

    def __init__(self, is_over: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.body = nn.Linear(8, 8, bias=False)
        self.is_over = is_over
        with torch.no_grad():
            self.head.bias[1] = 100  # never the end, which is 0

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(10):
            if self.is_over(self.head(x).argmax(-1)):
                break
            x = self.body(x)
        return x


ENDS = [
    lambda token: len(token[token != 0]) == 0,
    lambda token: (token != 0).sum() == 0,
    lambda token: (token == 0).sum() == len(token),
    lambda token: (token != 0).nonzero().numel() == 0,
    lambda token: (token == 0).float().mean() == 1,
    lambda token: len(torch.where(token != 0)[0]) == 0,
    lambda token: ((token == 0) | (token == 2)).sum() == len(token),
]


@pytest.mark.parametrize("is_over", ENDS, ids=range(len(ENDS)))
def test_however_a_model_asks_for_the_end_it_is_not_told_one(
    is_over: Callable[[Tensor], Any],
) -> None:
    trace = record(Search(is_over), (8,))
    assert trace.provenance.execution == "real"
    assert total_cost(trace).macs == 10 * 144
    trace = record(Search(is_over).to("meta"), (8,))
    (note,) = [each for each in trace.provenance.assumptions if each.code == "branch-on-pick"]
    assert "a branch at test_assumed.py:" in str(note)


def test_a_class_that_is_picked_out_is_so_on_data() -> None:
    """One row: 12 MACs, and 20 more as its class is not 0."""

    class Hard(Cascade):
        def forward(self, x: Tensor) -> Tensor:
            return self.late(x[self.early(x).argmax(-1) != 0])

    model = Hard(bool)
    with torch.no_grad():
        model.early.weight.copy_(torch.tensor([[0.0] * 4, [1.0] * 4, [2.0] * 4]))
    trace = record(model, args=(torch.ones(1, 4),))
    assert (trace.provenance.execution, total_cost(trace).macs) == ("real", 12 + 20)


def test_that_picks_are_many_enough_is_told() -> None:
    """Of 30 rows in 3 classes, 10 are in each."""
    model = Cascade(lambda scores: len((index := scores.argmax(-1))[index != 0]) == 20)
    trace = record(model, (4,), batch_size=30)
    assert total_cost(trace).macs == 30 * (12 + 12)
    (note,) = trace.provenance.assumptions
    assert note == Note.of("balanced-routing", operator="aten.argmax.default")


class Period(nn.Module):
    """The strongest frequencies of a series say how it is folded, as in TimesNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        strongest = torch.fft.rfft(x, dim=1).abs().mean(0).topk(2).indices.detach().cpu().numpy()
        periods = [x.shape[1] // max(int(index), 1) for index in strongest]
        return sum(
            self.conv(F.pad(x, (0, -x.shape[1] % period)).reshape(1, 1, -1, period)).sum()
            for period in periods
        )


def test_periods_found_in_a_spectrum_are_those_of_the_data() -> None:
    """A wave of 5 periods in 16 samples folds into rows of 16 // 5 = 3, so 18; one of 3 periods into rows of 5, so 20."""
    time = torch.arange(16) * 2 * torch.pi / 16
    wave = (2 * torch.sin(5 * time) + torch.sin(3 * time))[None]
    trace = record(Period(), args=(wave,))
    assert trace.provenance.assumptions == ()
    assert total_cost(trace).macs == 18 + 20


# -- routers -------------------------------------------------------------------------------------------------------------


class Mixture(nn.Module):
    """4 experts of 6 · 6 MACs a token, and a router of 6 · 4; ``dispatch`` sends the tokens to 2 experts each."""

    def __init__(self, dispatch: Callable[[Mixture, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(4))
        self.dispatch = dispatch

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        self.dispatch(self, x, scores.topk(2).indices)
        return scores


def by_where(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    for index, expert in enumerate(model.experts):
        token, _ = torch.where(chosen == index)
        expert(x[token])


def by_hits(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    mask = F.one_hot(chosen, 4).permute(2, 1, 0)
    for hit in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        if hit[0] == 4:
            continue
        _, token = torch.where(mask[hit[0]])
        model.experts[int(hit[0])](x[token])


def by_masks(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    for index, expert in enumerate(model.experts):
        mask = (chosen == index).any(-1)
        if mask.any():
            expert(x[mask])


def by_bins(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    sizes = torch.bincount(chosen.flatten(), minlength=4).tolist()
    in_order(model, x, chosen, sizes)


def by_histogram(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    in_order(
        model,
        x,
        chosen,
        torch.histc(chosen.flatten().int(), bins=4, min=0, max=3).cpu().numpy().tolist(),
    )


def by_scatter(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    counts = chosen.new_zeros((len(chosen), 4)).scatter_(1, chosen, 1).sum(0)
    in_order(model, x, chosen, [count.item() for count in counts])


def by_bounds(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    ends = torch.searchsorted(chosen.flatten().sort().values, torch.arange(4), right=True)
    in_order(model, x, chosen, torch.diff(ends, prepend=ends.new_zeros(1)).tolist())


def by_distinct(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    for index in chosen.unique():
        model.experts[int(index)](x[(chosen == index).any(-1)])


def in_order(model: Mixture, x: Tensor, chosen: Tensor, sizes: list[int]) -> None:
    order = chosen.flatten().argsort()
    for expert, part in zip(model.experts, x[order // 2].split(sizes), strict=True):
        expert(part)


DISPATCHES = [
    by_where,
    by_hits,
    by_masks,
    by_bins,
    by_histogram,
    by_scatter,
    by_bounds,
    by_distinct,
]


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("backward", [False, True])
def test_a_router_reads_how_many_tokens_each_expert_gets(
    dispatch: Callable[..., Any], backward: bool
) -> None:
    """8 tokens to 2 of 4 experts each, however they are dispatched."""
    trace = record(Mixture(dispatch), (6,), batch_size=8, training=backward, mode="eval")
    assert trace.provenance.execution == "abstract"
    assert total_cost(trace, phase="forward").macs == 8 * 6 * 4 + 8 * 2 * 6 * 6
    assert trace.provenance.assumptions == (
        Note.of("balanced-routing", operator="aten.topk.default"),
    )


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_router_may_ask_for_every_expert_with_few_tokens_too(
    dispatch: Callable[..., Any],
) -> None:
    """One token to 2 of 4 experts; it is fewer picks than experts, but those of all of them are asked for."""
    trace = record(Mixture(dispatch), (6,))
    assert trace.provenance.execution == "abstract"
    assert total_cost(trace).macs == 6 * 4 + 2 * 6 * 6
    assert all(each.code == "balanced-routing" for each in trace.provenance.assumptions)


def by_two(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    for index in range(2):
        model.experts[index](x[(chosen == index).any(-1)])


def test_half_of_the_experts_are_certain_ones() -> None:
    """Of one token, nobody knows how many picks are among them; of 8 tokens, half of 16 are."""
    assert record(Mixture(by_two), (6,)).provenance.execution == "real"
    trace = record(Mixture(by_two), (6,), batch_size=8)
    assert (trace.provenance.execution, total_cost(trace).macs) == (
        "abstract",
        8 * 24 + 8 * 36,
    )


def hard(model: Mixture, x: Tensor, chosen: Tensor) -> None:
    model.experts[int(chosen[0, 0])](x)


def test_which_expert_all_tokens_go_to_is_no_matter_of_balance() -> None:
    trace = record(Mixture(hard), (6,), batch_size=8)
    assert trace.provenance.execution == "real"
    assert f"a branch at test_assumed.py:{inspect.getsourcelines(hard)[1] + 1} (in hard)" in str(
        trace.provenance.reasons[-1]
    )


# -- inputs that were made up --------------------------------------------------------------------------------------------


class Filter(nn.Module):
    """What is positive goes on."""

    def __init__(self, select: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.table = nn.Buffer(torch.tensor([1.0, 0.0, 1.0]))
        self.select = select

    def forward(self, x: Tensor) -> Tensor:
        if (
            self.table.sum().item() > 1 and not torch.zeros_like(x).any()
        ):  # neither depends on the input
            x = x + torch.arange(3).nonzero().shape[0]
        return self.layer(x[:, :1]) * (1 if self.select(x) else 2)


SELECTIONS = {
    "aten.nonzero": lambda x: (x > 3).nonzero().shape[0],
    "aten.index": lambda x: x[x > 3].shape[0],
    "aten.masked_select": lambda x: torch.masked_select(x, x > 3).shape[0],
    "aten._unique2": lambda x: x.unique().shape[0],
    "tolist": lambda x: x.tolist()[0][0] > 3,
    "numpy": lambda x: x.detach().numpy()[0][0] > 3,
    "aten.equal": lambda x: torch.equal(x, -x),
    "aten.unique_dim": lambda x: copy.deepcopy(x.detach()).unique(dim=0).shape[0],
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("backward", [False, True])
def test_a_real_pass_says_where_made_up_inputs_decide(name: str, backward: bool) -> None:
    select = SELECTIONS[name]
    trace = record(Filter(select), (3,), training=backward, mode="eval")
    assert trace.provenance.execution == "real"
    (note,) = trace.provenance.assumptions
    assert note.code == "typical-inputs"
    assert name in str(note)
    assert str(note).endswith(f" at {line_of(select)} (in <lambda>)")


def test_inputs_of_the_users_own_are_what_is_counted() -> None:
    for arguments in ({"args": (torch.ones(1, 3),)}, {"kwargs": {"x": torch.ones(1, 3)}}):
        assert record(Filter(SELECTIONS["aten.nonzero"]), **arguments).provenance.assumptions == ()


def test_what_does_not_depend_on_made_up_inputs_may_be_read() -> None:
    trace = record(Filter(lambda x: x.shape[0]), (3,), execute="real")
    assert trace.provenance.assumptions == ()


def test_many_places_are_one_remark() -> None:
    def select(x: Tensor) -> bool:
        first = x.sum().item()
        second = x.mean().item()
        third = x.amax().item()
        fourth = x.amin().item()
        return first + second > third + fourth

    (note,) = record(Filter(select), (3,)).provenance.assumptions
    text = str(note)
    assert text.endswith("and 1 more place")
    assert text.count("test_assumed.py:") == 3


def test_made_up_integers_may_be_read_but_not_what_a_layer_makes_of_them() -> None:
    class Reader(nn.Module):
        def __init__(self, reads_vectors: bool) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 2)
            self.reads_vectors = reads_vectors

        def forward(self, ids: Tensor) -> Tensor:
            vectors: Tensor = self.embedding(ids)
            read = vectors if self.reads_vectors else ids
            return vectors if (read != 0).any() else -vectors

    for reads_vectors in (False, True):
        trace = record(Reader(reads_vectors), (3,), dtype=torch.long, execute="real")
        assert bool(trace.provenance.assumptions) == reads_vectors


def test_a_remark_stands_below_the_table_and_the_total_is_complete() -> None:
    info = crawl_module(Filter(SELECTIONS["aten.nonzero"]), (3,))
    assert info["overall"]["complete"]
    assert "Generated inputs are assumed to be typical" in " ".join(format_info(info).split())


# -- numbers that a model draws ------------------------------------------------------------------------------------------


class Repeats(nn.Module):
    """Its layer runs as often as ``count`` says."""

    def __init__(self, count: Callable[[Repeats], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(self.count(self))):
            x = self.layer(x)
        return x


DRAWS = {
    "a branch": lambda _: 1 if torch.rand([]) < 0.5 else 2,
    "a count": lambda _: torch.randint(1, 3, ()).item(),
    "dropout": lambda _: F.dropout(torch.ones(8)).sum().item() // 4,
    "an order": lambda _: torch.randperm(3).tolist()[0],
    "a mask": lambda _: len(torch.arange(3).masked_select(torch.zeros(3).bernoulli_() > 0)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize("has_inputs", [False, True])
def test_a_pass_says_where_numbers_decide_that_the_model_draws(
    name: str, execute: Any, has_inputs: bool
) -> None:
    inputs: dict[str, Any] = {"args": (torch.ones(1, 4),)} if has_inputs else {"input_shape": (4,)}
    trace = record(Repeats(DRAWS[name]), **inputs, execute=execute)
    (note,) = trace.provenance.assumptions
    assert note.code == "typical-random-numbers"
    assert str(note).endswith(f" at {line_of(DRAWS[name])} (in <lambda>)")


def test_a_number_that_is_drawn_does_not_need_data() -> None:
    assert record(Repeats(DRAWS["a branch"]), (4,)).provenance.execution == "abstract"


def skips(model: Repeats) -> int:
    return 0 if model.training and torch.rand([]) < 0.5 else 1


ONE = torch.ones(1, 1, 1, 1)

#: where nothing is drawn, or nothing that is drawn is read, or it may be any number
CERTAIN = {
    "dropout of layers, switched off": skips,
    "dropout, switched off": lambda _: F.dropout(torch.ones(3), training=False).sum().item(),
    "no dropout": lambda _: F.dropout(torch.ones(3), p=0).sum().item(),
    "attention": lambda _: F.scaled_dot_product_attention(ONE, ONE, ONE).item(),
    "layers that are never dropped": lambda _: 0 if torch.rand([]) < 0.0 else 1,
    "a shape": lambda _: torch.rand(2).shape[0],
}


@pytest.mark.parametrize("name", CERTAIN)
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_what_does_not_depend_on_chance_may_be_read(name: str, execute: Any) -> None:
    assert (
        record(Repeats(CERTAIN[name]), (4,), execute=execute, mode="eval").provenance.assumptions
        == ()
    )


def test_layers_that_are_dropped_in_training_are_named() -> None:
    (note,) = record(Repeats(skips), (4,), mode="train").provenance.assumptions
    assert "(in skips)" in str(note)


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_dropout_is_nothing_to_remark(execute: Any) -> None:
    layers = nn.Sequential(
        nn.Linear(4, 4),
        nn.Dropout(),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        nn.RReLU(),
    )
    trace = record(layers, (3, 4), training=True, execute=execute)
    assert trace.provenance.assumptions == ()
