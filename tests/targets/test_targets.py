"""Models by name: what a target is, how it is built, and what is said where there is no such model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - beside a CPU build of torch
from torchscan import InputError, NeedsValuesError, RecordError, crawl_module, record
from torchscan.targets import Built, InputSpec, inputs_of, parse_input, parse_target, with_model
from torchscan.targets.hub_access import refuse_foreign_code

NETS = """
import functools
import helper
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, *, bias=True):
        super().__init__()
        self.fc = nn.Linear(width, 2, bias=bias)

    def forward(self, x):
        return self.fc(x)

class Inner:
    make = Net

class NeedsData(Net):
    def __init__(self):
        super().__init__(int(torch.linspace(4, 4, 1).item()))

class Branches(nn.Module):
    # 16 MACs, and 64 more unless the first score is the largest, which it is not

    def __init__(self, width=8):
        super().__init__()
        self.scores, self.rest = nn.Linear(4, 4, bias=False), nn.Linear(4, 16, bias=False)
        self.unused = nn.Parameter(torch.zeros(2**width))
        if not self.scores.weight.is_meta:
            nn.init.zeros_(self.scores.weight)
            self.scores.weight.data[3] = 1

    def forward(self, x):
        x = self.scores(x.abs() + 1)
        return x if x.argmax() == 0 else self.rest(x)

net = Net(8)
number = 3

@functools.cache
def kept():
    return Net()

def fails():
    raise OSError("no disk")

def gives_text():
    return "no model"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "broken.py").write_text("import no_such_package_at_all")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name in ("nets", "helper", "broken", "leaves") or name.startswith("_torchscan_target_"):
            del sys.modules[name]


