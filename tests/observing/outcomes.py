"""Training programs run plainly and under observers, and all that can be compared afterwards."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from tests.observing.programs import PROGRAMS, Counts, Program
from tests.opening import watched_run
from tests.watching.watching import watch
from torchscan import inspect
from torchscan.sinks import Sink, SinkData
from torchscan.types import Run, Watcher

#: "watch seldom" samples the first step only
Observer = Literal["inspect", "watch", "watch seldom"]
PLAIN: tuple[Observer, ...] = ()
#: what ``torch.compile`` puts on models once Lightning is imported
_OF_OTHERS = {"_compile_kwargs"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training program has left."""

    losses: list[float]
    tensors: Mapping[str, Tensor]
    #: names of attributes and numbers of hooks, by module and parameter
    attributes: Mapping[str, object]
    #: numbers of global hooks, and the functions that an observer might have replaced
    process: Mapping[str, object]
    #: warnings, and lines on standard error
    messages: Sequence[str]
    #: by observer and model
    counts: Mapping[tuple[Observer, str], Counts]
    #: training steps that ``watch`` counts without sampling them, by model
    num_steps: Mapping[str, int]
    #: what observers have found or failed at, as text
    findings: Sequence[str]
    #: optimizer steps that ``inspect`` has seen skipped, by model
    skipped: Mapping[str, int]


@functools.cache
def outcome_of(name: str, observers: tuple[Observer, ...] = PLAIN) -> Outcome:
    """Run a program once under these observers of each of its models."""
    program = PROGRAMS[name]
    training = program.prepare()
    folder = Path(tempfile.mkdtemp())
    printed = io.StringIO()
    runs: dict[str, Run] = {}
    watchers: dict[str, Watcher] = {}
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stderr(printed):
            warnings.simplefilter("always")
            torch.manual_seed(1)
            with contextlib.ExitStack() as stack:
                for model_name, model in training.models.items():
                    if "inspect" in observers:
                        runs[model_name] = stack.enter_context(inspect(model))
                    if "watch" in observers:
                        run = folder / model_name
                        stack.enter_context(watch(model, run, every=1, graph=False))
                    if "watch seldom" in observers:
                        run = folder / model_name
                        watcher = watch(model, run, every=1000, graph=False)
                        watchers[model_name] = stack.enter_context(watcher)
                losses = training.run()
        watched = [each for each in training.models if "watch" in observers]
        recorded = [*watched, *watchers]
        return Outcome(
            losses=losses,
            tensors=_tensors_of(training.models),
            attributes=_attributes_of(training.models),
            process=_process_state(),
            messages=[*(str(each.message) for each in warned), *printed.getvalue().splitlines()],
            counts={
                **{("inspect", each): _count_inspected(run) for each, run in runs.items()},
                **{("watch", each): _count_watched(folder / each) for each in watched},
            },
            num_steps={name: each.state_dict()["step"] for name, each in watchers.items()},
            findings=[
                *(text for each, run in runs.items() for text in _findings_of(each, run)),
                *(text for each in recorded for text in _events_in(folder / each)),
            ],
            skipped={each: run.facts.skipped_steps for each, run in runs.items()},
        )
    finally:
        shutil.rmtree(folder)


def names_and_models(programs: Sequence[Program]) -> list[tuple[str, str]]:
    """Return the names of the programs with each of their models."""
    return [(each.name, model) for each in programs for model in each.expected]


def _tensors_of(models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{name}: {key}": value.detach().clone()
        for name, model in models.items()
        for key, value in model.state_dict().items()
    }


def _attributes_of(models: Mapping[str, nn.Module]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, model in models.items():
        for path, module in model.named_modules():
            hooks = {key: len(value) for key, value in vars(module).items() if "_hooks" in key}
            attributes = sorted(vars(module).keys() - _OF_OTHERS)
            found[f"{name}: {path}"] = (type(module).__qualname__, attributes, hooks)
        for path, parameter in model.named_parameters():
            found[f"{name}: {path} (parameter)"] = _attributes_of_parameter(parameter)
    return found


def _attributes_of_parameter(parameter: nn.Parameter) -> tuple[Any, ...]:
    hooks = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    return (sorted(vars(parameter)), *(len(each or ()) for each in hooks))


def _process_state() -> dict[str, object]:
    optimizer = importlib.import_module("torch.optim.optimizer")  # torch.optim hides it
    scaler = torch.amp.GradScaler
    return {
        "module hooks": [
            (name, len(table))
            for name, table in sorted(vars(module_hooks).items())
            if name.startswith("_global") and table is not None
        ],
        "optimizer hooks": [
            len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
        ],
        "functions": [vars(torch.autograd)["_engine_run_backward"], scaler.scale, scaler.step],
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "random state": torch.get_rng_state().tolist(),
    }


def _count_inspected(run: Run) -> Counts:
    """Without training, the passes are the steps."""
    facts = run.facts
    num_steps = facts.steps + facts.warm_up
    if not facts.trains:
        return Counts(0, num_steps)
    return Counts(num_steps, 0 if facts.evaluation is None else facts.evaluation.passes)


class _Count(Sink):
    """The numbers of steps and passes that a run shows to sinks."""

    def __init__(self) -> None:
        self.by_phase: Counter[str] = Counter()

    def on_data(self, seen: SinkData) -> None:
        """Count a step or a pass."""
        self.by_phase[seen.phase] += 1


def _count_watched(folder: Path) -> Counts:
    counted = _Count()
    watched_run(folder).export(counted)
    return Counts(counted.by_phase["train"], counted.by_phase["eval"])


def _findings_of(name: str, run: Run) -> list[str]:
    return [f"{name}: {each}" for each in run.facts.nonfinite]


def _events_in(folder: Path) -> list[str]:
    run = watched_run(folder)
    return [f"{folder.name}: {each}" for each in (*run.events, *run.missing, *run.lost)]
