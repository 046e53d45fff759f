"""The plan of the house: what stands at the front door, and which way imports point."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import torchscan
from torchscan.analyses.receptive_field.layer_results import LayerResults
from torchscan.report.page_result import PageResult
from torchscan.results import Result, RowsResult

PACKAGE = Path(torchscan.__file__).parent

#: a room imports only from rooms on the left of it
ROOMS = [
    {"_version", "escapes"},
    {"wording"},
    {"errors", "user_warnings"},
    {"hints"},
    {"wrong_arguments"},
    {
        "units",
        "files",
        "plain",
        "precisions",
        "signatures",
        "measured",
        "once",
        "garbage",
        "torch_versions",
    },
    {"terminal", "formatters"},
    {"results"},
    {"notes"},
    {"trace"},
    {"ops", "hardware"},
    {"recording"},
    {"analyses"},
    {"observing"},
    {"inspecting"},
    {"report"},
    {"pass_changes", "model_state"},
    {"checkpointing", "suggestions", "size_search"},
    {"question"},
    {"recorded_pass"},
    {"device_estimates"},
    {"estimate_suggestions", "checkpoint_estimates"},
    {"scan"},
    {"expectation", "pages", "generation_setting"},
    {"generation_question", "inspection_run"},
    {"generation_session"},
    {"comparing", "crawler", "estimator", "generation", "inspection", "snapshots", "targets"},
    {"measures"},
    {"metrics", "generation_metrics", "modules", "process", "utils"},
    {"metric_limits", "plan_metrics"},
    {"budgets", "tables"},
    {"watching", "ranks"},
    {"parallel", "sinks"},
    {"cli", "pytest_plugin"},
    {"__main__", "types"},
]


def _imports() -> Iterator[tuple[Path, str, str]]:
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in _executed_nodes(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module == "torchscan":
                names = [f"torchscan.{alias.name}" for alias in node.names]
            for name in names:
                if name.startswith("torchscan."):
                    yield file, room, name.split(".")[1]


def _executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _executed_nodes(node)


@pytest.mark.slow
def test_imports_point_to_the_left_only() -> None:
    step = {room: index for index, rooms in enumerate(ROOMS) for room in rooms}
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {imported}"
        for file, room, imported in _imports()
        if room != "__init__" and imported != room and step[imported] >= step[room]
    ]
    assert wrong == []


@pytest.mark.slow
def test_modules_of_a_room_do_not_import_each_other_in_a_circle() -> None:
    """Imports inside functions count."""
    assert _circles(_modules()) == []


def _modules() -> dict[str, set[str]]:
    """Each module with those of its room that it imports, wherever in its text."""
    files = {
        _module_name(file): file
        for file in PACKAGE.rglob("*.py")
        if file != PACKAGE / "__init__.py"
    }
    imported: dict[str, set[str]] = {}
    for module, file in files.items():
        nodes = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
        ]
        names = {
            name
            for node in nodes
            for alias in node.names
            for name in (f"{node.module}.{alias.name}", node.module or "")
        }
        room = module.split(".")[1]
        imported[module] = {
            name
            for name in names
            if name in files and name != module and name.split(".")[1] == room
        }
    return imported


def _module_name(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The way round, for each circle that a walk in depth meets."""
    found, done = [], set()

    def walk(module: str, way: list[str]) -> None:
        if module in way:
            found.append([*way[way.index(module) :], module])
        elif module not in done:
            for each in sorted(graph[module]):
                walk(each, [*way, module])
            done.add(module)

    for module in sorted(graph):
        walk(module, [])
    return found


def test_the_front_door_is_a_sorted_list_of_things_that_exist() -> None:
    assert torchscan.__all__ == sorted(torchscan.__all__)
    assert all(hasattr(torchscan, name) for name in torchscan.__all__)


def test_no_room_is_called_like_a_name_of_the_front_door() -> None:
    """Importing it would put the room in the place of the name."""
    modules = {file.stem for file in PACKAGE.iterdir()} - {"parallel", "sinks"}
    assert not modules & set(torchscan.__all__)


def test_the_package_reads_what_type_checkers_are_told() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    told = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module != "torchscan"
        for alias in node.names
    }
    assert told == torchscan._HOMES  # type: ignore[attr-defined]
    assert sorted({*told, "parallel", "sinks", "types"}) == dir(torchscan)


#: written by hand in formulas and tests
MADE_BY_POSITION = {"TensorSpec"}


@pytest.mark.slow
def test_dataclasses_with_many_fields_are_made_by_name() -> None:
    nodes = [
        node for file in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))
    ]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and _marks(node)]
    many = [
        each for each in classes if sum(isinstance(line, ast.AnnAssign) for line in each.body) > 4
    ]
    assert {each.name for each in many if "kw_only=True" not in _marks(each)[0]} == MADE_BY_POSITION


def _marks(node: ast.ClassDef) -> list[str]:
    return [mark for mark in map(ast.unparse, node.decorator_list) if mark.startswith("dataclass")]


