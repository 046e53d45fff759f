"""Programs for older releases and other tools run, or get one line that says what to write."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
import torchscan.crawler
import torchscan.modules
import torchscan.utils
from torchscan import InputError

PACKAGE = Path(torchscan.__file__).parent
OLD_REPORT = Path(__file__).parent / "report" / "report_of_0_1_0.json"
HINTS = tomllib.loads((PACKAGE / "hints.toml").read_text(encoding="utf-8"))
#: name -> the end of its message, of all names that have one
MESSAGES = {
    name: f"{origin}: write {code}"
    for origin, names in HINTS["names"].items()
    for name, code in names.items()
}
for home, names in HINTS["moved"].items():
    MESSAGES |= {name: f"has moved in 1.0: write {home}.{name}" for name in names}
#: names of them that torchscan does not have
MISSING = sorted(MESSAGES.keys() - set(torchscan.__all__))
MOVED = [name for name in MISSING if MESSAGES[name].startswith("has moved")]
#: name of another tool -> code to write that needs no more than a model and a shape
CODE = {
    name: code
    for origin, names in HINTS["names"].items()
    for name, code in names.items()
    if origin.startswith("is from") and not code.startswith(("cost_of", "inspect"))
}


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))


# -- modules of 0.1 and 0.2 ----------------------------------------------------------------------


@pytest.mark.slow
def test_old_imports_work_in_a_new_process() -> None:
    code = """
import torchscan
assert torchscan.utils.unit_scale(1000) == (1, "k")
assert torchscan.modules.module_macs is torchscan.module_macs
from torchscan.modules.flops import module_flops
import torchscan.modules.receptive as receptive
import torchscan.process.memory
from torchscan.utils import aggregate_info, format_info, format_name, unit_scale
from torchscan.crawler import apply, crawl_module, summary
assert module_flops is torchscan.module_flops is torchscan.modules.macs.module_flops
assert receptive.module_rf is torchscan.module_rf
assert torchscan.modules.memory.module_dmas is torchscan.module_dmas
assert torchscan.process.memory.get_process_gpu_ram is torchscan.get_process_gpu_ram
assert aggregate_info is torchscan.aggregate_info and format_info is torchscan.format_info
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


def test_functions_of_modules_take_what_they_took() -> None:
    convolution = nn.Conv2d(3, 8, 3)
    x = torch.rand(1, 3, 32, 32)
    y = convolution(x)
    macs = 8 * 30 * 30 * 3 * 3 * 3
    assert torchscan.modules.module_flops(convolution, (x,), y) == 2 * macs
    assert torchscan.modules.module_macs(convolution, x, y) == macs
    assert torchscan.modules.module_rf(convolution, x, y) == (3, 1, 0)


def test_utils_return_what_they_returned() -> None:
    assert torchscan.utils.unit_scale(123456) == (123.456, "k")
    assert torchscan.utils.unit_scale(2e12) == (2.0, "T")
    assert torchscan.utils.unit_scale(999) == (999, "")
    assert torchscan.utils.format_name("conv") == "conv"
    assert torchscan.utils.format_name("conv", 1) == "├─conv"
    assert torchscan.utils.format_name("conv", 3) == "|    |    └─conv"


def test_apply_calls_functions_of_0_1_2_and_of_0_1_0() -> None:
    module = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh())
    paths: list[tuple[str, str]] = []
    torchscan.crawler.apply(
        module, lambda each, path: paths.append((type(each).__name__, path)), "net"
    )
    assert paths == [
        ("Sequential", "net"),
        ("Sequential", "net.0"),
        ("ReLU", "net.0.0"),
        ("Tanh", "net.1"),
    ]
    depths: list[tuple[int, str]] = []
    torchscan.crawler.apply(module, lambda _, depth, name: depths.append((depth, name)))
    assert depths == [(0, "sequential"), (1, "0"), (2, "0"), (1, "1")]


