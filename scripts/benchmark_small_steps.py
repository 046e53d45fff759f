"""Overhead of observing small training steps, in CPU time of the training process.

A plain copy of each model, which is never observed, trains in turn with the observed copy: blocks
of a few steps alternate, and the observer is opened before a block and closed after it. It is not
left open while the plain copy trains, because its global hooks would be called there, too, and
make the plain steps slower than they are. Neither opening, closing nor the first steps of a block,
which prepare what later steps reuse, is in the figures; the worker's CPU time has its own column.

``auto`` samples few steps, so a block is longer, and the cost of a sampled step is spread over the
interval that the watcher has chosen.
"""

from __future__ import annotations

import gc
import operator
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.observing.small_models import ActorCritic, Gan, GanTrainer, Graph, GraphNet, PpoTrainer
from tests.torchvision_cpu import torchvision
from torchscan import inspect, open_run, watch
from torchscan.types import WatchedRun, Watcher

#: steps of a block that are measured, and those before them that are not
_BLOCK, _WARM = 15, 2
_ROUNDS = 4
#: steps of a block of ``auto``, and fewer in fewer blocks if a step takes longer than this
_MANY_STEPS, _FEW_STEPS, _ROUNDS_OF_LONG, _LONG_STEP = 128, 36, 3, 0.02
#: the first step of a block of ``auto``: one step in eight is sampled there
_FIRST_STEP = 64
#: seconds without CPU time of the worker after which it has worked off its queue
_IDLE = 0.3
#: seconds in which a worker writes its first step
_PATIENCE = 30.0
OBSERVERS = ("watch", "auto", "inspect")


