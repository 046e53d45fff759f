"""Overlays: the user's own values by path, read from files and mappings, and put on a model's page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.report.test_page import data_of
from torchscan import InputError, Scan, html_report
from torchscan.cli.main import main
from torchscan.report.paging.overlay_file import read_overlays
from torchscan.user_warnings import TorchscanWarning

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.fc(x))
"""


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))


def overlays(overlay: Any, module: nn.Module | None = None) -> dict[str, dict[str, Any]]:
    """The values that the page was given, by call, of each overlay."""
    page = html_report(Scan(model() if module is None else module, (4,)), overlay=overlay)
    return {each["name"]: each["values"] for each in data_of(page)["overlays"]}


def of_file(folder: Path, name: str, text: str) -> dict[str, dict[str, Any]]:
    (folder / name).write_text(text, encoding="utf-8")
    return overlays(folder / name)


# -- files ---------------------------------------------------------------------------------------


def test_a_csv_file_has_an_overlay_in_each_column(tmp_path: Path) -> None:
    text = "path,sensitivity,time (ms)\n0,0.3,12\n1.0,-1e-3,\n1.1,,7\n"
    assert of_file(tmp_path, "layers.csv", text) == {
        "sensitivity": {"0": 0.3, "1.0": -0.001},
        "time (ms)": {"0": 12.0, "1.1": 7.0},
    }


def test_a_spreadsheet_may_write_the_csv_file(tmp_path: Path) -> None:
    """It begins with a byte order mark, ends lines in its own way, and quotes cells."""
    text = '\ufeff"kept","path"\r\n"0.5","0"\r\n\r\n"0.25",""\r\n'
    assert of_file(tmp_path, "layers.CSV", text) == {"kept": {"0": 0.5, "": 0.25}}


def test_values_without_a_name_have_that_of_the_file(tmp_path: Path) -> None:
    assert of_file(tmp_path, "sparsity.csv", "path,value\n0,1\n") == {"sparsity": {"0": 1.0}}
    assert of_file(tmp_path, "shapley.json", '{"0": 2, "1.0": null}') == {"shapley": {"0": 2.0}}


def test_a_json_file_may_have_several_by_name(tmp_path: Path) -> None:
    content = {"sensitivity": {"1.0": 0.3}, "Größe": {"0": 2}}
    assert of_file(tmp_path, "layers.json", json.dumps(content)) == {
        "sensitivity": {"1.0": 0.3},
        "Größe": {"0": 2.0},
    }


def test_columns_without_numbers_are_named_and_left_out(tmp_path: Path) -> None:
    with pytest.warns(TorchscanWarning, match="not shown as overlays: type, note$"):
        found = of_file(tmp_path, "a.csv", "path,type,kept,note\n0,Linear,0.5,\n1.0,Linear,1,\n")
    assert found == {"kept": {"0": 0.5, "1.0": 1.0}}


