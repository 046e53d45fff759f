"""The table in Markdown, as a real parser reads it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.report.samples import HOSTILE, INFOS, UNPRINTABLE, Scores, named, printed
from torchscan import crawl_module, from_json
from torchscan.report.info import Info
from torchscan.report.markdown import escape

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
INPUTS = {"input_ids": torch.ones(2, 5, dtype=torch.long), "attention_mask": torch.ones(2, 5)}
ONE = INFOS["no tensors"]().to_json()
INDENT = "\N{EM SPACE}"


def parts(text: str) -> tuple[list[list[list[str]]], list[str], list[str]]:
    """The tables as rows of cells, the paragraphs, and the HTML."""
    tables: list[list[list[str]]] = []
    paragraphs: list[str] = []
    markup: list[str] = []
    before = ""
    for token in PARSER.parse(text):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "html_block":
            markup.append(token.content.strip())
        elif token.type == "inline":
            (tables[-1][-1] if before in ("th_open", "td_open") else paragraphs).append(
                _text(token)
            )
        else:
            assert token.type.removesuffix("_open").removesuffix("_close") in (
                "table",
                "thead",
                "tbody",
                "tr",
                "th",
                "td",
                "paragraph",
            )
        before = token.type
    return tables, paragraphs, markup


def _text(token: Token) -> str:
    """What is read there. No markup is in it but what keeps signs apart from what follows them."""
    children = token.children or []
    kinds = {child.type for child in children} - {"text", "softbreak"}
    assert kinds <= {"html_inline"}, token.content
    assert {child.content for child in children if child.type == "html_inline"} <= {
        "<span>",
        "</span>",
    }
    return "".join(
        "\n" if child.type == "softbreak" else child.content
        for child in children
        if child.type != "html_inline"
    )


def test_the_whole_table() -> None:
    tables, paragraphs, markup = parts(
        INFOS["block"]().to_markdown(columns=["output_shape", "params"])
    )
    assert tables[0] == [
        ["Layer", "Output", "Params"],
        ["Chain", "10", "618"],
        [f"{INDENT}conv", "16×8×8", "448"],
        [f"{INDENT}act", "16×8×8", "–"],
        [f"{INDENT}head", "10", "170"],
        [f"{INDENT * 2}0", "16×1×1", "–"],
        [f"{INDENT * 2}1", "16", "–"],
        [f"{INDENT * 2}2", "10", "170"],
    ]
    assert tables[1][:4] == [
        ["Total", ""],
        ["Trainable parameters", "618"],
        ["Non-trainable parameters", "0"],
        ["Total parameters", "618"],
    ]
    if not torch.cuda.is_available():
        assert not any("overhead" in row[0] for row in tables[1])
    assert paragraphs == ["One pass in evaluation mode, on shapes alone, of float32 (1, 3, 8, 8)."]
    assert markup == []


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    lines = INFOS["block"]().to_markdown(columns=["type", "params"]).splitlines()
    assert lines[1] == "| :-- | :-- | --: |"


def test_with_details_the_totals_come_first_and_the_layers_open() -> None:
    info = INFOS["block"]()
    plain, folded = info.to_markdown(), info.to_markdown(details=True)
    (layers, totals), remarks, _ = parts(plain)
    tables, paragraphs, markup = parts(folded)
    assert tables == [totals, layers]
    assert paragraphs == remarks
    assert markup == ["<details><summary>7 layers</summary>", "</details>"]


@pytest.mark.parametrize("details", [False, True])
def test_names_stay_what_they_are(details: bool) -> None:
    info = named([*HOSTILE, *UNPRINTABLE])
    tables, _, _ = parts(info.to_markdown(columns=["path", "type"], details=details))
    rows = tables[1 if details else 0][2:]
    assert [row[1] for row in rows] == [printed(name) for name in (*HOSTILE, *UNPRINTABLE)]
    assert [row[0] for row in rows] == [INDENT + printed(name) for name in (*HOSTILE, *UNPRINTABLE)]
    assert {row[2] for row in rows} == {"ReLU"}


@pytest.mark.slow
@given(st.text("_*`~[]()<>&|$@#!:;\\'\"{}-+=.,^/ amp1é\n", max_size=12))
@example("a __b__ *c* _d_")
@settings(max_examples=400)
def test_any_text_stays_what_it_is(text: str) -> None:
    info = from_json(ONE)
    info["layers"][0]["type"] = text
    tables, paragraphs, markup = parts(
        Info({**info, "without_formula": {text: 3}}).to_markdown(columns=["type"])
    )
    assert tables[0][1][1] == printed(text)
    assert paragraphs[1].endswith(f"no cost formula: {printed(text)} (3×).")
    assert markup == []


def test_names_of_types_and_of_what_is_below_the_table_stay_too() -> None:
    class Pair(Scores):
        pass

    Pair.__name__ = Pair.__qualname__ = "<b>__Pair__</b>|@user"
    model = Pair()
    info = crawl_module(model, kwargs=INPUTS)
    info["unused_parameters"] = {f"_{name}_": 4 for name in (*HOSTILE, *UNPRINTABLE)}
    info["without_formula"] = {"my::op_": 1}
    tables, paragraphs, markup = parts(info.to_markdown())
    assert tables[0][1][:2] == [Pair.__name__, Pair.__name__]
    assert markup == []
    assert "no cost formula: my::op_ (1×)." in paragraphs[1]
    assert (
        paragraphs[2]
        == f"Parameters that this pass did not use: {', '.join(f'_{printed(name)}_ (4)' for name in (*HOSTILE, *UNPRINTABLE))}."
    )


def test_nothing_that_a_site_would_link_stands_in_one_piece() -> None:
    """After Markdown some sites look for mentions, numbers of issues and formulas in what is to be read: a tag parts them."""
    assert (
        escape("@user #1 $x$") == "<span>@</span>user <span>#</span>1 <span>$</span>x<span>$</span>"
    )
    assert "://" not in escape("https://a.b")
    assert "www." not in escape("www.a.b")


def test_a_name_with_two_colons_is_not_an_emoji() -> None:
    assert escape("my:cat: a:b") == "my<span>:</span>cat: a:b"
    assert escape("cuda:0: 12:100:") == "cuda:0: 12<span>:</span>100:"


@pytest.mark.parametrize(
    "text",
    [
        "encoder.layer_norm1.weight_g (2) 4.09 G",
        "Times: ± 11 %, validated: at 10:30, in my::op",
        "<0.1 MiB, a > b, x & y, {name}, C:\\data, #first",
    ],
)
def test_what_is_not_markup_stays_as_it_is_in_the_source(text: str) -> None:
    assert escape(text) == text


def test_markup_is_escaped() -> None:
    assert escape("layers.*.mlp [0] a|b <b> ~x~ `y` &lt; _z") == (
        "layers.\\*.mlp \\[0] a\\|b &lt;b> \\~x\\~ \\`y\\` &amp;lt; \\_z"
    )


def test_a_selection_is_a_list_of_full_paths() -> None:
    tables, paragraphs, _ = parts(INFOS["selection"]().to_markdown(columns=["params"]))
    assert tables[0] == [["Layer", "Params"], ["head.2", "170"], ["act", "–"]]  # a ReLU
    which = "Shown are 2 of 7 layers that match *e*, sorted by params, each with its own values"
    assert paragraphs[0] == f"{which}; totals are of the entire model."


def test_every_info_gives_a_row_for_each_layer(info: Info) -> None:
    tables, _, markup = parts(info.to_markdown(columns=["path", "input_shape", "rf", "s", "p"]))
    assert [row[1] for row in tables[0][1:]] == [printed(layer["path"]) for layer in info["layers"]]
    assert {len(row) for row in tables[0]} == {6}
    assert markup == []
