"""Models and their infos for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls
from torchscan import crawl_module
from torchscan.report.info import Info

#: names that somebody could take for something else: markup, a formula, a mention, an end of a line
HOSTILE = (
    *(
        "<script>window.pwned=1</script>",
        '"><script>window.pwned=1</script>',
        "<img src=x onerror=window.pwned=1>",
    ),
    *(
        "a|b",
        "`code`",
        "``",
        "__init__",
        "__x__y",
        "_",
        "a_b_c",
        "*x*",
        "**",
        "~~gone~~",
        "[a](b)",
        "![i](x)",
        "<!-- ",
    ),
    *(
        "@user",
        "#1",
        "$x$",
        ":smile:",
        "http://a/b",
        "www",
        "{x}",
        "\\begin{x}",
        "^",
        "~",
        "100%",
        "a--b---c",
        "''",
        '"',
        "!`",
        "?`",
    ),
    *(
        "&amp;",
        "&",
        "  two  spaces  ",
        "-",
        "+",
        "1)",
        ",,",
        "<<",
        "é",
        "Ł",
        "Ą",
        "ß",
        "«»",
        "“",
        "😀",
        "עברית",
        "\N{COMBINING ACUTE ACCENT}",
    ),
    *(
        "=1+1",
        "' onmouseover=window.pwned=1 '",
        "</td></tr></table>",
        "javascript:window.pwned=1",
        "*",
        "[1cm]",
        "long" * 60,
    ),
)
#: with what cannot be printed; shown with � in place of it
UNPRINTABLE = (
    "two\nlines",
    "a\r\nb",
    "tab\tbed",
    "\x1b[31mred",
    "\u202eright to left",
    "non\u00a0breaking",
    "\0",
    "\n\n# heading\n",
)


class Chain(nn.Module):
    """Calls modules of any names, one after the other."""

    def __init__(self, children: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._modules.update(children)  # add_module would refuse some of the names

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def named(names: Iterable[str]) -> Info:
    """The info of a model with a layer of each of these names."""
    return crawl_module(Chain({name: nn.ReLU() for name in names}), (4,))


def printed(name: str) -> str:
    """What stands for a name where not everything can."""
    return "".join(sign if sign.isprintable() else "�" for sign in name)


def block() -> nn.Module:
    """Of 3 levels: a convolution of 448 parameters, and a head of 170."""
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return Chain({"conv": nn.Conv2d(3, 16, 3, padding=1), "act": nn.ReLU(), "head": head})


class Scores(nn.Module):
    """Takes and gives what language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.embed(input_ids) * attention_mask.unsqueeze(-1))}


def _unpriced(_: nn.Module, x: Tensor) -> Tensor:
    return torch.special.bessel_j0(x)


def _two_inputs(self: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    first, second = self.children()
    return first(x), [second(y), x]


INFOS: Mapping[str, Callable[[], Info]] = {
    "block": lambda: crawl_module(block(), (3, 8, 8)),
    "no receptive field": lambda: crawl_module(block(), (3, 8, 8), receptive_field=False),
    "aggregated": lambda: torchscan.aggregate_info(crawl_module(block(), (3, 8, 8)), 1),
    "selection": lambda: torchscan.select_layers(
        crawl_module(block(), (3, 8, 8)), match="*e*", sort="params", top=2
    ),
    "backward": lambda: crawl_module(block(), (3, 8, 8), training=True, mode="train"),
    "real": lambda: crawl_module(block(), args=(torch.ones(2, 3, 8, 8),), execute="real"),
    "fractions": lambda: crawl_module(
        nn.Sequential(
            nn.Conv2d(3, 4, (3, 5), (1, 2)), nn.Upsample(scale_factor=3), nn.AdaptiveAvgPool2d(1)
        ),
        (3, 16, 16),
    ),
    "two inputs": lambda: crawl_module(
        Calls(_two_inputs, a=nn.Conv1d(2, 3, 5), b=nn.Linear(7, 3)), [(2, 9), (7,)]
    ),
    "no tensors": lambda: crawl_module(Calls(lambda _, x: None), (4,)),
    "without_formula": lambda: crawl_module(Calls(_unpriced), (4, 4)),
    "shared": lambda: crawl_module(
        Calls(lambda self, x: self.a(self.a(x)), a=nn.Linear(4, 4)), (4,)
    ),
    "unused": lambda: crawl_module(
        Calls(lambda self, x: self.a(x), a=nn.ReLU(), b=nn.Linear(4, 4)), (4,)
    ),
    "a dict of inputs": lambda: crawl_module(
        Scores(),
        kwargs={
            "input_ids": torch.ones(2, 5, dtype=torch.long),
            "attention_mask": torch.ones(2, 5),
        },
    ),
    "hostile": lambda: named([*HOSTILE, *UNPRINTABLE]),
    "memory and times": lambda: crawl_module(
        block(), (3, 8, 8), training=True, memory=True, device="RTX 4090"
    ),
    "another convention": lambda: crawl_module(block(), (3, 8, 8), convention="flop_counter"),
}