def test_a_column_of_mostly_text_is_no_overlay(tmp_path: Path) -> None:
    file = tmp_path / "layers.csv"
    file.write_text("path,name,bits\n0,0,4\n1,conv1,8\n2,fc,8\n")
    with pytest.warns(UserWarning, match="empty or mostly text are not shown as overlays: name"):
        assert read_overlays(file) == {"bits": {"0": 4.0, "1": 8.0, "2": 8.0}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.xlsx", "", r"overlay is '.*a\.xlsx': give a file whose name ends in \.csv or \.json"),
        ("a.csv", "", r"a\.csv: line 1 is '', without a column path: begin with a header such as"),
        ("a.csv", "0,0.3\n", r"line 1 is '0,0\.3', without a column path: begin with a header"),
        ("a.csv", "path;value\n0;0,3\n", "line 1 is 'path;value', without a column path"),
        ("a.csv", "path,a,a\n0,1,2\n", "the header has a twice: give each column its own name"),
        ("a.csv", "path,value\n0,0,3\n", "line 2 has 3 cells, and the header 2: give each line"),
        ("a.csv", "path,value\n0,1\n1.0,x\n", r"line 3: value of 1\.0 is 'x': give a finite num"),
        ("a.csv", "path,value\n0,nan\n", "line 2: value of 0 is 'nan': give a finite number"),
        ("a.csv", "path,value\n,-inf\n", "line 2: value of the model is '-inf': give a finite"),
        (
            "a.csv",
            "path,value\n0,1\n1.0,2\n0,1\n",
            "line 4: 0 is also in line 2: give each path once",
        ),
        ("a.csv", 'path,value\n"0,1\n', r"a\.csv: line 2: it is not CSV: "),
        ("a.csv", "path,value\n", "too few numbers in value: give numbers in a column beside"),
        ("a.csv", "path,a,b\n0,x,y\n", "too few numbers in a, b: give numbers in a column beside"),
        ("a.csv", "path\n0\n", "no numbers: give numbers in a column beside path"),
        ("a.csv", "path,value\n0,\n", "too few numbers in value: give numbers in a column beside"),
        ("a.csv", "path," + ",".join(map(str, range(21))) + "\n0" + ",1" * 21, "21 overlays: gi"),
        ("a.json", "{", r"a\.json: it is not JSON: "),
        ("a.json", "[" * 100_000, "it is not JSON: "),
        ("a.json", "[1]", "it is not an object of numbers by path: give"),
        ("a.json", "{}", "a has no values: give numbers by the paths of modules"),
        ("a.json", '{"0": 1, "0": 2}', "0 has two values: give each path once"),
        ("a.json", '{"s": {"0": 1, "0": 1}}', "0 has two values: give each path once"),
        ("a.json", '{"0": NaN}', "a of 0 is nan: give a finite number"),
        ("a.json", '{"0": true}', "a of 0 is True: give a finite number"),
        ("a.json", '{"0": "0.3"}', "a of 0 is '0.3': give a finite number"),
        ("a.json", f'{{"0": 1{"0" * 400}}}', "a of 0 is 10+…: give a finite number"),
        ("a.json", '{"s": {"0": {"1": 2}}}', "s of 0 is .*: give a finite number"),
        ("a.json", '{"0": 1, "s": {"0": 2}}', "it mixes numbers and mappings: give numbers by"),
        ("a.json", '{"": {"0": 2}}', "a name is '': give a string"),
    ],
)
def test_a_file_that_is_wrong_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as refused:
        overlays(tmp_path / name)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_or_binary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the overlay '.*none\.csv' cannot be read: No such"):
        overlays(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"path,value\n\xff,1\n")
    with pytest.raises(InputError, match=r"the overlay '.*binary\.csv' cannot be read: .*utf-8"):
        overlays(tmp_path / "binary.csv")


@pytest.mark.slow
def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_text(" " * 2**25)
    with pytest.raises(InputError, match=r"large\.json' is larger than 32 MiB: give another file"):
        overlays(file)


# -- mappings ------------------------------------------------------------------------------------


def test_values_in_python_may_be_tensors() -> None:
    assert overlays({"0": torch.tensor(0.5), "1.0": 2, "1.1": None}) == {
        "value": {"0": 0.5, "1.0": 2.0}
    }
    given = {"kept": {"0": 0.5}, "time": {"1": 3}}
    assert overlays(given) == given


def test_values_in_python_are_read_and_not_changed() -> None:
    """A tensor that requires a gradient, numbers and arrays of NumPy, and parameters."""
    weight = nn.Parameter(torch.tensor([0.5]))
    given: dict[str, Any] = {
        "0": weight.sum(),
        "1.0": np.float16(2),
        "1.1": np.array([3]),
        "1": weight,
    }
    before = dict(given)
    assert overlays(given) == {"value": {"0": 0.5, "1.0": 2.0, "1.1": 3.0, "1": 0.5}}
    assert all(given[path] is value for path, value in before.items())
    assert weight.grad is None
    assert given["0"].grad_fn is not None
    with pytest.raises(InputError, match=r"value of 0 is .*: give a finite number"):
        overlays({"0": np.array([1.0, 2.0])})


