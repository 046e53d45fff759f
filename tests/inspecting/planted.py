"""Training programs with a fault planted in a known step, to be found by `torchscan inspect -- python PROGRAM`.

The line that is to blame ends with ``# here``.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """\
import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
"""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A program, and what has to be said about it."""

    code: str
    #: the step, or None where nothing may be reported
    step: int | None
    #: parts of the sentence
    says: tuple[str, ...] = ()
    #: the number of steps that a GradScaler skips
    skipped: int = 0

    @property
    def program(self) -> str:
        """The whole program."""
        return HEAD + self.code

    @property
    def line(self) -> int | None:
        """The number of the line that is to blame."""
        lines = self.program.splitlines()
        return next(
            (number for number, line in enumerate(lines, 1) if line.endswith("# here")), None
        )


PLANTED = {
    "mixed precision that skips its first steps": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=2.0**-12)
for i in range(20):
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(torch.randn(16, 8)).float(), torch.randint(4, (16,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        step=None,
        skipped=4,
    ),
    "mixed precision, overflow forward": Planted(
        code="""\
class Square(nn.Module):
    def forward(self, x):
        return (x.half() * (300 if step == 12 else 1)).square()  # here
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Square(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for step in range(20):
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(torch.randn(16, 8) * (1 if step != 12 else 9)).float(), torch.randint(4, (16,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        step=12,
        says=("2 (Square)", "aten.pow"),
        skipped=1,
    ),
    "mixed precision, a gradient that no scale saves": Planted(
        code="""\
class Norm(nn.Module):
    def forward(self, x):
        return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-6)
model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), Norm(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for i in range(20):
    loss = F.cross_entropy(model(torch.randn(16, 8) * (i != 9)), torch.randint(4, (16,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        step=9,
        says=("2 (Norm)", "SqrtBackward0"),
        skipped=1,
    ),
    "accumulated gradients": Planted(
        code="""\
class Ratio(nn.Module):
    def forward(self, x):
        return x / x.abs().sum(-1, keepdim=True)  # here
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Ratio(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i in range(40):
    if i == 29:
        with torch.no_grad():
            model[0].bias.sub_(100)
    loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))) / 4
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
        step=29,
        says=("2 (Ratio)", "aten.div", "optimizer step 7"),
    ),
    "a loss in a function": Planted(
        code="""\
def entropy(logits):
    shares = logits.softmax(-1)
    return -(shares * shares.log()).sum(-1)  # here
def loss_of(logits, target, scale):
    return F.cross_entropy(logits, target) - 0.01 * entropy(logits * scale).mean()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(30):
    loss = loss_of(model(torch.randn(16, 8)), torch.randint(4, (16,)), 1 if i != 17 else 1e4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        step=17,
        says=("between the model's output and the loss", "aten.log"),
    ),
    "a loss module": Planted(
        code="""\
class Wing(nn.Module):
    def __init__(self):
        super().__init__()
        self.eps = 1e-3
    def forward(self, result, target):
        distance = (result - target).abs()
        return torch.sqrt(distance - self.eps).mean() if step == 14 else distance.mean()  # here
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = Wing()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(20):
    result = model(torch.randn(16, 8))
    loss = criterion(result, result.detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        step=14,
        says=("Wing", "aten.sqrt"),
    ),
    "NaN in the data at step 300": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(310):
    x = torch.randn(16, 8)
    if i == 300:
        x[3, 2] = math.nan
    optimizer.zero_grad()
    F.cross_entropy(model(x), torch.randint(4, (16,))).backward()
    optimizer.step()
""",
        step=300,
        says=("in the input of the model", "1 NaN"),
    ),
    "NaN in the targets": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(30):
    target = torch.randn(16, 4)
    if i == 22:
        target[3, 2] = math.nan
    optimizer.zero_grad()
    F.mse_loss(model(torch.randn(16, 8)), target).backward()  # here
    optimizer.step()
""",
        step=22,
        says=("between the model's output and the loss", "aten.mse_loss", "target", "1 NaN"),
    ),
    "running statistics": Planted(
        code="""\
class Tracked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(16))
    def forward(self, x):
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.std(0), alpha=0.1)
        return x
model = nn.Sequential(nn.Linear(8, 16), Tracked(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(20):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(1 if i == 11 else 16, 8)), torch.randint(4, (1 if i == 11 else 16,))).backward()
    optimizer.step()
""",
        step=11,
        says=("1 (Tracked)", "average"),
    ),
    "0 / 0 in a masked mean": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    mask = torch.rand(16) > (0.5 if i != 19 else 2)
    losses = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)), reduction="none")
    loss = (losses * mask).sum() / mask.sum()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        step=19,
        says=("between the model's output and the loss", "aten.div"),
    ),
    "all targets ignored": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    target = torch.randint(4, (16,)) if i != 18 else torch.full((16,), -100)
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), target).backward()  # here
    optimizer.step()
""",
        step=18,
        says=("between the model's output and the loss", "aten.nll_loss"),
    ),
    "the gradient of a root at 0, in the loss": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    result = model(torch.randn(16, 8))
    target = result.detach() if i == 13 else torch.randn(16, 4)
    loss = (result - target).square().sum(-1).sqrt().mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        step=13,
        says=("between the model's output and the loss", "SqrtBackward0"),
    ),
    "the gradient of a root at 0, in a module": Planted(
        code="""\
class Length(nn.Module):
    def forward(self, x):
        return x.square().sum(-1, keepdim=True).sqrt()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Length(), nn.Linear(1, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    if i == 13:
        with torch.no_grad():
            model[0].bias.zero_()
            model[0].weight.zero_()
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    optimizer.step()
""",
        step=13,
        says=("2 (Length)", "backward", "SqrtBackward0"),
    ),
    "the deviation of one sample": Planted(
        code="""\
class Standardize(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-5)  # here
model = nn.Sequential(nn.Linear(8, 16), Standardize(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    size = 16 if i < 29 else 1
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(size, 8)), torch.randint(4, (size,))).backward()
    optimizer.step()
""",
        step=29,
        says=("1 (Standardize)", "aten.std"),
    ),
    "a schedule that runs away": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 21 else math.inf)
