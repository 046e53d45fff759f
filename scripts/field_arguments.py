"""Arguments for a call of a module, out of a few shapes by the name of each required one."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from field_cases import NoInputKnownError
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

# distinct sizes, so that a tensor of a wrong kind does not fit by chance
DIM, LENGTH, IMAGE, VOCABULARY = 96, 32, 64, 256
#: seconds for one constructor or call, and for all calls of a module
LIMIT, _LIMIT_TO_SEARCH = 20, 30
_MAX_TRIES = 80


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after some seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def find_arguments(model: nn.Module, sizes: Mapping[str, Any], device: str) -> tuple[Any, ...]:
    """Return the first tensors that the module accepts, positional."""
    names = _required(model)
    kinds = [_kinds_of(name, names, sizes) for name in names]
    failed: Exception | None = None
    end = time.monotonic() + _LIMIT_TO_SEARCH
    for tries, chosen in enumerate(itertools.product(*kinds)):
        if tries == _MAX_TRIES or time.monotonic() > end:
            break
        args = tree_map_only(Tensor, lambda each: each.to(device), [make() for make in chosen])
        try:
            with torch.no_grad(), limited(LIMIT):
                torch.manual_seed(0)
                model(*args)
        except Exception as error:
            failed = failed or error
            continue
        torch.manual_seed(0)
        return tuple(make() for make in chosen)
    raise NoInputKnownError(f"{', '.join(names)}: {type(failed).__name__}: {str(failed)[:200]}")


def _required(model: nn.Module) -> list[str]:
    parameters = list(inspect.signature(model.forward).parameters.values())
    required = [
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if required:
        return required
    first = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    return first[:1] or ["x"]


Make = Callable[[], Any]


def _first(sizes: Mapping[str, Any], names: str, default: int) -> int:
    """Return the first of these sizes that is a number."""
    for name in names.split():
        value = sizes.get(name)
        if isinstance(value, (tuple, list)) and value and isinstance(value[0], int):
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return default


def _shapes(sizes: Mapping[str, Any]) -> dict[str, Make]:
    """Return what makes a tensor of each kind."""
    channels = _first(
        sizes, "in_channels in_chans n_chans in_ch c_in input_channels num_in_ch in_nc channels", 3
    )
    dim = _first(
        sizes, "dim d_model in_features dim_in input_dim in_dim input_size embed_dim d_in", DIM
    )
    side = _first(sizes, "image_size img_size resolution size input_size input_resolution", IMAGE)
    length = _first(sizes, "seq_len n_times max_seq_len context_length", LENGTH)
    frames = _first(sizes, "frames num_frames", 4)
    vocabulary = _first(sizes, "num_tokens vocab_size n_vocab n_token", VOCABULARY)
    tokens = torch.arange(length).remainder(vocabulary)[None]
    return {
        "image": partial(torch.rand, 1, channels, side, side),
        "picture": partial(torch.rand, 1, 3, side, side),
        "large image": partial(torch.rand, 1, 3, 224, 224),
        "gray image": partial(torch.rand, 1, 1, side, side),
        "tokens": tokens.clone,
        "sequence": partial(torch.rand, 1, length, dim),
        "long sequence": partial(torch.rand, 1, 8 * length, dim),
        "series": partial(torch.rand, 1, channels, length),
        "features first": partial(torch.rand, 1, dim, 8 * length),
        "flat": partial(torch.rand, 2, dim),
        "feature map": partial(torch.rand, 1, dim, 16, 16),
        "wave": partial(torch.rand, 1, 16000),
        "wave with channel": partial(torch.rand, 1, 1, 16384),
        "stereo wave": partial(torch.rand, 1, 2, 44100),
        "mel": partial(torch.rand, 1, 80, 100),
        "mel, time first": partial(torch.rand, 1, 100, 80),
        "video": partial(torch.rand, 1, channels, frames, side, side),
        "video, frames first": partial(torch.rand, 1, frames, 3, side, side),
        "volume": partial(torch.rand, 1, channels, 32, 32, 32),
        "nodes": partial(torch.rand, 20, _first(sizes, "in_channels", dim)),
        "edges": partial(_edges, 20, 40),
        "batch": partial(torch.zeros, 20, dtype=torch.long),
        "points": partial(torch.rand, 1, length, 3),
        "mask": partial(torch.ones, 1, length, dtype=torch.bool),
        "time": partial(torch.rand, 1),
        "step": partial(torch.full, (1,), 7),
        "length": partial(torch.full, (1,), length),
        "share": partial(torch.ones, 1),
        "number": partial(int, 4),
    }


def _edges(nodes: int, count: int) -> Tensor:
    return torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(0))


_ANY = (
    *("image", "sequence", "tokens", "flat", "series", "picture", "large image", "feature map"),
    *("features first", "wave with channel", "wave", "mel", "mel, time first", "gray image"),
    *("video", "volume", "long sequence", "video, frames first", "stereo wave", "nodes"),
)

#: kinds of tensors -> names of arguments that may be one
_KINDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("image", "picture", "large image", "gray image"), "img image images pixel_values imgs"),
    (("tokens",), "text input_ids tokens ids texts src tgt src_tokens token_ids prompt idx"),
    (("tokens", "sequence"), "seq src_seq tgt_seq"),
    (("video", "video, frames first"), "video videos"),
    (("image", "video", "sequence"), "sample"),
    (("sequence", "image", "video"), "hidden_states"),
    (("sequence",), "encoder_hidden_states"),
    (("wave", "wave with channel", "stereo wave"), "audio wave waveform wav wavs waveforms"),
    (("edges",), "edge_index edges adj_t"),
    (("batch",), "batch"),
    (("points",), "coors pos coords xyz coordinates"),
    (("sequence", "nodes"), "feats node_feats h"),
    (("mask",), "mask attn_mask src_mask padding_mask"),
    (("step", "time"), "t time timestep timesteps times noise_level sigma"),
    (("length", "share"), "lengths x_len input_lengths lens length wav_lens x_lens"),
    (("sequence", "flat", "image"), "context cond memory y z c condition kv keys values q k v"),
    (("number",), "num_frames frames steps"),
)


def _kinds_of(name: str, names: Sequence[str], sizes: Mapping[str, Any]) -> list[Make]:
    shapes = _shapes(sizes)
    for kinds, known in _KINDS:
        if name in known.split():
            return [shapes[kind] for kind in kinds]
    first = ["nodes"] if "edge_index" in names else []
    if {"num_tokens", "vocab_size", "n_vocab"} & set(sizes):
        first.append("tokens")
    return [shapes[kind] for kind in dict.fromkeys([*first, *_ANY])]
