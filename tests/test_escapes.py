"""Control characters in names of the user's never reach a terminal."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import torchscan
from torchscan import (
    RecordError,
    analyze_roofline,
    crawl_module,
    estimate_memory,
    receptive_field,
    record,
)
from torchscan.analyses.module_graph import module_graph
from torchscan.cli.main import main
from torchscan.escapes import printable, printable_styled, printable_text

#: sets the title of the terminal's window, clears the screen, and moves to the first column
EVIL = "a\x1b]0;owned\x07\x1b[2J\r\x9b"
SHAPE = (4,)


def is_harmless(text: str) -> bool:
    return all(sign.isprintable() or sign in "\n\t" for sign in text)


def evil_model(inner: nn.Module | None = None) -> nn.Module:
    model = nn.Sequential()
    model.add_module(EVIL, nn.Linear(4, 4) if inner is None else inner)
    return model


def test_line_breaks_are_kept_in_text_alone() -> None:
    assert printable("a\nb\x1b") == "a�b�"
    assert printable_text("a\n\tb\x1b[1mc") == "a\n\tb�[1mc"
    assert printable_styled("\x1b[1mbold\x1b[0m \x1b[2J") == "\x1b[1mbold\x1b[0m �[2J"


@pytest.mark.parametrize(
    "verb",
    [
        crawl_module,
        estimate_memory,
        receptive_field,
        record,
        lambda model, shape: module_graph(record(model, shape)),
        lambda model, shape: analyze_roofline(model, shape, device="H100"),
        lambda model, shape: estimate_memory(model, shape, training=True, device="24 GiB"),
    ],
)
def test_results_print_no_control_characters(verb: Any) -> None:
    result = verb(evil_model(), SHAPE)
    assert is_harmless(repr(result))
    assert is_harmless(str(result))


def test_errors_and_warnings_have_no_control_characters() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError(f"no {EVIL}")

    with pytest.raises(RecordError) as caught:
        crawl_module(evil_model(Fails()), SHAPE)
    assert is_harmless(str(caught.value))
    assert "owned" in str(caught.value)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torchscan.user_warnings.warn_user(EVIL)
    assert is_harmless(str(seen[0].message))


def test_commands_print_no_control_characters_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": EVIL, "architectures": [EVIL]}))
    (tmp_path / "torchscan.toml").write_text(
        f'[models."{json.dumps(EVIL)[1:-1]}"]\nmax_params = "x"\n'
    )
    for words in (
        ["summary", f"hf:{tmp_path}"],
        ["check"],
        ["summary", f"hf:{EVIL}"],
        ["compare", EVIL, EVIL],
        ["runs", EVIL],
        ["runs", "list", EVIL],
    ):
        main(words)
        said = capsys.readouterr()
        assert is_harmless(said.out + said.err), words


def test_memory_of_layers_with_control_characters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\ndef build():\n    model = nn.Sequential()\n"
        f"    model.add_module({EVIL!r}, nn.Linear(4, 4))\n    return model\n"
    )
    for command in ("memory", "summary", "receptive-field", "graph"):
        assert main([command, f"{tmp_path}/model.py:build()", "--input", "4"]) == 0
        said = capsys.readouterr()
        assert is_harmless(said.out + said.err), command