for i in range(30):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    optimizer.step()  # here
    schedule.step()
""",
        step=21,
        says=("parameter 0.weight", "became", "SGD.step()", "its argument lr is inf"),
    ),
    "an embedding that the program writes to": Planted(
        code="""\
model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    if i == 16:
        with torch.no_grad():
            vector = model[0].weight[3] * 0
            model[0].weight[3] = vector / vector.norm()
    optimizer.zero_grad()
    F.cross_entropy(model(torch.arange(10)), torch.randint(4, (10,))).backward()
    optimizer.step()
""",
        step=16,
        says=("0 (Embedding)", "weight: 8 NaN of 80", "finite after the last optimizer step"),
    ),
    "a hook on a gradient": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    if i == 24:
        model[2].weight.grad.mul_(math.inf).mul_(0)
    optimizer.step()  # here
""",
        step=24,
        says=(
            "the gradient of 2.weight",
            "was not finite before SGD.step()",
            "stored finite values",
        ),
    ),
    "a hook on a tensor": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model[0].weight.register_hook(lambda gradient: gradient * math.nan if i == 12 else gradient)
for i in range(20):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    optimizer.step()
""",
        step=12,
        says=("0 (Linear), backward pass", "a hook on the gradient of weight"),
    ),
    "a model whose forward is called by name": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(20):
    result = model.forward(torch.randn(16, 8))
    loss = result.square().mean()
    if i == 13:
        loss = loss + torch.sqrt(-result.abs()).mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        step=13,
        says=("between the model's output and the loss", "aten.sqrt"),
    ),
    "a gradient written through data": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    if i == 24:
        model[2].weight.grad.data.mul_(math.nan)
    optimizer.step()  # here
""",
        step=24,
        says=(
            "the gradient of 2.weight",
            "was not finite before SGD.step()",
            "stored finite values",
        ),
    ),
    "an optimizer without epsilon": Planted(
        code="""\
model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4))
optimizer = torch.optim.RMSprop([{"params": model[0].parameters()}, {"params": model[1].parameters()}], lr=1e-3, eps=1e-8)
for i in range(30):
    if i == 20:
        optimizer.param_groups[0]["eps"] = 0.0
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randint(9, (16,))), torch.randint(4, (16,))).backward()
    optimizer.step()  # here
""",
        step=20,
        says=("parameter 0.weight", "became NaN in RMSprop.step()", "its gradient is finite"),
    ),
    "two optimizers": Planted(
        code="""\
class Unit(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)  # here
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.unit, self.head = nn.Linear(8, 16), Unit(), nn.Linear(16, 4)
    def forward(self, x):
        return self.head(self.unit(self.body(x).relu()))
model = Both()
first = torch.optim.SGD(model.body.parameters(), lr=1e-3)
second = torch.optim.Adam(model.head.parameters(), lr=1e-3)
for i in range(30):
    if i == 15:
        with torch.no_grad():
            model.body.bias.sub_(100)
    first.zero_grad(); second.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    first.step(); second.step()
""",
        step=15,
        says=("unit (Unit)", "aten.div"),
    ),
    "parts that a trainer calls": Planted(
        code="""\
class Trainer:
    def __init__(self):
        self.encoder, self.decoder = nn.Linear(8, 16), nn.Linear(16, 8)
        self.optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], lr=1e-3)
    def training_step(self, batch, index):
        hidden = self.encoder(batch)
        if index == 18:
            hidden = torch.log(hidden - 100)  # here
        return F.mse_loss(self.decoder(hidden), batch)
    def fit(self):
        for index in range(25):
            loss = self.training_step(torch.randn(16, 8), index)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
Trainer().fit()
""",
        step=18,
        says=("aten.log",),
    ),
    "a checkpointed block": Planted(
        code="""\
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return torch.acos(self.linear(x).tanh() * self.factor)  # here
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(8, 8), Block(), nn.Linear(8, 4)
    def forward(self, x):
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=False))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(25):
    model.block.factor = 0.9 if i != 17 else 90.0
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    optimizer.step()
""",
        step=17,
        says=("block (Block)", "aten.acos"),
    ),
    "tied weights": Planted(
        code="""\
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, tokens):
        return self.head(torch.pow(self.body(self.embedding(tokens)), self.power))  # here
model = Language()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(25):
    model.power = 2.0 if i != 21 else 1.5
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randint(20, (16,))), torch.randint(20, (16,))).backward()
    optimizer.step()
""",
        step=21,
        says=("the model (Language)", "aten.pow"),
    ),
    "a model built and trained in a function": Planted(
        code="""\
def train(seed, fails):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for i in range(12):
        loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
        if fails and i == 9:
            loss = loss * torch.log(loss.detach() - 100)  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
for seed in range(3):
    train(seed, seed == 2)
""",
        step=9,
        says=("between the model's output and the loss",),
    ),
    "a closure": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)
