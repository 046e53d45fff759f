"""The dataflow between modules: edges written by hand, for what a graph of autograd's cannot show, too."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.recording.test_record import Calls
from tests.torchvision_cpu import torchvision
from tests.versions import before
from torchscan import InputError, RecordError, record
from torchscan.analyses.module_graph import ModuleGraph, module_graph
from torchscan.trace.trace import Trace

IMAGE = (3, 64, 64)


def names(graph: ModuleGraph) -> list[str]:
    """Of the nodes; the second of a name is ``add#2``. What the test modules, whose arguments have no names, get first is x."""
    seen: Counter[str] = Counter()
    found = []
    for node in graph.nodes:
        seen[node.name] += 1
        name = node.name.replace("args[0]", "x")
        found.append(name if seen[node.name] == 1 else f"{name}#{seen[node.name]}")
    return found


def edges(trace: Trace, path: str = "", call: int = 0) -> list[str]:
    graph = module_graph(trace, path, call)
    known = names(graph)
    return sorted(f"{known[edge.source]} {known[edge.target]}" for edge in graph.edges)


def ways(*said: str) -> list[str]:
    """The edges along ``"x > conv > relu"``."""
    nodes = [each.split(" > ") for each in said]
    return sorted(f"{one} {other}" for way in nodes for one, other in pairwise(way))


# -- well-known models ---------------------------------------------------------------------------------------------------

RESIDUAL = "x > conv1 > bn1 > relu > conv2 > bn2 > add > relu (2) > output"
DENSE = ["init_features", *(f"denselayer{number}" for number in range(1, 7)), "cat"]
#: ways by the path of a module
KNOWN: dict[str, dict[str, list[str]]] = {
    "resnet18": {
        "": [
            "x > conv1 > bn1 > relu > maxpool > layer1 > layer2 > layer3 > layer4 > avgpool > flatten > fc > output"
        ],
        "layer2.0": [RESIDUAL, "x > downsample > add"],
        "layer2.1": [RESIDUAL, "x > add"],
    },
    "googlenet": {
        "inception3a": [*(f"x > branch{number} > cat" for number in range(1, 5)), "cat > output"]
    },
    "densenet121": {
        "features.denseblock1": [
            *(f"{one} > {other}" for at, one in enumerate(DENSE) for other in DENSE[at + 1 :]),
            "cat > output",
        ],
        "features.denseblock1.denselayer2": [
            "input[0] > cat > norm1 > relu1 > conv1 > norm2 > relu2 > conv2 > output",
            "input[1] > cat",
        ],
    },
    "efficientnet_b0": {
        "features.2.1": ["input > block > stochastic_depth > add > output", "input > add"],
        "features.1.0.block.1": [
            "input > avgpool > fc1 > activation > fc2 > scale_activation > mul > output",
            "input > mul",
        ],
    },
    "squeezenet1_1": {
        "features.3": [
            "x > squeeze > squeeze_activation > expand1x1 > expand1x1_activation > cat > output",
            "squeeze_activation > expand3x3 > expand3x3_activation > cat",
        ]
    },
    "shufflenet_v2_x0_5": {
        "stage2.1": [
            "x > chunk > branch2 > cat > view > transpose > contiguous > view#2 > output",
            "chunk > cat",
        ]
    },
    "vgg11": {"": ["x > features > avgpool > flatten > classifier > output"]},
    "mnasnet0_5": {"layers.8.1": ["input > layers > add > output", "input > add"]},
}
NEEDED: dict[str, Any] = {"googlenet": {"init_weights": False, "aux_logits": False}}


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_edges_of_well_known_models(name: str) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)(weights=None, **NEEDED.get(name, {}))
    trace = record(model, IMAGE)
    for path, expected in KNOWN[name].items():
        assert edges(trace, path) == ways(*expected), path


def test_branches_that_only_training_has() -> None:
    """Inception's auxiliary classifier hangs beside the trunk, and both are results, by the names of their fields."""
    with torch.device("meta"):
        model = torchvision.models.inception_v3(weights=None, init_weights=False)
    trace = record(model, (3, 299, 299), batch_size=2, mode="train")
    assert set(edges(trace)) >= set(
        ways("Mixed_6e > AuxLogits", "Mixed_6e > Mixed_7a", "fc > [0]", "AuxLogits > [1]")
    )
    assert edges(trace, "Mixed_5b") == ways(
        "x > branch1x1 > cat > output",
        "x > branch5x5_1 > branch5x5_2 > cat",
        "x > branch3x3dbl_1 > branch3x3dbl_2 > branch3x3dbl_3 > cat",
        "x > avg_pool2d > branch_pool > cat",
    )


