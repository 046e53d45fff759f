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
from torchscan import InputError, crawl_module
from torchscan.report.latex import escape

EXPECTED = r"""% needs \usepackage{booktabs}
\begin{table}
\centering
\caption{Layers of Chain.}
\label{tab:chain}
\medskip\footnotesize\setlength{\tabcolsep}{4pt}
\begin{tabular}{@{}llr@{}}
\toprule
Layer & Output & Params \\
\midrule
Chain & 10 & 618 \\
\hspace*{1em}conv & 16$\times$8$\times$8 & 448 \\
\hspace*{1em}act & 16$\times$8$\times$8 & -- \\
\hspace*{1em}head & 10 & 170 \\
\hspace*{2em}0 & 16$\times$1$\times$1 & -- \\
\hspace*{2em}1 & 16 & -- \\
\hspace*{2em}2 & 10 & 170 \\
\midrule
\multicolumn{3}{l}{Trainable parameters: 618} \\*
"""


def test_the_whole_table() -> None:
    text = INFOS["block"]().to_latex(columns=["output_shape", "params"], label="tab:chain")
    assert text.startswith(EXPECTED)
    assert (
        "DMAs} \\\\\n\\bottomrule\n\\end{tabular}\n\\par\\smallskip{\\footnotesize\\raggedright One pass in evaluation mode"
        in text
    )
    assert text.endswith(
        f"Counted by torchscan {torchscan.__version__} with torch {torch.__version__}.\\par}}\n\\end{{table}}"
    )


def test_a_long_table_repeats_its_headings_and_not_its_caption() -> None:
    text = INFOS["block"]().to_latex(columns=["params"], label="tab:chain", long=True)
    needs, group, begin, caption, *_ = text.splitlines()
    assert needs == r"% needs \usepackage{booktabs} \usepackage{longtable}"
    assert (group, begin) == (r"{\footnotesize", r"\begin{longtable}{@{}lr@{}}")
    assert caption == r"\caption{Layers of Chain.}"
    first, _, later = text.partition("\\endfirsthead")
    assert first.count("\\caption") == first.count("\\label{tab:chain} \\\\") == 1
    assert later.startswith(
        "\n\\toprule\nLayer & Params \\\\\n\\midrule\n\\endhead\n\\bottomrule\n\\endfoot\nChain & "
    )
    assert "\\caption" not in later
    assert "\\label" not in later
    assert "\n\\end{longtable}\n\\par\\smallskip{\\footnotesize" in text
    assert text.endswith("\\par}}"), "the note, and the group"


