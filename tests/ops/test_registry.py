"""Registering formulas, and what is said of operators without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls, op_names
from tests.versions import before
from torchscan import (
    InputError,
    MissingFormulaError,
    analyze_roofline,
    cost_of,
    crawl_module,
    format_info,
    from_json,
    record,
)
from torchscan.ops import registry
from torchscan.report.cost_table import cost_table
from torchscan.types import TensorSpec, Work


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """Operators that torchscan has never heard of."""
    scope = torch.library.Library("torchscan_tests", "DEF")
    for name in ("mystery", "triple", "broken", "strict", "replaced", "undecided"):
        scope.define(f"{name}(Tensor x) -> Tensor")
        scope.impl(name, lambda x: x * 3, "CompositeExplicitAutograd")
        scope.impl(name, lambda x: torch.empty_like(x), "Meta")
    scope.define("composite(Tensor x) -> Tensor")
    scope.impl("composite", lambda x: x.exp() + 1, "CompositeImplicitAutograd")
    yield
    scope._destroy()


class Mysterious(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.torchscan_tests.mystery(x) + torch.ops.torchscan_tests.mystery(x)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Mysterious()), nn.ReLU())


def test_an_unknown_operator_is_listed_and_makes_lower_bounds_of_all_around_it() -> None:
    info = crawl_module(model(), (4,))
    assert info["without_formula"] == {"torchscan_tests.mystery.default": 2}
    assert {layer["path"]: layer["complete"] for layer in info["layers"]} == {
        "": False,
        "0": True,
        "1": False,
        "1.0": False,
        "2": True,
    }
    assert not info["overall"]["complete"]
    assert info["overall"]["flops"] == 2 * 16 + 4 + 4


def test_strict_raises_and_names_operator_and_layer() -> None:
    with pytest.raises(MissingFormulaError, match=r"torchscan_tests\.mystery\.default in 1\.0"):
        crawl_module(model(), (4,), strict=True)


def test_the_table_marks_lower_bounds() -> None:
    text = format_info(crawl_module(model(), (4,)))
    assert "≥ 40 FLOPs" in text
    assert "torchscan_tests.mystery.default (2×)" in text


def test_a_composite_operator_without_a_price_is_recorded_as_what_it_is_made_of() -> None:
    trace = record(Calls(lambda _, x: torch.ops.torchscan_tests.composite(x)), (4,))
    assert op_names(trace) == ["exp", "add"]


def test_users_price_their_own_operators_once() -> None:
    @cost_of(torch.ops.torchscan_tests.triple)
    def triple(x: TensorSpec, *, out: TensorSpec) -> Work:
        return Work(macs=7, other_flops=x.numel)

    info = crawl_module(Calls(lambda _, x: torch.ops.torchscan_tests.triple(x)), (4,), strict=True)
    assert (info["overall"]["macs"], info["overall"]["flops"]) == (7, 18)
    with pytest.raises(ValueError, match="already has a cost"):
        cost_of(torch.ops.torchscan_tests.triple)(triple)


def test_a_formula_can_take_the_place_of_another() -> None:
    """Also of one that the package brings; and one for all overloads takes the place of those for one of them."""
    model = Calls(lambda _, x: torch.ops.torchscan_tests.replaced(x))

    def priced(macs: int, operator: Any, **options: Any) -> int:
        @cost_of(operator, **options)
        def formula(x: TensorSpec, *, out: TensorSpec) -> Work:
            return Work(macs=macs)

        return int(crawl_module(model, (4,), strict=True)["overall"]["macs"])

    assert priced(1, torch.ops.torchscan_tests.replaced.default) == 1
    with pytest.raises(ValueError, match="replace=True"):
        priced(2, torch.ops.torchscan_tests.replaced.default)
    assert priced(2, torch.ops.torchscan_tests.replaced.default, replace=True) == 2
    assert priced(3, torch.ops.torchscan_tests.replaced, replace=True) == 3


def test_an_operator_made_for_triton_is_one_operator() -> None:
    """Whatever its kernel does is its own affair; here, without Triton, it is made of torch's operators."""

    @torch.library.triton_op("torchscan_tests_triton::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x + x

    @cost_of("torchscan_tests_triton::doubled")
    def formula(x: TensorSpec, *, out: TensorSpec) -> Work:
        return Work(other_flops=7)

    model = Calls(lambda _, x: doubled(x))
    for execute in ("abstract", "real"):
        assert crawl_module(model, (4,), strict=True, execute=execute)["overall"]["flops"] == 7


def test_an_operator_can_be_priced_by_name_before_it_is_loaded() -> None:
    @cost_of("torchscan_tests_later::mystery")
    def formula(x: TensorSpec, *, out: TensorSpec) -> Work:
        return Work(macs=5)

    with torch.library._scoped_library("torchscan_tests_later", "DEF") as scope:
        scope.define("mystery(Tensor x) -> Tensor")
        scope.impl("mystery", lambda x: torch.empty_like(x), "Meta")
        model = Calls(lambda _, x: torch.ops.torchscan_tests_later.mystery(x))
        assert crawl_module(model, (4,), strict=True)["overall"]["macs"] == 5


def test_a_formula_may_say_that_shapes_do_not_tell() -> None:
    @cost_of(torch.ops.torchscan_tests.undecided)
    def formula(x: TensorSpec, *, out: TensorSpec) -> Work | None:
        return Work() if len(x.shape) > 2 else None

    model = Calls(lambda _, x: torch.ops.torchscan_tests.undecided(x))
    assert crawl_module(model, (4,))["without_formula"] == {"torchscan_tests.undecided.default": 1}
    assert crawl_module(model, (4, 4))["without_formula"] == {}


def test_what_a_custom_operator_was_made_as_can_be_priced() -> None:
    @torch.library.custom_op("torchscan_tests_custom::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    @cost_of(doubled)
    def formula(x: TensorSpec, *, out: TensorSpec) -> Work:
        return Work(other_flops=5)

    model = Calls(lambda _, x: doubled(x))
    assert crawl_module(model, (4,), strict=True, execute="real")["overall"]["flops"] == 5


@pytest.mark.parametrize("target", [(torch.relu,), (nn.Linear,), ("foo",), ("mylib::",), ()])
def test_what_is_no_operator_is_refused(target: Any) -> None:
    with pytest.raises(InputError, match=r"not an operator|there is no operator"):
        cost_of(*target)(lambda *_, **__: Work())


@pytest.mark.parametrize("count", [2.5, -2, True, None])
def test_counts_are_whole_numbers(count: Any) -> None:
    with pytest.raises(ValueError, match=r"macs is .*: give a whole number"):
        Work(macs=count)


def test_whole_numbers_of_any_type_are_counts() -> None:
    twelve: Any = np.prod((3, 4))
    assert Work(macs=twelve) == Work(macs=12)


def test_pricing_an_operator_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError):
        cost_of(torch.ops.torchscan_tests.misspelt)


def _overloads() -> list[torch._ops.OpOverload]:
    """Every overload that a formula is registered for, and those of its in-place twin."""
    found = []
    for name in registry._entries:
        namespace, _, rest = name.partition(".")
        packet, _, overload = rest.partition(".")
        for twin in (packet, f"{packet}_"):
            operator = getattr(getattr(torch.ops, namespace), twin, None)
            if isinstance(operator, torch._ops.OpOverloadPacket):
                names = [
                    each
                    for each in operator.overloads()
                    if overload in ("", each) and each != "t" and "Dict" not in each
                ]
                found += [getattr(operator, each) for each in names]
    return found


def test_every_formula_fits_the_schema_of_every_overload_that_it_is_for() -> None:
    """Each required parameter has an argument of the operator to go with."""
    overloads = [each for each in _overloads() if each.namespace == "aten"]
    assert len(overloads) > 800
    for overload in overloads:
        entry = registry._find(registry._entries, overload)
        assert entry is not None
        arguments = overload._schema.arguments
        for position, parameter in enumerate(inspect.signature(entry.formula).parameters.values()):
            if (
                parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                and parameter.default is parameter.empty
            ):
                assert position < len(arguments), (overload, parameter.name)


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda x: torch.add(x, x, out=torch.empty(4)), 4),
        (
            lambda x: torch.max(
                x.view(2, 2), 1, out=(torch.empty(2), torch.empty(2, dtype=torch.long))
            ),
            2,
        ),
        (lambda x: torch.mm(x.view(2, 2), x.view(2, 2), out=torch.empty(2, 2)), 16),
        (lambda x: torch.rsub(x, 1, alpha=2), 5),
        pytest.param(
            lambda x: torch.ops.aten.add.Scalar(x, 1, 2),
            5,
            marks=before("2.9", "its shape function fails"),
        ),
        (lambda x: torch.addcmul(x, x, x, value=2), 12),
        (lambda x: x.clone().unsqueeze_(0).t_(), 0),
        (lambda x: torch.take_along_dim(x, torch.zeros(2, dtype=torch.long), 0), 0),
    ],
)
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_overloads_with_other_arguments(
    function: Callable[[Tensor], Any], flops: int, execute: Any
) -> None:
    info = crawl_module(
        Calls(lambda _, x: function(x)), args=(torch.ones(4),), strict=True, execute=execute
    )
    assert info["overall"]["flops"] == flops