@pytest.mark.slow
def test_a_vision_transformer() -> None:
    with torch.device("meta"):
        model = torchvision.models.vit_b_16(weights=None)
    trace = record(model, (3, 224, 224))
    assert edges(trace) == ways(
        "x > conv_proj > reshape > permute > cat > encoder > select > heads > output",
        "class_token > expand > cat",
    )
    assert edges(trace, "encoder") == ways(
        "input > add > dropout > layers > ln > output", "pos_embedding > add"
    )
    block = [
        "input > ln_1 > self_attention > dropout > add > ln_2 > mlp > add#2 > output",
        "input > add",
        "add > add#2",
    ]
    assert edges(trace, "encoder.layers.encoder_layer_0") == ways(*block)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_transformer_encoder(mode: Any) -> None:
    """In evaluation, dropouts hand on what they are given."""
    trace = record(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, norm_first=True), 2),
        (5, 8),
        mode=mode,
    )
    assert edges(trace) == ways("src > layers.0 > layers.1 > output")
    block = "src > norm1 > self_attn > dropout1 > add > norm2 > linear1 > relu > dropout > linear2 > dropout2 > add#2 > output"
    assert edges(trace, "layers.1") == ways(block, "src > add", "add > add#2")


def test_recurrent_layers() -> None:
    trace = record(nn.LSTM(8, 8, batch_first=True, bias=False), (5, 8))
    weights, zeros = (
        ["weight_ih_l0 > lstm", "weight_hh_l0 > lstm"],
        ["zeros > lstm", "zeros#2 > lstm"],
    )
    assert edges(trace) == ways(
        "input > lstm > [0]", *weights, *zeros, "lstm > [1][0]", "lstm > [1][1]"
    )