def module_of(text: str) -> nn.Module:
    return with_model(parse_target(text), lambda built: built.module)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        module_of(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def result_or_refusal(parse: Callable[[str], Any], text: str) -> tuple[Any, str]:
    """Any other exception is one too many."""
    try:
        return parse(text), ""
    except InputError as error:
        return None, str(error)


# -- naming --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "place", "name", "args", "kwargs"),
    [
        ("a.b:C", "module", "a.b", "C", (), {}),
        (
            "a:C.make(1, 'x', y=[1, {'z': (2,)}])",
            "module",
            "a",
            "C.make",
            (1, "x"),
            {"y": [1, {"z": (2,)}]},
        ),
        ("a:f('b:c(d)')", "module", "a", "f", ("b:c(d)",), {}),
        ("x/y.py:net", "file", "x/y.py", "net", (), {}),
        ("C:\\nets\\y.py:Net(width=-2)", "file", "C:\\nets\\y.py", "Net", (), {"width": -2}),
        ("my nets (old)/y.py:net", "file", "my nets (old)/y.py", "net", (), {}),
        (
            "torchvision:resnet50(num_classes=10)",
            "torchvision",
            "",
            "resnet50",
            (),
            {"num_classes": 10},
        ),
        (
            "timm:vit_tiny_patch16_224.augreg_in21k",
            "timm",
            "",
            "vit_tiny_patch16_224.augreg_in21k",
            (),
            {},
        ),
        ("hf:a (b)/config.json", "hf", "a (b)/config.json", "", (), {}),
        (
            "hf:config.json(num_hidden_layers=2)",
            "hf",
            "config.json",
            "",
            (),
            {"num_hidden_layers": 2},
        ),
        ("hf:org/Net-3.1@main(width=2)", "hf", "org/Net-3.1@main", "", (), {"width": 2}),
    ],
)
def test_a_target_is_taken_apart(
    text: str, kind: str, place: str, name: str, args: tuple[Any, ...], kwargs: Any
) -> None:
    target = parse_target(text)
    assert (target.kind, target.place, target.name, target.args, target.kwargs) == (
        kind,
        place,
        name,
        args,
        kwargs,
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            "a",
            "a:",
            ":f",
            "a b:f",
            "a:1f",
            "a/b:f",
            "a:f\0",
            "torchvision:",
            "timm:vit(3)",
            "hf:",
        ),
        *("a:f(", "a:f)", "a:f(1)(2)", "a:f(g())", "a:f(x=1, x=2)", "a:f(**{})", "a:f(*[1])"),
        *("a:f(" + "(" * 5000, "a:f(" + "-" * 100000 + "1)"),
    ],
)
def test_what_names_no_model_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_target(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("resnet50", "did you mean torchvision:resnet50, timm:resnet50 or a_file.py:resnet50?"),
        ("torchvision.models.resnet50", "did you mean torchvision.models:resnet50?"),
        ("nets.py", "give the name of one in the file, nets.py:NAME"),
        ("./my-nets.py", "give the name of one in the file, ./my-nets.py:NAME"),
        ("config.json", "did you mean hf:config.json?"),
    ],
)
def test_a_name_without_a_place_gets_one(text: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_target(text)
    assert str(caught.value) == f"'{text}' is not a model: {meant}"


@pytest.mark.parametrize("suffix", ["pt", "pth", "onnx", "ipynb", "safetensors", "bin", "yaml"])
def test_a_file_without_a_model_is_not_taken_for_a_module(suffix: str) -> None:
    """``weights:bin`` would be the object ``bin`` of a module."""
    with pytest.raises(InputError) as caught:
        parse_target(f"weights.{suffix}")
    assert "did you mean" not in str(caught.value)
    assert "path/to/file.py:name" in str(caught.value)


@given(st.text(max_size=40) | st.text("ab:.py/()[]{}='\",*1-\\ \n\0tvhf", max_size=40))
def test_any_text_is_a_target_or_is_refused_in_a_line(text: str) -> None:
    target, said = result_or_refusal(parse_target, text)
    assert "\n" not in said
    assert target is None or target.text == text


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("3,224,224", InputSpec((3, 224, 224))),
        ("3x32x32", InputSpec((3, 32, 32))),
        ("(3, 32, 32)", InputSpec((3, 32, 32))),
        ("(4,)", InputSpec((4,))),
        ("128:long", InputSpec((128,), "long")),
        ("ids=128:int64", InputSpec((128,), "int64", "ids")),
        ("()", InputSpec(())),
        ("x=():bf16", InputSpec((), "bfloat16", "x")),
    ],
)
def test_an_input_is_taken_apart(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@given(st.text(max_size=20) | st.text("0123456789,x:=()long_ \n-", max_size=20))
def test_any_text_is_an_input_or_is_refused_in_a_line(text: str) -> None:
    spec, said = result_or_refusal(parse_input, text)
    assert "\n" not in said
    assert spec is None or all(size >= 0 for size in spec.shape)


# -- building ------------------------------------------------------------------------------------------------------------


def widths(module: nn.Module) -> tuple[int, bool]:
    fc: Any = module.fc
    return fc.in_features, fc.bias is not None


def test_from_a_module_and_from_a_file(folder: Path) -> None:
    assert widths(module_of("nets:Net")) == (4, True)
    assert widths(module_of("nets.py:Net(6, bias=False)")) == (6, False)
    assert widths(module_of(f"{folder}/nets.py:Inner.make(width=5)")) == (5, True)


@pytest.mark.usefixtures("folder")
def test_models_are_built_without_data_where_they_can_be() -> None:
    assert next(module_of("nets:Net").parameters()).is_meta
    assert next(module_of("nets:NeedsData").parameters()).device.type == "cpu"


@pytest.mark.usefixtures("folder")
def test_a_pass_that_needs_data_gets_a_model_with_data() -> None:
    devices: list[str] = []

    def verb(built: Built) -> int:
        devices.append(next(built.module.parameters()).device.type)
        if devices == ["meta"]:
            raise NeedsValuesError("this pass asks for values")
        return 5

    assert with_model(parse_target("nets:Net"), verb) == 5
    assert devices == ["meta", "cpu"]


def test_code_that_a_config_brings_along_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("raise SystemExit('run')")
    own = {
        "model_type": "own",
        "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(own))
    assert "is not a config that transformers knows" in refusal(f"hf:{tmp_path}")
    for architectures in ([5], ["NoSuchClass"]):
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": "llama", "architectures": architectures})
        )
        said = refusal(f"hf:{tmp_path}")
        is_refused_by_transformers = "field 'architectures'" in said  # by some of its versions
        assert (
            is_refused_by_transformers
            or f"transformers cannot provide '{architectures[0]}': " in said
        )
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "num_hidden_layers": "x"})
    )
    assert refusal(f"hf:{tmp_path}")
    tiny = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    with pytest.warns(
        UserWarning, match="names no architectures, so this is the model without a head"
    ):
        module_of(f"hf:{tmp_path}")


LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 99,
}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            {**LLAMA, "attn_implementation": "kernels-community/flash-attn2"},
            "attn_implementation is 'kernels-comm",
        ),
        (
            {**LLAMA, "_attn_implementation": "paged|owner/kernel"},
            "_attn_implementation is 'paged|owner/kernel'",
        ),
        (
            {**LLAMA, "attn_implementation": {"text_config": "owner/kernel"}},
            "attn_implementation.text_config is",
        ),
        (
            {**LLAMA, "experts_implementation": "owner/kernel"},
            "experts_implementation is 'owner/kernel'",
        ),
        (
            {"model_type": "dpt", "backbone": "owner/net", "backbone_config": None},
            "backbone is 'owner/net'",
        ),
        (
            {"model_type": "timm_backbone", "backbone": "hf-hub:owner/net"},
            "backbone is 'owner/net'",
        ),
        (
            {"model_type": "detr", "backbone_kwargs": {"checkpoint_path": "x.pth"}},
            "backbone_kwargs.checkpoint_path is",
        ),
        (
            {"model_type": "timm_wrapper", "model_args": {"pretrained": True}},
            "model_args.pretrained is True",
        ),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)
def test_a_config_that_asks_for_code_or_weights_is_refused_by_its_key(
    config: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the network is not asked."""
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *where, **_: asked.append(where))
    classes = {"dpt": "DPTForDepthEstimation", "timm_backbone": "TimmBackbone"}
    kind = config.get("model_type", "llama")
    written = {
        "model_type": kind,
        "architectures": [classes.get(kind, "LlamaForCausalLM")],
        **config,
    }
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert named in refusal(f"hf:{tmp_path}")
    assert asked == []


@pytest.mark.parametrize(
    ("key", "implementation"),
    [
        *(("attn_implementation", each) for each in (None, "eager", "sdpa", "flex_attention")),
        ("_attn_implementation", "paged|sdpa"),
        ("attn_implementation", {"text_config": "eager", "vision_config": None}),
        *(("experts_implementation", each) for each in ("eager", "batched_mm", "grouped_mm")),
    ],
)
def test_implementations_of_torch_and_transformers_are_not_refused(
    key: str, implementation: Any
) -> None:
    refuse_foreign_code({**LLAMA, key: implementation}, parse_target("hf:config.json"))


def test_an_argument_overrides_the_attention_of_a_config(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **LLAMA,
        "attn_implementation": "flash_attention_2",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "append (_attn_implementation='sdpa') to the target" in refusal(f"hf:{tmp_path}")
    path = tmp_path / "config.json"
    assert (
        overall(f"hf:{path}(_attn_implementation='sdpa')", "input_ids=7:long")["overall"][
            "grad_params"
        ]
        > 0
    )


@pytest.mark.usefixtures("folder")
def test_in_a_process_of_somebody_else_nothing_is_left_without_data() -> None:
    """A factory that keeps what it makes gives it to others, too."""

    def device(**options: Any) -> str:
        return with_model(
            parse_target("nets:kept"),
            lambda built: next(built.module.parameters()).device.type,
            **options,
        )

    assert device(is_own_process=False) == "cpu"
    path = list(sys.path)
    assert device() == "cpu"  # the one that was kept
    assert sys.path == path


@pytest.mark.usefixtures("folder")
def test_a_model_with_data_is_built_with_data_and_nobody_elses() -> None:
    def own(text: str) -> nn.Module:
        return with_model(parse_target(text), lambda built: built.module, with_data=True)

    assert {
        each.device.type for text in ("nets:Net", "nets:net") for each in own(text).parameters()
    } == {"cpu"}
    assert own("nets:net") is not sys.modules["nets"].net


def test_a_model_that_is_larger_than_the_memory_is_not_built_with_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchscan.targets.building._bytes_of_machine", lambda: 2**20)
    verb: Callable[[Built], bool] = lambda built: next(built.module.parameters()).is_meta  # noqa: E731
    assert with_model(parse_target("torchvision:resnet18"), verb)
    with pytest.raises(
        InputError,
        match=r"torchvision:resnet18: the model takes 44\.\d+ MiB, more than this machine's memory",
    ):
        with_model(parse_target("torchvision:resnet18"), verb, with_data=True)
    monkeypatch.setattr("torchscan.targets.building._bytes_of_machine", lambda: 45 * 2**20)
    assert not with_model(parse_target("torchvision:resnet18"), verb, with_data=True)


@pytest.mark.usefixtures("folder")
def test_a_pass_that_is_wrong_is_not_tried_again() -> None:
    tried = []

    def verb(built: Built) -> None:
        tried.append(built)
        record(built.module, (3, 5))  # metadata of an image, say

    with pytest.raises(RecordError):
        with_model(parse_target("nets:Net"), verb)
    assert len(tried) == 1


def test_a_model_that_is_there_is_taken_as_it_is(folder: Path) -> None:
    found = module_of("nets:net")
    assert found is sys.modules["nets"].net
    converted = with_model(
        parse_target("nets:net"), lambda built: built.converted("bfloat16").module
    )
    assert next(converted.parameters()).dtype == torch.bfloat16
    assert next(found.parameters()).dtype == torch.float32
    assert "net is already a model: leave out the arguments" in refusal("nets:net(3)")


@pytest.mark.usefixtures("folder")
def test_the_random_state_stays_as_it_is() -> None:
    before = torch.random.get_rng_state()
    module_of("nets:NeedsData")
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no_such_module:f", "there is no module 'no_such_module' here"),
        ("nets.inner:f", "there is no module"),
        ("nets:Nat", "nets has no 'Nat': did you mean Net"),
        ("nets.py:net.nothing", "has no 'nothing'"),
        ("nets:number", "number is a int: give a model, or a function that returns one"),
        ("nets:fails", "building the model failed: OSError: no disk"),
        ("nets:gives_text", "it returns a str: give a function that returns a torch.nn.Module"),
        ("nets:Net(1, 2, 3)", "building the model failed: TypeError"),
        (
            "broken.py:net",
            "running broken.py failed: ModuleNotFoundError: No module named 'no_such_package_at_all'",
        ),
        ("broken:net", "importing broken failed: No module named 'no_such_package_at_all'"),
        ("leaves.py:net", "running leaves.py failed: SystemExit: 3"),
        ("nothing.py:net", "there is no file 'nothing.py'"),
        ("torchvision:resnet5", "did you mean resnet50?"),
        ("torchvision:resnet50(num_klasses=3)", "building the model failed: TypeError"),
        ("timm:vit_tiny_patch16_22", "did you mean"),
        ("timm:vit", " more begin like this."),
        (
            "torchvision:convnext",
            "did you mean convnext_base or convnext_tiny or convnext_large or convnext_small?",
        ),
        (
            "hf:config.json",
            "there is no file 'config.json': torchscan reads configs from disk or from the hub's cache",
        ),
        ("hf:./nothing", "there is no file './nothing': torchscan reads configs"),
        ("hf:.", "there is no config.json in '.'"),
        ("hf:nets.py", "is not a config that transformers knows"),
        (
            "torchvision:resnet50(weights='DEFAULT')",
            "weights is given, and torchscan downloads nothing: leave it out",
        ),
        (
            "timm:resnet18(pretrained=True)",
            "pretrained is given, and torchscan downloads nothing: leave it out",
        ),
    ],
)
def test_what_cannot_be_built_is_said_in_a_line(text: str, says: str) -> None:
    assert says in refusal(text)


# -- inputs --------------------------------------------------------------------------------------------------------------


def overall(text: str, *inputs: str, dtype: str | None = None) -> dict[str, Any]:
    target, specs = parse_target(text), [parse_input(each) for each in inputs]

    def verb(built: Built) -> dict[str, Any]:
        return crawl_module(
            built.converted(dtype).module,
            **inputs_of(text, built, specs, dtype),
            receptive_field=False,
        )

    return with_model(target, verb)


def test_collections_know_their_inputs() -> None:
    resnet = overall("torchvision:resnet18(num_classes=10)")
    assert resnet["provenance"]["inputs"][0]["shape"] == [1, 3, 224, 224]
    assert (
        resnet["overall"]["grad_params"] == 11_689_512 - 1000 * 513 + 10 * 513
    )  # published, with another head
    assert overall("timm:vit_tiny_patch16_224")["overall"]["grad_params"] == 5_717_416  # published


def test_a_config_of_transformers(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 3,
        **sizes,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    info = overall(f"hf:{path}(num_hidden_layers=2)", "input_ids=7:long")
    # per layer q and o, k and v, the MLP, two norms; embedding, head and last norm
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert info["overall"]["grad_params"] == 2 * layer + 2 * 100 * 64 + 64
    assert info["provenance"]["inputs"][0] == {
        "name": "kwargs['input_ids']",
        "shape": [1, 7],
        "dtype": "int64",
    }
    assert overall(f"hf:{tmp_path}")["provenance"]["inputs"][0]["shape"] == [1, 512]
    path.write_text(json.dumps(config | {"dtype": "bfloat16"}))
    half = overall(f"hf:{path}(num_hidden_layers=2)", "input_ids=7:long")["overall"]
    assert half["param_size"] == 2 * half["grad_params"]  # in the type that the config has
    assert "LlamaConfig has no 'num_layers_hidden'" in refusal(f"hf:{path}(num_layers_hidden=2)")


TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "vocab_size": 50,
}
TINY |= {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with one config, of one layer on the branch ``main`` and of two on ``wide``."""
    root = folder / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(root))
    for commit, branch, layers in (("a" * 40, "main", 1), ("b" * 40, "wide", 2)):
        snapshot = root / "models--org--Net-3.1" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(TINY | {"num_hidden_layers": layers}))
        refs = root / "models--org--Net-3.1" / "refs"
        refs.mkdir(exist_ok=True)
        (refs / branch).write_text(commit)
    return root


