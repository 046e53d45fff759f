"""Programs that use autograd in other ways than one backward pass and one optimizer step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.observing.loops import batch, mlp, repeated
from tests.observing.training_program import MODEL, Counts, Training, program


@program(2, Counts(4 * 2))
def closure_of_lbfgs(num_steps: int) -> Training:
    """The optimizer calls its closure, forward and backward, four times in each of its steps."""
    model = mlp()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.1, max_iter=4, tolerance_grad=0, tolerance_change=0
    )

    def take_step(_: int) -> float:
        x, target = batch()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    return repeated(model, num_steps, take_step)


def _critic() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


@program(3, Counts(3))
def gradient_penalty(num_steps: int) -> Training:
    """WGAN-GP: the norm of the gradient at a mix of real and fake inputs is part of the loss."""
    critic = _critic()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        real, fake = torch.randn(4, 8), torch.rand(4, 8)
        loss = critic(fake).mean() - critic(real).mean()
        mixed = real.lerp(fake, torch.rand(4, 1)).requires_grad_()
        (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = loss + 10 * (gradient.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(critic, num_steps, take_step)


@program(3, Counts(3))
def penalty_before_other_calls(num_steps: int) -> Training:
    """R1: gradients of inputs are computed between two calls of the same step."""
    critic = _critic()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        real, fake = torch.randn(4, 8).requires_grad_(), torch.rand(4, 8)
        of_real = critic(real)
        (gradient,) = torch.autograd.grad(of_real.sum(), real, create_graph=True)
        loss = F.softplus(-of_real).mean() + 5 * gradient.square().sum(1).mean()
        loss = loss + F.softplus(critic(fake)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(critic, num_steps, take_step)


@program(3, Counts(3))
def adversarial_examples(num_steps: int) -> Training:
    """FGSM: the gradient of the input, without those of parameters, gives the next input."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, target = batch()
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), target), x)
        loss = F.cross_entropy(model((x + 0.1 * gradient.sign()).detach()), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(2 * 3))
def sharpness_aware(num_steps: int) -> Training:
    """SAM: two forward and backward passes, of which the second is at other weights."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, target = batch()
        F.cross_entropy(model(x), target).backward()
        parameters = list(model.parameters())
        norm = torch.stack([each.grad.norm() for each in parameters if each.grad is not None])
        moves = [0.05 * each.grad / norm.norm() for each in parameters if each.grad is not None]
        with torch.no_grad():
            for each, move in zip(parameters, moves, strict=True):
                each.add_(move)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        with torch.no_grad():
            for each, move in zip(parameters, moves, strict=True):
                each.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(2 * 3))
def inner_loop(num_steps: int) -> Training:
    """MAML: an inner step by ``functional_call``, then an outer one through it."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        weights: dict[str, Tensor] = dict(model.named_parameters())
        x, target = batch()
        inner = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), target)
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        adapted = {
            name: each - 0.1 * gradient
            for (name, each), gradient in zip(weights.items(), gradients, strict=True)
        }
        x, target = batch()
        loss = F.cross_entropy(torch.func.functional_call(model, adapted, (x,)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def optimizer_in_the_backward_pass(num_steps: int) -> Training:
    """Each parameter has an optimizer, which makes its step as the gradient arrives."""
    model = mlp()

    def run() -> list[float]:
        optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

        def update(parameter: Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            optimizers[parameter].zero_grad()  # type: ignore[index]

        handles = [each.register_post_accumulate_grad_hook(update) for each in model.parameters()]
        losses = []
        for _ in range(num_steps):
            x, target = batch()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            losses.append(loss.item())
        for handle in handles:
            handle.remove()
        return losses

    return Training({MODEL: model}, run)


@program(3, Counts(3))
def gradients_without_backward(num_steps: int) -> Training:
    """``torch.autograd.grad``, and an update by hand."""
    model = mlp()
    parameters = list(model.parameters())

    def take_step(_: int) -> float:
        x, target = batch()
        loss = F.cross_entropy(model(x), target)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for each, gradient in zip(parameters, gradients, strict=True):
                each.sub_(gradient, alpha=0.1)
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def functional_gradients(num_steps: int) -> Training:
    """``torch.func.grad_and_value`` of the parameters, and an optimizer that is given them."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(weights: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), target)

    def take_step(_: int) -> float:
        weights = {name: each.detach() for name, each in model.named_parameters()}
        gradients, loss = torch.func.grad_and_value(loss_of)(weights, *batch())
        for name, each in model.named_parameters():
            each.grad = gradients[name]
        optimizer.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def gradients_of_samples(num_steps: int) -> Training:
    """DP-SGD: the gradient of each sample by ``vmap``, clipped, with noise."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(weights: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, weights, (x[None],))
        return F.cross_entropy(logits, target[None])

    def take_step(_: int) -> float:
        weights = {name: each.detach() for name, each in model.named_parameters()}
        by_sample = torch.func.vmap(torch.func.grad_and_value(loss_of), in_dims=(None, 0, 0))
        gradients, losses = by_sample(weights, *batch())
        for name, each in model.named_parameters():
            norms = gradients[name].flatten(1).norm(dim=1).clamp(min=1.0)
            clipped = gradients[name] / norms.view(-1, *[1] * each.dim())
            each.grad = clipped.mean(0) + 0.01 * torch.randn_like(each)
        optimizer.step()
        return losses.mean().item()

    return repeated(model, num_steps, take_step)
