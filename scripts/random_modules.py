"""See scripts/random-modules."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # for tests.random_modules, which the tests share

from tests.random_modules.comparing import Difference, verdict_on
from tests.random_modules.known import reason_for
from tests.random_modules.models import random_module


def main() -> None:
    """Compare so many modules and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="how many modules")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first; each of the others has the next")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, counts, refusals, known = time.perf_counter(), Counter[str](), Counter[str](), Counter[str]()
    for seed in range(options.seed, options.seed + options.count):
        verdict = verdict_on(random_module(seed))
        counts["records compared"] += verdict.compared
        counts["modules refused on shapes alone"] += bool(verdict.refusals)
        refusals.update(verdict.refusals)
        known.update(filter(None, map(reason_for, verdict.differences)))
        new = [each for each in verdict.differences if not reason_for(each)]
        counts["modules with differences"] += bool(new)
        counts["modules with known differences"] += bool(verdict.differences) and not new
        _show(new)
        if (seed + 1) % 500 == 0:
            print(f"… {seed + 1 - options.seed} modules", file=sys.stderr, flush=True)
    print(f"{options.count} modules in {time.perf_counter() - start:.0f} s")
    for name, number in counts.items():
        print(f"{number:7} {name}")
    for reason, number in known.most_common():
        print(f"{number:7} known: {reason}")
    for refusal, number in refusals.most_common(20):
        print(f"{number:7} refused: {refusal}")
    sys.exit(bool(counts["modules with differences"]))


def _show(differences: list[Difference]) -> None:
    for each in differences:
        print(each, flush=True)


if __name__ == "__main__":
    main()