def test_at_most_fifty_names_are_at_the_top() -> None:
    assert len(dir(torchscan)) <= 50
    assert set(torchscan.__all__) == set(dir(torchscan)) - {"inspect", "types"}


def test_a_star_import_hides_no_module_of_the_standard_library() -> None:
    assert not set(torchscan.__all__) & set(sys.stdlib_module_names)


def test_a_name_is_public_in_one_place() -> None:
    places = [torchscan, torchscan.types, torchscan.sinks, torchscan.parallel]
    values = [
        getattr(place, name)
        for place in places
        for name in place.__all__
        if not isinstance(getattr(place, name), ModuleType)
    ]
    assert len(values) == len({id(value) for value in values})


def test_result_types_are_public() -> None:
    """A user can write the type of everything that a function returns."""
    str(torchscan.types.Table(title="", columns=[], rows=[]))  # loads the formatters
    bases: set[Any] = {Result, RowsResult, PageResult, LayerResults}
    # by name, because a dataclass with slots replaces the class that it is made of
    names = {kind.__name__ for base in bases for kind in base.__subclasses__()}
    names -= {base.__name__ for base in bases}
    assert names <= set(torchscan.types.__all__)


def test_every_public_name_stands_where_the_list_says() -> None:
    for name, home in torchscan._HOMES.items():  # type: ignore[attr-defined]
        value = getattr(torchscan, name)
        assert value is getattr(importlib.import_module(home), name)


def test_no_branch_on_module_types_in_the_prices() -> None:
    """Cost belongs to operators: there is no second formula system by class of module."""
    assert not [file for file in (PACKAGE / "ops").glob("*.py") if "nn." in file.read_text()]


@pytest.mark.slow
def test_importing_does_not_wait_for_torch() -> None:
    assert "torch" not in _loaded("import torchscan")


@pytest.mark.slow
def test_the_worker_of_a_watched_run_starts_without_torch() -> None:
    assert "torch" not in _loaded("import torchscan.watching.starting")


@pytest.mark.slow
def test_who_writes_and_reads_runs_knows_nothing_of_models() -> None:
    """The worker of a run that is watched, its store, and those who read that."""
    code = "import sys, torchscan.watching.worker, torchscan.watching.history; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    loaded = done.stdout.split()
    ours = {name.split(".")[1] for name in loaded if name.startswith("torchscan.")}
    assert ours <= {
        "watching",
        "errors",
        "escapes",
        "files",
        "hints",
        "wrong_arguments",
        "garbage",
        "measured",
        "notes",
        "observing",
        "plain",
        "results",
        "formatters",
        "user_warnings",
        "wording",
    }


@pytest.mark.slow
def test_using_loads_nothing_heavy_beside_torch() -> None:
    loaded = _loaded(
        "import torchscan; [getattr(torchscan, name) for name in torchscan.__all__]", beside="torch"
    )
    foreign = (
        {name.split(".")[0] for name in loaded}
        - set(sys.stdlib_module_names)
        - {"torchscan", "tabulate", "wcwidth"}
    )
    assert foreign <= {"torch"}
    assert not {name for name in loaded if name.startswith("torch._dynamo")}


def test_the_package_and_the_command_line_load_little() -> None:
    """Slow parts of the standard library wait until they are needed."""
    package = _loaded("import torchscan")
    assert not package & {"dataclasses", "inspect", "json", "pathlib", "tomllib"}
    command_line = _loaded("import torchscan.cli.main")
    assert not command_line & {"email", "importlib.metadata", "secrets", "tomllib", "torch"}


def _loaded(code: str, beside: str = "sys") -> set[str]:
    """The modules that a new interpreter loads for this."""
    code = f"import {beside}, sys; before = set(sys.modules); {code}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    return set(done.stdout.split())


#: by operator, formula, file or device, of which there are so many; whatever depends on shapes is kept to a limit
KEPT_FOR_GOOD = {
    "torchscan.hardware.device_files": {"_content", "package_devices"},
    "torchscan.ops.formula_calls": {"_layout"},
    "torchscan.ops.operator_names": {"names_to_find"},
    "torchscan.recording.execution.op_traits": {"traits_of"},
    "torchscan.recording.switches": {"_of_process", "_of_thread"},
    "torchscan.report.html": {"_policy", "page_file"},
    "torchscan.report.paging.model_page": {"_policy_of", "_script", "_styles"},
    "torchscan.report.saved": {"_schema"},
    "torchscan.trace.events": {"names_of_arguments"},
}


def test_what_is_kept_between_calls_has_a_limit() -> None:
    kept: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(
            ["torchscan", *file.relative_to(PACKAGE).with_suffix("").parts]
        ).removesuffix(".__init__")
        for value in (
            vars(importlib.import_module(name)).values() if not name.endswith("__main__") else ()
        ):
            is_kept = isinstance(value, functools._lru_cache_wrapper) and value.__module__ == name
            if is_kept and value.cache_parameters()["maxsize"] is None:
                kept.setdefault(name, set()).add(value.__name__)
    assert kept == KEPT_FOR_GOOD
