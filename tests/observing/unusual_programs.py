"""Programs that change, copy or share modules, or train in a mode that one does not expect."""

from __future__ import annotations

import copy
import io

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.observing.loops import batch, mlp, repeated, validate
from tests.observing.training_program import MODEL, Counts, Training, program


def _update(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@program(3, Counts(3))
def trained_in_eval_mode(num_steps: int) -> Training:
    """Fine-tuning with the statistics of batch normalization as they are."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take_step(_: int) -> float:
        x, target = batch()
        return _update(optimizer, F.cross_entropy(model(x), target))

    return repeated(model, num_steps, take_step)


@program(3, Counts(0, 3))
def optimized_input(num_steps: int) -> Training:
    """A frozen model in ``eval`` mode, whose input is trained."""
    model = mlp().eval().requires_grad_(False)
    x = torch.randn(2, 8, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=0.1)

    def take_step(_: int) -> float:
        return _update(optimizer, -model(x)[:, 0].mean())

    return repeated(model, num_steps, take_step)


@program(4, Counts(4, 2))
def evaluation_in_inference_mode(num_steps: int) -> Training:
    model = mlp(dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.inference_mode()
    def evaluate() -> None:
        model.eval()
        model(batch()[0])
        model.train()

    def take_step(index: int) -> float:
        x, target = batch()
        loss = _update(optimizer, F.cross_entropy(model(x), target))
        if index % 2:
            evaluate()
        return loss

    return repeated(model, num_steps, take_step)


@program(3, {"first": Counts(3), "second": Counts(3)})
def shared_trunk(num_steps: int) -> Training:
    """Two models in turn, which have their first layer in common."""
    trunk = nn.Linear(8, 16)
    first, second = (nn.Sequential(trunk, nn.ReLU(), nn.Linear(16, 3)) for _ in range(2))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, second)]

    def run() -> list[float]:
        losses = []
        for _ in range(num_steps):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                x, target = batch()
                losses.append(_update(optimizer, F.cross_entropy(model(x), target)))
        return losses

    return Training({"first": first, "second": second}, run)


@program(4, Counts(4))
def growing_model(num_steps: int) -> Training:
    """After half of the steps a layer is added, and a group of parameters."""
    model = nn.Sequential(nn.Linear(8, 3))

    def run() -> list[float]:
        losses = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for index in range(num_steps):
            if index == num_steps // 2:
                model.append(nn.ReLU()).append(nn.Linear(3, 3))
                optimizer.add_param_group({"params": list(model[2].parameters())})
            x, target = batch()
            losses.append(_update(optimizer, F.cross_entropy(model(x), target)))
        return losses

    return Training({MODEL: model}, run)


@program(3, Counts(3))
def lazy_layers(num_steps: int) -> Training:
    """The first call creates the weights; the optimizer is made after it."""
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(inplace=True), nn.LazyLinear(3))

    def run() -> list[float]:
        losses: list[float] = []
        optimizer: torch.optim.Optimizer | None = None
        for _ in range(num_steps):
            x, target = batch()
            loss = F.cross_entropy(model(x), target)
            if optimizer is None:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            losses.append(_update(optimizer, loss))
        return losses

    return Training({MODEL: model}, run)


@program(3, Counts(3))
def sparse_embedding(num_steps: int) -> Training:
    """Sparse gradients and dense ones, with an optimizer for each."""
    model = nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 3))
    sparse = torch.optim.SparseAdam(model[0].parameters(), lr=0.1)
    dense = torch.optim.Adam(model[1].parameters(), lr=0.1)

    def take_step(_: int) -> float:
        loss = F.cross_entropy(model(torch.randint(20, (4, 5))), torch.randint(3, (4,)))
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        return loss.item()

    return repeated(model, num_steps, take_step)


@program(3, Counts(3, 1))
def copies_while_training(num_steps: int) -> Training:
    """The best model is copied, and evaluated at the end; a file of it is written and read."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> list[float]:
        losses, best = [], model
        for _ in range(num_steps):
            x, target = batch()
            losses.append(_update(optimizer, F.cross_entropy(model(x), target)))
            best = copy.deepcopy(model)
            file = io.BytesIO()
            torch.save(best, file)
            file.seek(0)
            read = torch.load(file, weights_only=False)
            with torch.no_grad():
                losses.append(read(x).sum().item())
        validate(best, 2)
        validate(model, 1)
        return losses

    return Training({MODEL: model}, run)


@program(3, Counts(3))
def spectral_normalization(num_steps: int) -> Training:
    """A parametrized weight, which is computed anew in each call."""
    model = mlp()
    torch.nn.utils.parametrizations.spectral_norm(model[0])
    torch.nn.utils.parametrizations.weight_norm(model[3])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def take_step(_: int) -> float:
        x, target = batch()
        return _update(optimizer, F.cross_entropy(model(x), target))

    return repeated(model, num_steps, take_step)


@program(3, Counts(3))
def hooks_of_the_program(num_steps: int) -> Training:
    """The program has hooks of its own, which change an output and a gradient."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> list[float]:
        handles = [
            model[1].register_forward_hook(lambda _module, _args, output: 1.5 * output),
            model[3].register_full_backward_hook(lambda _module, grad_input, _output: grad_input),
            model[0].get_parameter("weight").register_hook(lambda gradient: 0.5 * gradient),
        ]
        losses = []
        for _ in range(num_steps):
            x, target = batch()
            losses.append(_update(optimizer, F.cross_entropy(model(x), target)))
        for handle in handles:
            handle.remove()
        return losses

    return Training({MODEL: model}, run)


@program(2, {"generator": Counts(2, 2), "discriminator": Counts(2 * 2)})
def gan_with_frozen_parts(num_steps: int) -> Training:
    """The generator is frozen in the discriminator's step, and the other way round.

    The pass of the frozen generator is an evaluation: it has no gradients. Through the frozen
    discriminator they pass to the generator, which is a step of both.
    """
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    generating = torch.optim.Adam(generator.parameters(), lr=1e-3)
    discriminating = torch.optim.Adam(discriminator.parameters(), lr=1e-3)

    def run() -> list[float]:
        losses = []
        for _ in range(num_steps):
            generator.requires_grad_(False)
            fake = generator(torch.randn(4, 4))
            wrong = F.softplus(-discriminator(torch.randn(4, 8))) + F.softplus(discriminator(fake))
            losses.append(_update(discriminating, wrong.mean()))
            generator.requires_grad_(True)
            discriminator.requires_grad_(False)
            convinced = F.softplus(-discriminator(generator(torch.randn(4, 4))))
            losses.append(_update(generating, convinced.mean()))
            discriminator.requires_grad_(True)
        return losses

    return Training({"generator": generator, "discriminator": discriminator}, run)