def test_the_target_of_out_is_not_read() -> None:
    info = crawl_module(Calls(lambda _, x: torch.neg(x, out=torch.empty(4))), args=(torch.ones(4),))
    assert (info["overall"]["bytes_read"], info["overall"]["bytes_written"]) == (16, 16)


def test_formulas_may_have_positional_only_parameters() -> None:
    @cost_of(torch.ops.torchscan_tests.strict)
    def strict(x: TensorSpec, /, *, out: TensorSpec) -> Work:
        return Work(macs=x.numel)

    info = crawl_module(Calls(lambda _, x: torch.ops.torchscan_tests.strict(x)), (4,), strict=True)
    assert info["overall"]["macs"] == 4


def test_profiler_marks_are_no_operators() -> None:
    def forward(_: Calls, x: Tensor) -> Tensor:
        with torch.profiler.record_function("part"):
            return x + 1

    assert crawl_module(Calls(forward), (4,), strict=True)["overall"]["flops"] == 4


def test_in_place_views_cost_nothing() -> None:
    info = crawl_module(Calls(lambda _, x: x.t_()), args=(torch.ones(2, 3),))
    assert info["overall"]["dmas"] == 0


def test_spectral_norm_in_training() -> None:
    model = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))
    assert crawl_module(model, (6,), mode="train")["overall"]["macs"] >= 18