class Training(NamedTuple):
    """A model, and a function that takes one step of its training."""

    model: nn.Module
    step: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Measured overhead of an observer."""

    #: median CPU time of a plain step, in seconds
    plain: float
    #: CPU time of an observed step ÷ that of a plain one
    ratio: float
    #: middle half of the ratios of pairs of steps, or None
    quartiles: tuple[float, float] | None = None
    #: CPU time of the worker for each step, in seconds, or None without a worker
    worker: float | None = None
    dropped: int = 0
    remark: str = ""


@dataclass
class _Block:
    """CPU times of consecutive steps, in seconds."""

    times: list[float] = field(default_factory=list)
    worker: float = 0.0
    dropped: int = 0


def measure_small_steps(only: str, what: Sequence[str] = OBSERVERS) -> None:
    """Print how many times as much CPU time an observed step takes."""
    header = f"{'model':15}{'observer':10}{'plain':>10}{'ratio':>8}{'quartiles':>14}"
    print(f"{header}{'worker':>11}{'dropped':>9}")
    for name, build in MODELS.items():
        if only.lower() not in name.lower():
            continue
        for observer in what:
            measured = _MEASUREMENTS[observer](build)
            print(f"{name:15}{observer:10}{_format(measured)}", flush=True)


def _format(measured: Ratio) -> str:
    low_high = measured.quartiles
    quartiles = "" if low_high is None else f"{low_high[0]:.2f} … {low_high[1]:.2f}"
    worker = "" if measured.worker is None else f"{1000 * measured.worker:8.2f} ms"
    dropped = "" if measured.worker is None else str(measured.dropped)
    figures = f"{1000 * measured.plain:7.2f} ms{measured.ratio:8.3f}{quartiles:>14}"
    return f"{figures}{worker:>11}{dropped:>9}  {measured.remark}".rstrip()


# -- measuring -----------------------------------------------------------------------------------


def _measure_pairs(
    build: Callable[[], Training], observed_block: Callable[[Training], _Block]
) -> Ratio:
    plain, observed = _build_twice(build)
    pairs: list[tuple[float, float]] = []
    worker, dropped = 0.0, 0
    for _ in range(_ROUNDS):
        time.sleep(_IDLE)  # as before the observed steps: a machine that has rested is slower
        plain_block = _take(plain, _WARM + _BLOCK)
        block = observed_block(observed)
        pairs += zip(plain_block[_WARM:], block.times[_WARM:], strict=True)
        worker += block.worker
        dropped += block.dropped
    ratios = [after / before for before, after in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Ratio(
        plain=statistics.median(before for before, _ in pairs),
        ratio=statistics.median(ratios),
        quartiles=(low, high),
        worker=worker / (_ROUNDS * (_WARM + _BLOCK)),
        dropped=dropped,
    )


def _measure_watch(build: Callable[[], Training]) -> Ratio:
    return _measure_pairs(build, _watched_block)


def _measure_inspect(build: Callable[[], Training]) -> Ratio:
    measured = _measure_pairs(build, _inspected_block)
    return Ratio(plain=measured.plain, ratio=measured.ratio, quartiles=measured.quartiles)


def _build_twice(build: Callable[[], Training]) -> tuple[Training, Training]:
    """Return the plain and the observed training, from equal weights."""
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    return plain, build()


def _take(training: Training, num_steps: int) -> list[float]:
    """Return the CPU time of each step."""
    times = []
    for _ in range(num_steps):
        start = time.process_time()
        training.step()
        times.append(time.process_time() - start)
    return times


def _inspected_block(training: Training) -> _Block:
    gc.collect()
    time.sleep(_IDLE)
    with inspect(training.model, expected=False):
        return _Block(_take(training, _WARM + _BLOCK))


def _watched_block(training: Training) -> _Block:
    """Take steps that are all sampled."""
    gc.collect()
    with _folder() as folder, _watch(training, folder, every=1) as watcher:
        _take(training, _WARM)
        worker = _Worker(folder)
        before = worker.cpu_time_when_idle()
        times = _take(training, _WARM + _BLOCK)
        took = worker.cpu_time_when_idle() - before
        return _Block(times, took, watcher.dropped)


def _measure_auto(build: Callable[[], Training]) -> Ratio:
    """Spread the cost of sampled steps over the interval that the watcher has chosen."""
    plain, observed = _build_twice(build)
    usual = statistics.median(_take(plain, _WARM + _BLOCK))
    is_long = usual > _LONG_STEP
    num_steps = _FEW_STEPS if is_long else _MANY_STEPS
    blocks = []
    for _ in range(_ROUNDS_OF_LONG if is_long else _ROUNDS):
        time.sleep(_IDLE)
        times = _take(plain, _WARM + _BLOCK)[_WARM:]
        blocks.append(_auto_block(observed, num_steps, statistics.median(times)))
    return Ratio(
        plain=statistics.median(block.plain for block in blocks),
        ratio=statistics.median(block.amortized for block in blocks),
        dropped=sum(block.dropped for block in blocks),
        remark=f"not sampled {statistics.median(block.unsampled for block in blocks):.3f}, "
        f"sampled {statistics.median(block.sampled for block in blocks):.2f}, "
        f"one step in {statistics.median_high(block.interval for block in blocks)}",
    )


class _AutoBlock(NamedTuple):
    """Costs of sampled and of other steps."""

    #: CPU time of a plain step before the block, in seconds
    plain: float
    #: CPU time of a step that is not sampled ÷ that of a plain one
    unsampled: float
    #: the same of a step that is sampled, with what its end costs in the next step
    sampled: float
    #: steps from one sample to the next, when the block ended
    interval: int
    #: samples in a step of the program, which may be several training steps
    samples: float
    dropped: int

    @property
    def amortized(self) -> float:
        """CPU time of a step ÷ that of a plain one, with samples at the chosen interval."""
        return self.unsampled + self.samples * (self.sampled - self.unsampled)


def _auto_block(training: Training, num_steps: int, plain: float) -> _AutoBlock:
    gc.collect()
    times: list[float] = []
    with _folder() as folder:
        with _watch(training, folder, every="auto", step=_FIRST_STEP) as watcher:
            _take(training, _WARM)
            _Worker(folder).cpu_time_when_idle()
            marks = [watcher.state_dict()["step"]]
            for _ in range(num_steps):
                times += _take(training, 1)
                marks.append(watcher.state_dict()["step"])
            interval, dropped = _interval_of(watcher), watcher.dropped
        numbers = _sampled_steps(folder)
    is_sampled = [
        any(number in numbers for number in range(first, max(end, first + 1)))
        for first, end in pairwise(marks)
    ]
    is_following = [False, *is_sampled[:-1]]  # the end of a sample is in the next step
    touched = list(map(operator.or_, is_sampled, is_following))
    others = statistics.median(compress(times[_WARM:], map(operator.not_, touched[_WARM:])))
    extra = sum(took - others for took in compress(times[_WARM:], touched[_WARM:]))
    cost_of_sample = extra / max(1, sum(is_sampled[_WARM:]))
    num_training_steps = (marks[-1] - marks[0]) / num_steps
    return _AutoBlock(
        plain=plain,
        unsampled=others / plain,
        sampled=(others + cost_of_sample) / plain,
        interval=interval,
        samples=min(1.0, num_training_steps / interval),
        dropped=dropped,
    )


def _interval_of(watcher: object) -> int:
    """Return how many steps lie between two samples, without the minimum of a short run."""
    return int(getattr(watcher, "_context", watcher).every)


def _sampled_steps(folder: Path) -> set[int]:
    run = open_run(folder / "run")
    if not isinstance(run, WatchedRun):
        raise TypeError(f"{folder} is not a watched run")
    return {*run.steps(), *run.steps("eval")}


_MEASUREMENTS = {"watch": _measure_watch, "auto": _measure_auto, "inspect": _measure_inspect}


@contextmanager
def _watch(
    training: Training, folder: Path, *, every: int | Literal["auto"], step: int | None = None
) -> Iterator[Watcher]:
    """Watch without the graph, for which the process would be forked in a step.

    The worker is forked from a process that has imported torch, or each block would wait for that.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch(
            training.model,
            folder / "run",
            every=every,
            step=step,
            graph=False,
            start="forkserver",
        ) as watcher:
            yield watcher


