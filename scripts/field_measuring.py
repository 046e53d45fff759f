"""One model of the field: whether torchscan records it, and whether its numbers are those that torch counts."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

import torch
from field_arguments import limited
from field_cases import MAX_WITH_DATA, Build, Built, Case, NoInputKnownError
from field_rules import Counted
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from torchscan import Scan, TorchscanError

#: seconds for a comparison, so that one that is slow does not hide that the model was recorded
_LIMIT_TO_COUNT = 45

Answer = dict[str, Any]
NOT_RUN = ("no input", "not built")


def measure(case: Case) -> Answer:
    """Everything about one model, as plain data."""
    start = time.perf_counter()
    answer: Answer = {}
    for device, build in itertools.product(case.devices, case.builds):
        another = _measured(build, device)
        if another["outcome"] not in NOT_RUN or not answer:
            answer = another
        # a model that needs values is measured with data, if it can be
        needs_more = answer["outcome"] == "refused" and device != case.devices[-1]
        if answer["outcome"] not in NOT_RUN and not needs_more:
            break
    return {"name": case.name, **answer, "seconds": round(time.perf_counter() - start, 2)}


def format_error(error: BaseException) -> str:
    """The type of an error and the first lines of what it says."""
    return f"{type(error).__name__}: {' | '.join(str(error).strip().splitlines()[:4])[:700]}"


def _measured(build: Build, device: str) -> Answer:
    try:
        built = build(device, False)
    except NoInputKnownError as error:
        return {"outcome": "no input", "detail": f"no rule for {error}"}
    except Exception as error:
        return {"outcome": "not built", "detail": format_error(error)}
    answer = {"class": type(built.model).__name__, **_scanned(built)}
    if "macs" in answer:
        return answer | _compared(build, device, built, answer)
    if answer["outcome"] == "refused":
        answer |= _judged(build, device, built, answer["detail"])
    return answer


def _scanned(built: Built) -> Answer:
    """The default call."""
    _start_again()
    before = _cached(built.kwargs)
    try:
        scan = Scan(built.model, args=built.args, kwargs=built.kwargs)
        trace, info = scan.trace, scan.info
    except TorchscanError as error:
        return {"outcome": "refused", "detail": format_error(error)}
    except Exception as error:
        where = " | ".join(traceback.format_exc().strip().splitlines()[-5:-1])
        return {"outcome": "crashed", "detail": f"{format_error(error)} at {where}"}
    overall = info["overall"]
    return {
        "outcome": "shapes" if trace.provenance.execution == "abstract" else "real",
        "reason": "; ".join(map(str, trace.provenance.reasons)),
        "without_formula": list(info["without_formula"]),
        "parameters": overall["grad_params"] + overall["nograd_params"],
        "expected": _parameters(built.model),
        "macs": overall["macs"],
        "changed": before != _cached(built.kwargs),
    }


def _start_again() -> None:
    """The same random numbers; and nothing from before in the caches of functions, which would save a pass some operators."""
    torch.manual_seed(0)
    if not any(name.startswith(("transformers.models.", "diffusers.")) for name in sys.modules):
        return
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and str(each.__module__).startswith(
            ("transformers.models", "diffusers")
        ):
            each.cache_clear()


def _parameters(model: nn.Module) -> int:
    """Elements of the distinct parameters: a tied one counts once, a lazy one without a shape not at all."""
    uninitialized = nn.parameter.UninitializedParameter
    return sum(each.numel() for each in model.parameters() if not isinstance(each, uninitialized))


def _cached(kwargs: Mapping[str, Any]) -> int:
    """How many tokens a cache among the arguments holds: a record must not add one."""
    cache: Any = kwargs.get("past_key_values")
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0


def _compared(build: Build, device: str, built: Built, answer: Answer) -> Answer:
    """The counter's number for the model as it is; else in the type that it needs; else of a small model with data."""
    try:
        with limited(_LIMIT_TO_COUNT):
            return _difference("as it is", answer, _counted(built, device))
    except Exception as error:
        failed = error
    if "BF16" in str(failed):
        return _in_bfloat16(build, device, answer)
    if device == "cpu":
        return {"not_counted": format_error(failed)}
    return {"not_counted": format_error(failed)} | _with_data(build)


def _with_data(build: Build) -> Answer:
    """Another record, of a model with two layers on the CPU, and the counter's number for it."""
    try:
        with limited(_LIMIT_TO_COUNT):
            small = _small(build)
            if small is None:
                return {}
            again = _scanned(small)
            if "macs" not in again:
                return {}
            return _difference("small, with data", again, _counted(small, "cpu"))
    except Exception as error:
        return {"not_counted": format_error(error)}


def _small(build: Build) -> Built | None:
    if _parameters(build("meta", True).model) > MAX_WITH_DATA:
        return None
    return build("cpu", True)


def _counted(built: Built, device: str) -> Counted:
    _start_again()
    args, kwargs = copy.deepcopy((built.args, dict(built.kwargs)))
    args, kwargs = tree_map_only(Tensor, lambda each: each.to(device), (args, kwargs))
    return Counted(built.model, args, kwargs)


def _in_bfloat16(build: Build, device: str, answer: Answer) -> Answer:
    """Grouped products on the meta device come in this type only."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        return _difference("in bfloat16", answer, _counted(build(device, False), device))
    except Exception as error:
        return {"not_counted": format_error(error)}
    finally:
        torch.set_default_dtype(torch.float32)


def _difference(how: str, answer: Answer, counted: Counted) -> Answer:
    explained = {
        name: [counted.calls[name], macs] for name, macs in counted.left_out.items() if macs
    }
    rest = answer["macs"] - counted.macs - sum(counted.left_out.values())
    compared = {
        "counted": how,
        "counter": counted.macs,
        "compared": answer["macs"],
        "rules": explained,
        "unexplained": rest,
    }
    return compared | {"without_formula": answer["without_formula"]}


def _judged(build: Build, device: str, built: Built, detail: str) -> Answer:
    """A model that fails without torchscan too was given a wrong input, or has a default config that does not work."""
    alone = _error_alone(built, device)
    if alone is None:
        return {}
    if device == "cpu" or _is_same(alone, detail):
        return {"outcome": "no input", "detail": format_error(alone)}
    try:
        small = _small(build)
    except Exception:
        return {}
    return {} if small is None else _judged_with_data(build, small, "NeedsValues" in detail)


def _judged_with_data(build: Build, small: Built, needs_values: bool) -> Answer:
    """Without its values the whole model is refused in any case; the small one says what happens to it with data."""
    alone = _error_alone(small, "cpu")
    if alone is not None:
        return {} if needs_values else {"outcome": "no input", "detail": format_error(alone)}
    return {"with_data": _scanned(small)["outcome"], **_with_data(build)}


def _is_same(error: Exception, detail: str) -> bool:
    """Whether torchscan passed on what the model says without it; that values are missing, both say in their own words."""
    words = str(error).strip().splitlines()
    return bool(words) and words[0][:60] in detail and "NeedsValues" not in detail


def _error_alone(built: Built, device: str) -> Exception | None:
    try:
        with torch.inference_mode():
            args, kwargs = copy.deepcopy((built.args, dict(built.kwargs)))
            args, kwargs = tree_map_only(Tensor, lambda each: each.to(device), (args, kwargs))
            torch.manual_seed(0)
            built.model(*args, **kwargs)
    except Exception as error:
        return error
    return None
