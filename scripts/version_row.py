"""One row of the table of versions, from what pytest printed: `python scripts/version_row.py 2.6.0 OUTPUT`."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

_, version, output = sys.argv
last = Path(output).read_text(encoding="utf-8").rstrip().splitlines()[-1]
counts = {
    word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped|failed|errors?)", last)
}
failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
print(
    f"{version:8}  {platform.python_version():8}  {counts.get('passed', 0):6}  {counts.get('skipped', 0):7}  {failed:6}"
)
