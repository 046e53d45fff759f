"""Writes what the commands in ``console`` blocks of docs/ print into the pages. Read the difference before you commit it."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.console import with_real_output  # noqa: E402

for page in sorted((ROOT / "docs").rglob("*.md")):
    text = page.read_text()
    filled = with_real_output(text)
    if filled != text:
        page.write_text(filled)
        print(f"rewritten: {page.relative_to(ROOT)}")
