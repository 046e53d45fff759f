"""Writes into README and docs/ what their commands, snippets and the demo print. Read the difference before you commit it.

Outputs of the README's snippets are shortened by hand: a test names the lines that are no longer printed.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.console import with_real_output  # noqa: E402

_SNIPPET = re.compile(
    r"```python\n(?P<code>(?:(?!```).)*)```\n\n```text\n(?:(?!```).)*```", re.DOTALL
)
_DEMO = re.compile(r"(?<=<!-- scripts/demo -->\n```text\n).*?(?=```)", re.DOTALL)


def printed(found: re.Match[str]) -> str:
    """A snippet, with what it prints now."""
    out = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
    ):
        warnings.simplefilter("ignore")
        exec(compile(found["code"], "snippet", "exec"), {"__name__": "snippet"})  # noqa: S102
    return f"```python\n{found['code']}```\n\n```text\n{out.getvalue()}```"


def demo(_: re.Match[str]) -> str:
    """What a first look prints."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "scripts" / "demo.py")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout


README = ROOT / "README.md"
for page in [README, *sorted((ROOT / "docs").rglob("*.md"))]:
    text = page.read_text()
    if page == README:
        filled = _DEMO.sub(demo, text)
    else:
        filled = _SNIPPET.sub(printed, with_real_output(text))
    if filled != text:
        page.write_text(filled)
        print(f"rewritten: {page.relative_to(ROOT)}")
