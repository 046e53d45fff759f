"""What a user reads when something is wrong: where, what arrived, what to try; with the cause chained."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls
from torchscan import (
    InputError,
    NeedsValuesError,
    RecordError,
    TorchscanError,
    crawl_module,
    record,
)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


def message(model: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(TorchscanError) as caught:
        record(model, *args, **kwargs)
    return str(caught.value)


def test_a_wrong_channel_count_names_layer_operator_and_shapes() -> None:
    text = message(convnet(), (4, 8, 8))
    assert text.startswith(
        "0.0 (Conv2d) failed in aten.conv2d.default(float32 [1, 4, 8, 8], float32 [8, 3, 3, 3], "
    )
    assert "args[0] float32 [1, 4, 8, 8]" in text


def test_the_original_exception_is_chained() -> None:
    with pytest.raises(RecordError) as caught:
        record(convnet(), (4, 8, 8))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_batch_dimension_given_by_mistake_is_spotted() -> None:
    advice = "try: input_shape=(3, 8, 8), without the batch dimension (batch_size sets it)"
    assert message(convnet(), (1, 3, 8, 8)).endswith(advice)
    assert (
        "another input_shape than (1, 8, 8): the layer takes 3 channels and is given 1"
        in message(convnet(), (1, 8, 8))
    )


def test_a_wrong_size_further_down_names_the_layer_that_stumbles() -> None:
    text = message(convnet(), (3, 9, 9))
    assert text.startswith(
        "2 (Linear) failed in aten.linear.default(float32 [1, 392], float32 [10, 288]"
    )
    assert "make 2 (Linear) fit its input: the layer takes 288 features and is given 392" in text
    assert "or give another input_shape than (3, 9, 9)" in text


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (
            nn.Conv2d(4, 4, 1),
            "make 1 (Conv2d) fit its input: the layer takes 4 channels and is given 8",
        ),
        (
            nn.Conv2d(6, 4, 1, groups=2),
            "make 1 (Conv2d) fit its input: the layer takes 6 channels and is given 8",
        ),
        (
            nn.ConvTranspose2d(9, 12, 3),
            "check 1 (ConvTranspose2d), which cannot use its input, and input_shape=(3, 9, 9)",
        ),
        (nn.Bilinear(8, 9, 2), "give one shape per argument"),
        (
            nn.LSTM(9, 3),
            "check 1 (LSTM), which cannot use its input, and input_shape=(3, 9, 9)",
        ),
        (
            nn.LayerNorm(9),
            "make 1 (LayerNorm) fit its input: the layer takes 9 features and is given 7; or",
        ),
        (
            nn.BatchNorm2d(9),
            "make 1 (BatchNorm2d) fit its input: the layer takes 9 channels and is given 8",
        ),
    ],
)
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_a_layer_that_does_not_fit_the_one_before_is_to_blame(
    layer: nn.Module, said: str, execute: Any
) -> None:
    assert f"try: {said}" in message(
        nn.Sequential(nn.Conv2d(3, 8, 3), layer), (3, 9, 9), execute=execute
    )


@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [(nn.Linear(4, 2), (5,)), (nn.Sequential(nn.Linear(4, 2)), (3, 5)), (nn.LayerNorm(4), (5,))],
)
def test_an_input_of_the_wrong_width_names_both_widths(
    model: nn.Module, shape: tuple[int, ...], execute: Any
) -> None:
    advice = f"another input_shape than {shape}: the layer takes 4 features and is given 5"
    assert message(model, shape, execute=execute).endswith(f"try: {advice}")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            nn.LSTM(9, 3),
            "check the inputs against forward(input, hx): the layer takes 9 features and is given 8",
        ),
        (
            nn.Sequential(nn.Linear(8, 4), nn.GRU(9, 3)),
            "make 1 (GRU) fit its input: the layer takes 9 features and is given 4; or give another input_shape than (5, 8)",
        ),
        (
            nn.TransformerEncoderLayer(16, 4, batch_first=True),
            "make self_attn (MultiheadAttention) fit its input: the layer takes 16 features and is given 8; or give another",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.LSTMCell(9, 3)),
            "make 1 (LSTMCell) fit its input: the layer takes 9 features and is given 40; or give another",
        ),
    ],
)
def test_layers_that_check_their_input_themselves_fit_or_not_too(
    model: nn.Module, said: str
) -> None:
    assert f"try: {said}" in message(model, (5, 8))


def test_tensors_that_are_given_are_to_be_converted() -> None:
    ids, doubles = torch.ones(2, 5), torch.ones(2, 4, dtype=torch.float64)
    assert message(nn.Embedding(7, 4), (5,)).endswith(
        "try: token ids are integers: give dtype=torch.long"
    )
    assert message(nn.Embedding(7, 4), args=(ids,)).endswith(
        "try: token ids are integers: convert them, ids.long()"
    )
    different = (
        "try: the model and its inputs have different types: "
        "convert the model, or give another dtype than torch.float64"
    )
    assert message(nn.Linear(4, 2), (4,), torch.float64).endswith(different)
    converted = (
        "try: convert the tensors that are given, x.to(dtype), to the type that the model expects"
    )
    assert message(nn.Linear(4, 2), args=(doubles,)).endswith(converted)
    assert message(nn.Linear(4, 2), kwargs={"input": doubles}).endswith(converted)


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_in_training_too(execute: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 3))
    said = (
        "try: make 1 (Linear) fit its input: the layer takes 9 features and is given 8; or give "
        "another input_shape than (4,)"
    )
    assert said in message(model, (4,), execute=execute, training=True)


def behind_a_layer(forward: Any, *shape: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), Calls(forward, w=nn.Parameter(torch.ones(shape))))


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        # touched before a layer takes it, the input may still have one dimension too many
        (
            nn.Sequential(Calls(lambda _, x: x / 255), nn.Conv2d(3, 8, 3)),
            (1, 3, 9, 9),
            "without the batch dimension",
        ),
        # a weight that is computed is not what comes before
        (
            nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(9, 3))),
            (4,),
            "another input_shape than (4,)",
        ),
        # operands without dimensions
        (
            nn.Sequential(
                nn.Linear(4, 8),
                Calls(lambda s, x: F.conv1d(x[0], s.w), w=nn.Parameter(torch.ones(3))),
            ),
            (4,),
            "check 1",
        ),
        (
            nn.Sequential(
                nn.Linear(4, 8),
                Calls(lambda s, x: F.linear(x.sum(), s.w), w=nn.Parameter(torch.ones(3, 5))),
            ),
            (4,),
            "check 1",
        ),
    ],
)
def test_what_does_not_fit_is_told_apart(model: nn.Module, shape: Any, said: str) -> None:
    assert said in message(model, shape).partition("try: ")[2]


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ([(5,)], "(5,)"),
        ([5], "(5,)"),
        ({"input": (5,)}, "{'input': (5,)}"),
        ((), "()"),
        ([()], "()"),
        ([np.int64(5)], "(5,)"),
    ],
)
def test_shapes_are_shown_as_they_could_be_given(shape: Any, shown: str) -> None:
    assert f"another input_shape than {shown}: " in message(nn.Linear(4, 2), shape)


def test_whoever_asked_for_auto_already_is_told_something_else() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0]

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Picks())
    with pytest.raises(NeedsValuesError, match="try: the model with data"):
        record(model, (4,))
    with pytest.raises(NeedsValuesError, match="try: execute='auto'"):
        record(model, (4,), execute="abstract")
    with pytest.raises(NeedsValuesError, match="try: execute='auto'"):
        record(Picks(), (4,), execute="abstract")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"input_shape": torch.ones(2, 4)},
            r"^input_shape is for shapes, .*, and has a tensor: give args=\(x,\)$",
        ),
        ({"input_shape": [torch.ones(2, 4)]}, r"give args=\(x,\)$"),
        ({"input_shape": {"x": torch.ones(2, 4)}}, r"give kwargs=\{'x': x\}$"),
        (
            {"input_shape": (4,), "dtype": "long"},
            r"^dtype is 'long': give torch.long, or one per input$",
        ),
        ({"input_shape": [[torch.ones(2, 4)]]}, r"and has a tensor: give args=\(x,\)$"),
        (
            {"input_shape": {"x": [torch.ones(2, 4)]}},
            r"and has a tensor: give kwargs=\{'x': x\}$",
        ),
        (
            {"input_shape": np.ones((2, 4))},
            r"and has an array: give args=\(torch.from_numpy\(x\),\)$",
        ),
        (
            {"input_shape": [np.ones((2, 4))]},
            r"and has an array: give args=\(torch.from_numpy\(x\),\)$",
        ),
        (
            {"input_shape": {"x": np.ones((2, 4))}},
            r"give kwargs=\{'x': torch.from_numpy\(x\)\}$",
        ),
        (
            {"input_shape": [torch.tensor(4.5)]},
            r"^input_shape is \[tensor\(4.5000\)\]: give one shape without the batch",
        ),
        (
            {"input_shape": ["four\n" * 99]},
            r"^input_shape is \['four\\n[^\n]{80,95}…: give one shape[^\n]*$",
        ),
        (
            {"input_shape": (4,), "dtype": "torch.long"},
            r"^dtype is 'torch.long': give torch.long, or one per input$",
        ),
        (
            {"input_shape": (4,), "dtype": "lung"},
            r"give a torch.dtype, such as torch.long, or one per input$",
        ),
    ],
)
def test_python_objects_are_asked_for_by_name(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        record(nn.Linear(4, 4), **given)


@pytest.mark.parametrize("execute", ["auto", "abstract", "real"])
def test_token_ids_of_the_wrong_type(execute: Any) -> None:
    assert "give dtype=torch.long" in message(
        nn.Sequential(nn.Embedding(10, 4)), (5,), execute=execute
    )


@pytest.mark.parametrize("execute", ["auto", "abstract", "real"])
def test_a_type_that_does_not_match_the_weights(execute: Any) -> None:
    assert "give another dtype than" in message(
        nn.Linear(4, 2), (4,), torch.float64, execute=execute
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_padding_of_the_wrong_dimensions_is_not_a_lack_of_values(device: str) -> None:
    with torch.device(device):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReflectionPad1d(2))
    text = message(model, (3, 8, 8))
    assert "Padding size 2 is not supported for 4D input tensor" in text
    assert text.endswith(
        "try: check 1 (ReflectionPad1d), which cannot use its input, and input_shape=(3, 8, 8)"
    )


def test_a_wrong_number_of_inputs_shows_the_signature() -> None:
    class Two(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left + right

    text = message(Two(), (4,))
    assert "TypeError" in text
    assert "forward(left, right)" in text


def test_an_exception_inside_the_model_names_its_layer() -> None:
    def fail(_: Calls, x: Tensor) -> Tensor:
        raise KeyError("lost")

    text = message(nn.Sequential(nn.Linear(4, 4), Calls(fail)), (4,))
    assert text.startswith("1 (Calls) failed: KeyError: 'lost'")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"module": nn.Linear, "input_shape": (4,)}, "give an instance of this class"),
        (
            {"module": "resnet50", "input_shape": (4,)},
            "module is 'resnet50': give a torch.nn.Module",
        ),
        ({}, "the model has no input"),
        ({"input_shape": (4,), "args": (torch.ones(1, 4),)}, "both given"),
        ({"args": torch.ones(1, 4)}, "give a tuple of the positional arguments"),
        ({"input_shape": "4"}, "give one shape without the batch dimension"),
        ({"input_shape": 4}, "give one shape without the batch dimension"),
        ({"input_shape": (4.0,)}, "give one shape without the batch dimension"),
        ({"input_shape": (-1, 4)}, "give one shape without the batch dimension"),
        ({"input_shape": [(4,), 3]}, "give one shape without the batch dimension"),
        ({"input_shape": (4,), "batch_size": 0}, "give a positive integer"),
        ({"input_shape": (4,), "dtype": "float32"}, "give torch.float32"),
        (
            {"input_shape": (4,), "dtype": [torch.float32, torch.long]},
            "dtype has 2 types for 1 inputs",
        ),
        ({"args": {"x": torch.ones(1, 4)}}, "give keyword arguments as kwargs="),
        ({"args": (torch.ones(1, 4),), "batch_size": 8}, "complete arguments have their own"),
        ({"input_shape": (4,), "dtype": int}, "give a torch.dtype"),
        ({"input_shape": {"x": 4}}, "or a dict by name"),
        (
            {"input_shape": {"x": (4,)}, "dtype": {"y": torch.long}},
            "dtype names 'y', which is not an input: choose from x",
        ),
        (
            {"input_shape": (4,), "dtype": {"y": torch.long}},
            "choose from inputs that input_shape names",
        ),
        (
            {"input_shape": {"x": (4,)}, "kwargs": {"x": torch.ones(4)}},
            "'x' is in input_shape and in kwargs",
        ),
        ({"input_shape": (4,), "mode": "test"}, "'eval', 'train', 'same'"),
        ({"input_shape": (4,), "execute": "never"}, "'auto', 'abstract', 'real'"),
    ],
)
def test_wrong_arguments_are_refused_with_what_would_be_right(
    arguments: dict[str, Any], says: str
) -> None:
    module = arguments.pop("module", nn.Linear(4, 2))
    with pytest.raises(InputError) as caught:
        record(module, **arguments)
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_real_pass_of_a_model_without_data_names_the_tensor() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 2))
    assert "0.weight is on the meta device" in message(model, (4,), execute="real")


def test_interrupting_is_not_an_error_of_the_model() -> None:
    def interrupt(_: Calls, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    model = Calls(interrupt)
    with pytest.raises(KeyboardInterrupt):
        record(model, (4,))
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    ("model", "shape", "dtype"),
    [
        (nn.Conv2d(3, 4, 3), (4, 8, 8), None),
        (nn.Conv2d(3, 4, 9), (3, 4, 4), None),
        (nn.Conv2d(3, 4, 3), (3, 8, 8), torch.float64),
        (nn.ConvTranspose2d(3, 4, 3), (5, 8, 8), None),
        (nn.Linear(4, 2), (4,), torch.long),
        (nn.BatchNorm2d(3), (3, 8, 8), torch.float64),
        (nn.LayerNorm(4), (4,), torch.float64),
        (nn.GroupNorm(2, 4), (4, 3), torch.float64),
        (nn.LSTM(4, 3), (5, 4), torch.float64),
        (
            Calls(lambda self, x: self.positions(torch.arange(9)), positions=nn.Embedding(8, 4)),
            (3,),
            None,
        ),
        (Calls(lambda _, x: x[:, torch.tensor([9])]), (3,), None),
    ],
)
def test_a_pass_on_shapes_alone_refuses_what_a_real_one_refuses(
    model: nn.Module, shape: Any, dtype: Any
) -> None:
    assert message(model, shape, dtype, execute="abstract")
    assert message(model, shape, dtype, execute="real")


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4)])
def test_normalisations_may_keep_their_parameters_in_32_bits(norm: nn.Module) -> None:
    record(norm, (4,), torch.bfloat16, batch_size=2, execute="abstract")
    record(norm, (4,), torch.bfloat16, batch_size=2, execute="real")


def test_a_caught_exception_is_not_blamed_for_a_later_one() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            with contextlib.suppress(RuntimeError):
                self.inner(x)
            raise KeyError("outer itself")

    assert message(Careless(), (4,)).startswith("Careless (the model itself) failed: KeyError")


def test_a_module_that_returns_nothing_while_an_exception_is_handled_has_not_failed() -> None:
    class Notes(nn.Module):
        def forward(self, x: Tensor) -> None:
            x.add_(1)

    def forward(self: Any, x: Tensor) -> Tensor:
        try:
            raise KeyError
        except KeyError:
            self.notes(x)
        return x

    trace = record(Calls(forward, notes=Notes()), (4,))
    assert len(trace.modules[1].inputs) == 1


def test_normalisation_of_one_sample_in_training_says_how_to_get_two() -> None:
    assert "give batch_size=2" in message(nn.BatchNorm1d(4), (4,), mode="train")


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (nn.Embedding(10, 4), (torch.tensor([[-1]]),)),
        (Calls(lambda _, x: x.gather(0, torch.full((1, 4), 9))), (torch.ones(2, 4),)),
        (Calls(lambda _, x: x.index_select(0, torch.tensor([2]))), (torch.ones(2, 4),)),
        (nn.Linear(4, 2), (torch.ones(1, 4, dtype=torch.bool),)),
        (Calls(lambda _, x: x.expand(3, 2, 4).add_(1)), (torch.ones(2, 4),)),
        (
            Calls(
                lambda _, x: torch.nn.functional.scaled_dot_product_attention(
                    x, x, x, torch.ones(5, 4)
                )
            ),
            (torch.ones(1, 2, 4, 4),),
        ),
        (
            Calls(
                lambda _, x: torch.nn.functional.scaled_dot_product_attention(x, x[:, :2], x[:, :2])
            ),
            (torch.ones(1, 4, 4, 4),),
        ),
    ],
)
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_operands_that_do_not_go_together(model: nn.Module, args: Any, execute: Any) -> None:
    assert message(model, args=args, execute=execute)


def test_numpy_sizes_are_sizes() -> None:
    record(nn.Linear(4, 2), tuple(np.array([3, 4])))


def test_arguments_that_have_a_name_only_are_shown_as_such() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
            return x * mask

    with pytest.raises(
        RecordError,
        match=r"forward\(x, \*, mask\) with input_shape, those after the star by name \(input_shape=\{'x': \(8,\)\}\), or",
    ):
        crawl_module(Named(), [(4,), (4,)])
    assert crawl_module(Named(), {"x": (4,), "mask": (4,)})["overall"]["flops"] == 4


def test_what_is_no_info_dict_is_told() -> None:
    with pytest.raises(
        InputError, match=r"a Linear is not an info dict: give what crawl_module\(\) returns"
    ):
        torchscan.format_info(nn.Linear(4, 4))  # type: ignore[arg-type]


def test_a_depth_is_a_number() -> None:
    with pytest.raises(InputError, match="max_depth is '1': give a whole number"):
        torchscan.aggregate_info(crawl_module(nn.Linear(4, 4), (4,)), "1")  # type: ignore[arg-type]


def test_a_packed_sequence_is_one_argument() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 4)])
    with pytest.raises(
        InputError,
        match=r"args is a packed sequence: give a tuple of the positional arguments, args=\(x,\)",
    ):
        record(nn.LSTM(4, 4), args=packed)
    assert record(nn.LSTM(4, 4), args=(packed,)).ops


class Unpacks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        batch, _channels, height, width = x.shape
        return x.reshape(batch, -1, height * width)


def digits() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 10))


@pytest.mark.parametrize(
    ("model", "given", "suggested"),
    [
        (digits(), (5, 1, 28, 28), (1, 28, 28)),
        (Unpacks(), (2, 3, 8, 8), (3, 8, 8)),
        (
            nn.Bilinear(8, 9, 2),
            [(1, 8), (1, 9)],
            None,
        ),  # takes any number of dimensions: nothing fails
        (digits(), (1, 32, 32), None),
        (digits(), (1, 0, 28), None),  # an empty image
        (digits(), (2, 1, 32, 32), None),
    ],
)
def test_a_shape_without_batch_is_suggested_if_it_works(
    model: nn.Module, given: Any, suggested: Any
) -> None:
    try:
        record(model, given)
    except RecordError as error:
        text = str(error)
    else:
        text = ""
    assert ("batch_size sets it" in text) == (suggested is not None)
    if suggested is not None:
        assert f"try: input_shape={suggested}, without" in text
        record(model, suggested)


def test_a_shape_is_not_suggested_for_another_type() -> None:
    text = message(digits(), (1, 28, 28), torch.float16)
    assert text.endswith("convert the model, or give another dtype than torch.float16")
    assert "batch_size sets it" not in text


def test_batch_norm_of_one_sample_names_what_sets_the_batch() -> None:
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert message(norm, (4,), mode="train").endswith("give batch_size=2")
    given = message(norm, args=(torch.zeros(1, 4),), mode="train")
    assert given.endswith("give args= or kwargs= of two samples or more")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ValueError("my backward is broken")


def test_a_shape_is_not_suggested_for_an_error_that_it_does_not_mend() -> None:
    model = nn.Sequential(nn.Linear(10, 2), Calls(lambda _, x: FailsBackward.apply(x)))
    with pytest.raises(TorchscanError) as caught:
        record(model, (1, 10), training=True)
    assert "batch_size sets it" not in str(caught.value)


def test_a_shape_is_suggested_with_the_batch_that_normalization_needs() -> None:
    text = message(nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4)), (1, 10), mode="train")
    advice = "input_shape=(10,), without the batch dimension and batch_size=2, which normalization in training needs"
    assert text.endswith(f"try: {advice}")
