"""The inputs of a generation's passes: the prompt with its other arguments, and tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.bookkeeping.inventory import type_name_of


def arguments_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names that forward takes, and those that a module in it takes by way of it."""
    names: dict[str, None] = {}
    for each in _wrapped(module):
        for parameter in _parameters_of(each):
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                names[parameter.name] = None
    return tuple(names)


def _wrapped(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the module, and its only child if it takes any keyword, and so on."""
    yield module
    children = list(module.children())
    if len(children) == 1 and any(each.kind is each.VAR_KEYWORD for each in _parameters_of(module)):
        yield from _wrapped(children[0])


def _parameters_of(module: nn.Module) -> list[inspect.Parameter]:
    return list(inspect.signature(module.forward).parameters.values())


def require_known(inputs: Mapping[str, Tensor], takes: Sequence[str], module: nn.Module) -> None:
    """Refuse inputs that are not tensors, or that a model does not take."""
    for name, each in inputs.items():
        if name not in takes:
            raise InputError(
                Argument("inputs"),
                f" has {name!r}, which {type_name_of(module)} does not take: choose from "
                f"{', '.join(takes)}",
            )
        if not isinstance(each, Tensor):
            raise InputError(
                f"inputs[{name!r}] is a {type(each).__name__}: give a tensor, for one sequence"
            )


class GenerationInputs:
    """The inputs of a model's passes over prompts and over one more token each."""

    def __init__(
        self,
        module: nn.Module,
        takes: Sequence[str],
        given: Mapping[str, Tensor],
        batch_size: int,
    ) -> None:
        """Find the arguments of a model for its tokens.

        Args:
            module: the model.
            takes: the names of its arguments.
            given: other inputs of the pass over the prompt, for one sequence.
            batch_size: the number of sequences.
        """
        self._takes = takes
        self._given = given
        self._batch_size = batch_size
        #: True if there is an encoder for the prompt
        self.is_translated = "decoder_input_ids" in takes and "encoder_outputs" in takes
        main = getattr(module, "main_input_name", None)
        if not main:
            main = _first_argument(module, takes)
        #: True if the encoder takes other data than text: then the decoder begins with the prompt
        self._is_heard = self.is_translated and main in given
        if self.is_translated and not self._is_heard:
            _require_tokens(module, main)
        fractions = {name for name, each in given.items() if each.is_floating_point()}
        others = [name for name in (main, *takes) if name not in fractions]
        if not others:
            raise InputError(
                Argument("inputs"),
                f" is floating-point for every argument of {type_name_of(module)} "
                f"({', '.join(takes)}): leave out the one that takes tokens, or give ",
                Give("step"),
                ", a function that calls the model",
            )
        self._token, *_ = others

    def of_prompt(self, prompt: int, generated: int) -> Mapping[str, Tensor]:
        """Return the inputs of a pass over the prompt and the tokens generated after it."""
        total = prompt + generated
        given = {}
        for name, each in self._given.items():
            # That of one sequence is repeated for all sequences.
            given[name] = each.repeat(self._batch_size, *[1] * (each.dim() - 1))

        if self._is_heard:
            return {**given, **self._decoded(total, total)}
        if self.is_translated:
            tokens = {self._token: self._tokens(prompt)}
            num_decoded = 1 + generated
            return {**given, **tokens, **self._decoded(num_decoded, num_decoded)}
        if prompt < self.begun:
            # Too short for its images: the cache of as many tokens is as large without them.
            given = {}
        return {**given, self._token: self._tokens(total, given.get(self._token))}

    def of_token(self, prompt: int, generated: int) -> Mapping[str, Tensor]:
        """Return the inputs of a pass over one more token."""
        if not self.is_translated:
            return {self._token: self._tokens(1)}
        num_prompted = prompt if self._is_heard else 1
        return self._decoded(1, num_prompted + generated + 1)

    @property
    def begun(self) -> int:
        """Tokens that each prompt begins with."""
        begun = self._given.get(self._token)
        return 0 if begun is None else begun.shape[1]

    def require_room(self, prompt: int) -> None:
        """Refuse a prompt that is shorter than the tokens that it begins with."""
        if prompt < self.begun:
            raise InputError(
                Argument("prompt"),
                f" is {prompt:,}, and inputs has {self.begun:,} tokens of it: give a longer ",
                Argument("prompt"),
            )

    def _decoded(self, number: int, seen: int) -> Mapping[str, Tensor]:
        """Return tokens for a decoder, which sees ``seen`` tokens.

        It also gets a mask: one that it makes itself has floating-point numbers without values.
        """
        mask = torch.ones(self._batch_size, seen, dtype=torch.long)
        decoded = {"decoder_input_ids": self._tokens(number)}
        if "decoder_attention_mask" in self._takes:
            decoded["decoder_attention_mask"] = mask
        return decoded

    def _tokens(self, number: int, begun: Tensor | None = None) -> Tensor:
        tokens = torch.zeros(self._batch_size, number, dtype=torch.long)
        if begun is None:
            return tokens
        return torch.cat([begun, tokens[:, begun.shape[1] :]], 1)


def _first_argument(module: nn.Module, takes: Sequence[str]) -> str:
    """Return the first argument of a model that takes any by name."""
    for name in takes:
        return name
    raise InputError(
        f"{type_name_of(module)} takes no argument by name: give ",
        Give("step"),
        ", a function that calls the model",
    )


def _require_tokens(module: nn.Module, main: str) -> None:
    """Refuse an encoder that takes no text, which transformers calls ``input_ids``."""
    if main == getattr(module, "main_input_name", "input_ids") != "input_ids":
        raise InputError(
            f"{type_name_of(module)} encodes {main}, not tokens: give ",
            Give("inputs", {main: ...}),
            ", a tensor for one sequence",
        )
