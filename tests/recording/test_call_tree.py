"""The call tree by itself: a real training run is watched, and nothing is recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_torch
from torch.utils.checkpoint import checkpoint

from tests.recording.test_record import Calls
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.call_threads import ThreadPolicy, with_autograd_threads
from torchscan.recording.call_tree import CallTree
from torchscan.recording.module_calls import Call

X = torch.ones(2, 4)


def tree_of(model: nn.Module, follows: ThreadPolicy | None = None) -> CallTree:
    return CallTree(Inventory(model).path_of, follows)


def called(tree: CallTree) -> list[tuple[str, int, int]]:
    """Path, invocation and depth of each call."""
    return [(call.path, call.invocation, call.depth) for call in tree.calls]


def shared() -> nn.Module:
    """One linear layer, called before and after another block."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return Calls(
        lambda self, x: self.tied(self.inner(self.tied(x))), tied=nn.Linear(4, 4), inner=inner
    )


def hook_tables() -> list[dict[Any, Any]]:
    names = [
        name for name in vars(hooks_of_torch) if name.startswith("_global_") and "hook" in name
    ]
    return [
        dict(getattr(hooks_of_torch, name))
        for name in names
        if isinstance(getattr(hooks_of_torch, name), dict)
    ]


def nodes_of(*outputs: Tensor) -> Iterator[Any]:
    waiting, seen = [output.grad_fn for output in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)


def path_of(call: Call | None) -> str | None:
    return None if call is None else call.path


def owners(tree: CallTree, *outputs: Tensor) -> list[tuple[str, str | None]]:
    """The names of the nodes that are no leaves, from the last to the first, with the path of the call that made each."""
    found = {
        node._sequence_nr(): (node.name(), path_of(tree.owner_of(node)))
        for node in nodes_of(*outputs)
    }
    return [
        found[number]
        for number in sorted(found, reverse=True)
        if found[number][0] != "torch::autograd::AccumulateGrad"
    ]


def test_leaves_of_a_graph_were_made_by_no_call() -> None:
    model = shared()
    tree = tree_of(model)
    with tree.watched():
        leaves = [
            node for node in nodes_of(model(X)) if node.name() == "torch::autograd::AccumulateGrad"
        ]
    assert leaves
    assert [tree.owner_of(node) for node in (*leaves, None)] == [None] * (len(leaves) + 1)


def test_two_steps_of_training_count_alike_after_a_reset() -> None:
    model = shared()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tree = tree_of(model)
    steps = []
    with tree.watched():
        for _ in range(2):
            tree.reset()
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
            steps.append(called(tree))
    expected = [
        ("", 0, 0),
        ("tied", 0, 1),
        ("inner", 0, 1),
        ("inner.0", 0, 2),
        ("inner.1", 0, 2),
        ("tied", 1, 1),
    ]
    assert steps == [expected, expected]


def test_without_a_reset_calls_are_counted_on() -> None:
    model = nn.Linear(4, 4)
    tree = tree_of(model)
    with tree.watched():
        model(X)
        model(X)
    assert called(tree) == [("", 0, 0), ("", 1, 0)]


def test_parents_know_their_children() -> None:
    model = shared()
    tree = tree_of(model)
    with tree.watched():
        model(X)
    assert [call.children for call in tree.calls] == [[1, 2, 5], [], [3, 4], [], [], []]
    assert [path_of(call.parent) for call in tree.calls] == [None, "", "", "inner", "inner", ""]
    assert tree.current is None


def test_training_is_the_same_to_the_bit() -> None:
    torch.manual_seed(0)
    model = shared()
    model(X).sum().backward()
    plain = [str(parameter.grad) for parameter in model.parameters()]
    model.zero_grad()
    with tree_of(model).watched():
        model(X).sum().backward()
    assert [str(parameter.grad) for parameter in model.parameters()] == plain


