"""What is compared: the record on shapes alone with that of the real pass, and everything before with everything after."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.observables import observables
from tests.random_modules.models import Case
from torchscan import NeedsValuesError, RecordError, Scan, TorchscanError
from torchscan.ops import compute_cost
from torchscan.trace.events import OpCall, TensorSpec
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be."""

    seed: int
    #: what is compared: "operators", "strides", "bytes", …
    what: str
    #: the operator or the attribute, which is the class of the difference together with ``what``
    where: str
    detail: str
    backward: bool = False

    def __str__(self) -> str:
        when = "training step" if self.backward else "inference"
        return f"seed {self.seed}, {when}: {self.what} of {self.where}: {self.detail}"


@dataclass(slots=True)
class Verdict:
    """What came of one module."""

    differences: list[Difference] = field(default_factory=list)
    #: why there is no record on shapes alone
    refusals: list[str] = field(default_factory=list)
    compared: int = 0


def verdict_on(case: Case, *, thorough: bool = True) -> Verdict:
    """Compare all there is to compare about a module; if not ``thorough``, only its forward pass."""
    verdict = Verdict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = _called(case)
        if isinstance(outputs, Exception):
            _compare_failures(case, verdict)
            return verdict
        _compare_passes(
            case, verdict, outputs, backward=False, analyses=thorough and case.seed % _ANALYSED == 0
        )
        if thorough and _is_differentiable(case):
            _compare_passes(case, verdict, None, backward=True, analyses=case.seed % _ANALYSED == 0)
    return verdict


# -- the module itself ---------------------------------------------------------------------------------------------------


def _copied(case: Case) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    module, args, kwargs = copy.deepcopy((case.module, case.args, dict(case.kwargs)))
    return module.train(case.mode == "train"), args, kwargs


def _called(case: Case) -> list[Tensor] | Exception:
    """What the module itself returns."""
    module, args, kwargs = _copied(case)
    try:
        with torch.inference_mode():
            outputs = module(*args, **kwargs)
    except Exception:
        try:
            module, args, kwargs = _copied(case)
            outputs = module(*args, **kwargs)
        except Exception as error:
            return error
    return [each for each in pytree.tree_leaves(outputs) if isinstance(each, Tensor)]


def _is_differentiable(case: Case) -> bool:
    """Whether torch itself can run a backward pass from all its outputs."""
    module, args, kwargs = _copied(case)
    try:
        leaves = [
            each for each in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(each, Tensor)
        ]
        wanted = [each for each in leaves if each.requires_grad]
        torch.autograd.backward(wanted, [torch.ones_like(each) for each in wanted])
    except Exception:
        return False
    return bool(wanted)


# -- both passes ---------------------------------------------------------------------------------------------------------


#: of so many modules the analyses are asked for one: they take longer than the record
_ANALYSED = 4


def _scan(case: Case, execute: Any, *, backward: bool) -> Scan:
    mode: Any = case.mode
    return Scan(
        case.module,
        args=case.args,
        kwargs=case.kwargs,
        mode=mode,
        execute=execute,
        training=backward,
    )


def _compare_passes(
    case: Case, verdict: Verdict, outputs: list[Tensor] | None, *, backward: bool, analyses: bool
) -> None:
    def differs(what: str, where: str, detail: str) -> None:
        verdict.differences.append(Difference(case.seed, what, where, detail, backward))

    before = _everything(case)
    traces: dict[str, Trace] = {}
    for execute in ("abstract", "real"):
        try:
            scan = _scan(case, execute, backward=backward)
            traces[execute] = scan.trace
            if execute == "abstract" and analyses:
                _analyse(scan)
        except NeedsValuesError as error:
            verdict.refusals.append(str(error).splitlines()[0])
        except TorchscanError as error:
            differs("refused", execute, f"{type(error).__name__}: {str(error).splitlines()[0]}")
        except Exception as error:
            differs("crash", execute, repr(error))
        for name in _changed(before, _everything(case)):
            differs("state", name, f"changed by the {execute} pass")
    if len(traces) == 2:
        verdict.compared += 1
        for what, where, detail in _differences(traces["abstract"], traces["real"]):
            differs(what, where, detail)
    for trace in traces.values() if outputs is not None else ():
        recorded = [trace.tensors[index].spec for index in trace.root.outputs]
        made = [(tuple(each.shape), each.dtype) for each in outputs or ()]
        if [(spec.shape, spec.dtype) for spec in recorded] != made:
            differs("outputs", trace.provenance.execution, f"{recorded} instead of {made}")


def _analyse(scan: Scan) -> None:
    """All that is derived from the record."""
    scan.info  # noqa: B018 - with the receptive fields
    with contextlib.suppress(NeedsValuesError):  # another pass: it may refuse
        scan.memory  # noqa: B018