def test_a_unet() -> None:
    """What goes down is kept, and meets what comes up."""

    def forward(self: Any, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(self.pool(one))
        up = self.up(self.middle(self.pool(two)))
        return self.head(torch.cat([self.up(torch.cat([up, two], 1)), one], 1))

    parts = {
        name: nn.Conv2d(*sizes, 3, padding=1)
        for name, sizes in (("down1", (3, 4)), ("down2", (4, 4)), ("middle", (4, 4)))
    }
    model = Calls(
        forward,
        **parts,
        pool=nn.MaxPool2d(2),
        up=nn.Upsample(scale_factor=2),
        head=nn.Conv2d(12, 1, 1),
    )
    way = "x > down1 > pool > down2 > pool (2) > middle > up > cat > up (2) > cat#2 > head > output"
    assert edges(record(model, (3, 16, 16))) == ways(way, "down2 > cat", "down1 > cat#2")


# -- how tensors are passed ----------------------------------------------------------------------------------------------


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(
        self, x: Tensor, *others: Tensor, mask: Tensor, state: dict[str, list[Tensor]]
    ) -> dict[str, Any]:
        y = self.fc(x) * mask + others[0]
        return {"logits": y, "hidden": (state["h"][0] + y, y)}


def test_names_come_from_arguments_and_keys() -> None:
    """Of two that are one tensor the first."""
    x = torch.rand(3, 4)
    trace = record(Named(), args=(x, x + 1), kwargs={"mask": x + 2, "state": {"h": [x + 3]}})
    ends = {node.name for node in module_graph(trace).nodes if node.kind in ("input", "output")}
    assert ends == {"x", "args[1]", "mask", "state.h[0]", "logits", "hidden[0]"}


def test_keyword_arguments_alone() -> None:
    model = Calls(
        lambda self, *, query, key: self.one(query) + self.two(key),
        one=nn.Linear(4, 4),
        two=nn.Linear(4, 4),
    )
    trace = record(model, kwargs={"query": torch.rand(2, 4), "key": torch.rand(2, 4)})
    assert edges(trace) == ways("query > one > add > output", "key > two > add")


def test_an_argument_that_nobody_reads_is_there_without_an_edge() -> None:
    model = Calls(lambda self, x, unused: self.fc(x), fc=nn.Linear(4, 4))
    graph = module_graph(record(model, args=(torch.rand(2, 4), torch.rand(3))))
    assert "args[1]" in names(graph)
    assert len(graph.edges) == 2


def test_what_hands_on_its_argument_is_on_the_way() -> None:
    model = nn.Sequential(
        nn.Identity(), nn.Sequential(nn.Dropout(0.5), nn.Identity()), nn.Linear(4, 4)
    )
    trace = record(model, (4,))
    assert edges(trace) == ways("input > 0 > 1 > 2 > output")
    assert edges(trace, "1") == ways("input > 0 > 1 > output")
    assert edges(trace, "0") == ["input output"]


@before("2.9", "the graph has other operators")
def test_what_is_written_in_place_comes_from_who_wrote_last() -> None:
    """To a part of it, through a view."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        y[:, :2].mul_(2)
        return self.act(y) + x

    trace = record(Calls(forward, fc=nn.Linear(4, 4), act=nn.ReLU(inplace=True)), (4,))
    assert edges(trace) == ways("x > fc > slice > mul > act > add > output", "x > add")


def test_statistics_that_a_layer_writes_are_its_own() -> None:
    """A batch norm in training writes to its buffers, not to what it is given."""
    model = Calls(lambda self, x: self.bn(x) + x, bn=nn.BatchNorm1d(4))
    assert edges(record(model, (4,), batch_size=2, mode="train")) == ways(
        "x > bn", "bn > add", "x > add", "add > output"
    )


def test_a_module_called_twice_has_two_nodes() -> None:
    fc = nn.Linear(4, 4)
    trace = record(Calls(lambda self, x: self.other(self.fc(self.fc(x))), fc=fc, other=fc), (4,))
    assert edges(trace) == ways("x > fc > fc (2) > fc (3) > output")


def test_a_model_that_calls_itself() -> None:
    model = Calls(
        lambda self, x, more=2: self(self.fc(x), more - 1) if more else self.fc(x),
        fc=nn.Linear(4, 4),
    )
    trace = record(model, (4,))
    assert edges(trace) == ways("x > fc > Calls (2) > output")
    assert edges(trace, "", 1) == ways("x > fc (2) > Calls (3) > output")
    assert edges(trace, "", 2) == ways("x > fc (3) > output")


def test_what_is_kept_aside_leaves_a_module_and_enters_another() -> None:
    """Without being returned or passed."""

    def keep(self: Any, x: Tensor) -> Tensor:
        self.kept.append(torch.tanh(x))
        return self.fc(x)

    kept: list[Tensor] = []
    one, two = Calls(keep, fc=nn.Linear(4, 4)), Calls(lambda self, x: x + self.kept[-1])
    for part in (one, two):
        part.kept = kept  # type: ignore[assignment]
    trace = record(nn.Sequential(one, two), (4,))
    assert set(edges(trace)) == {"input 0", "0 1", "1 output"}
    assert edges(trace, "0") == ways("x > tanh", "x > fc", "fc > output", "tanh > for 1")
    assert edges(trace, "1") == ways("x > add", "from 0 > add", "add > output")
    kept.clear()


@pytest.mark.parametrize(
    "options", [{}, {"training": True}, {"mode": "train"}, {"execute": "real"}]
)
def test_it_is_the_same_however_the_pass_ran(options: dict[str, Any]) -> None:
    model = Calls(lambda self, x: self.fc(x.round()) + x, fc=nn.Linear(4, 4))
    assert edges(record(model, (4,), **options)) == ways("x > round > fc > add > output", "x > add")


def test_what_a_checkpoint_runs_again_is_not_there_twice() -> None:
    model = Calls(
        lambda self, x: checkpoint(self.fc, x, use_reentrant=False) + x, fc=nn.Linear(4, 4)
    )
    assert edges(record(model, (4,), training=True)) == ways(
        "x > fc", "fc > add", "x > add", "add > output"
    )


# -- failures ------------------------------------------------------------------------------------------------------------


def test_a_pass_that_fails_has_a_graph_up_to_there() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Sequential(nn.ReLU(), nn.Linear(100, 10))
    )
    with pytest.raises(RecordError) as caught:
        record(model, (3, 8, 8))
    graph = module_graph(caught.value)
    assert names(graph)[:3] != []
    assert [node.name for node in graph.nodes if node.failed] == ["2"]
    inner = module_graph(caught.value, "2")
    assert [node.name for node in inner.nodes if node.failed] == ["1"]
    assert [f"{inner.nodes[a].name} {inner.nodes[b].name}" for a, b, _ in inner.edges][-1] == "0 1"


def test_what_there_is_no_graph_of() -> None:
    trace = record(nn.Sequential(nn.Linear(4, 4)), (4,))
    with pytest.raises(InputError, match="no module 'body' was called"):
        module_graph(trace, "body")
    with pytest.raises(InputError, match="call is out of range: 0 was called once"):
        module_graph(trace, "0", 1)