def test_the_end_of_a_call_is_told_with_its_arguments_and_result() -> None:
    model = nn.Sequential(nn.Tanh())
    told: list[tuple[str, object, object]] = []
    with tree_of(model).watched(
        lambda call, given, result: told.append((call.path, given, result))
    ):
        out = model(X)
    assert [path for path, _, _ in told] == ["0", ""]
    assert all(given == ((X,), {}) and result is out for _, given, result in told)


# -- exceptions ----------------------------------------------------------------------------------------------------------


def refuse(_: Any, x: Tensor) -> Tensor:
    raise KeyError("no")


def test_after_an_exception_that_the_model_catches_its_calls_go_on() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with contextlib.suppress(KeyError):
            self.refusing(x)
        return self.layer(x)

    model = Calls(forward, refusing=nn.Sequential(Calls(refuse)), layer=nn.Linear(4, 4))
    tree = tree_of(model)
    with tree.watched():
        model(X)
    assert called(tree) == [("", 0, 0), ("refusing", 0, 1), ("refusing.0", 0, 2), ("layer", 0, 1)]
    assert tree.current is None
    assert tree.origin.error is None, "the exception, whose frames hold tensors, is let go of"


def test_an_exception_that_leaves_the_model_comes_from_the_innermost_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Calls(refuse)))
    tree = tree_of(model)
    before = hook_tables()
    with pytest.raises(KeyError) as caught, tree.watched():
        model(X)
    assert path_of(tree.origin.call_of(caught.value)) == "1.0"
    assert tree.origin.call_of(KeyError("another one")) is None
    assert tree.current is None
    assert hook_tables() == before
    tree.origin.forget()
    assert tree.origin.call_of(caught.value) is None


def test_a_step_after_one_that_failed_is_nested_as_ever() -> None:
    fails = [True]

    def once(_: Any, x: Tensor) -> Tensor:
        if fails.pop():
            raise KeyError
        return x

    model = nn.Sequential(Calls(once))
    tree = tree_of(model)
    with tree.watched():
        with contextlib.suppress(KeyError):
            model(X)
        tree.reset()
        fails.append(False)
        model(X)
    assert called(tree) == [("", 0, 0), ("0", 0, 1)]


def test_hooks_are_gone_afterwards() -> None:
    before = hook_tables()
    model = shared()
    with tree_of(model).watched():
        assert hook_tables() != before
        model(X)
    assert hook_tables() == before
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


# -- generators ----------------------------------------------------------------------------------------------------------


def test_what_a_returned_generator_runs_is_the_models_while_it_is_resumed() -> None:
    def forward(self: Any, x: Tensor) -> Iterator[Tensor]:
        for _ in range(2):
            yield self.layer(x)

    model: Any = Calls(forward, layer=nn.Linear(4, 4))
    tree = tree_of(model)
    with tree.watched():
        generator = model(X)
        assert called(tree) == [("", 0, 0)]
        with tree.resumed():
            list(generator)
    assert called(tree) == [("", 0, 0), ("layer", 0, 1), ("layer", 1, 1)]
    assert tree.current is None


# -- the backward pass ---------------------------------------------------------------------------------------------------


def test_nodes_belong_to_the_call_that_made_them() -> None:
    model = Calls(
        lambda self, x: self.outer(x.exp()) * 2, outer=nn.Sequential(nn.Sigmoid(), nn.Tanh())
    )
    x = X.clone().requires_grad_()
    older = x.sin()
    tree = tree_of(model)
    with tree.watched():
        loss = model(older).sum()
    expected = [
        ("SumBackward0", ""),
        ("MulBackward0", ""),
        ("TanhBackward0", "outer.1"),
        ("SigmoidBackward0", "outer.0"),
    ]
    assert owners(tree, loss) == [*expected, ("ExpBackward0", ""), ("SinBackward0", None)]


