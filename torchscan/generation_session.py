"""The session in which estimates of a generation share a divided model and its passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from torch import nn

from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.generation.serving_costs import Compute
from torchscan.analyses.generation.shared_passes import LayerCheck, SharedPasses
from torchscan.analyses.generation.spread_model import SpreadModel
from torchscan.errors import Argument, Give, InputError, RecordError
from torchscan.generation_question import GenerationQuestion
from torchscan.generation_setting import GenerationOptions, GenerationSetting, require_rate
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.generation_passes import Length, Step
from torchscan.recording.precision import type_of
from torchscan.recording.pretended_group import pretended
from torchscan.recording.sharding import Apply
from torchscan.recording.state import original_of
from torchscan.terminal import progress as told
from torchscan.units import Tokens


@contextlib.contextmanager
def opened_generation(
    module: nn.Module,
    prompt: Tokens,
    new: Tokens,
    options: GenerationOptions,
    checks: dict[Length, LayerCheck] | None = None,
) -> Iterator[Callable[..., Generation]]:
    """Return a function that estimates a batch size, which shares records with the others.

    Its second argument is ``compute``. ``checks`` is what other calls found out about this model
    and precision.
    """
    module = original_of(module)
    setting = GenerationSetting.of(module, prompt, new, options)
    with (
        explained_steps(module, options.step, is_shown=options.progress),
        _divided_model(module, setting, options.apply) as spread,
    ):
        shared = SharedPasses(
            spread,
            step=options.step,
            inputs=options.inputs,
            kernels=setting.kernels,
            precision=setting.precision,
            length=setting.length,
            limit=setting.limit,
            checks={} if checks is None else checks,
        )

        @lru_cache(maxsize=8)
        def question_for(compute: Compute | None) -> GenerationQuestion:
            serving = options.serving_of(module, compute)
            require_rate(setting.device, serving)
            return GenerationQuestion(shared, replace(setting, serving=serving))

        def answer(batch_size: int, compute: Compute | None = options.compute) -> Generation:
            return question_for(compute).answer(batch_size)

        yield answer


@contextlib.contextmanager
def explained_steps(module: nn.Module, step: Step | None, *, is_shown: bool) -> Iterator[None]:
    """Show progress, and explain of a model that fails how models that generate are called."""
    name = type_name_of(module)
    with told(f"torchscan: {name}, token by token", is_shown=is_shown):
        try:
            yield
        except RecordError as error:
            if step is not None:
                raise
            raise _with_advice(error, name) from error.__cause__


def _with_advice(error: RecordError, name: str) -> RecordError:
    """Return the error in one line, without the inputs, which the user did not choose."""
    found = RecordError(
        f"{name} cannot be run token by token: {error.problem}",
        "; a model that generates takes tokens and the cache that it returned: give its other "
        "arguments as ",
        *(Give("inputs"), ", or ", Give("step"), ", a function that calls the model"),
    )
    found.so_far, found.failed = error.so_far, error.failed
    return found


@contextlib.contextmanager
def _divided_model(
    module: nn.Module, setting: GenerationSetting, apply: Apply | None
) -> Iterator[SpreadModel]:
    """Simulate the mesh, if there is one, for the model that is divided among its devices."""
    if setting.mesh is None:
        if apply is not None:
            raise InputError(
                Argument("apply"),
                " shards the model over a mesh: give ",
                Give("mesh", {"tp": 8}),
                ", for example",
            )
        yield SpreadModel(module, None, None, None)
        return
    if apply is None and not setting.mesh.keys() <= {"dp", "tp"}:
        raise InputError.of_value(
            "mesh",
            dict(setting.mesh),
            'name its dimensions "dp" and "tp", or give ',
            Argument("apply"),
            "; ",
            Give("expert_parallel", True),
            " divides experts",
        )
    with pretended(setting.mesh, 0) as devices:
        dtype = None if setting.precision is None else type_of(setting.precision)
        spread = SpreadModel(
            module,
            devices,
            apply,
            dtype,
            expert_parallel=setting.expert_parallel,
            is_engine=setting.engine.is_graphed,
        )
        is_divided = setting.expert_parallel or setting.mesh.get("tp", 1) > 1
        try:
            yield spread
        except RecordError as error:
            if apply is not None or not is_divided:
                raise
            raise _failed_on_mesh(error, module) from error


def _failed_on_mesh(error: RecordError, module: nn.Module) -> InputError:
    """Return the error for a model whose part on one device cannot run."""
    return InputError(
        f"one device cannot run its part of {type_name_of(module)}: {error.problem}: if the model "
        "runs without ",
        Argument("mesh"),
        ", give ",
        Give("apply"),
        ", a function of the model and the mesh that shards it",
    )