class Series:
    """Values that have ``items()``, a name and NaN for none, like a Series of pandas."""

    def __init__(self, values: Mapping[str, Any], name: str | None = None) -> None:
        self.name = name
        self._values = values

    def items(self) -> Any:
        return iter(self._values.items())


def test_whatever_has_items_is_read_like_a_mapping() -> None:
    values = {"0": np.float64(0.5), "1.0": math.nan, "1.1": 1}
    assert overlays(Series(values)) == {"value": {"0": 0.5, "1.1": 1.0}}
    assert overlays(Series(values, "kept")) == {"kept": {"0": 0.5, "1.1": 1.0}}
    frame = Series({"kept": Series(values), "bits": Series({"0": 4})})
    assert overlays(frame) == {"kept": {"0": 0.5, "1.1": 1.0}, "bits": {"0": 4.0}}


def test_a_series_of_pandas_is_an_overlay() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"kept": {"0": 0.5}, "bits": {"1.0": 4}})
    assert overlays(frame["kept"]) == {"kept": {"0": 0.5}}
    assert overlays(frame) == {"kept": {"0": 0.5}, "bits": {"1.0": 4.0}}
    with pytest.raises(InputError, match="0 has two values: give each path once"):
        overlays(pandas.Series([1, 2], index=["0", "0"]))


def test_columns_of_text_are_left_out_of_a_data_frame_as_of_a_csv_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"type": ["Conv2d", "ReLU"], "bits": [4.0, 8.0], "note": ["", None], "to": [None] * 2}
    frame = pandas.DataFrame(columns, index=pandas.Index(["0", "1.0"], name="path"))
    frame.to_csv(tmp_path / "layers.csv")
    for given in (frame, tmp_path / "layers.csv"):
        with pytest.warns(TorchscanWarning, match="not shown as overlays: type, note, to$"):
            assert overlays(given) == {"bits": {"0": 4.0, "1.0": 8.0}}
    nullable = pandas.DataFrame({"bits": [4, None], "to": [None, None]}, index=["0", "1.0"])
    with pytest.warns(TorchscanWarning, match="not shown as overlays: to$"):
        assert overlays(nullable.astype("Int64")) == {"bits": {"0": 4.0}}
    arrays = pandas.DataFrame({"bits": [np.ones(2), np.ones(2)]}, index=["0", "1.0"])
    with pytest.raises(InputError, match=r"overlay: bits of 0 is .*: give a finite number"):
        overlays(arrays)
    with pytest.raises(InputError, match="overlay: too few numbers in type, note: give numbers"):
        overlays(frame[["type", "note"]])
    with pytest.raises(InputError, match="overlay: bits of 0 is 'x': give a finite number"):
        overlays(frame.assign(bits=["x", 8]))
    with pytest.warns(TorchscanWarning, match="not shown as overlays: type$"):
        assert overlays({"type": {"0": "Linear"}, "bits": {"0": 4}}) == {"bits": {"0": 4.0}}
    with pytest.raises(InputError, match=r"overlay: a of 0 is '0\.5': give a finite number"):
        overlays({"a": {"0": "0.5"}, "bits": {"0": 4}})
    twice = pandas.DataFrame([["ReLU", 8.0]], index=["0"], columns=["a", "a"])
    with pytest.warns(TorchscanWarning, match="empty or mostly text are not shown as overlays: a$"):
        assert overlays(twice) == {"a": {"0": 8.0}}