def _compare_failures(case: Case, verdict: Verdict) -> None:
    """A module that fails is reported, and left as it was."""
    for execute in ("abstract", "real"):
        before = _everything(case)
        try:
            _scan(case, execute, backward=False).trace  # noqa: B018
            verdict.differences.append(
                Difference(case.seed, "failure", execute, "recorded, although the module fails")
            )
        except (RecordError, NeedsValuesError):
            pass
        except Exception as error:
            verdict.differences.append(Difference(case.seed, "crash", execute, repr(error)))
        for name in _changed(before, _everything(case)):
            verdict.differences.append(
                Difference(case.seed, "state", name, f"changed by the failing {execute} pass")
            )
    verdict.compared += 1


def _everything(case: Case) -> dict[str, Any]:
    holder = nn.Module()
    vars(holder)["arguments"] = [*case.args, *case.kwargs.values()]
    return {
        "model": observables(case.module),
        "arguments": observables(holder)["modules"][""]["arguments"],
    }


def _changed(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where the two differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            yield from _changed(before.get(name), after.get(name), f"{path}.{name}".strip("."))
    elif before != after:
        yield path


# -- records -------------------------------------------------------------------------------------------------------------

_OF_OUTPUTS = ("shape", "dtype", "stride")
#: operators whose other results are integers for their gradient, of which the kernels of each device make others
_ONE_RESULT = ("aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only")
_OF_COSTS = (
    "macs",
    "flops",
    "elements_read",
    "elements_written",
    "bytes_read",
    "bytes_written",
    "is_complete",
)
_OF_PARAMETERS = (
    "owner",
    "name",
    "identity",
    "is_buffer",
    "requires_grad",
    "numel",
    "stored_bytes",
    "is_used",
)


def _differences(abstract: Trace, real: Trace) -> Iterator[tuple[str, str, str]]:
    """What differs first among the operators, from which all else follows; module calls; parameters."""
    if _computes_gradients(abstract) != _computes_gradients(real):
        return  # one has operators whole, the other in pieces
    for index, (one, other) in enumerate(zip_longest(abstract.ops, real.ops)):
        if (found := _of_calls(one, other)) is not None:
            yield (*found[:2], f"{found[2]}, in {_path(abstract, index)}")
            return
    yield from _unequal("modules", _module_calls(abstract), _module_calls(real))
    yield from _unequal(
        "parameters",
        *[
            [_values(each, _OF_PARAMETERS) for each in trace.parameters]
            for trace in (abstract, real)
        ],
    )


def _computes_gradients(trace: Trace) -> bool:
    return any(each.code == "gradients-in-forward" for each in trace.provenance.reasons)


def _path(trace: Trace, index: int) -> str:
    return trace.path_of(trace.ops[min(index, len(trace.ops) - 1)])


def _of_calls(one: OpCall | None, other: OpCall | None) -> tuple[str, str, str] | None:
    if one is None or other is None or one.signature.op is not other.signature.op:
        return "operators", f"{_name(one)} instead of {_name(other)}", "from here on"
    operator = one.signature.operator
    got = str([(list(spec.shape), spec.stride) for spec in one.signature.inputs])
    for what in _OF_OUTPUTS:
        values = [[_meant(spec, what) for spec in _results(op)] for op in (one, other)]
        if values[0] != values[1]:
            return what, operator, f"{values[0]} instead of {values[1]} for {got}"
    places = [_values(op, ("module_call", "phase", "origin")) for op in (one, other)]
    if places[0] != places[1]:
        return "place", operator, f"{places[0]} instead of {places[1]}"
    costs = [compute_cost(op.signature).cost for op in (one, other)]
    for what in _OF_COSTS:
        values = [getattr(cost, what) for cost in costs]
        if values[0] != values[1]:
            return what, operator, f"{values[0]} instead of {values[1]} for {got}"
    return None


def _results(op: OpCall) -> tuple[TensorSpec, ...]:
    return (
        op.signature.outputs[:1] if op.signature.operator in _ONE_RESULT else op.signature.outputs
    )


def _name(op: OpCall | None) -> str:
    return "nothing" if op is None else str(op.signature.op)


def _meant(spec: TensorSpec, what: str) -> Any:
    """Strides of dimensions of size 1 say nothing, and nor do those of a tensor without elements."""
    if what != "stride":
        return getattr(spec, what)
    return (
        tuple(step for step, size in zip(spec.stride, spec.shape, strict=True) if size > 1)
        if spec.numel
        else ()
    )


def _unequal(what: str, ones: list[Any], others: list[Any]) -> Iterator[tuple[str, str, str]]:
    for one, other in zip_longest(ones, others):
        if one != other:
            yield what, str(one[0] if one else other[0]), f"{one} instead of {other}"
            return


def _module_calls(trace: Trace) -> list[tuple[Any, ...]]:
    names = ("type_name", "path", "call", "depth", "parent", "children")
    return [
        (*_values(call, names), _shapes(trace, call.inputs), _shapes(trace, call.outputs))
        for call in trace.modules
    ]


def _shapes(trace: Trace, tensors: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [trace.tensors[index].spec.shape for index in tensors]


def _values(record: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in names)
