"""The figures as data: JSON that a schema describes, CSV and DataFrames."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import jsonschema
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchscan
from tests.report.samples import INFOS, named
from torchscan import InputError, format_info, from_json
from torchscan.report.info import Info
from torchscan.report.info_data import InfoData
from torchscan.report.schema_validation import mismatch

SCHEMA = torchscan.types.json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
PAGE = Path(__file__).parent.parent.parent / "docs" / "info.md"

#: a report with something in every part
REPORT: dict[str, Any] = json.loads(torchscan.select_layers(INFOS["two inputs"](), top=3).to_json())
REPORT["without_formula"], REPORT["unused_parameters"] = {"aten.a.default": 2}, {"x.y": 3}
REPORT["layers"][0]["rf"] = {"args[0]": ["global", 1.5], "args[1]": 2}
REPORT["layers"][1]["receptive_field"][0][0] |= {
    "reasons": [{"operator": "aten.a", "path": "b"}],
    "notes": ["hull"],
}


# -- JSON ----------------------------------------------------------------------------------------------------------------


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_report_follows_the_schema_and_is_read_back_as_it_was(info: Info) -> None:
    text = info.to_json()
    VALIDATOR.validate(json.loads(text))
    again = from_json(text)
    assert again == info
    assert isinstance(again, Info)
    assert from_json(again.to_json(indent=None)) == info
    assert "\n" not in again.to_json(indent=None)


def test_a_report_says_first_which_schema_it_follows() -> None:
    text = INFOS["block"]().to_json()
    assert text.startswith('{\n  "schema": "torchscan/info/2",\n')
    assert "schema" not in from_json(text)


def test_the_schema_knows_every_key_that_is_written(info: Info) -> None:
    for data, schema in (
        (info, SCHEMA),
        (info["overall"], SCHEMA["properties"]["overall"]),
        (info["provenance"], SCHEMA["properties"]["provenance"]),
        *((layer, SCHEMA["$defs"]["layer"]) for layer in info["layers"]),
    ):
        assert set(data) <= set(schema["properties"])
        assert set(schema["required"]) - {"schema"} <= set(data)


def test_the_types_say_what_the_schema_says() -> None:
    properties = {key: value for key, value in SCHEMA["properties"].items() if key != "schema"}
    required = [key for key in SCHEMA["required"] if key != "schema"]
    _compare(InfoData, {**SCHEMA, "properties": properties, "required": required})


def _compare(kind: Any, schema: dict[str, Any]) -> None:
    """The same keys, the same ones of them required, of the same types as far as both say."""
    if "$ref" in schema:
        return _compare(kind, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        assert set(schema["properties"]) == set(hints)
        assert set(schema["required"]) == _required(kind)
        for key, hint in hints.items():
            _compare(hint, schema["properties"][key])
        return None
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    assert {name for each in members for name in _names(each)} == _allowed(schema)
    for each in members:
        if get_origin(each) is list and "items" in schema:
            _compare(get_args(each)[0], schema["items"])
        if get_origin(each) is Literal:
            assert list(get_args(each)) == schema["enum"]
    return None


def _required(kind: Any) -> set[str]:
    """From the annotations themselves: what Python keeps of them does not know those that are texts."""
    return {
        key
        for key, hint in get_type_hints(kind, include_extras=True).items()
        if get_origin(hint) is not NotRequired
    }


_NAMES = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


def _names(kind: Any) -> set[str]:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return {name for each in get_args(kind) for name in _names(each)}
    return (
        {"object"} if is_typeddict(kind) else {_NAMES[str if origin is Literal else origin or kind]}
    )


def _allowed(schema: dict[str, Any]) -> set[str]:
    """All types that a value may have; of alternatives those of each."""
    if "$ref" in schema:
        return _allowed(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return {name for each in schema["anyOf"] for name in _allowed(each)}
    return {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])


def test_keys_that_a_later_version_adds_are_left_alone() -> None:
    later = copy.deepcopy(REPORT)
    later["layers"][0]["energy"] = {"joule": 3}
    assert from_json(json.dumps(later))["layers"][0]["energy"] == {"joule": 3}


def test_whole_numbers_are_integers_however_they_are_written() -> None:
    text = re.sub(r'"depth": (\d)', r'"depth": \1.0', INFOS["block"]().to_json())
    assert '"depth": 1.0' in text
    VALIDATOR.validate(json.loads(text))
    assert [type(layer["depth"]) for layer in from_json(text)["layers"]] == [int] * 7


def _broken(*path: Any, value: Any = None, delete: bool = False) -> str:
    report = copy.deepcopy(REPORT)
    target = report
    for step in path[:-1]:
        target = target[step]
    if delete:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return json.dumps(report)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON: .*line 1 column 1"),
        ("{", "not JSON: .*line 1 column 2"),
        ("torchscan", "not JSON"),
        ('{"schema": NaN}', "not JSON: NaN is not a number"),
        (_broken("overall", "dmas", value=float("inf")), "not JSON: Infinity is not a number"),
        (
            _broken("layers", 0, "rf", value=0.125).replace("0.125", "1e999"),
            "not JSON: 1e999 is not a number",
        ),
        ("[" * 100_000, "not JSON: .*([Rr]ecursion|Stack overflow)"),
        ('{"a": ' * 100_000, "not JSON: .*([Rr]ecursion|Stack overflow)"),
        ("1" * 5000, "not JSON"),
        (None, "not JSON: .*NoneType"),
        ("[]", "not a report of torchscan: write one with to_json"),
        ("3", "not a report of torchscan"),
        ('{"layers": []}', "not a report of torchscan"),
        ('{"schema": 1}', "not a report of torchscan"),
        ('{"schema": "torchscan/info/"}', "not a report of torchscan"),
        ('{"schema": "torchscan/info/0"}', "not a report of torchscan"),
        ('{"schema": "torchscan/info/one"}', "not a report of torchscan"),
        ('{"schema": "torchscan/memory/1"}', "not a report of torchscan"),
        ('{"schema": "torchscan/info/1\\n"}', "not a report of torchscan"),
        (json.dumps({"schema": f"torchscan/info/{'9' * 5000}"}), "not a report of torchscan"),
        (
            '{"schema": "torchscan/info/3"}',
            "schema 3, and this torchscan reads up to 2: install a newer torchscan",
        ),
        ('{"schema": "torchscan/info/12", "layers": 3}', "schema 12, .* newer"),
        ('{"schema": "torchscan/info/1"}', "the report has no 'overheads'"),
        (_broken("layers", value=[]), r"the report\.layers is empty"),
        (_broken("layers", value={}), r"the report\.layers is {}, not array"),
        (_broken("layers", 1, "macs", delete=True), r"the report\.layers\[1\] has no 'macs'"),
        (
            _broken("layers", 1, "macs", value="4"),
            r"the report\.layers\[1\]\.macs is '4', not integer",
        ),
        (
            _broken("layers", 1, "macs", value=True),
            r"the report\.layers\[1\]\.macs is True, not integer",
        ),
        (
            _broken("layers", 1, "macs", value=1.5),
            r"the report\.layers\[1\]\.macs is 1\.5, not integer",
        ),
        (
            _broken("layers", 2, "depth", value=-1),
            r"the report\.layers\[2\]\.depth is -1, not 0 or more",
        ),
        (
            _broken("layers", 2, "depth", value=10**9),
            r"the report\.layers\[2\]\.depth is 1000000000, not 10000 or less",
        ),
        (
            _broken("overall", "macs", value=10**400),
            r"the report\.overall\.macs is about 1e400, not 1e\+30 or less",
        ),
        (
            _broken("overheads", "cuda", "fwd", value=-(10**99)),
            r"cuda\.fwd is about -1e99, not -1e\+30 or more",
        ),
        (
            _broken("layers", 0, "output_shape", value=[10**400]),
            r"the report\.layers\[0\]\.output_shape is \[1000",
        ),
        (
            _broken("layers", 0, "input_shape", value=[4, [4]]),
            r"the report\.layers\[0\]\.input_shape is \[4, \[4\]\]",
        ),
        (
            _broken("layers", 0, "rf", value=[[[1]]]),
            r"the report\.layers\[0\]\.rf is \[\[\[1\]\]\]",
        ),
        (
            _broken("provenance", "mode", value="test"),
            r"the report\.provenance\.mode is 'test', not one of eval, train, same",
        ),
        (
            _broken("provenance", "inputs", 0, "shape", value=["x"]),
            r"the report\.provenance\.inputs\[0\]\.shape\[0\] is 'x'",
        ),
        (
            _broken("without_formula", "two\nlines", value="x"),
            r"the report\.without_formula\['two\\nlines'\] is 'x'",
        ),
        (
            _broken("without_formula", "x" * 9999, value="y" * 9999),
            r"the report\.without_formula\['xxx.*xxx'\] is 'yyy.*yyy', not integer",
        ),
        (
            _broken("overall", value=["x\ny"] * 9999),
            r"the report\.overall is \['x\\ny', .*, not object",
        ),
        (
            _broken("overall", value=json.loads("[" * 400 + "]" * 400)),
            r"the report\.overall is \[\[\[",
        ),
    ],
)
def test_what_is_no_report_is_refused_in_one_line_that_says_where(text: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        from_json(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("depths", "said"),
    [([1, 1], r"\[0\]\.depth is 1, not 0"), ([0, 2], r"\[1\]\.depth is 2, not 1")],
)
def test_a_layer_below_nothing_is_refused(depths: list[int], said: str) -> None:
    report = json.loads(INFOS["unused"]().to_json())
    for layer, depth in zip(report["layers"], depths, strict=True):
        layer["depth"] = depth
    with pytest.raises(
        InputError, match=f"^it is a broken report: the report.layers{said} or less$"
    ):
        from_json(json.dumps(report))


def test_an_info_dict_that_no_file_could_hold_is_refused() -> None:
    info = INFOS["block"]()
    info["overall"]["macs"] = 10**5000
    with pytest.raises(InputError, match=r"overall\.macs is about 1e5000, not 1e\+30 or less$"):
        torchscan.compare(info, info)
    info["without_formula"] = {("a", 1): 2}
    with pytest.raises(
        InputError, match=r"without_formula has the key \('a', 1\), which is not a string$"
    ):
        torchscan.compare(INFOS["block"](), {**info, "overall": INFOS["block"]()["overall"]})


@pytest.mark.sweep
@pytest.mark.slow
def test_no_table_is_indented_further_than_anybody_sees() -> None:
    report = json.loads(INFOS["unused"]().to_json())
    report["layers"] += [{**report["layers"][1], "depth": depth} for depth in range(2, 3000)]
    info = from_json(json.dumps(report))
    assert max(map(len, format_info(info).splitlines())) < 300
    assert max(map(len, info.to_markdown().splitlines())) < 1000
    assert r"\hspace*{100em}a &" in info.to_latex()
    assert "--depth: 101" not in info.to_html()


@pytest.mark.parametrize("depth", range(200, 1200, 40))
def test_no_depth_of_nesting_is_too_much(depth: int) -> None:
    text = json.dumps(REPORT).replace(
        '"framework": ', f'"framework": {"[" * depth}{"]" * depth}, "also": '
    )
    with pytest.raises(
        InputError, match=r"framework is \[\[|not JSON: .*([Rr]ecursion|Stack overflow)"
    ):
        from_json(text)


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    steps = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for step, value in steps:
        yield from _places(value, (*path, step))


PLACES = [path for path in _places(REPORT) if path]
VALUES = st.sampled_from(
    json.loads(
        """[null, true, false, 0, 1, -1, -2, 3, 1000000000000000000000000, 0.0, 1.0, -2.0, 1.5, -0.5, 1e300, "", "global",
        "eval",
        "a\\nb", [], [1], [-1, -2], [[1], [2]], [[1], 2], [[]], ["a"], [null], [1.5, "x"], {}, {"a": 1}, {"a": [1]},
        {"a": {"b": 1}}, {"a": -1}, [{}], [[{}]]]"""
    )
)


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    """A report with a key less, or a value of another kind, here and there."""
    report = copy.deepcopy(REPORT)
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=2)):
        target: Any = report
        try:
            for step in path[:-1]:
                target = target[step]
            if draw(st.booleans()):
                del target[path[-1]]
            else:
                target[path[-1]] = copy.deepcopy(draw(VALUES))  # the next mutation may change it
        except (KeyError, IndexError, TypeError):  # the first mutation took it away
            continue
    return report


@pytest.mark.slow
@given(mutations())
@example({**REPORT, "layers": []})
@example({**REPORT, "schema": 1})
@example([])
@settings(max_examples=300)
def test_our_own_check_finds_what_jsonschema_finds(report: Any) -> None:
    found = mismatch(report, SCHEMA)
    assert (found is None) == VALIDATOR.is_valid(report), found


@pytest.mark.slow
@given(mutations())
@settings(max_examples=150)
def test_what_is_read_can_be_shown(report: Any) -> None:
    try:
        info = from_json(json.dumps(report))
    except InputError:
        return
    columns = ["path", "input_shape", "params", "flops", "bytes_read", "rf", "s", "p"]
    table = format_info(info, columns=columns)
    assert all(line.isprintable() for line in table.split("\n"))
    assert len(info.to_csv().splitlines()) > 1
    assert info.to_html(columns=columns).count("<tr data-depth") == len(info["layers"])
    assert info.to_markdown(columns=columns)
    assert info.to_latex(columns=columns)
    assert from_json(info.to_json()) == info


def test_every_path_of_the_report_can_be_deleted_or_replaced() -> None:
    """The mutations above reach what the schema says of the innermost things too."""
    assert ("layers", 1, "receptive_field", 0, 0, "reasons", 0, "operator") in PLACES
    deleted = [path for path in PLACES if isinstance(path[-1], str)]
    refused = [
        path for path in deleted if not VALIDATOR.is_valid(json.loads(_broken(*path, delete=True)))
    ]
    assert len(refused) > len(deleted) / 2


# -- CSV and pandas ------------------------------------------------------------------------------------------------------


def test_csv_is_read_by_pandas_with_the_same_numbers() -> None:
    text = INFOS["block"]().to_csv()
    frame = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert frame["path"].tolist() == ["", "conv", "act", "head", "head.0", "head.1", "head.2"]
    assert frame["name"].tolist() == ["Chain", "conv", "act", "head", "0", "1", "2"]
    assert frame["depth"].tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert frame["call"].tolist() == [0] * 7
    assert frame["params"].tolist() == [0, 3 * 16 * 9 + 16, 0, 0, 0, 0, 16 * 10 + 10]
    assert frame["param_size"].tolist() == [0, 448 * 4, 0, 0, 0, 0, 170 * 4]
    assert frame["macs"].tolist() == [0, 3 * 16 * 9 * 64, 0, 0, 0, 0, 160]
    assert frame["rf"].tolist() == ["global", "3", "3", "global", "global", "global", "global"]
    assert frame["is_leaf"].tolist() == [False, True, True, False, True, True, True]
    assert frame["complete"].dtype == bool
    assert [json.loads(shape) for shape in frame["output_shape"]] == [
        [-1, 10],
        *[[-1, 16, 8, 8]] * 2,
        *([-1, 10],),
        [-1, 16, 1, 1],
        [-1, 16],
        [-1, 10],
    ]


def test_csv_and_dataframe_say_the_same_of_every_info(info: Info) -> None:
    text, frame = info.to_csv(), info.to_pandas()
    read = pd.read_csv(io.StringIO(text), keep_default_na=False, dtype=str, lineterminator="\n")
    assert list(read.columns) == list(frame.columns)
    assert len(read) == len(frame) == len(info["layers"])
    for key in ("params", "buffers", "flops", "macs", "dmas", "bytes_read", "depth"):
        assert read[key].astype(int).tolist() == frame[key].tolist()
    assert frame["path"].tolist() == [layer["path"] for layer in info["layers"]]
    assert frame["output_shape"].tolist() == [layer["output_shape"] for layer in info["layers"]]
    assert frame["flops"].sum() == sum(layer["flops"] for layer in info["layers"])


def test_names_of_any_kind_survive_csv() -> None:
    info = INFOS["hostile"]()
    rows = pd.read_csv(
        io.StringIO(info.to_csv(columns=["type"]), newline=""),
        keep_default_na=False,
        lineterminator="\n",
    )
    assert rows["path"].tolist() == [layer["path"] for layer in info["layers"]]


def test_names_of_any_kind_are_read_as_rows() -> None:
    info = named(["a\rb", "\r", "\ud800", "=1+1", '"', "\0"])
    text = info.to_csv(columns=["type"])
    rows = list(csv.DictReader(io.StringIO(text.encode().decode(), newline="")))
    assert [row["path"] for row in rows[1:]] == ["a\rb", "\r", "�", "=1+1", '"', "\0"]


def test_neither_a_spreadsheet_nor_a_terminal_runs_a_name() -> None:
    names = [
        "=1+1",
        "+1",
        "-a",
        "-1-1",
        "@SUM(1)",
        "\t=1",
        "\r=1",
        "a=1",
        "-1",
        "'=1",
        "\x1b[2J\x9b",
    ]
    text = named(names).to_csv(columns=["params", "input_shape"], escape_formulas=True)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))[1:]
    assert [row["path"] for row in rows] == [
        "'=1+1",
        "+1",
        "'-a",
        "'-1-1",
        "'@SUM(1)",
        "'\t=1",
        "'\r=1",
        "a=1",
        "-1",
        "'=1",
        "\ufffd[2J\ufffd",
    ]
    assert {(row["call"], row["params"], row["input_shape"]) for row in rows} == {
        ("0", "0", "[-1, 4]")
    }


def test_derived_columns_are_included_if_they_are_named() -> None:
    """What a layer does itself, shares and ``trainable`` follow from the others."""
    info = INFOS["memory and times"]()
    header = (
        "path,call,name,depth,type,input_shape,output_shape,params,grad_params,nograd_params,"
        "param_size,buffers,buffer_size,macs,flops,dmas,bytes_read,bytes_written,activations,peak,"
        "latency,rf,s,p,is_shared,is_leaf,complete"
    )
    assert info.to_csv().splitlines()[0] == header
    derived = ["own_params", "trainable", "own_macs", "own_flops"]
    derived += ["params_share", "macs_share", "flops_share", "latency_share"]
    assert info.to_csv(columns=derived).splitlines()[0] == ",".join(["path", "call", *derived])


def test_columns_can_be_chosen() -> None:
    info = INFOS["shared"]()
    assert info.to_csv(columns=["macs", "params"]).splitlines() == [
        "path,call,macs,params",
        ",0,0,0",
        "a,0,16,20",
        "a,1,16,0",
    ]
    assert info.to_csv(columns=["path"]).splitlines() == ["path,call", ",0", "a,0", "a,1"]
    assert list(info.to_pandas(columns=["macs"]).columns) == ["path", "call", "macs"]
    for write in (info.to_csv, info.to_pandas, info.to_html, info.to_markdown, info.to_latex):
        with pytest.raises(InputError, match="'colour' is not a column"):
            write(columns=["colour"])
        with pytest.raises(InputError, match="give a list"):
            write(columns="macs")


def test_a_dataframe_has_numbers_and_all_else_in_its_attributes() -> None:
    info = INFOS["unused"]()
    frame = info.to_pandas()
    assert frame["params"].tolist() == [20, 0]
    assert frame["macs"].dtype == "int64"
    assert frame.attrs["overall"]["grad_params"] == 20
    assert frame.attrs["unused_parameters"] == {"b": 20}
    assert set(frame.attrs) == set(info) - {"layers"}
    frame.attrs["overall"]["grad_params"] = 0
    assert info["overall"]["grad_params"] == 20


def test_without_pandas_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    info = INFOS["unused"]()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"^to_pandas\(\) needs pandas: run pip install pandas$"):
        info.to_pandas()
    assert info.to_csv().startswith("path,call,name,depth,")


# -- some of the layers --------------------------------------------------------------------------------------------------


def _paths(**choice: Any) -> list[str]:
    return [
        layer["path"] for layer in torchscan.select_layers(INFOS["block"](), **choice)["layers"]
    ]


def test_layers_are_selected_by_path_type_order_and_number() -> None:
    assert _paths() == ["", "conv", "act", "head", "head.0", "head.1", "head.2"]
    assert _paths(match="head.*") == ["head.0", "head.1", "head.2"]
    assert _paths(match="ReLU") == ["act"]
    assert _paths(sort="params") == ["conv", "head.2", "", "act", "head", "head.0", "head.1"]
    assert _paths(sort="params", top=2) == ["conv", "head.2"]
    assert _paths(sort="path", top=3) == ["", "act", "conv"]
    assert _paths(sort="rf", top=2) == ["conv", "act"]
    assert _paths(match="[hH]ead*", sort="macs", top=1) == ["head.2"]


def test_a_selection_says_what_it_was_made_of_and_keeps_the_totals() -> None:
    whole = INFOS["block"]()
    once = torchscan.select_layers(whole, match="head*", sort="params")
    twice = torchscan.select_layers(once, top=1)
    assert once["selection"] == {"match": "head*", "sort": "params", "layers": 7}
    assert twice["selection"]["layers"] == 7
    assert twice["overall"] == whole["overall"]
    assert "selection" not in whole
    assert "1 of 7 layers" in format_info(twice)
    assert "4 of 7 layers that match head*, sorted by params" in format_info(once)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (
            {"match": "tail*"},
            r"no layer matches 'tail\*' by its path or type: give a pattern with \* for any text",
        ),
        ({"sort": "colour"}, "'colour' is not a column"),
        ({"top": 0}, "top is 0"),
        ({"top": True}, "top is True"),
        ({"top": 2.0}, r"top is 2\.0"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(choice: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        torchscan.select_layers(INFOS["block"](), **choice)


# -- the documentation ---------------------------------------------------------------------------------------------------


def _documented(heading: str) -> list[str]:
    table = PAGE.read_text().partition(heading)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    return [
        name for line in table.splitlines() for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("# The info dict", SCHEMA), ("\nA layer:", SCHEMA["$defs"]["layer"])],
)
def test_what_the_schema_has_is_documented_and_the_other_way_round(
    heading: str, schema: dict[str, Any]
) -> None:
    assert sorted(_documented(heading)) == sorted(schema["properties"])


def test_all_columns_are_documented() -> None:
    documented = re.search(r"`columns` are those of `format_info`: `([^`]*)`", PAGE.read_text())
    assert documented is not None
    with pytest.raises(InputError, match=f"choose from {', '.join(documented[1].split())}$"):
        format_info(INFOS["block"](), columns=["colour"])
