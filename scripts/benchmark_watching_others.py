"""Overhead of observers beside that of other tools, which all log every step.

Blocks of plain and of observed steps alternate, for the models of ``benchmark_small_steps``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from benchmark_small_steps import MODELS, Training
from torch import Tensor, nn

from torchscan import inspect, watch

_ROUNDS, _BLOCK, _WARM = 3, 20, 5
#: seconds before a block, in which processes of the tools start
_SETTLE = 1.0
#: called at the end of each step
Note = Callable[[], None]
Tool = Callable[[nn.Module, Path], AbstractContextManager[Note]]


def compare_with_others(only: str) -> None:
    """Print how many times as long a step takes in wall time, and in CPU time of the training process."""
    os.environ |= {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    chosen = {name: build for name, build in MODELS.items() if only.lower() in name.lower()}
    print(f"{'model':15}{'tool':36}{'plain':>11}{'wall':>8}{'CPU':>8}")
    for name, build in chosen.items():
        for tool, start in TOOLS.items():
            print(f"{name:15}{tool:36}{_compared(build, start)}", flush=True)


def _compared(build: Callable[[], Training], start: Tool) -> str:
    try:
        plain, wall, cpu = _ratios(build, start)
    except ImportError as error:
        return f"  not installed: {error}"
    except Exception as error:
        reason = str(error).partition("\n")[0][:70]
        return f"  does not run: {type(error).__name__}: {reason}"
    return f"{1000 * plain:8.1f} ms{wall:8.2f}{cpu:8.2f}"


def _ratios(build: Callable[[], Training], start: Tool) -> tuple[float, float, float]:
    """Let blocks of steps take turns. A tool gets new models, since some leave their hooks on them."""
    plain_training = build()
    plain, observed = [], []
    for _ in range(_ROUNDS):
        time.sleep(_SETTLE)  # as below: a machine that has rested is slower at first
        plain += _block(plain_training, _nothing)
        training = build()
        with _folder() as folder, start(training.model, folder) as note:
            time.sleep(_SETTLE)
            observed += _block(training, note)
    wall, cpu = _medians(plain)
    slower = _medians(observed)
    return wall, slower[0] / wall, slower[1] / cpu


def _medians(steps: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in steps), statistics.median(cpu for _, cpu in steps)


def _block(training: Training, note: Note) -> list[tuple[float, float]]:
    return [_step(training, note) for _ in range(_WARM + _BLOCK)][_WARM:]


def _step(training: Training, note: Note) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    training.step()
    note()
    return time.perf_counter() - wall, time.process_time() - cpu


def _nothing() -> None:
    pass


@contextmanager
def _folder() -> Iterator[Path]:
    """Tools write into the folder in which they run."""
    folder = Path(tempfile.mkdtemp())
    try:
        with contextlib.chdir(folder):
            yield folder
    finally:
        shutil.rmtree(folder)


# -- tools ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _torchscan(model: nn.Module, folder: Path) -> Iterator[Note]:
    """Without inputs, as TensorBoard below."""
    with _watch(model, folder, ("outputs", "output_grads", "params", "param_grads")):
        yield _nothing


@contextmanager
def _torchscan_with_inputs(model: nn.Module, folder: Path) -> Iterator[Note]:
    """All that TorchExplorer logs."""
    kinds = ("inputs", "outputs", "input_grads", "output_grads", "params", "param_grads")
    with _watch(model, folder, kinds):
        yield _nothing


def _watch(
    model: nn.Module, folder: Path, kinds: tuple[str, ...]
) -> AbstractContextManager[object]:
    return watch(model, folder / "run", every=1, log=kinds, graph=False, start="forkserver")


@contextmanager
def _inspect(model: nn.Module, _: Path) -> Iterator[Note]:
    with inspect(model, expected=False):
        yield _nothing


@contextmanager
def _profiler(_: nn.Module, __: Path) -> Iterator[Note]:
    """Operators on the CPU, without stacks and shapes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield profile.step


@contextmanager
def _tensorboard(model: nn.Module, folder: Path) -> Iterator[Note]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        written = _ToTensorBoard(model, writer)
        yield written.note


class _ToTensorBoard:
    """Writes outputs, their gradients, parameters and their gradients, as one would by hand."""

    def __init__(self, model: nn.Module, writer: Any) -> None:
        self._model, self._writer, self._step = model, writer, 0
        for path, module in model.named_modules():
            module.register_forward_hook(self._hook_of(path or "model"))

    def _hook_of(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor):
                self._write(f"{path}/output", output)
                if output.requires_grad:
                    output.register_hook(
                        lambda gradient: self._write(f"{path}/output_grad", gradient)
                    )

        return hook

    def _write(self, name: str, tensor: Tensor) -> None:
        self._writer.add_histogram(name, tensor.detach(), self._step)

    def note(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._write(f"{name}/param", parameter)
            if parameter.grad is not None:
                self._write(f"{name}/grad", parameter.grad)
        self._step += 1


@contextmanager
def _wandb(model: nn.Module, folder: Path) -> Iterator[Note]:
    """Gradients and parameters: it knows no others."""
    import wandb

    with wandb.init(project="watched", dir=folder) as run:
        run.watch(model, log="all", log_freq=1)
        yield lambda: run.log({})


@contextmanager
def _torchexplorer(model: nn.Module, _: Path) -> Iterator[Note]:
    """What it writes nowhere costs least."""
    _explore(model, "none")
    yield _nothing


@contextmanager
def _torchexplorer_to_wandb(model: nn.Module, folder: Path) -> Iterator[Note]:
    import wandb

    with wandb.init(project="watched", dir=folder) as run:
        _explore(model, "wandb")
        yield lambda: run.log({})


def _explore(model: nn.Module, backend: str) -> None:
    """Its hooks forbid writing to results: activations are told not to, and batch normalization has no gradients logged."""
    import torchexplorer

    torchexplorer.watch(
        model,
        log_freq=1,
        disable_inplace=True,
        ignore_io_grad_classes=[nn.BatchNorm2d],
        backend=backend,
    )


TOOLS: dict[str, Tool] = {
    "torchscan.watch": _torchscan,
    "torchscan.watch, with inputs": _torchscan_with_inputs,
    "torchscan.inspect": _inspect,
    "torch.profiler": _profiler,
    "TensorBoard add_histogram": _tensorboard,
    "wandb.watch (parameters alone)": _wandb,
    "TorchExplorer (written nowhere)": _torchexplorer,
    "TorchExplorer (to wandb)": _torchexplorer_to_wandb,
}