def layers_of(text: str) -> int:
    config: Any = module_of(text).config
    return int(config.num_hidden_layers)


@pytest.mark.usefixtures("cache")
def test_a_config_in_the_cache_of_the_hub_goes_by_the_name_of_its_model() -> None:
    pytest.importorskip("transformers")
    assert layers_of("hf:org/Net-3.1") == 1
    assert layers_of("hf:org/Net-3.1@main") == 1
    assert layers_of("hf:org/Net-3.1@wide") == layers_of(f"hf:org/Net-3.1@{'b' * 40}") == 2
    assert layers_of("hf:org/Net-3.1@wide(num_hidden_layers=3)") == 3


def test_what_is_on_disk_comes_before_the_cache(folder: Path, cache: Path) -> None:
    pytest.importorskip("transformers")
    (folder / "org" / "Net-3.1").mkdir(parents=True)
    assert refusal("hf:org/Net-3.1") == "hf:org/Net-3.1: there is no config.json in 'org/Net-3.1'"
    (folder / "org" / "Net-3.1" / "config.json").write_text(
        json.dumps(TINY | {"num_hidden_layers": 4})
    )
    assert layers_of("hf:org/Net-3.1") == 4


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "hf:org/Net-4",
            "it is not a file, and not in the hub's cache; torchscan reads configs from disk or from the "
            "hub's cache, and downloads nothing: "
            "run hf download org/Net-4 config.json, or give the path of a config",
        ),
        ("hf:gpt2(n_layer=2)", "run hf download gpt2 config.json, or give"),
        (
            "hf:org/Net-3.1@narrow",
            "run hf download org/Net-3.1 config.json --revision narrow, or give",
        ),
        ("hf:org/Net@../../main", "there is no file 'org/Net@../../main': torchscan reads configs"),
        ("hf:org/a--b", "reading the hub's cache failed: "),
    ],
)
def test_what_is_not_in_the_cache_is_not_downloaded(text: str, says: str) -> None:
    pytest.importorskip("huggingface_hub")
    assert refusal(text).startswith(f"{text}: ")
    assert says in refusal(text)


