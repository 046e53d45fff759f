"""A request for a pass: of which module, on which inputs, and how to run it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from torchscan.errors import Argument, Give, InputError, PythonOnly, TorchName
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import Inventory, is_frozen, type_name_of
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.handover import Handover
from torchscan.recording.training.gradients import Backward
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.torch_versions import is_functorch_wrapped

Mode = Literal["eval", "train", "same"]
Execute = Literal["auto", "abstract", "real"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A module, and what it is called with."""

    module: nn.Module
    input_shape: Shapes | None = None
    dtype: DTypes | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    batch_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequest(Inputs):
    """A pass as requested: the module, its inputs (shapes or complete arguments), and options."""

    mode: Mode = "eval"
    execute: Execute = "auto"
    #: iterations of each loop whose end depends on data, or None to run the pass on data
    loop_iterations: int | None = None
    backward: Backward = False
    #: also run the optimizer's step
    optimizer: OptimizerChoice | None = None
    #: update each parameter in the backward pass, and free its gradient
    updates_in_backward: bool = False
    #: keep the optimizer's state on the host, and update parameters there
    updates_on_host: bool = False
    #: parameters are on the host too, so that an update copies nothing
    parameters_on_host: bool = False
    #: clip the norm of all gradients before the optimizer's step
    clips_gradients: bool = False
    #: add the gradients to those of an earlier batch
    accumulate: bool = False
    #: keep the model's output after the loss was computed from it
    holds_output: bool = False
    #: record composite operators in pieces, even without gradients
    is_decomposed: bool = False
    #: the type in which autocast computes
    autocast: torch.dtype | None = None
    #: if the model is a copy: identity of each of its parameters -> identity of the original
    originals: Mapping[int, int] = field(default_factory=dict)
    #: the kind of device whose kernels to assume where they differ
    device_type: Literal["cpu", "cuda"] = "cpu"
    #: whether that device has flash attention, as CUDA devices have from capability 8.0 on
    has_flash: bool = True
    #: True if attention runs as in inference engines, False if as in the model's own code
    has_engine_attention: bool = False
    #: images and volumes have their channels innermost
    channels_last: bool = False
    #: paths of the modules whose inside is computed again in the backward pass
    checkpointed: Collection[str] = ()
    #: names of those ``kwargs`` that hold what an earlier pass has kept, such as keys and values
    cached: Collection[str] = ()
    #: takes from the output what the next pass gets
    handover: Handover | None = None

    @property
    def is_converted(self) -> bool:
        """True if the model is a copy without data."""
        return bool(self.originals)

    @property
    def has_backward(self) -> bool:
        """True if there is a backward pass.

        A loss may be a module that is false: one without submodules.
        """
        return self.backward is not False

    @property
    def drops_output(self) -> bool:
        """True if nothing but the graph of the loss holds the model's output."""
        return callable(self.backward) and not self.holds_output


#: by the number of dimensions
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def require_module(given: object) -> None:
    """Refuse anything that is not a module, saying what it is."""
    if not isinstance(given, nn.Module):
        raise InputError.of_value("module", given, _what_instead(given))
    if "_modules" not in vars(given):
        raise InputError(
            f"{type_name_of(given)} is not initialized: call super().__init__() at the start of "
            "its __init__"
        )


def require_positive(name: str, value: object) -> None:
    """Raise an InputError unless the value is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError.of_value(name, value, "give a positive integer")


def _what_instead(given: object) -> str:
    if isinstance(given, type):
        return "give an instance of this class"
    if isinstance(given, torch.export.ExportedProgram):
        return "give its module, program.module()"
    if isinstance(given, Mapping) and any(isinstance(each, Tensor) for each in given.values()):
        return "give the torch.nn.Module that this state dict belongs to"
    if callable(given):
        return (
            "give a torch.nn.Module: what this function returns, or one that calls it in forward()"
        )
    return "give a torch.nn.Module"


def require_visible_kernels(inventory: Inventory) -> None:
    """Refuse frozen scripts with nodes that run oneDNN without a call of an operator."""
    for module in filter(is_frozen, inventory.modules.values()):
        graph: Any = module.graph
        if graph.findAllNodes("prim::ConstantMKLDNNTensor"):
            raise InputError(
                f"{type_name_of(module)} was optimized by torch.jit.optimize_for_inference, which "
                "hides its kernels from torch's dispatcher: give the model from before that call"
            )


def check_request(request: PassRequest) -> None:
    """Refuse a request that contradicts itself or cannot be run."""
    require_module(request.module)
    if not (isinstance(request.backward, bool) or callable(request.backward)):
        raise InputError.of_value(
            "backward",
            request.backward,
            "give True, or a function that computes a loss from the output",
        )
    if request.mode not in get_args(Mode):
        raise InputError.of_choice("mode", request.mode, get_args(Mode))
    if request.execute not in get_args(Execute):
        raise InputError.of_choice("execute", request.execute, get_args(Execute))
    if request.loop_iterations is not None:
        require_positive("loop_iterations", request.loop_iterations)
    if request.input_shape is None or request.args is not None or request.kwargs is not None:
        _check_arguments(request)


def _check_arguments(request: PassRequest) -> None:
    """Raise if there is no input, one is given twice, or some have a form that no call takes."""
    if request.input_shape is not None and request.args is not None:
        raise InputError(
            Argument("input_shape"),
            " and ",
            Argument("args"),
            " are both given: give shapes or complete arguments (kwargs go with either)",
        )
    if request.input_shape is None and request.args is None and request.kwargs is None:
        no_arguments = (" (", Give("args", ()), " if forward takes none)")
        complete = (", or ", Give("args"), " and ", Give("kwargs"), *no_arguments)
        raise InputError(
            "the model has no input: give ",
            Give("input_shape", (3, 224, 224)),
            ", for example",
            PythonOnly(complete),
        )
    if isinstance(request.input_shape, Mapping):
        twice = set(request.kwargs or ()) & set(request.input_shape)
        if twice:
            raise InputError(
                f"{min(twice)!r} is in ",
                Argument("input_shape"),
                " and in ",
                Argument("kwargs"),
                ": give it once",
            )
    _check_form(request)


def _check_form(request: PassRequest) -> None:
    """Raise if arguments of the forward pass have another form than a call takes."""
    if any(map(is_functorch_wrapped, tensors_in((request.args, request.kwargs)))):
        raise InputError(
            "an argument is inside vmap or grad: call torchscan outside of them, with plain tensors"
        )
    if isinstance(request.args, Tensor | PackedSequence):
        what = "a tensor" if isinstance(request.args, Tensor) else "a packed sequence"
        raise InputError(
            Argument("args"),
            f" is {what}: give a tuple of the positional arguments, ",
            Give("args", (TorchName("x"),)),
        )
    if isinstance(request.args, Mapping):
        raise InputError(
            Argument("args"),
            " is a dict: give keyword arguments as ",
            Give("kwargs"),
            ", or the dict itself as ",
            Give("args", (TorchName("the_dict"),)),
        )
    if request.input_shape is None and (request.dtype is not None or request.batch_size != 1):
        raise InputError(
            Argument("dtype"),
            " and ",
            Argument("batch_size"),
            " are for inputs made from ",
            Argument("input_shape"),
            ": leave them out, complete arguments have their own",
        )