def test_the_caption_is_what_is_given_and_always_says_what_was_counted_and_by_what() -> None:
    own = INFOS["block"]().to_latex(caption=r"\emph{Ours}.")
    assert r"\caption{\emph{Ours}.}" in own
    assert "One pass in evaluation mode" in own
    assert f"Counted by torchscan {torchscan.__version__} with torch {torch.__version__}." in own
    other = INFOS["another convention"]().to_latex()
    assert r", MACs by the rules of flop\_counter with torch" in other
    assert r"MACs by flop\_counter: " in other
    assert r"$\geq$ marks a lower bound" in INFOS["without_formula"]().to_latex()


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
    text = INFOS["selection"]().to_latex(columns=["params"])
    assert "head.2 & 170 \\\\\nact & -- \\\\\n" in text
    assert "2 of 7 layers that match {*}e{*}, sorted by params" in text


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
    pages = nn.Sequential(*(nn.ReLU() for _ in range(150)))
    tables = [
        *(info().to_latex(label=f"tab:{number}") for number, info in enumerate(INFOS.values())),
        named(names).to_latex(columns=["type"], caption="Hostile.", long=True),
        torchscan.select_layers(named(names), sort="path").to_latex(
            columns=["type", "path"], long=True
        ),
        torchscan.select_layers(named(["[1cm]", "*"]), match="ReLU").to_latex(columns=["type"]),
        INFOS["two inputs"]().to_latex(
            columns=["input_shape", "rf", "s", "p", "bytes_read"], label="tab:fields"
        ),
        crawl_module(pages, (4,)).to_latex(
            columns=["type"],
            caption="Pages.",
            long=True,
            fold_repeats=False,
        ),
        torchscan.model_table(
            {"a_b & c": nn.Linear(4, 2), "[1]": nn.Conv1d(4, 2, 1)}, (4, 4), title="50 % of both"
        ).write("latex"),
        "ALL: " + " ".join(escape(chr(code)) for code in range(0x20, 0x250)) + " END",
    ]
    (folder / "tables.tex").write_text(
        DOCUMENT % (request.param, "\n\\clearpage\n".join(tables)), encoding="utf-8"
    )
    command = [
        compiler,
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "tables.tex",
    ]
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
    done = subprocess.run(  # noqa: S603
        [reader, "-layout", pdf, "-"], capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode()


@pytest.mark.slow
def test_pdflatex_sets_every_info_with_all_its_names(document: str) -> None:
    rows = {line.partition(" ReLU")[0].strip() for line in document.splitlines()}
    assert rows >= {
        "a|b",
        "100%",
        "{x}",
        "a--b---c",
        "&amp;",
        "[a](b)",
        "@user",
        "#1",
        "$x$",
        "\\begin{x}",
        "[1cm]",
        "*",
    }
    assert rows >= {"<script>window.pwned=1</script>", "[U+1F600]"}
    assert any("init" in row for row in rows)  # without T1 an underscore is a rule, and no text
    assert re.search(r"ALL: .*END", document, re.DOTALL)


@pytest.mark.slow
def test_pdflatex_repeats_the_headings_of_a_long_table_on_each_page(document: str) -> None:
    pages = [
        page
        for page in document.split("\f")
        if re.search(r"^ *(7|80|149) +ReLU", page, re.MULTILINE)
    ]
    own = [page for page in pages if "[U+" not in page]
    assert len(own) == 3
    assert all("Layer" in page for page in own)
    assert sum("Pages." in page for page in own) == 1


def test_each_total_stands_once() -> None:
    text = INFOS["block"]().to_latex()
    totals = [line for line in text.splitlines() if "multicolumn" in line]
    assert len(totals) == len({line.rstrip("*") for line in totals})
    assert [line.endswith("*") for line in totals] == [True] * (len(totals) - 1) + [False]


# -- in a paper ----------------------------------------------------------------------------------------------------------


def models() -> torchscan.types.Table:
    """Of 1,001,000, 4,004,000 and 2,002 parameters."""
    sizes = {"small_one": 1000, "large": 4000, "tiny": 2}
    found = {name: nn.Linear(1000, size) for name, size in sizes.items()}
    return torchscan.model_table(found, (1000,), metrics=["params", "macs"], title="Three")


def test_a_column_of_the_user_s_goes_into_every_format() -> None:
    table = models().with_column("Top-1 (%)", {"small_one": 70.1, "large": 80.25})
    assert "small\\_one & 1.00 & 1.00 & 70.1 \\\\" in table.write("latex")
    assert "tiny & <0.01" not in table.write("latex")
    assert "| tiny | <0.01" in table.write("markdown")
    assert table.write("csv").splitlines()[0] == "model,params,macs,Top-1 (%)"
    assert str(table).splitlines()[1].split()[-2:] == ["Top-1", "(%)"]
    assert table.rows[2].cells[-1].text == "–"
    with pytest.raises(InputError, match="values names 'huge', which is not a row of the table"):
        models().with_column("x", {"huge": 1})


def test_figures_align_at_their_points_with_siunitx() -> None:
    table = (
        models()
        .with_column("Top-1", {"small_one": 70.1, "large": 80.25})
        .write("latex", siunitx=True)
    )
    assert table.startswith("% needs \\usepackage{booktabs} \\usepackage{siunitx}\n")
    assert "{@{}lS[table-format=1.2]S[table-format=1.2]S[table-format=2.2]@{}}" in table
    assert "Model & {Parameters (M)} & {MACs (M)} & {Top-1} \\\\" in table
    assert "large & 4.00 & 4.00 & 80.25 \\\\" in table
    assert "& {--} \\\\" in table


def test_a_table_that_one_column_has_no_room_for_takes_both() -> None:
    narrow, wide = (
        INFOS["block"]().to_latex(columns=columns)
        for columns in (["params"], ["type", "input_shape", "output_shape", "params", "macs"])
    )
    assert "\\begin{table}" in narrow
    assert "\\end{table}" in narrow
    assert "\\begin{table*}" in wide
    assert "\\end{table*}" in wide
    assert "\\begin{table}" in INFOS["block"]().to_latex(
        columns=["type", "input_shape", "output_shape", "params", "macs"], wide=False
    )


ARTICLE = r"""\documentclass[twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\usepackage[margin=0.8in,columnsep=0.25in]{geometry}
%s
\begin{document}
%s
\end{document}
"""


@pytest.mark.slow
@pytest.mark.parametrize("siunitx", [False, True])
def test_tables_fit_the_columns_of_a_two_column_article(siunitx: bool, tmp_path: Path) -> None:
    compiler, finder = shutil.which("pdflatex"), shutil.which("kpsewhich")
    if compiler is None or finder is None:
        pytest.skip("there is no pdflatex here")
    found = subprocess.run(  # noqa: S603
        [finder, "siunitx.sty", "geometry.sty"], capture_output=True, text=True, check=False
    )
    if "geometry" not in found.stdout or (siunitx and "siunitx" not in found.stdout):
        pytest.skip("packages of LaTeX are missing")
    info = crawl_module(
        nn.Sequential(nn.Conv2d(3, 1600, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)),
        (3, 64, 64),
    )
    tables = [
        models().with_column("Top-1 (%)", {"large": 80.25}).write("latex", siunitx=siunitx),
        info.to_latex(siunitx=siunitx),
        info.to_latex(columns=["output_shape", "params", "macs", "macs_share"], siunitx=siunitx),
    ]
    assert [table.count("{table*}") for table in tables] == [0, 2, 0]
    used = "\\usepackage{siunitx}" if siunitx else ""
    (tmp_path / "paper.tex").write_text(ARTICLE % (used, "\n".join(tables)), encoding="utf-8")
    command = [
        compiler,
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "paper.tex",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)  # noqa: S603
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert b"Overfull" not in done.stdout