@pytest.mark.usefixtures("cache")
def test_the_cache_needs_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal("hf:org/Net-3.1") == (
        "hf:org/Net-3.1: it is not a file, and the hub's cache needs huggingface_hub: "
        "pip install huggingface_hub, or give the path of a config"
    )


@pytest.mark.usefixtures("folder")
def test_types_of_inputs_and_of_the_model() -> None:
    for name in ("bf16", "bfloat16", "torch.bfloat16"):
        info = overall("nets:Net", "4", dtype=name)
        assert info["provenance"]["inputs"][0]["dtype"] == "bfloat16"
        assert info["overall"]["param_size"] == 2 * (4 * 2 + 2)
    assert parse_input("ids=128:torch.long") == InputSpec((128,), "long", "ids")
    with pytest.raises(InputError, match="its inputs are not known"):
        overall("nets:Net")
    with pytest.raises(InputError, match="name all or none, input_shape="):
        overall("nets:Net", "x=4", "4")
    with pytest.raises(InputError, match="'float31' is not a type"):
        overall("nets:Net", "4", dtype="float31")


@pytest.mark.usefixtures("folder")
def test_a_torchvision_of_another_torch_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("importlib.import_module", broken)
    assert refusal("torchvision:resnet18").endswith(
        "operator torchvision::nms does not exist; torchvision was built for another version of "
        f"torch: install the torchvision that matches torch {torch.__version__}"
    )


