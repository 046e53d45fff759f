"""See scripts/fit."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for tests.far_off, which the tests share


def main() -> int:
    """Fit what was asked for. Return the number of missing tables."""
    from fit_constants import FAMILIES, print_fit

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*", help=f"{', '.join(FAMILIES)}; by default all")
    asked = parser.parse_args().family
    unknown = [name for name in asked if name not in FAMILIES]
    if unknown:
        parser.error(f"{unknown[0]} is no family: give {', '.join(FAMILIES)}")
    return print_fit(ROOT.parent / "shared" / "truth", asked)


if __name__ == "__main__":
    sys.exit(main())
