"""The table in LaTeX: its structure, and what a real pdflatex makes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import torchscan
from tests.report.samples import HOSTILE, INFOS, UNPRINTABLE, named
from torchscan.report.latex import escape

EXPECTED = rf"""% needs \usepackage{{booktabs}}
\begin{{table}}
\centering
\caption{{Layers of Chain. One pass in evaluation mode, on shapes alone, of float32 (1, 3, 8, 8). Counted by torchscan {torchscan.__version__} with torch {torch.__version__}.}}
\label{{tab:chain}}
\medskip
\begin{{tabular}}{{llr}}
\toprule
Layer & Output & Params \\
\midrule
Chain & 10 & 618 \\
\hspace*{{1em}}conv & 16$\times$8$\times$8 & 448 \\
\hspace*{{1em}}act & 16$\times$8$\times$8 & -- \\
\hspace*{{1em}}head & 10 & 170 \\
\hspace*{{2em}}0 & 16$\times$1$\times$1 & -- \\
\hspace*{{2em}}1 & 16 & -- \\
\hspace*{{2em}}2 & 10 & 170 \\
\midrule
\multicolumn{{3}}{{l}}{{Trainable parameters: 618}} \\*
"""  # noqa: E501 - a caption is one line


def test_the_whole_table() -> None:
    text = torchscan.to_latex(INFOS["block"](), ["output_shape", "params"], label="tab:chain")
    assert text.startswith(EXPECTED)
    assert text.endswith("DMAs} \\\\\n\\bottomrule\n\\end{tabular}\n\\end{table}")


def test_a_long_table_repeats_its_headings_and_not_its_caption() -> None:
    text = torchscan.to_latex(INFOS["block"](), ["params"], label="tab:chain", long=True)
    assert text.startswith("% needs \\usepackage{booktabs} and longtable\n\\begin{longtable}{lr}\n\\caption{Layers of Chain.")
    first, _, later = text.partition("\\endfirsthead")
    assert first.count("\\caption") == first.count("\\label{tab:chain} \\\\") == 1
    assert later.startswith("\n\\toprule\nLayer & Params \\\\\n\\midrule\n\\endhead\n\\bottomrule\n\\endfoot\nChain & ")
    assert "\\caption" not in later
    assert "\\label" not in later
    assert text.endswith("\n\\end{longtable}")


def test_the_caption_is_what_is_given_and_always_says_what_was_counted_and_by_what() -> None:
    own = torchscan.to_latex(INFOS["block"](), caption=r"\emph{Ours}.")
    assert r"\caption{\emph{Ours}. One pass in evaluation mode" in own
    assert f"Counted by torchscan {torchscan.__version__} with torch {torch.__version__}." in own
    other = torchscan.to_latex(INFOS["another convention"]())
    assert r", MACs by the rules of flop\_counter with torch" in other
    assert r"What flop\_counter reports: " in other
    assert r"$\geq$: a lower bound" in torchscan.to_latex(INFOS["unpriced"]())


def test_signs_are_set_as_they_stand() -> None:
    assert escape(r"a_b & 50% of #1 for $x {y} ^~\ <z>|") == (
        r"a\_b \& 50\% of \#1 for \$x \{y\} \textasciicircum{}\textasciitilde{}\textbackslash{} "
        r"\textless{}z\textgreater{}\textbar{}"
    )
    assert escape("a--b---c,,") == "a-{}-b-{}-{}-c,{},"
    assert escape("  a  b ") == r"\mbox{ }\mbox{ }a \mbox{ }b\mbox{ }"
    assert escape("[1]*'`\"") == r"{[}1]{*}\textquotesingle{}\textasciigrave{}\char34{}"
    assert escape("–×≥…") == r"--$\times$$\geq$\dots{}"
    assert escape("αβ Ω Α") == r"$\alpha$$\beta$ $\Omega$ A"
    assert escape("é\n😀") == "é{[}U+000A]{[}U+1F600]"


def test_a_selection_is_a_list_of_full_paths() -> None:
    text = torchscan.to_latex(INFOS["selection"](), ["params"])
    assert "head.2 & 170 \\\\\nact & -- \\\\\n" in text
    assert "2 of 7 layers, of those that match {*}e{*}, ordered by params" in text


# -- with a real LaTeX ---------------------------------------------------------------------------------------------------

DOCUMENT = r"""\documentclass{article}
%s\usepackage{booktabs,longtable}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(
    scope="module",
    params=["", "\\usepackage[T1]{fontenc}\\IfFileExists{lmodern.sty}{\\usepackage{lmodern}}{}\n"],
    ids=["as it comes", "T1"],
)
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the tables below are in print."""
    compiler, reader = shutil.which("pdflatex"), shutil.which("pdftotext")
    if compiler is None:
        pytest.skip("there is no pdflatex here")
    folder = tmp_path_factory.mktemp("latex")
    names = [name for name in (*HOSTILE, *UNPRINTABLE) if len(name) < 60]
    pages = nn.Sequential(*(nn.ReLU() for _ in range(100)))
    tables = [
        *(torchscan.to_latex(info(), label=f"tab:{number}") for number, info in enumerate(INFOS.values())),
        torchscan.to_latex(named(names), ["type"], caption="Hostile.", long=True),
        torchscan.to_latex(torchscan.select_layers(named(names), sort="path"), ["type", "path"], long=True),
        torchscan.to_latex(torchscan.select_layers(named(["[1cm]", "*"]), match="ReLU"), ["type"]),
        torchscan.to_latex(INFOS["two inputs"](), ["input_shape", "rf", "s", "p", "bytes_read"], label="tab:fields"),
        torchscan.to_latex(torchscan.crawl_module(pages, (4,)), ["type"], caption="Pages.", long=True, fold_repeats=False),
        torchscan.model_table({"a_b & c": nn.Linear(4, 2), "[1]": nn.Conv1d(4, 2, 1)}, (4, 4), title="50 % of both").write(
            "latex"
        ),
        "ALL: " + " ".join(escape(chr(code)) for code in range(0x20, 0x250)) + " END",
    ]
    (folder / "tables.tex").write_text(DOCUMENT % (request.param, "\n\\clearpage\n".join(tables)), encoding="utf-8")
    command = [compiler, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "tables.tex"]
    for _ in range(2):  # the second time labels are known
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=60)  # noqa: S603
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    log = (folder / "tables.log").read_text(errors="replace")
    assert "Missing character" not in log
    assert "multiply" not in log
    return _text_of(folder / "tables.pdf", reader)


def _text_of(pdf: Path, reader: str | None) -> str:
    if reader is None:
        pytest.skip("there is no pdftotext here")
    done = subprocess.run([reader, "-layout", pdf, "-"], capture_output=True, check=True, timeout=60)  # noqa: S603
    return done.stdout.decode()


@pytest.mark.slow
def test_pdflatex_sets_every_info_with_all_its_names(document: str) -> None:
    rows = {line.partition(" ReLU")[0].strip() for line in document.splitlines()}
    assert rows >= {"a|b", "100%", "{x}", "a--b---c", "&amp;", "[a](b)", "@user", "#1", "$x$", "\\begin{x}", "[1cm]", "*"}
    assert rows >= {"<script>window.pwned=1</script>", "[U+1F600]"}
    assert any("init" in row for row in rows)  # without T1 an underscore is a rule, and no text
    assert re.search(r"ALL: .*END", document, re.DOTALL)


@pytest.mark.slow
def test_pdflatex_repeats_the_headings_of_a_long_table_on_each_page(document: str) -> None:
    pages = [page for page in document.split("\f") if re.search(r"^ *(7|50|99) +ReLU", page, re.MULTILINE)]
    own = [page for page in pages if "[U+" not in page]
    assert len(own) == 3
    assert all("Layer" in page for page in own)
    assert sum("Pages." in page for page in own) == 1


def test_each_total_stands_once() -> None:
    text = torchscan.to_latex(INFOS["block"]())
    totals = [line for line in text.splitlines() if "multicolumn" in line]
    assert len(totals) == len({line.rstrip("*") for line in totals})
    assert [line.endswith("*") for line in totals] == [True] * (len(totals) - 1) + [False]
