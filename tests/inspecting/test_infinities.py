"""Infinities that are as they should be, and those that something comes of."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Uniform

from tests.inspecting.faults import Log, Of, Scaled
from tests.recording.test_record import Calls
from torchscan import inspect
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.run import RunFacts
from torchscan.notes import Note

MINUS_INF = float("-inf")
UNIFORM = Uniform(0, 1, validate_args=False)
KEEP = torch.ones(4, 4).tril().bool()


def lowest(x: Tensor) -> Tensor:
    return x < x.topk(2).values[..., -1:]


#: a module that writes -Inf into logits, which it returns
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "where": lambda x: torch.where(lowest(x), torch.tensor(MINUS_INF), x),
    "where of a number": lambda x: torch.where(lowest(x), MINUS_INF, x),
    "where of full_like": lambda x: torch.where(lowest(x), torch.full_like(x, MINUS_INF), x),
    "masked_fill": lambda x: x.masked_fill(lowest(x), MINUS_INF),
    "masked_fill of a tensor": lambda x: x.masked_fill(lowest(x), torch.tensor(MINUS_INF)),
    "sum": lambda x: x + torch.zeros(4, 4).masked_fill(~KEEP, MINUS_INF),
    "triu of full": lambda x: x + torch.full((4, 4), MINUS_INF).triu(1),
    "scatter": lambda x: torch.full_like(x, MINUS_INF).scatter(
        -1, x.topk(2).indices, x.topk(2).values
    ),
    "index": lambda x: x.index_put((torch.tensor([0]), torch.tensor([1])), torch.tensor(MINUS_INF)),
    "assignment": lambda x: assigned(x),
    "padding": lambda x: nn.functional.pad(x[..., :3], (0, 1), value=MINUS_INF),
}


def assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[~KEEP] = MINUS_INF
    return y


def steps(
    model: nn.Module, loss: Callable[[Tensor], Tensor], times: int = 1, **options: Any
) -> RunFacts:
    with inspect(model, expected=False, **options) as run:
        for _ in range(times):
            loss(model(torch.rand(4, 4) + 0.1)).backward()
    return run.facts


def entropy(logits: Tensor) -> Tensor:
    return logits.softmax(-1).square().sum()


@pytest.mark.parametrize("name", MASKS)
def test_logits_that_are_masked_on_purpose_are_no_finding(name: str) -> None:
    facts = steps(nn.Sequential(nn.Linear(4, 4), Of(MASKS[name])), entropy, on_nonfinite="raise")
    assert facts.nonfinite == ()
    assert facts.calls[-1].forward_inf


def test_masks_whose_size_varies_are_none_either_for_as_long_as_they_come() -> None:
    """Calls are repeated to find out, at most so many."""
    model = nn.Sequential(nn.Linear(4, 4), Of(lambda x: x.masked_fill(x < x.mean(), MINUS_INF)))
    assert (
        steps(
            model, lambda y: y.softmax(-1).square().nan_to_num(0.0).sum(), 30, on_nonfinite="raise"
        ).nonfinite
        == ()
    )


def test_a_mask_that_is_made_when_the_model_is_evaluated() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Of(MASKS["where"]))
    with inspect(model, on_nonfinite="raise") as run, torch.no_grad():
        model(torch.rand(4, 4))
    assert run.facts.nonfinite == ()


def gate(self: Any, x: Tensor) -> Tensor:
    """Two of four experts."""
    scores = self.scores(x)
    chosen = torch.full_like(scores, MINUS_INF).scatter(
        -1, scores.topk(2).indices, scores.topk(2).values
    )
    shares = self.softmax(chosen)
    return sum(shares[:, at : at + 1] * expert(x) for at, expert in enumerate(self.experts))


def beam(self: Any, x: Tensor) -> Tensor:
    """Beams that have not begun have a log-probability of -Inf."""
    scores = torch.tensor([0.0, MINUS_INF, MINUS_INF, MINUS_INF])
    for _ in range(2):
        scores = (scores[:, None] + self.step(x).log_softmax(-1)).flatten().topk(4).values
    return self.last(scores)


def clipped(self: Any, x: Tensor) -> Tensor:
    return self.last(self.narrow(self.first(x)).float().clamp(-1e4, 1e4))


def cleaned(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.nan_to_num(self.exp(self.first(x).detach()), posinf=1.0))


FINE: dict[str, Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor]]]] = {
    "gates of a mixture of experts": lambda: (
        Calls(
            gate,
            scores=nn.Linear(4, 4),
            softmax=nn.Softmax(-1),
            experts=nn.ModuleList(nn.Linear(4, 2) for _ in range(4)),
        ),
        Tensor.sum,
    ),
    "log-probabilities of a beam search": lambda: (
        Calls(beam, step=nn.Linear(4, 4), last=Of(lambda x: x)),
        beams,
    ),
    "overflow in half precision that is clipped": lambda: (
        Calls(
            clipped,
            first=nn.Linear(4, 4),
            narrow=Of(lambda x: (x.abs() + 1).half() * 65504),
            last=nn.Linear(4, 2),
        ),
        Tensor.sum,
    ),
    "overflow that nan_to_num replaces": lambda: (
        Calls(
            cleaned,
            first=nn.Linear(4, 4),
            exp=Of(lambda x: torch.exp(x.abs() + 1000)),
            last=nn.Linear(4, 2),
        ),
        Tensor.sum,
    ),
    "a logarithm that where guards": lambda: (
        nn.Sequential(
            nn.Linear(4, 4), Of(lambda x: torch.where(x > 0, x.clamp(min=0).detach().log(), x))
        ),
        lambda y: y.square().mean(),
    ),
    "rows of attention that are padding, and replaced": lambda: (
        nn.Sequential(
            nn.Linear(4, 4),
            Of(
                lambda x: torch.where(
                    KEEP.any(-1), x.masked_fill(~KEEP, MINUS_INF).softmax(-1), 0.0
                )
            ),
        ),
        Tensor.sum,
    ),
    "log-probability of what cannot be": lambda: (
        nn.Sequential(
            nn.Linear(4, 4), Of(lambda x: UNIFORM.log_prob(x.sigmoid().detach() + 2) + x * 0)
        ),
        lambda y: y.exp().sum(),
    ),
    "a cumulative sum of exponentials": lambda: (
        nn.Sequential(
            nn.Linear(4, 4),
            Of(lambda x: x * 0 + torch.logcumsumexp(x.detach().masked_fill(KEEP, MINUS_INF), -1)),
        ),
        lambda y: y.exp().sum(),
    ),
}


def beams(scores: Tensor) -> Tensor:
    return scores.exp().sum()


@pytest.mark.parametrize("name", FINE)
def test_infinities_that_nothing_comes_of_are_no_finding(name: str) -> None:
    torch.manual_seed(0)
    model, loss = FINE[name]()
    assert steps(model, loss, on_nonfinite="raise").nonfinite == ()


@pytest.mark.parametrize(
    "log_prob",
    [
        lambda p: Categorical(probs=p).log_prob(torch.tensor(0)),
        lambda p: Bernoulli(probs=p[1]).log_prob(torch.tensor(0.0)),
        lambda p: p.log(),
        lambda p: p.log2().logsumexp(-1, keepdim=True),
    ],
    ids=["Categorical", "Bernoulli", "log", "logsumexp"],
)
def test_the_logarithm_of_a_probability_of_0_may_be_a_result(
    log_prob: Callable[[Tensor], Tensor],
) -> None:
    model = Of(lambda p: log_prob(p))
    with inspect(model, on_nonfinite="raise", expected=False) as run:
        model(torch.tensor([0.0, 1.0]))
    assert run.facts.nonfinite == ()


def test_an_infinity_in_a_metric_is_not_one_of_the_loss() -> None:
    """Perplexity overflows; the loss does not."""
    model = Calls(
        lambda self, x: (self.last(x), self.perplexity(self.last(x).detach().abs() + 1000)),
        last=nn.Linear(4, 1),
        perplexity=Of(torch.exp),
    )
    with inspect(model, on_nonfinite="raise", expected=False) as run:
        model(torch.rand(4, 4))[0].sum().backward()
    assert run.facts.nonfinite == ()


def only(facts: RunFacts) -> NonFinite:
    (found,) = facts.nonfinite
    return found


def test_nan_of_a_row_that_is_all_mask_names_its_operator_and_the_mask() -> None:
    def attend(self: Any, x: Tensor) -> Tensor:
        return self.linear(x.masked_fill(torch.ones(4, 4).bool(), MINUS_INF).softmax(-1))

    found = only(steps(Calls(attend, linear=nn.Linear(4, 2)), Tensor.sum))
    assert (found.path, found.kind, found.operator) == ("", "NaN", "aten._softmax")
    assert str(found.mask).startswith("aten.masked_fill.Scalar at test_infinities.py:")
    source = f"source: aten._softmax at {found.line}, with infinities from {found.mask}"
    assert source in str(found)


def test_nan_of_the_mask_of_another_module_names_that_module() -> None:
    whole = Of(lambda x: torch.where(torch.ones(4, 4).bool(), torch.tensor(MINUS_INF), x))
    found = only(steps(nn.Sequential(nn.Linear(4, 4), whole, nn.Softmax(-1)), Tensor.sum))
    assert (found.path, found.operator) == ("2", "aten._softmax")
    assert str(found.mask).startswith("1 (Of), by aten.where.self at test_infinities.py:")


def test_a_mask_that_is_written_into_what_was_given_is_no_finding_but_its_nan_is() -> None:
    """Such a call cannot be repeated."""
    model = nn.Sequential(
        nn.Linear(4, 4), Of(lambda x: x.masked_fill_(~KEEP, MINUS_INF)), nn.Softmax(0)
    )
    x = torch.rand(4, 4)
    with inspect(model[:2], on_nonfinite="raise", expected=False), torch.no_grad():
        model[:2](x)
    filled = nn.Sequential(nn.Linear(4, 4), Of(lambda x: x.fill_(MINUS_INF)), nn.Softmax(0))
    with inspect(filled, expected=False) as run, torch.no_grad():
        filled(x)
    found = only(run.facts)
    assert (found.path, found.kind, found.operator, str(found.mask)) == (
        "2",
        "NaN",
        "aten._softmax",
        "1 (Of)",
    )


def test_nan_of_padding_in_attention_names_softmax_and_the_mask() -> None:
    def attend(self: Any, x: Tensor) -> Tensor:
        padding = torch.zeros(2, 4).bool()
        padding[1] = True
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=True)[0]

    model = Calls(attend, attention=nn.MultiheadAttention(4, 1, batch_first=True))
    with inspect(model, expected=False) as run:
        model(torch.rand(2, 4, 4)).sum().backward()
    found = only(run.facts)
    assert (found.path, found.operator) == ("attention", "aten._softmax")
    assert found.mask is not None
    assert "masked_fill" in found.mask.values["operator"]


def test_a_computed_infinity_that_became_nan_is_the_source() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4),
        Of(lambda x: (x * 0 + 300).half() ** 2),
        Of(lambda x: x.float() - x.float()),
    )
    found = only(steps(model, Tensor.sum))
    assert (found.path, found.kind, found.operator) == ("1", "Inf", "aten.pow.Tensor_Scalar")


def test_an_infinity_that_was_clipped_is_not_blamed_for_nan_elsewhere() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.log(self.last(self.exp(x + 1000).clamp(max=1.0)) * 0 - 1)

    model = Calls(forward, exp=Of(torch.exp), last=nn.Linear(4, 4), log=Log())
    found = only(steps(model, Tensor.sum))
    assert (found.path, found.kind, found.operator) == ("log", "NaN", "aten.log")


def in_thread(function: Callable[[Tensor], Tensor]) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return self.last(pool.submit(self.branch, x).result())

    return Calls(forward, branch=nn.Sequential(nn.Linear(4, 4), Of(function)), last=nn.Linear(4, 2))


def test_a_module_in_another_thread_is_named() -> None:
    found = only(steps(in_thread(lambda x: torch.log(x * 0 - 1)), Tensor.sum))
    assert (found.path, found.type_name, found.operator, found.in_thread) == (
        "branch.1",
        "Of",
        "aten.log",
        True,
    )
    assert "in the output of branch.1 (Of), forward pass in another thread" in str(found)


def test_a_mask_that_is_written_in_another_thread_is_no_finding() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.mask, self.first(x)).result()

    model = Calls(forward, first=nn.Linear(4, 4), mask=Of(MASKS["where"]))
    assert steps(model, entropy, on_nonfinite="raise").nonfinite == ()


def test_an_operator_in_another_thread_is_said_to_be_unseen() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return self.last(pool.submit(lambda: torch.log(x * 0 - 1)).result())

    found = only(steps(Calls(forward, last=nn.Linear(4, 2)), Tensor.sum))
    assert found.path == ""
    assert found.unknown == Note.of("not-in-thread")


def test_a_gradient_that_relu_masks_is_counted() -> None:
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.abs().sqrt()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return (
                gradients[0] * x.sign() / (2 * x.abs().sqrt())
            )  # 0 / 0 at 0, where ReLU has no gradient

    first = nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        first.bias.zero_()
    model = nn.Sequential(first, nn.ReLU(), Of(Root.apply), nn.Linear(2, 1))
    with inspect(model, expected=False) as run:
        model(torch.ones(3, 2)).sum().backward()
    counts = {call.path: (call.grad_out_nan, call.grad_in_nan) for call in run.facts.calls}
    assert counts == {"": (0, 0), "0": (0, 0), "1": (3, 0), "2": (0, 3), "3": (0, 0)}
    found = only(run.facts)
    assert (found.path, found.phase, found.operator) == ("2", "backward", "RootBackward")
    assert first.weight.grad is not None
    assert first.weight.grad.isfinite().all()


def test_a_gradient_that_is_moved_before_it_is_seen_is_counted_on_its_way() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), Scaled(math.nan))
    with inspect(model, expected=False) as run:
        model(torch.rand(1, 4)).sum().backward()
    counts = {call.path: (call.grad_out_nan, call.grad_in_nan) for call in run.facts.calls}
    assert counts == {"": (0, 0), "0": (4, 0), "1": (4, 4), "2": (0, 4)}
