"""The backward pass: its loss, the outputs that it starts from, and its leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from torchscan.errors import Give, InputError, NeedsValuesError
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.tensor_layouts import kind_of
from torchscan.recording.training.substitutes import Substitutes
from torchscan.recording.undo import interruptible, run_at_end_of_pass
from torchscan.torch_versions import (
    engine,
    outside_of_everything,
    stands_for_itself,
    without_torch_function,
)

#: True: a gradient for every output; a function: the loss that it makes of the output
Backward = bool | Callable[[Any], Tensor]


class BackwardError(InputError):
    """Error for a pass without a differentiable output, or with a failing loss function."""


def loss_of(result: Any, backward: Backward) -> Any:
    """Return the value to differentiate."""
    if backward is True:
        return result
    assert callable(backward)  # noqa: S101 - for the type checker
    try:
        return backward(result)
    except (BackwardError, NeedsValuesError, NotImplementedError):
        raise
    except Exception as error:
        raise BackwardError(
            f"the loss failed on the model's output: {type(error).__name__}: {error}",
            advice="a function of the output alone, lambda output: loss(output, target)",
        ) from error


def differentiable_outputs(loss: Any) -> list[Tensor]:
    """Return the tensors of an output from which gradients can start."""
    tensors = tensors_in(loss)
    if not tensors:
        kind = "None" if loss is None else f"a {type(loss).__name__}"
        raise BackwardError(
            f"the loss has no tensor to start the backward pass from: it is {kind}; "
            "give a function that computes a loss from the output"
        )
    outputs = [tensor for tensor in tensors if tensor.requires_grad]
    if not outputs:
        raise BackwardError(
            "no output depends on a parameter or an input that requires a gradient: unfreeze a "
            "parameter, or leave out ",
            Give("training", True),
        )
    return outputs


def run_backward(outputs: Sequence[Tensor], substitutes: Substitutes) -> None:
    """Run the backward pass from gradients of ones to the leaves of the graph, in this thread.

    Leaves that are not ours, because autograd was handed them directly, have their ``.grad``
    afterwards as before; those in whose place nothing can be computed with have it when the pass is
    over.
    """
    with torch.no_grad():
        ones = [torch.ones_like(output) for output in outputs]
    with outside_of_everything(), without_torch_function():
        foreign = [leaf for leaf in _leaves(outputs) if not substitutes.are_ours(leaf)]
        gradients = [(leaf, leaf.grad) for leaf in foreign if not stands_for_itself(leaf)]
        for leaf, gradient in gradients:
            _require_assignable(leaf, gradient)
        for leaf, _ in gradients:
            leaf.grad = None
        for leaf in filter(stands_for_itself, foreign):
            before = leaf.grad
            run_at_end_of_pass(partial(setattr, leaf, "grad", before))
            # An assignment has what there was written down, which the engine does not.
            leaf.grad = before
    try:
        _run_engine(outputs, ones)
    finally:
        with without_torch_function():
            for leaf, gradient in gradients:
                leaf.grad = gradient


def _require_assignable(leaf: Tensor, gradient: Tensor | None) -> None:
    """Raise if torch cannot restore the gradient, as for sparse rows and columns."""
    if gradient is None or gradient.layout is leaf.layout or leaf.layout is torch.strided:
        return
    raise BackwardError(
        f"the gradient of a {kind_of(leaf)} parameter cannot be restored after the pass: call "
        "zero_grad() first"
    )


def _run_engine(outputs: Sequence[Tensor], ones: Sequence[Tensor]) -> None:
    with torch.autograd.set_multithreading_enabled(False):
        # torch.autograd.backward would leave substitutes out of what it calls.
        run = engine().run_backward
        interruptible(
            run,
            tuple(outputs),
            tuple(ones),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )


def require_meta_leaves(outputs: Sequence[Tensor]) -> None:
    """Raise on shapes alone if a gradient of a tensor with data would be a meta tensor."""
    with without_torch_function():
        for leaf in _leaves(outputs):
            if not leaf.is_meta:
                raise NeedsValuesError(
                    f"C++ code or a custom function handed autograd a tensor {list(leaf.shape)} "
                    "that has data"
                )


def _leaves(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    waiting = [output.grad_fn for output in outputs]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
            variable = getattr(node, "variable", None)
            if isinstance(variable, Tensor):
                yield variable