x, target = torch.randn(16, 8), torch.randn(16, 1)
for i in range(20):
    def closure():
        optimizer.zero_grad()
        result = model(x)
        loss = F.mse_loss(result, target) if i != 14 else torch.log(result - 100).mean()  # here
        loss.backward()
        return loss
    optimizer.step(closure)
""",
        step=14,
        says=("between the model's output and the loss", "aten.log"),
    ),
    "dropout": Planted(
        code="""\
class Power(nn.Module):
    def forward(self, x):
        return torch.log(x + shift)  # here
model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Dropout(0.01), Power(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(25):
    shift = 1 if i != 19 else -0.002
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    optimizer.step()
""",
        step=19,
        says=("3 (Power)", "aten.log"),
    ),
    "validation in between": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
i = 0
for epoch in range(5):
    model.train()
    for _ in range(6):
        result = model(torch.randn(16, 8))
        loss = F.cross_entropy(result, torch.randint(4, (16,)))
        if i == 20:
            loss = loss + torch.log(-result.square().mean())  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        i += 1
    model.eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(16, 8))
""",
        step=20,
        says=("between the model's output and the loss", "aten.log"),
    ),
    "a healthy run": Planted(
        code="""\
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((6, 6), -math.inf).triu(1))
    def forward(self, x):
        return (x @ x.transpose(-1, -2) + self.mask).softmax(-1) @ x
model = nn.Sequential(nn.Embedding(20, 16), Masked(), nn.Linear(16, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for i in range(40):
    loss = F.cross_entropy(model(torch.randint(20, (4, 6))).transpose(1, 2), torch.randint(20, (4, 6)))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    loss.item()
""",
        step=None,
    ),
    "a mask that is made anew": Planted(
        code="""\
class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(0, 0))
    def forward(self, x):
        if self.mask.shape[0] < x.shape[1]:
            self.mask = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1)
        return (x @ x.transpose(-1, -2) + self.mask[: x.shape[1], : x.shape[1]]).softmax(-1) @ x
model = nn.Sequential(nn.Embedding(20, 16), Causal(), nn.Linear(16, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for i in range(20):
    length = 6 if i < 12 else 9
    optimizer.zero_grad()
    model(torch.randint(20, (4, length))).square().mean().backward()
    optimizer.step()
""",
        step=None,
    ),
    "a loss that the program skips": Planted(
        code="""\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for i in range(20):
    loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
    if i == 12:
        loss = loss * math.nan
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        step=None,
    ),
}
