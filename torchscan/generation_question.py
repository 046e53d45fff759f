"""The answers to a question about text generation, for any number of batch sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torchscan.analyses.generation.active_parameters import (
    active_parameters,
    count_parameters,
    weights_bytes,
)
from torchscan.analyses.generation.cache_size import CacheSize
from torchscan.analyses.generation.capacity import longest, work_bytes
from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.generation.serving_margin import serving_margin_of
from torchscan.analyses.generation.shared_passes import SharedPasses
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.roofline import Rates, Roofline, numbers_of, roofline_of
from torchscan.garbage import collected_later
from torchscan.generation_setting import GenerationSetting
from torchscan.notes import Note
from torchscan.once import forget, once
from torchscan.recording.folding import UnfoldableError
from torchscan.recording.generation_passes import Length
from torchscan.recording.kept_passes import Kept
from torchscan.recording.request import require_positive
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompts:
    """Time and memory of the pass over the prompts."""

    #: seconds of one prompt, and until each sequence has its first token
    time_of_one: float
    time_of_all: float
    #: bytes besides weights and caches
    work: int
    #: True if these are the bytes of all prompts at once
    is_of_all: bool
    #: a pass over prompts, without the layers that were left out
    trace: Trace


class GenerationQuestion:
    """A question and its passes, for any number of batch sizes."""

    def __init__(self, shared: SharedPasses, setting: GenerationSetting) -> None:
        self._shared = shared
        self._setting = setting
        #: rooflines of passes over prompts by batch size
        self._prefills: dict[int, Roofline] = {}

    def answer(self, batch_size: int) -> Generation:
        """Return time and memory of generation for a batch size."""
        require_positive("batch_size", batch_size)
        with collected_later():
            try:
                return self._answer(batch_size)
            except UnfoldableError:  # in longer passes, layers differ that are equal in short ones
                self._shared.run_all_layers()
                self._prefills.clear()
                forget(self, "_cache")
                return self._answer(batch_size)

    def _answer(self, batch_size: int) -> Generation:
        asked, shared = self._setting, self._shared
        num_before = shared.num_records
        prompt, new = asked.length.prompt, asked.length.generated
        shared.alone.require_room(prompt)
        # Before all else: then only one pass of all layers is recorded.
        passes = shared.of_batch(batch_size)
        middle = passes.continued(Length(prompt, new // 2))
        trace = middle.short
        prefill = self._prefill(1, prompt)
        decode = self._roofline(middle, graphed=asked.is_gpu and asked.engine.is_graphed)
        prompts = self._prompts(prefill, batch_size)
        memory = self._memory(middle, prompts, batch_size)
        margin = serving_margin_of(
            asked.device,
            asked.engine,
            batch_size,
            decode.error_margin,
            is_mixture=asked.is_mixture,
        )
        return Generation(
            **self._settings(),
            **memory,
            batch_size=batch_size,
            params=count_parameters(trace, shared.sizes),
            active_params=active_parameters(trace, shared.sizes, middle.repeats),
            first_token=prompts.time_of_one,
            first_token_of_all=prompts.time_of_all,
            per_token=decode.time_estimate + asked.engine.host_seconds(batch_size),
            margin=margin,
            prefill=prefill,
            decode=decode,
            num_traces=shared.num_records - num_before,
            without_formula=_unpriced(prompts.trace, trace),
            unreadable_weights=trace.provenance.unreadable_weights,
            assumptions=self._assumptions(decode),
            warnings=tuple(dict.fromkeys((*prefill.warnings, *decode.warnings))),
        )

    def _settings(self) -> dict[str, Any]:
        """Return the fields of an answer that repeat the question."""
        asked, serving = self._setting, self._setting.serving
        return {
            "device": asked.device.name,
            "precision": asked.precision,
            "weights": None if serving.weights is None else str(serving.weights),
            "cache": None if serving.cache is None else str(serving.cache),
            "compute": serving.compute,
            "engine": asked.engine,
            "prompt": asked.length.prompt,
            "new": asked.length.generated,
            "mesh": asked.mesh,
        }

    def _memory(self, middle: Kept, prompts: _Prompts, batch_size: int) -> dict[str, Any]:
        """Return the fields of an answer about memory, given a pass over one more token."""
        asked = self._setting
        length = asked.length.prompt + asked.length.generated
        work = work_bytes(middle)
        held = weights_bytes(middle.short, asked.serving, middle.repeats)
        at_end = self._cache(length)
        room = asked.device.room_bytes - held
        limit = asked.limit if self._cache.may_go_on else length
        peak = max(work, prompts.work)
        max_context = longest(self._cache, (room - peak) // batch_size, length, limit)

        # Each sequence needs a cache and the bytes of its token.
        of_token = work // batch_size
        if prompts.is_of_all:
            of_token = max(of_token, prompts.work // batch_size)
        else:
            room -= prompts.work
        max_batch_size = max(0, room) // max(1, at_end + of_token)
        return {
            "weights_bytes": held,
            "cache_bytes": at_end,
            "cache_bytes_per_token": at_end - self._cache(length - 1),
            "work_bytes": work,
            "prompt_work_bytes": prompts.work,
            "max_context": max_context,
            "max_batch_size": max_batch_size,
        }

    def _prompts(self, prefill: Roofline, batch_size: int) -> _Prompts:
        """Return what the prompts take, given the roofline of one.

        An engine with chunks processes as many prompts in one pass as fit into a chunk, and a
        longer prompt in several passes.
        """
        asked = self._setting
        host, prompt, chunk = asked.engine.host_seconds(1), asked.length.prompt, None
        if not self._cache.is_loop:
            chunk = asked.engine.prompt_chunk
        num_passes = 1
        if chunk is not None and asked.engine.splits_prompts:
            num_passes = -(-prompt // chunk)
        alone = prefill.time_estimate + host * num_passes
        if batch_size == 1:
            whole, together = alone, 1
        elif chunk is None:
            whole, together = self._prefill(batch_size, prompt).time_estimate + host, batch_size
        else:
            together = min(batch_size, max(1, chunk // prompt))
            of_pass = self._prefill(together, prompt).time_estimate
            whole = batch_size / together * (of_pass + host * num_passes)
        kept = self._shared.of_batch(together).prompted(Length(prompt))
        return _Prompts(
            time_of_one=alone,
            time_of_all=max(whole, alone),
            work=work_bytes(kept) // num_passes,
            is_of_all=chunk is None,
            trace=kept.short,
        )

    @once
    def _cache(self) -> CacheSize:
        asked = self._setting
        return CacheSize(
            self._shared.of_batch(1),
            asked.length,
            asked.serving.cache,
            asked.limit,
            is_loop=self._shared.is_loop,
        )

    def _prefill(self, batch_size: int, prompt: int) -> Roofline:
        """Return the roofline of a pass over the prompts of so many sequences."""
        if batch_size not in self._prefills:
            kept = self._shared.of_batch(batch_size).prompted(Length(prompt))
            self._prefills[batch_size] = self._roofline(kept)
        return self._prefills[batch_size]

    def _roofline(self, kept: Kept, *, graphed: bool = False) -> Roofline:
        asked = self._setting
        return roofline_of(
            kept.short,
            Rates(asked.device),
            precision=asked.precision,
            numbers=numbers_of(asked.device, asked.precision),
            compiled=asked.is_gpu and asked.engine.is_graphed,
            serving=asked.serving,
            fabric=asked.fabric,
            graphed=graphed,
            repeats=kept.repeats,
        )

    def _assumptions(self, decode: Roofline) -> tuple[Note, ...]:
        notes = [*self._engine_notes(), *self._beyond()]
        asked = self._setting
        if asked.expert_parallel and asked.mesh is not None:
            notes.append(Note.of("experts-divided", devices=math.prod(asked.mesh.values())))
        whole = self._shared.whole_matrices
        if whole:
            notes.append(Note.of("layers-not-divided", names=", ".join(whole)))
        return (*notes, *decode.assumptions)

    def _engine_notes(self) -> list[Note]:
        engine = self._setting.engine
        if not engine.is_graphed:
            serving = Note.of("eager-serving")
        elif self._setting.is_gpu:
            serving = Note.of("graphed-serving")
        else:
            serving = Note.of("host-serving")
        notes = [serving, Note.of("equal-sequences")]
        name = engine.version or engine.name
        if engine.host_time:
            notes.append(Note.of("engine-host-time", engine=name, seconds=engine.host_time))
        if engine.host_time_per_sequence:
            seconds = engine.host_time_per_sequence
            notes.append(Note.of("engine-sequence-time", engine=name, seconds=seconds))
        if self._setting.unapplied_format is not None:
            quantization = self._setting.unapplied_format
            notes.append(Note.of("checkpoint-format", quantization=quantization))
        if engine.prompt_chunk is not None:
            notes.append(Note.of("prompt-in-chunks", tokens=engine.prompt_chunk))
        return notes

    def _beyond(self) -> list[Note]:
        reach, asked = self._cache.reach, self._setting
        if not self._cache.may_go_on:
            return [Note.of("reach-limited", tokens=reach)]
        if asked.limit is not None and reach >= asked.limit:
            return []
        if self._cache(reach + 1) > self._cache(reach):
            return [Note.of("cache-grows", tokens=reach)]
        return [Note.of("cache-ends", tokens=reach)]


def _unpriced(*traces: Trace) -> tuple[str, ...]:
    """Return the operators without a cost formula, and the modules that were not recorded."""
    names: list[str] = []
    for trace in traces:
        names += operators_without_formula(trace, call_costs(trace))
        names += trace.provenance.unrecorded_modules

    return tuple(dict.fromkeys(names))