class _Worker:
    """The worker process of a run, once it has written a step."""

    def __init__(self, folder: Path) -> None:
        number, latest = None, time.monotonic() + _PATIENCE
        while number is None:
            if time.monotonic() > latest:
                raise TimeoutError(f"the worker has written no step within {_PATIENCE:.0f} s")
            time.sleep(0.02)
            run = open_run(folder / "run")
            session = run.about.get("session") if isinstance(run, WatchedRun) else None
            number = (session or {}).get("worker")
        self._file = Path(f"/proc/{number}/stat")
        self._ticks = os.sysconf("SC_CLK_TCK")

    def cpu_time_when_idle(self) -> float:
        """Wait until the worker has nothing to do, and return its CPU time in seconds."""
        took, since = self._cpu_time(), time.monotonic()
        while time.monotonic() - since < _IDLE:
            time.sleep(0.02)
            now = self._cpu_time()
            if now != took:
                took, since = now, time.monotonic()
        return took

    def _cpu_time(self) -> float:
        fields = self._file.read_text().rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / self._ticks


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


# -- models --------------------------------------------------------------------------------------


def _regression(model: nn.Module, x: Tensor) -> Training:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return Training(model, step)


def _resnet() -> Training:
    return _regression(torchvision.models.resnet18().train(), torch.randn(8, 3, 64, 64))


def _transformer() -> Training:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return _regression(nn.TransformerEncoder(layer, 4).train(), torch.randn(8, 64, 128))


def _gan() -> Training:
    gan = Gan()
    return Training(gan, GanTrainer(gan).step)


def _gnn() -> Training:
    model, graph = GraphNet(), Graph.random()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(graph.features, graph.edges), graph.classes).backward()
        optimizer.step()

    return Training(model, step)


def _lora() -> Training:
    """A Llama of two layers whose attention has adapters; its weights are frozen."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(LlamaForCausalLM(config), adapters).train()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    tokens = torch.randint(256, (4, 32))

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return Training(model, step)


def _actor_critic() -> Training:
    agent = ActorCritic()
    return Training(agent, PpoTrainer(agent).step)


def _many_modules() -> Training:
    """2,401 modules: 1,200 blocks of a linear layer and a ReLU."""
    blocks = (each for _ in range(1200) for each in (nn.Linear(8, 8), nn.ReLU()))
    return _regression(nn.Sequential(*blocks), torch.randn(4, 8))


MODELS: dict[str, Callable[[], Training]] = {
    "ResNet-18": _resnet,
    "transformer": _transformer,
    "GAN": _gan,
    "GNN": _gnn,
    "LoRA": _lora,
    "actor–critic": _actor_critic,
    "2,401 modules": _many_modules,
}