def test_nodes_of_a_shared_module_belong_to_the_invocation() -> None:
    model = nn.Sequential(nn.Tanh())
    model.append(model[0])
    tree = tree_of(model)
    x = X.clone().requires_grad_()
    with tree.watched():
        out = model(x)
    made = [tree.owner_of(node) for node in nodes_of(out) if node.name() == "TanhBackward0"]
    assert [(call.path, call.invocation) for call in made if call is not None] == [
        ("0", 1),
        ("0", 0),
    ]


def checkpointed(*, use_reentrant: bool) -> nn.Module:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    forward = lambda self, x: self.last(checkpoint(self.inner, x, use_reentrant=use_reentrant))  # noqa: E731
    return Calls(forward, inner=inner, last=nn.Linear(4, 4))


REENTRANT = pytest.mark.parametrize("use_reentrant", [True, False])


@REENTRANT
def test_what_a_checkpoint_runs_again_belongs_where_it_ran_first(use_reentrant: bool) -> None:
    model = checkpointed(use_reentrant=use_reentrant)
    tree = tree_of(model)
    with tree.watched():
        loss = model(X.clone().requires_grad_()).sum()
        forward = called(tree)
        loss.backward()
    again = [
        (call.path, call.invocation, path_of(call.parent)) for call in tree.calls[len(forward) :]
    ]
    parent = "" if use_reentrant else "inner.1"  # the node that needs what is computed again
    assert again == [("inner", 1, parent), ("inner.0", 1, "inner"), ("inner.1", 1, "inner")]


def in_thread(run: Callable[[], object]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_module_in_another_thread_is_missed() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    for follows in (None, with_autograd_threads()):
        tree = tree_of(model, follows)
        with tree.watched():
            in_thread(lambda: model(X))
        assert tree.calls == []
        assert tree.unrecorded_modules == {"", "0"}
        tree.reset()
        assert tree.unrecorded_modules == set()


@REENTRANT
def test_autograds_threads_are_followed_if_so_asked(use_reentrant: bool) -> None:
    """As on CUDA, where its threads run the backward pass: what a checkpoint runs there is the same as in one thread."""
    calls = []
    for run in (lambda function: function(), in_thread):
        model = checkpointed(use_reentrant=use_reentrant)
        tree = tree_of(model, with_autograd_threads())
        with tree.watched():
            for _ in range(2):
                run(model(X.clone().requires_grad_()).sum().backward)
        calls.append([(call.path, call.invocation, path_of(call.parent)) for call in tree.calls])
        assert tree.unrecorded_modules == set()
    assert calls[0] == calls[1]


def test_otherwise_what_runs_in_autograds_threads_is_missed() -> None:
    model = checkpointed(use_reentrant=False)
    tree = tree_of(model)
    with tree.watched():
        loss = model(X.clone().requires_grad_()).sum()
        seen = called(tree)
        in_thread(loss.backward)
    assert called(tree) == seen
    assert tree.unrecorded_modules == {"inner", "inner.0", "inner.1"}


@REENTRANT
def test_nodes_that_an_autograd_thread_runs_are_told_apart_by_who_made_them(
    use_reentrant: bool,
) -> None:
    """Autograd numbers nodes thread by thread, so the forward pass and a checkpoint in another thread use the same numbers."""
    found: list[str | None] = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            found.append(path_of(tree.owner_of(torch._C._current_autograd_node())))
            return gradient

    first, inner, last = (
        nn.Sequential(nn.Tanh(), Calls(lambda _, x: Noting.apply(x))) for _ in range(3)
    )
    forward = lambda self, x: self.last(  # noqa: E731
        checkpoint(self.inner, self.first(x), use_reentrant=use_reentrant)
    )
    model = Calls(forward, first=first, inner=inner, last=last)
    tree = tree_of(model, with_autograd_threads())
    with tree.watched():
        losses = [model(X.clone().requires_grad_()).sum() for _ in range(2)]
        in_thread(lambda: [loss.backward() for loss in losses])
    assert found == ["last.1", "inner.1", "first.1"] * 2
