"""Writes the JSON schema of saved runs, made from the dataclasses, into the package: ``python scripts/run_schema.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.run_schema import PLACE, written

PLACE.write_text(written(), encoding="utf-8")