def test_several_overlays_are_shown_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "kept.csv").write_text("path,value\n0,0.5\n")
    given = [tmp_path / "kept.csv", {"bits": {"1.0": 4}}]
    assert overlays(given) == {"kept": {"0": 0.5}, "bits": {"1.0": 4.0}}
    with pytest.raises(InputError, match="it has 21 overlays: give at most 20"):
        overlays([{str(number): {"0": 1}} for number in range(21)])
    with pytest.raises(InputError, match=r"overlay is \[\]: give numbers by path"):
        overlays([])
    places = r"overlay: bits is in overlay\[0\] and in overlay\[2\]: give each overlay its own name"
    with pytest.raises(InputError, match=places):
        overlays([{"bits": {"0": 4}}, {"kept": {"0": 1}}, {"bits": {"0": 8}}])


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({}, "overlay: value has no values: give numbers by the paths of modules"),
        ({"0": math.nan}, "overlay: value of 0 is nan: give a finite number"),
        ({"0": torch.ones(2)}, "overlay: value of 0 is .*: give a finite number"),
        ({0: 1.0}, "overlay: a path is 0: give the path of a module as a string"),
        ({1: {"0": 1.0}}, "overlay: a name is 1: give a string"),
        ({"a": {"0": None}}, "overlay: a has no values"),
        (
            [("0", 1.0)],
            r"overlay is \('0', 1\.0\): give numbers by path, {'layer1\.0': 0\.3}, or",
        ),
    ],
)
def test_a_mapping_that_is_wrong_is_refused(overlay: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        overlays(overlay)


def test_a_data_frame_without_paths_is_refused_with_the_call_that_gives_them() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match=r"a path is 0: .* in pandas with set_index\('path'\)$"):
        overlays(pandas.DataFrame({"path": ["0"], "bits": [4.0]}))


# -- places --------------------------------------------------------------------------------------


def test_an_unknown_path_is_named_with_the_nearest() -> None:
    with pytest.warns(
        TorchscanWarning,
        match=r"^2 of 3 paths of the overlay are not in the model, and their values are not shown: "
        r"1\.00 \(did you mean 1\.0\?\), nothing like it$",
    ):
        assert overlays({"kept": {"0": 1, "1.00": 2, "nothing like it": 3}}) == {"kept": {"0": 1.0}}


def test_an_overlay_of_another_model_is_refused() -> None:
    given = {"layer1.0": 1.0, "layer1.1": 1.0, "1.0.weigth": 1.0, "x": 1.0}
    with pytest.raises(
        InputError,
        match=r"^overlay: the model has none of the paths of value, such as layer1\.0.* and 1 more: "
        r"give paths as named_modules\(\) returns them$",
    ):
        overlays(given)


def test_values_of_parameters_belong_to_their_module() -> None:
    given = {"0.weight": 0.1, "0.bias": 0.3, "1.0.weight": 0.2}
    assert overlays(given) == {"value": {"0": {"weight": 0.1, "bias": 0.3}, "1.0": {"weight": 0.2}}}


def test_a_model_may_have_a_part_that_is_named_like_a_wrapper() -> None:
    module = nn.Sequential()
    module.add_module("module", nn.Sequential(nn.Linear(4, 4)))
    assert overlays({"module.module.0": 1}, module) == {"value": {"module.0": 1.0}}
    assert overlays({"module.0": 2}, module) == {"value": {"module.0": 2.0}}


def test_a_value_of_a_module_hides_those_of_its_parameters() -> None:
    with pytest.warns(TorchscanWarning, match="not shown if their module has a value, too: 0$"):
        assert overlays({"0": 0.5, "0.weight": 0.1}) == {"value": {"0": 0.5}}


def test_paths_of_a_wrapped_model_are_those_of_the_model() -> None:
    assert overlays({"module._orig_mod.1.0": 1, "_orig_mod.0.weight": 2, "module": 3}) == {
        "value": {"1.0": 1.0, "0": {"weight": 2.0}, "": 3.0}
    }


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.unused = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers[0](self.second(self.first(x)))
        return found