@pytest.mark.parametrize("place", ["config", "class", "model"])
def test_a_torchvision_that_transformers_cannot_import_is_named_as_such(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers imports its models when they are first used, and hides the cause."""

    class Model:
        def __init__(self, _: Any) -> None:
            fail_as("model")

        _from_config = classmethod(lambda cls, config: cls(config))

    class Transformers:
        def __getattr__(self, name: str) -> Any:
            if name == "AutoConfig":
                config = SimpleNamespace(architectures=["Net"], model_type="net")

                def from_pretrained(*_: Any, **__: Any) -> Any:
                    fail_as("config")
                    return config

                return SimpleNamespace(from_pretrained=from_pretrained)
            fail_as("class")
            return Model

    def fail_as(where: str) -> None:
        if where != place:
            return
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'Net'.") from error

    monkeypatch.setattr("torchscan.targets.hubs.imported", lambda *_: Transformers())
    (tmp_path / "config.json").write_text('{"model_type": "net"}')
    monkeypatch.chdir(tmp_path)
    assert refusal("hf:config.json").endswith(
        "operator torchvision::nms does not exist; torchvision was built for another version of "
        f"torch: install the torchvision that matches torch {torch.__version__}"
    )


@pytest.mark.usefixtures("folder")
def test_a_branch_on_an_index_that_was_assumed_is_decided_by_data() -> None:
    info = with_model(parse_target("nets:Branches"), lambda built: crawl_module(built.module, (4,)))
    assert info["overall"]["macs"] == 16 + 64
    assert info["provenance"]["execution"] == "real"


@pytest.mark.usefixtures("folder")
def test_a_model_too_large_for_memory_stays_without_data_and_says_so() -> None:
    """Of 4 EiB."""
    info = with_model(
        parse_target("nets:Branches(width=60)"),
        lambda built: crawl_module(built.module, (4,)),
    )
    assert info["overall"]["macs"] == 16
    (note,) = info["provenance"]["assumptions"]
    assert note["code"] == "branch-on-pick"
    assert "argmax" in note["values"]["operator"]
    assert "nets.py" in note["values"]["places"][0]


@pytest.mark.parametrize("is_language_model", [False, True])
@pytest.mark.filterwarnings("ignore:.*names no architectures")
def test_a_language_model_has_its_head_without_architectures_in_its_config(
    is_language_model: bool, tmp_path: Path
) -> None:
    """The head is one more matrix, of vocabulary times width."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 5}
    config = {"model_type": "llama", "intermediate_size": 16, "tie_word_embeddings": False, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = replace(parse_target(f"hf:{tmp_path}"), is_language_model=is_language_model)
    names = with_model(target, lambda built: [name for name, _ in built.module.named_parameters()])
    assert ("lm_head.weight" in names) == is_language_model