def test_positional_arguments_of_0_1_and_0_2_work(
    model: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    torchscan.summary(model, (3, 32, 32), "mid", 1, True, True)
    assert "Stride" in capsys.readouterr().out
    info = torchscan.crawl_module(model, [(3, 32, 32)], torch.float32)
    keys = {"grad_params", "nograd_params", "param_size", "num_buffers", "buffer_size"}
    assert info["overall"].keys() > keys
    assert info["overheads"].keys() == {"cuda", "framework"}
    keys |= {"name", "depth", "type", "input_shape", "output_shape", "is_shared", "is_leaf"}
    keys |= {"flops", "macs", "dmas", "rf", "s", "p"}
    assert info["layers"][0].keys() > keys


def test_args_and_kwargs_of_0_2_work() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, *, scale: float) -> Tensor:
            return x * scale

    info = torchscan.crawl_module(Scaled(), args=(torch.rand(2, 3),), kwargs={"scale": 2.0})
    assert info["overall"]["flops"] == 2 * 3


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MISSING)
def test_a_name_that_is_missing_says_in_one_line_what_to_write(name: str) -> None:
    message = f"torchscan.{name} {MESSAGES[name]}"
    assert "\n" not in message
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        getattr(torchscan, name)
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        exec(f"from torchscan import {name}")  # noqa: S102
    assert not hasattr(torchscan, name)
    assert name not in {each.stem for each in PACKAGE.iterdir()}


def test_a_name_has_one_message_with_code() -> None:
    names = [
        name for group in (*HINTS["names"].values(), *HINTS["moved"].values()) for name in group
    ]
    assert len(names) == len(set(names))
    for group in HINTS["names"].values():
        for code in group.values():
            ast.parse(code, mode="eval")


@pytest.mark.parametrize("name", MOVED)
def test_a_moved_name_is_where_the_message_says(name: str) -> None:
    module, _, attribute = MESSAGES[name].rpartition(" ")[2].rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("code", sorted(set(CODE.values())))
def test_what_to_write_instead_of_another_tool_runs(code: str, model: nn.Module) -> None:
    public = {each: getattr(torchscan, each) for each in torchscan.__all__}
    given = {"torchscan": torchscan, "module": model, "input_shape": (3, 32, 32)}
    eval(code, public | given)  # noqa: S307


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "from torchscan.compare import compare_reports",
            "torchscan.compare was a module in torchscan 0.1 or 0.2: "
            "write torchscan.compare(before, after)",
        ),
        (
            "from torchscan.report import IncompleteAnalysisError",
            "torchscan.report.IncompleteAnalysisError was in torchscan 0.2: "
            "write torchscan.MissingFormulaError",
        ),
        (
            "from torchscan.process import measure_peak_memory",
            "torchscan.process.measure_peak_memory was in torchscan 0.2: "
            "write estimate_memory(module, input_shape).peak_bytes",
        ),
        (
            "from torchscan.modules.flops import flops_linear",
            "torchscan.modules.flops_linear was internal to torchscan 0.1 and 0.2: "
            "write module_flops(module, inputs)",
        ),
        (
            "from torchscan.utils import format_line_str",
            "torchscan.utils.format_line_str was internal to torchscan 0.1 and 0.2: "
            "write format_info(info)",
        ),
    ],
)
def test_an_import_says_what_to_write(statement: str, message: str) -> None:
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        exec(statement)  # noqa: S102


def test_other_names_are_missing_as_in_any_module() -> None:
    for name in ("nothing", "modules.nothing", "utils.nothing", "process.nothing"):
        module, _, attribute = f"torchscan.{name}".rpartition(".")
        with pytest.raises(AttributeError, match=f"^module '{module}' has no attribute 'nothing'"):
            getattr(importlib.import_module(module), attribute)
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing' from"):
        exec("from torchscan import nothing")  # noqa: S102
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'torchscan\.nothing'"):
        importlib.import_module("torchscan.nothing")


# -- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["totals", "schema_version", "diagnostics", "operator_flops", "unpriced"]
)
def test_keys_of_older_reports_are_answered(key: str, model: nn.Module) -> None:
    info = torchscan.crawl_module(model, (3, 32, 32))
    with pytest.raises(KeyError) as caught:
        info[key]
    assert caught.value.args == (f"{key!r} is no longer a key: read {HINTS['keys'][key]}",)
    assert info.get(key) is None
    assert key not in info


@pytest.mark.parametrize("key", ["parameters", "buffers", "metrics", "input", "output"])
@pytest.mark.parametrize("fold", [False, True])
def test_keys_of_a_layer_of_0_2_are_answered(key: str, *, fold: bool, model: nn.Module) -> None:
    info = torchscan.crawl_module(model, (3, 32, 32))
    if fold:
        info = torchscan.aggregate_info(info, 0)
    with pytest.raises(KeyError, match=r"is no longer a key: read layer"):
        info["layers"][0][key]


def test_copies_and_pickles_of_layers_are_plain_dicts(model: nn.Module) -> None:
    info = torchscan.crawl_module(model, (3, 32, 32))
    for layers in (copy.deepcopy(info["layers"]), pickle.loads(pickle.dumps(info["layers"]))):  # noqa: S301
        assert {type(layer) for layer in layers} == {dict}
        assert layers == info["layers"]


