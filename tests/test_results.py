"""Results show themselves: printed, in a notebook, and as tables in every format."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchscan
from tests.report.samples import HOSTILE, UNPRINTABLE, Chain, block
from tests.versions import skip_without
from torchscan import (
    InputError,
    analyze_roofline,
    crawl_module,
    estimate_memory,
    inspect,
    projective_field,
    receptive_field,
    record,
)
from torchscan.analyses.module_graph import module_graph
from torchscan.analyses.receptive_field.layer_results import LayerResults
from torchscan.formatters import register_formatters
from torchscan.hardware.device_specs import device_named
from torchscan.inspecting.exchanges import Process
from torchscan.inspecting.group_run import group_run_of
from torchscan.report.info import Info
from torchscan.report.page_result import PageResult
from torchscan.report.table import FORMATS, Table
from torchscan.results import Result, RowsResult

SHAPE = (3, 8, 8)


def _info() -> Info:
    return crawl_module(block(), SHAPE)


def _suggestions(model: nn.Module) -> Any:
    return analyze_roofline(model, SHAPE, device="RTX 3090").suggestions()


def _run() -> Any:
    model = block()
    with inspect(model) as run:
        model(torch.zeros(1, *SHAPE))
    return run.facts


def _inspection() -> Any:
    model = block()
    with inspect(model) as run:
        model(torch.zeros(1, *SHAPE))
    return run


# what takes longest is asked once, because no test changes it
@functools.cache
def _generation() -> Any:
    from tests.models.generating import Echo

    return torchscan.analyze_generation(Echo(), 4, 2, device="RTX 3090")


@functools.cache
def _formulas() -> Any:
    from tests.models.generating import Echo

    return torchscan.symbolic_costs(Echo())


@functools.cache
def _generation_sweep() -> Any:
    from tests.models.generating import Echo

    return torchscan.analyze_generation(
        Echo(), 4, 2, device="RTX 3090", price=2.5, batch_size=[1, 8, 32]
    )


@functools.cache
def _plan() -> Any:
    from tests.ranks.models import sharded_linear

    return sharded_linear()


@functools.cache
def _meshes() -> Any:
    from tests.ranks.models import searched_tokens

    return searched_tokens()


@functools.cache
def _serving() -> Any:
    from tests.models.generating import Echo

    model = Echo(64, 512).to(torch.bfloat16)
    return torchscan.parallel.search_serving(
        model, 64, 16, num_gpus=1, device="H100", max_batch_size=4, progress=False
    )


@functools.cache
def _pipeline() -> Any:
    stages = [nn.Linear(4, 4) for _ in range(2)]
    return torchscan.parallel.pipeline(stages, (4,), microbatches=2, device="RTX 3090")


def _group_run() -> Any:
    facts = _run()
    run = getattr(facts, "facts", facts)
    runs = [
        replace(run, process=Process(rank=rank, num_ranks=2, launch="", began=0.0))
        for rank in range(2)
    ]
    return group_run_of(runs)


@functools.cache
def _models() -> Any:
    return torchscan.model_table({"block": block(), "conv": nn.Conv2d(3, 4, 3)}, SHAPE)


def _watched() -> Any:
    """A run of one step, whose folder lasts as long as this process."""
    folder = Path(_folder.name) / "run"
    if not folder.exists():
        model = block()
        with torchscan.watch(model, folder, every=1, graph=False):
            model(torch.zeros(1, *SHAPE)).sum().backward()
    return torchscan.open_run(folder)


@functools.cache
def _snapshot() -> Any:
    return torchscan.read_snapshot(Path(__file__).parents[1] / "docs" / "examples" / "oom.pickle")


def _curves() -> Any:
    from torchscan.watching.curves import curves_of
    from torchscan.watching.schema import CurvePoint

    points = [CurvePoint(step, step, 1.8e9, 0.5, 0.1, None) for step in range(2)]
    return curves_of("train", [points])


@functools.cache
def _checkpointing() -> Any:
    skip_without("_C._autograd._top_saved_tensors_default_hooks")
    layers = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3))
    model = nn.Sequential(*layers)
    estimate = estimate_memory(model, (4, 8), training=True, device="RTX 3090")
    return estimate.checkpointing()


_folder = tempfile.TemporaryDirectory()

RESULTS: Mapping[str, Callable[[], Any]] = {
    "info": _info,
    "memory": lambda: estimate_memory(
        block(), SHAPE, training=True, optimizer="SGD", device="RTX 3090"
    ),
    "roofline": lambda: analyze_roofline(block(), SHAPE, device="RTX 3090"),
    "suggestions": lambda: _suggestions(block()),
    "generation": lambda: _generation(),
    "formulas": lambda: _formulas(),
    "generation by batch size": lambda: _generation_sweep(),
    "plan": lambda: _plan(),
    "meshes": lambda: _meshes(),
    "serving": lambda: _serving(),
    "run": _run,
    "inspection": _inspection,
    "group run": lambda: _group_run(),
    "pipeline": lambda: _pipeline(),
    "fields": lambda: receptive_field(block(), SHAPE),
    "field": lambda: receptive_field(block(), SHAPE)["conv"],
    "projective fields": lambda: projective_field(block(), SHAPE),
    "projective field": lambda: projective_field(block(), SHAPE)["conv"],
    "run comparison": lambda: torchscan.compare(_run(), _run()),
    "comparison": lambda: torchscan.compare(_info(), crawl_module(block(), SHAPE, batch_size=2)),
    "trace": lambda: record(block(), SHAPE),
    "graph": lambda: module_graph(record(block(), SHAPE)),
    "device": lambda: device_named("RTX 3090"),
    "table": lambda: record(block(), SHAPE).table(),
    "models": lambda: _models(),
    "watched run": lambda: _watched(),
    "curves": _curves,
    "snapshot": _snapshot,
    "checkpointing": _checkpointing,
}
#: a word of each
SAYS = {
    "info": "Total parameters",
    "memory": "Peak memory",
    "roofline": "Expected time",
    "suggestions": "as it is",
    "generation": "First token after",
    "formulas": "MACs",
    "generation by batch size": "Tokens/s",
    "plan": "Collective",
    "group run": "Lag",
    "pipeline": "Bubble",
    "meshes": "Tokens/s",
    "serving": "Tokens/s/GPU",
    "run": "Forward",
    "inspection": "Forward",
    "fields": "Global by",
    "field": "Starts by phase",
    "projective fields": "Upper bound by",
    "projective field": "Unused",
    "comparison": "before",
    "run comparison": "before",
    "trace": "Operator",
    "graph": "conv",
    "device": "936.0 GB/s",
    "table": "Operator",
    "models": "Parameters",
    "watched run": "conv output",
    "curves": "Learning rate",
    "snapshot": "Would help",
    "checkpointing": "Recompute",
}


@pytest.mark.slow
def test_no_kind_of_result_is_forgotten_here() -> None:
    bases: list[Any] = [Result, RowsResult, PageResult, LayerResults, Table]
    # by name, because a dataclass with slots replaces the class that it is made of
    names = {kind.__name__ for base in bases for kind in base.__subclasses__()}
    names -= {"RowsResult", "PageResult", "LayerResults"}
    assert names == {type(result()).__name__ for result in RESULTS.values()}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_shows_itself(name: str) -> None:
    result = RESULTS[name]()
    assert SAYS[name] in str(result)
    assert max(map(len, str(result).splitlines())) <= 80
    shown = result._repr_mimebundle_()
    assert shown.keys() == {"text/plain", "text/html"}
    assert shown["text/plain"] == str(result)
    assert shown["text/html"].startswith('<div class="torchscan"')
    assert SAYS[name] in shown["text/html"]


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "inspection"])
def test_what_was_unpickled_shows_itself_too(name: str) -> None:
    result = RESULTS[name]()
    assert str(pickle.loads(pickle.dumps(result))) == str(result)  # noqa: S301 - our own


@pytest.mark.sweep
@pytest.mark.slow
def test_printing_needs_no_more_than_the_result(tmp_path: Any) -> None:
    """Not even the front door: whoever unpickles a result imports the module of its class alone."""
    file = tmp_path / "roofline"
    roofline = RESULTS["roofline"]()
    file.write_bytes(pickle.dumps(roofline))
    code = f"import pickle, pathlib, torchscan.analyses.roofline; print(pickle.loads(pathlib.Path({str(file)!r}).read_bytes()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == f"{roofline}\n"


def test_the_repr_stays_short() -> None:
    assert repr(RESULTS["trace"]()).startswith("<Trace of Chain: 7 module calls")
    assert repr(RESULTS["table"]()) == "<Table 'Cost of one pass by operator': 6 operators>"
    assert repr(RESULTS["info"]()).startswith("{'overheads':")


def test_a_type_is_shown_in_one_way() -> None:
    str(RESULTS["table"]())
    with pytest.raises(ValueError, match="formatters of Table are already registered"):
        register_formatters(Table, lambda table: table)


@pytest.mark.few(40)
@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("name", RESULTS)
def test_every_table_in_every_format(name: str, style: str) -> None:
    result = RESULTS[name]()
    table = result.table()
    text = table.write(style)
    if style == "csv":
        keys, *rows = csv.reader(io.StringIO(text))
        assert keys == [column.key for column in table.columns]
        assert len(rows) == len(table.rows)
    if style == "json":
        data = json.loads(text)
        assert [len(each["rows"]) for each in data["totals"]] == [
            len(each.rows) for each in table.totals
        ]
        assert [list(row) for row in data["rows"]] == [
            [column.key for column in table.columns]
        ] * len(table.rows)
    if style in ("markdown", "github", "latex", "html"):
        plain = " ".join(text.split())
        assert all(
            row.cells[1].text.split(" ")[0] in plain for each in table.totals for row in each.rows
        )


WRITERS = ("to_json", "to_csv", "to_markdown", "to_latex", "to_text")


@pytest.mark.parametrize("name", RESULTS)
def test_a_path_writes_what_is_returned_without_one(name: str, tmp_path: Path) -> None:
    result = RESULTS[name]()
    writers = [*WRITERS, "to_html"] if name in WITHOUT_PLOT else WRITERS
    for writer in writers:
        options = {"standalone": True} if writer == "to_html" else {}
        text = getattr(result, writer)(**options)
        file = tmp_path / "folder" / writer
        assert getattr(result, writer)(file, **options) is None
        assert file.read_text(encoding="utf-8").rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("name", RESULTS)
def test_json_holds_what_to_dict_returns(name: str) -> None:
    result = RESULTS[name]()
    content = json.loads(result.to_json())
    content.pop("schema", None)
    assert content == json.loads(json.dumps(result.to_dict()))
    assert "\n" not in result.to_json(indent=None)


#: results with a schema of their own
WITH_SCHEMA = ("info", "run", "inspection")
#: the keys of all others, and of the objects in their lists
KEYS: dict[str, str] = json.loads((Path(__file__).parent / "result_keys.json").read_text())


@pytest.mark.parametrize("name", [name for name in RESULTS if name not in WITH_SCHEMA])
def test_keys_that_programs_read_stay(name: str) -> None:
    """A key that is removed or renamed breaks them; a new key belongs in the list."""
    content = RESULTS[name]().to_dict()
    assert " ".join(content) == KEYS[name]
    lists = [key for key in KEYS if key.startswith(f"{name}: ")]
    for key in lists:
        first, *_ = content[key.removeprefix(f"{name}: ")]
        assert " ".join(first) == KEYS[key]


@pytest.mark.parametrize("name", RESULTS)
def test_a_dataframe_has_the_rows_and_columns_of_csv(name: str) -> None:
    result = RESULTS[name]()
    frame = result.to_pandas()
    keys, *rows = csv.reader(io.StringIO(result.to_csv()))
    assert list(frame.columns) == keys
    assert len(frame) == len(rows)


WITHOUT_PLOT = {"formulas", "generation", "graph", "device", "table"}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_drawn_into_given_axes_or_say_what_else_there_is(name: str) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    result = RESULTS[name]()
    _, ax = pyplot.subplots()
    if name in WITHOUT_PLOT:
        with pytest.raises(InputError, match=r"has no plot: |there is only one batch size"):
            result.plot(ax)
    else:
        assert result.plot(ax) is ax
    pyplot.close("all")


@pytest.mark.parametrize("top", [0, -2, True, 1.5])
@pytest.mark.parametrize("name", ["info", "run", "trace", "suggestions", "comparison"])
def test_a_number_of_bars_is_positive(name: str, top: Any) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match=f"top is {top!r}: give a number of bars"):
        RESULTS[name]().plot(top=top)


def test_a_column_of_zeros_is_not_drawn_by_default() -> None:
    """Between two batch sizes, MACs change and parameters do not."""
    pytest.importorskip("matplotlib")
    comparison = RESULTS["comparison"]()
    assert comparison.plot().get_title() == comparison.plot(by="macs").get_title() == "MACs"
    with pytest.raises(InputError, match="no row has a value in 'params'"):
        comparison.plot(by="params")


def test_html_has_the_plot_in_the_colors_of_the_page() -> None:
    pytest.importorskip("matplotlib")
    html = RESULTS["memory"]().to_html()
    assert html.count("<svg") == 1
    assert "currentColor" in html
    assert "<svg" not in RESULTS["info"]().to_html(), "its table has bars"


@pytest.mark.slow
def test_html_leaves_matplotlib_as_it_is() -> None:
    """No backend is chosen, no figure stays open, and options stay, also with several threads."""
    pytest.importorskip("matplotlib")
    code = (
        "import threading, matplotlib, torch, torchscan\n"
        "options = matplotlib.rcParams.copy()\n"
        "rf = torchscan.receptive_field(torch.nn.Conv2d(3, 4, 3), (3, 8, 8))\n"
        "threads = [threading.Thread(target=rf.to_html) for _ in range(4)]\n"
        "[each.start() for each in threads]\n"
        "[each.join() for each in threads]\n"
        "assert '<svg' in rf.to_html()\n"
        "assert matplotlib.rcParams._get_backend_or_none() is None\n"
        "assert matplotlib.rcParams.copy() == options\n"
        "import matplotlib.pyplot\n"
        "assert not matplotlib.pyplot.get_fignums()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)  # noqa: S603


def test_an_unknown_option_is_named_with_the_method_that_was_called() -> None:
    info, roofline = RESULTS["info"](), RESULTS["roofline"]()
    with pytest.raises(TypeError, match=r"'colums' is not an option of Info.to_csv\(\): "):
        info.to_csv(colums=["macs"])
    with pytest.raises(TypeError, match=r"'colums' is not an option of Info.to_pandas\(\): "):
        info.to_pandas(colums=["macs"])
    with pytest.raises(TypeError, match=r"'rows' is not an option of Roofline.table\(\): .* top, "):
        roofline.to_latex(rows=3)
    assert roofline.to_csv(by="kind") != roofline.to_csv()


def test_titles_are_those_of_the_options() -> None:
    roofline = RESULTS["roofline"]()
    title = roofline.table("kind").title
    assert title.endswith(" by kind")
    assert roofline.to_pandas(by="kind").attrs["title"] == title
    assert f"<title>torchscan: {escape(title)}</title>" in roofline.to_html(
        standalone=True, by="kind"
    )


def test_costs_of_a_pass_are_in_the_table() -> None:
    """A product of 4·8, and ReLU without products."""
    trace = record(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (4,))
    rows = trace.table().to_dict()["rows"]
    macs = {row["operator"]: row["macs"] for row in rows}
    assert macs == {"aten.linear": 32, "aten.relu": 0, "total": 32}


def test_figures_of_memory_are_in_the_table() -> None:
    estimate = RESULTS["memory"]()
    data = json.loads(estimate.table().write("json"))
    by_kind, verdict = (
        {row["name"]: row["value"] for row in each["rows"]} for each in data["totals"]
    )
    assert by_kind == {kind: size for kind, size in estimate.by_kind.items() if size}
    assert verdict["reserved_bytes"] == estimate.verdict.reserved_bytes
    assert verdict["left_bytes"] == estimate.verdict.left_bytes
    largest = {layer.path: layer.activation_bytes for layer in estimate.layers}
    assert all(row["activation_bytes"] == largest[row["path"]] for row in data["rows"])


def test_figures_of_a_roofline_add_up_in_the_table() -> None:
    roofline = RESULTS["roofline"]()
    for by in ("layer", "kind", "operator"):
        table = roofline.table(by, top=2)
        rows = json.loads(table.write("json"))["rows"]
        assert sum(row["time_estimate"] for row in rows) == pytest.approx(roofline.time_estimate)
        assert sum(row["flops"] for row in rows) == roofline.total.flops


def test_names_are_text_in_every_table() -> None:
    """A terminal, a page and a document get no control codes and no markup from names of modules."""
    model = Chain({name: nn.Linear(4, 4) for name in (*HOSTILE, *UNPRINTABLE)})
    fields, trace = receptive_field(model, (4,)), record(model, (4,))
    memory, roofline = (
        estimate_memory(model, (4,)),
        analyze_roofline(model, (4,), device="RTX 3090"),
    )
    before, after = (
        crawl_module(model, (4,)),
        crawl_module(model, (4,), batch_size=2),
    )
    tables = [
        *(
            fields.table(),
            trace.table("module"),
            memory.table(),
        ),
        *(
            roofline.table(top=99),
            torchscan.compare(before, after).table(),
        ),
    ]
    for table in tables:
        for style in ("text", "markdown", "latex", "html"):
            assert all(line.isprintable() for line in table.write(style).split("\n"))
        assert "<script>window" not in table.write("html") + table.write("markdown")
        assert "<img" not in table.write("html") + table.write("markdown")


@pytest.mark.slow
@pytest.mark.sweep
def test_several_threads_may_print_first() -> None:
    """In a process where nothing was printed before."""
    code = (
        "import threading, torch, torchscan\n"
        "trace = torchscan.record(torch.nn.Linear(2, 2), (2,))\n"
        "told = []\n"
        "threads = [threading.Thread(target=lambda: told.append(str(trace))) for _ in range(6)]\n"
        "[each.start() for each in threads]\n"
        "[each.join() for each in threads]\n"
        "print(len(set(told)), len(told))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.split() == ["1", "6"]


def test_what_is_left_of_an_info_is_printed_as_the_dict_that_it_is() -> None:
    assert str(Info()) == "{}"
    rest = Info(overall={"macs": 3}, without_formula={"a<b>": 1})
    assert str(rest) == "{'overall': {'macs': 3}, 'without_formula': {'a<b>': 1}}"
    assert "a&lt;b&gt;" in rest._repr_mimebundle_()["text/html"]


def test_a_shallow_copy_of_an_info_shows_itself_too() -> None:
    info = RESULTS["info"]()
    assert str(info.copy()) == str(info)


def test_an_inspection_that_is_not_finished_is_shown_in_a_notebook() -> None:
    run = inspect(block())
    assert run._repr_html_() == "<pre>&lt;Run: not finished&gt;</pre>"


def test_a_largest_batch_that_nobody_asked_for_is_not_mentioned() -> None:
    asked: dict[str, Any] = {"device": "RTX 3090"}
    assert "argest batch" not in str(estimate_memory(block(), SHAPE, **asked))
    assert "Largest batch size" in str(estimate_memory(block(), SHAPE, **asked, largest_batch=True))


def test_a_longest_sequence_is_mentioned_where_it_was_asked_for() -> None:
    asked: dict[str, Any] = {"input_shape": (8,), "dtype": torch.long, "device": "RTX 3090"}
    words = torch.nn.Embedding(10, 4)
    assert "ongest sequence" not in str(estimate_memory(words, **asked))
    assert "Longest sequence" in str(estimate_memory(words, **asked, longest_sequence=True))