def test_each_call_of_a_module_has_its_value() -> None:
    assert overlays({"second": 2}, Shared()) == {"value": {"first": 2.0, "first@2": 2.0}}
    assert overlays({"second": 2, "first": 2}, Shared())["value"]["first"] == 2.0
    with pytest.raises(InputError, match="second and first are the same, and have different val"):
        overlays({"second": 2, "first": 3}, Shared())


def test_modules_that_the_pass_does_not_call_are_named() -> None:
    given = {"kept": {"unused": 1, "layers": 2, "first": 3}, "lost": {"unused.weight": 1}}
    data = data_of(html_report(Scan(Shared(), (4,)), overlay=given))
    assert [each["name"] for each in data["overlays"]] == ["kept"]
    assert data["remarks"] == [
        "kept: not shown for modules that the pass does not call: unused, layers",
        "lost: not shown for modules that the pass does not call: unused",
    ]


def test_a_page_without_an_overlay_has_none() -> None:
    assert "overlays" not in data_of(html_report(Scan(model(), (4,))))


def test_a_pass_that_fails_has_an_overlay_up_to_the_failure() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    assert overlays({"0": 1, "1": 2}, module) == {"value": {"0": 1.0, "1": 2.0}}


def test_long_names_are_shortened() -> None:
    with pytest.warns(TorchscanWarning) as warned:
        found = overlays({"a" * 1000: {"0": 1, "b" * 1000: 2}})
    assert list(found) == ["a" * 300 + "…"]
    assert len(str(warned[0].message)) < 800


# -- command line --------------------------------------------------------------------------------


def report(
    folder: Path, overlay: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str]:
    """The exit status of the command, and its notes on standard error."""
    (folder / "nets.py").write_text(NETS)
    target = [f"{folder / 'nets.py'}:Net", "--input", "4", "-o", str(folder / "page.html")]
    status = main(["report", *target, "--overlay", str(folder / overlay), *more])
    notes = capsys.readouterr().err
    if status == 0:
        last = f"Wrote {folder / 'page.html'}.\n"
        assert notes.endswith(last)
        notes = notes.removesuffix(last)
    return status, notes


def test_the_command_says_which_paths_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.csv").write_text("path,value,bits\nfc,0.5,8\nheads,0.25,4\n")
    assert report(tmp_path, "kept.csv", capsys) == (
        0,
        "torchscan: note: 1 of 2 paths of the overlay are not in the model, and their values are "
        "not shown: heads (did you mean head?)\n",
    )
    data = data_of((tmp_path / "page.html").read_text())
    assert data["overlays"] == [
        {"name": "kept", "values": {"fc": 0.5}},
        {"name": "bits", "values": {"fc": 8.0}},
    ]


def test_the_command_refuses_an_overlay_of_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.json").write_text('{"conv1": 1}')
    status, err = report(tmp_path, "kept.json", capsys)
    assert status == 2
    assert "--overlay: the model has none of the paths of kept, such as conv1" in err
    assert not (tmp_path / "page.html").exists()


def test_the_command_reads_the_overlay_before_it_builds_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "no_such_module:Net", "--overlay", str(tmp_path / "a.txt")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("torchscan: --overlay is ")
    assert err.endswith(": give a file whose name ends in .csv or .json\n")


def test_the_command_takes_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.csv").write_text("path,value\nfc,0.5\n")
    (tmp_path / "bits.json").write_text('{"head": 8}')
    more = ["--overlay", str(tmp_path / "bits.json")]
    assert report(tmp_path, "kept.csv", capsys, *more) == (0, "")
    data = data_of((tmp_path / "page.html").read_text())
    assert [each["name"] for each in data["overlays"]] == ["kept", "bits"]

    (tmp_path / "same.csv").write_text("path,kept\nfc,0.5\n")
    same = str(tmp_path / "same.csv")
    assert report(tmp_path, "kept.csv", capsys, "--overlay", same) == (
        2,
        f"torchscan: --overlay: kept is in {tmp_path / 'kept.csv'} and in {same}: give each "
        "overlay its own name\n",
    )
