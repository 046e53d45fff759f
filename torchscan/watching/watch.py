"""``watch``, which records a model while it trains."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from torch import nn

from torchscan.recording.request import require_module
from torchscan.watching.about import about_of
from torchscan.watching.argument_checks import choice, flag, path
from torchscan.watching.process import WriterProcess
from torchscan.watching.sinks.sink import Sink
from torchscan.watching.starting import START_METHODS, StartMethod
from torchscan.watching.wanted import Chosen, log_of, sinks_of, statistics_of, step_of, wanted_of
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from torchscan.watching.guests import Statistic
from torchscan.watching.watcher import Watcher


@explain_wrong_types
def watch(
    module: nn.Module,
    run: str | os.PathLike[str],
    *,
    every: int | Literal["auto"] = "auto",
    log: Sequence[str] = ("inputs", "outputs", "output_grads", "params", "param_grads"),
    modules: Iterable[Chosen] | None = None,
    sample_n: int = 512,
    sample_norms: bool = False,
    whole: Iterable[str] = (),
    custom: Mapping[str, Statistic] | None = None,
    sinks: Iterable[Sink] = (),
    overhead_budget: float = 0.01,
    step: int | None = None,
    graph: bool = True,
    serve: bool = False,
    start: StartMethod = "spawn",
) -> Watcher:
    """Record the distributions of a model's tensors while it trains, into the folder ``run``.

    Args:
        module: the model. It is not changed.
        run: the folder of the run. If it contains a run, that run is continued.
        every: record every n-th step. "auto": as many steps as ``overhead_budget`` allows, and at
            least eight in each doubling of their number.
        log: tensors to record: "inputs", "outputs", "input_grads", "output_grads", "params" and
            "param_grads".
        modules: modules to record: patterns of paths such as ``"layer*.conv?"``, modules, or
            functions of a path and a module. None: all.
        sample_n: number of values that are sampled from each tensor; smaller tensors completely.
        sample_norms: also record the mean of the samples' L2 norms, for gradients of inputs and
            outputs.
        whole: patterns of labels (:attr:`Series.label`) of series whose values are passed
            completely to ``custom`` and ``sinks``.
        custom: your statistics by name: functions of the values of a series, which run in the
            worker process.
        sinks: destinations of each step, besides the file of the run.
        overhead_budget: share of the training time that watching may take, with ``every="auto"``.
        step: number of the first step; later steps of an earlier process are overwritten. None:
            the step after the last recorded one.
        graph: trace the module graph for the browser, in a process that is forked in the first
            recorded step. Linux only.
        serve: show the run in the browser until this program ends, and print the link.
        start: start method of the worker process: "spawn" (a separate program), or Python's "fork"
            or "forkserver".
    """
    require_module(module)
    folder = path("run", run, "a folder such as 'runs/first'")
    choice("start", start, START_METHODS)
    serve = flag("serve", serve)
    step = None if step is None else step_of(step)
    sinks = sinks_of(sinks)
    log = log_of(log)
    statistics = statistics_of(custom)
    wanted = wanted_of(
        module,
        every=every,
        log=log,
        modules=modules,
        sample_n=sample_n,
        sample_norms=sample_norms,
        whole=whole,
        sinks=sinks,
        overhead_budget=overhead_budget,
        graph=graph,
    )
    if serve:
        from torchscan.watching.explore.serving import require_server

        require_server()
    process = WriterProcess(
        folder, about_of(module, log), sinks=sinks, custom=statistics, start=start, step=step
    )
    watcher = Watcher(module, process, wanted, step)
    if serve and process.is_first:
        from torchscan.watching.explore.serving import serve as served

        try:
            watcher.server = served(run)
        except BaseException:
            watcher.close()  # the caller has no reference to it
            raise
        print(f"torchscan: {watcher.server.url}")  # noqa: T201 - that is what was asked for
    return watcher