def test_other_keys_are_missing_as_in_any_dict(model: nn.Module) -> None:
    info = torchscan.crawl_module(model, (3, 32, 32))
    for key in ("nothing", 3):
        with pytest.raises(KeyError) as caught:
            info[key]  # type: ignore[index]
        assert caught.value.args == (key,)


# -- what summary returns ------------------------------------------------------------------------


def test_what_summary_returns_displays_nothing(
    model: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    returned: Any = torchscan.summary(model, (3, 32, 32))
    printed = capsys.readouterr().out
    assert formatters.DisplayFormatter().format(returned) == ({}, {})
    assert repr(returned) == ""
    assert not returned
    assert printed.count("Conv2d") == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("read", "kind", "message"),
    [
        (
            lambda returned: returned["totals"],
            TypeError,
            "read info['overall'], for example info['overall']['macs']",
        ),
        (lambda returned: returned["layers"], TypeError, "read info['layers']"),
        (lambda returned: list(returned), TypeError, "read info[0]"),
        (
            lambda returned: returned.total_mult_adds,
            AttributeError,
            "read info['overall']['macs']",
        ),
        (lambda returned: returned.keys(), AttributeError, "read info['overall']"),
    ],
)
def test_data_of_summary_is_that_of_crawl_module(
    read: Callable[[Any], object],
    kind: type[Exception],
    message: str,
    model: nn.Module,
    capsys: pytest.CaptureFixture[str],
) -> None:
    returned = torchscan.summary(model, (3, 32, 32))
    capsys.readouterr()
    start = "summary() prints and returns no data: write info = crawl_module(...) and "
    with pytest.raises(kind, match=f"^{re.escape(start + message)}$"):
        read(returned)


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["structure", "full"])
def test_modes_of_0_2_are_answered(mode: Any, model: nn.Module) -> None:
    with pytest.raises(InputError, match=f"^mode is '{mode}', which torchscan 0.2 had: leave mode"):
        torchscan.crawl_module(model, (3, 32, 32), mode=mode)


def test_a_wrap_mode_of_0_1_and_0_2_is_answered(model: nn.Module) -> None:
    mode: Any = "end"
    message = "^wrap_mode is 'end', which torchscan 0.2 had: give 'tail'$"
    with pytest.raises(InputError, match=message):
        torchscan.summary(model, (3, 32, 32), mode)
    with pytest.raises(InputError, match=message):
        torchscan.summary(model, (3, 32, 32), wrap_mode=mode)


def test_several_arguments_of_torchinfo_get_one_message(model: nn.Module) -> None:
    arguments: dict[str, Any] = {
        "input_size": (1, 3, 32, 32),
        "col_names": ["output_size", "num_params"],
        "depth": 3,
        "verbose": 1,
        "row_settings": ["var_names"],
        "col_width": 20,
        "colums": ["type"],
    }
    with pytest.raises(TypeError) as caught:
        torchscan.summary(model, **arguments)
    assert str(caught.value) == (
        "summary() got 7 unexpected keyword arguments: "
        "for 'input_size' give input_shape=(3, 224, 224) for one sample, and batch_size=; "
        "for 'col_names' give columns=['type', 'output_shape', 'params', 'macs']; "
        "for 'depth' give max_depth=; "
        "leave out 'verbose' (crawl_module(...) gives what summary(...) prints); "
        "for 'row_settings' and 'col_width' give columns= and width=; "
        "for 'colums', did you mean 'columns'?"
    )


def test_an_argument_of_0_1_0_is_answered(model: nn.Module) -> None:
    with pytest.raises(TypeError, match=r"'max_depth', and needs none: aggregate_info\(info, max"):
        torchscan.crawl_module(model, (3, 32, 32), max_depth=1)  # type: ignore[call-arg]


# -- version -------------------------------------------------------------------------------------


def test_the_version_is_the_first_of_the_changelog() -> None:
    """What is not released yet is above it, until a release numbers that section."""
    changelog = (PACKAGE.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    released = headings[headings[0] == "Unreleased" :]
    assert released[0] == torchscan.__version__
    assert "Unreleased" not in released


def test_a_report_of_version_0_1_0_is_read() -> None:
    info = torchscan.from_json(OLD_REPORT.read_text(encoding="utf-8"))
    assert info["provenance"]["torchscan_version"] == "0.1.0"
    assert info["overall"]["macs"] == 4 * 3 + 3 * 2
    assert info["overall"]["grad_params"] == (4 * 3 + 3) + 3 * 2
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    today = torchscan.crawl_module(module, (4,))
    assert today["layers"] == info["layers"]
