"""The table of one budget in a budget file, with every key and value checked."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args

from torchscan.analyses.generation.engines import EngineName
from torchscan.analyses.generation.serving_costs import Compute
from torchscan.analyses.generation.stored import stored
from torchscan.budgets.budget_definition import (
    BASELINE_METRICS,
    BUDGET_FILE,
    KEYS,
    STEP_TIME_KEYS,
    Budget,
    GenerationBudget,
    StepLimit,
)
from torchscan.errors import InputError
from torchscan.generation_metrics import OF_GENERATION
from torchscan.measures import Measure
from torchscan.metric_limits import limits_in, limits_of
from torchscan.metrics import METRICS, PER_SAMPLE
from torchscan.precisions import checked_precision
from torchscan.recording.request import Mode
from torchscan.targets.inputs import InputSpec, checked_dtype, parse_input
from torchscan.targets.parsing import parse_target
from torchscan.units import checked_seconds, parse_argument, parse_duration, parse_share, tokens_of

T = TypeVar("T")


class BudgetReader:
    """Reads the table of one budget."""

    def __init__(self, path: Path, name: str, table: dict[str, Any]) -> None:
        self._path = path
        self._name = name
        self._table = table

    def budget(self) -> Budget:
        """Return the budget, with every key and value checked."""
        self._require_known(self._table, [*KEYS, *limits_in(METRICS)], "")
        limits, baseline = self._limits(METRICS), self._text("baseline")
        step_time, generation = self._step_time(), self._generation()
        if not limits and baseline is None and step_time is None and generation is None:
            self._refuse(
                "", 'nothing is limited: give a limit, such as max_params = "25M", or a baseline'
            )
        if baseline is None and "tolerance" in self._table:
            self._refuse(
                "tolerance", "a tolerance needs a baseline: give one, or leave the tolerance out"
            )
        if "latency" in limits and "device" not in self._table:
            self._refuse(
                "max_latency", 'a latency needs a device: give device = "NVIDIA H200", for example'
            )
        return Budget(
            name=self._name,
            target=self._parsed("target", parse_target),
            inputs=self._inputs(),
            dtype=self._parsed("dtype", checked_dtype),
            batch_size=self._positive("batch_size", 1),
            mode=self._one_of("mode", get_args(Mode)),
            training=self._flag("training", default=False),
            optimizer=self._text("optimizer"),
            loop_iterations=self._positive("loop_iterations", None),
            precision=self._parsed("precision", checked_precision),
            device=self._text("device"),
            per_sample=self._per_sample({*limits, *self._table}),
            strict=self._flag("strict", default=True),
            limits=limits,
            baseline=None if baseline is None else self._path.parent / baseline,
            tolerance=self._tolerance(),
            step_time=step_time,
            generation=generation,
            place=f"{self._path.name}: {self._name}",
            folder=self._path.parent.absolute(),
        )

    def _refuse(self, key: str, why: str) -> Any:
        place = f"budgets.{self._name}"
        if key:
            place = f"{place}.{key}"
        raise InputError.about(self._path, f"{place}: {why}")

    def _require_known(self, keys: Collection[str], known: Collection[str], inside: str) -> None:
        for key in keys:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                advice = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
                self._refuse(f"{inside}{key}", f"it is not a key: {advice}")

    def _text(self, key: str) -> str | None:
        value = self._table.get(key)
        if value is not None and (not isinstance(value, str) or not value or "\0" in value):
            self._refuse(key, f"it is {value!r}: give a string")
        return value

    def _parsed(self, key: str, parse: Any) -> Any:
        text = self._text(key)
        return None if text is None else self._try(key, lambda: parse(text))

    def _try(self, key: str, parse: Any) -> Any:
        try:
            return parse()
        except InputError as error:
            return self._refuse(key, error.write(BUDGET_FILE))

    def _inputs(self) -> tuple[InputSpec, ...]:
        value = self._table.get("input", [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self._refuse(
                "input",
                f'it is {value!r}: give a string or a list of strings, such as "3,224,224"',
            )
        return tuple(self._try("input", lambda text=text: parse_input(text)) for text in texts)

    def _positive(self, key: str, default: T, *, is_tokens: bool = False) -> int | T:
        if key not in self._table:
            return default
        value = self._table[key]
        if is_tokens:
            return int(self._try(key, lambda: tokens_of("it", value)))
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._refuse(key, f"it is {value!r}: give a positive number")
        return int(value)

    def _one_of(self, key: str, known: Collection[str]) -> Any:
        value = self._table.get(key)
        if value is not None and value not in known:
            self._refuse(key, f"it is {value!r}: give one of {', '.join(known)}")
        return value

    def _flag(self, key: str, *, default: bool) -> bool:
        value = self._table.get(key, default)
        if not isinstance(value, bool):
            self._refuse(key, f"it is {value!r}: give true or false")
        return bool(value)

    def _per_sample(self, limited: Collection[str]) -> bool:
        """Return whether limits are per sample; there must be one that can be divided."""
        is_asked = self._flag("per_sample", default=False)
        if is_asked and {*PER_SAMPLE, "baseline", "max_step_time"}.isdisjoint(limited):
            divided = ", ".join(f"max_{name}" for name in PER_SAMPLE)
            self._refuse("per_sample", f"it divides {divided} and max_step_time: give one of them")
        return is_asked

    def _limits(self, metrics: Mapping[str, Measure[Any]]) -> dict[str, float]:
        known = limits_in(metrics)
        limits: dict[str, float] = {}
        for key, value in self._table.items():
            if key not in known:
                continue
            if isinstance(value, dict | list):
                self._refuse(key, f"it is {value!r}: give a number, or a string with a unit")
            given = {key: value}
            limits |= self._try(key, lambda given=given: limits_of(given, metrics))
        return limits

    def _generation(self) -> GenerationBudget | None:
        table = self._table.get("generation")
        if table is None:
            return None
        if not isinstance(table, dict):
            self._refuse(
                "generation",
                f"it is {str(table)[:40]!r}: give a table, [budgets.{self._name}.generation]",
            )
        if "device" not in self._table:
            self._refuse(
                "generation",
                'text generation needs a device: give device = "NVIDIA L4", for example',
            )
        return BudgetReader(self._path, f"{self._name}.generation", table).generation()

    def generation(self) -> GenerationBudget:
        """Return the budget of text generation, from a table inside that of a budget."""
        known = [each.name for each in fields(GenerationBudget) if each.name != "limits"]
        self._require_known(self._table, [*known, *limits_in(OF_GENERATION)], "")
        limits = self._limits(OF_GENERATION)
        if not limits:
            self._refuse(
                "", 'nothing is limited: give a limit, such as max_time_per_token = "60 ms"'
            )
        return GenerationBudget(
            prompt=self._positive("prompt", 512, is_tokens=True),
            new=self._positive("new", 128, is_tokens=True),
            weights=self._format("weights"),
            cache=self._format("cache"),
            compute=self._one_of("compute", get_args(Compute)),
            engine=self._one_of("engine", get_args(EngineName)) or "cuda-graph",
            limits=limits,
        )

    def _format(self, key: str) -> str | None:
        text = self._text(key)
        if text is not None:
            self._try(key, lambda: stored(text, key))
        return text

    def _step_time(self) -> StepLimit | None:
        if "max_step_time" not in self._table:
            for key in STEP_TIME_KEYS:
                if key in self._table:
                    self._refuse(key, "it is for a max_step_time, and there is none")
            return None
        most = self._number(
            "max_step_time",
            self._table["max_step_time"],
            parse_duration,
            'a duration, such as "120 ms"',
        )
        measured_on = self._text("measured_on")
        if measured_on is None:
            self._refuse(
                "max_step_time",
                'it needs the device that it was measured on, such as measured_on = "H100"',
            )
        share = self._table.get("step_time_tolerance", 0)
        tolerance = self._share("step_time_tolerance", share)
        return StepLimit(most=most, measured_on=str(measured_on), tolerance=tolerance)

    def _tolerance(self) -> dict[str, float]:
        value = self._table.get("tolerance", 0)
        if isinstance(value, dict):
            self._require_known(value, BASELINE_METRICS, "tolerance.")
            return {key: self._share(f"tolerance.{key}", each) for key, each in value.items()}
        return dict.fromkeys(BASELINE_METRICS, self._share("tolerance", value))

    def _share(self, key: str, value: Any) -> float:
        return self._number(key, value, parse_share, 'a share, such as "1%" or 0.01')

    def _number(self, key: str, value: Any, parse: Callable[[str], float], expected: str) -> float:
        if isinstance(value, str):
            return float(self._try(key, lambda: parse_argument("it", value, parse)))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= sys.float_info.max:
            self._refuse(key, f"it is {str(value)[:40]}: give {expected}")
        if parse is parse_duration:
            return float(self._try(key, lambda: checked_seconds("it", value)))
        return float(value)