def test_products_of_8_bit_integers_count() -> None:
    model = Calls(lambda _, x: torch._int_mm(x, x))
    info = crawl_module(model, args=(torch.ones(32, 32, dtype=torch.int8),))
    assert info["overall"]["macs"] == 32**3


def test_a_formula_that_fails_warns_and_leaves_the_call_unpriced() -> None:
    @cost_of(torch.ops.torchscan_tests.broken)
    def broken(x: TensorSpec, *, out: TensorSpec) -> Work:
        return Work(macs=x.shape[7])

    model = Calls(lambda _, x: torch.ops.torchscan_tests.broken(x) + 1)
    with pytest.warns(
        UserWarning, match="formula .*broken failed on torchscan_tests.broken.default"
    ):
        info = crawl_module(model, (4,))
    assert info["without_formula"] == {"torchscan_tests.broken.default": 1}
    assert info["formula_problems"] == [
        {
            "code": "formula-failed",
            "values": {
                "operator": "torchscan_tests.broken.default",
                "error": "IndexError('tuple index out of range')",
            },
        }
    ]
    reason = (
        "Values are lower bounds, because the cost formula of torchscan_tests.broken.default "
        "failed: IndexError('tuple index out of range')."
    )
    text = format_info(info, width=400)
    assert reason in text
    assert "have no cost formula" not in text
    assert from_json(info.to_json()) == info

    with pytest.warns(UserWarning, match="formula .*broken failed on"):
        table = cost_table(record(model, (4,)))
    assert reason in table.remarks
    with pytest.warns(UserWarning, match="formula .*broken failed on"):
        estimate = analyze_roofline(model, (4,), device="A100 80GB SXM")
    assert reason in [note.sentence for note in estimate.warnings]
    assert "costs-unknown" not in [note.code for note in estimate.warnings]
    with (
        pytest.warns(UserWarning, match="formula .*broken failed on"),
        pytest.raises(MissingFormulaError) as refused,
    ):
        crawl_module(model, (4,), strict=True)
    assert str(refused.value) == (
        "the cost formula of torchscan_tests.broken.default in (the model) failed: "
        "IndexError('tuple index out of range'): leave out strict=True for lower bounds"
    )
