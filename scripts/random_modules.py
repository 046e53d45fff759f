"""See scripts/random-modules."""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(
    0, str(Path(__file__).parent.parent)
)  # for tests.random_modules, which the tests share

from tests.random_modules.comparing import verdict_on
from tests.random_modules.known import reason_for
from tests.random_modules.models import random_module

#: modules that one process compares; torch itself may crash on some, and then the others go on in another
BLOCK = 20


@dataclass
class Tally:
    """What came of several modules."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int) -> None:
        """Compare one, and print what differs."""
        verdict = verdict_on(random_module(seed))
        new = [each for each in verdict.differences if not reason_for(each)]
        self.counts["modules"] += 1
        self.counts["records compared"] += verdict.compared
        self.counts["modules refused on shapes alone"] += bool(verdict.refusals)
        self.counts["modules with differences"] += bool(new)
        self.counts["modules with known differences"] += bool(verdict.differences) and not new
        self.refusals.update(verdict.refusals)
        self.known.update(filter(None, map(reason_for, verdict.differences)))
        for each in new:
            print(each, flush=True)

    def update(self, other: Tally) -> None:
        """Take those of others in."""
        self.counts.update(other.counts)
        self.refusals.update(other.refusals)
        self.known.update(other.known)


class Block:
    """Modules that a process of its own compares."""

    def __init__(self, seeds: range) -> None:
        self.seeds = seeds
        reader, writer = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            os.close(reader)
            with os.fdopen(writer, "wb") as end:
                for seed in seeds:
                    tally = Tally()
                    tally.add(seed)
                    pickle.dump(tally, end)
                    end.flush()
            os._exit(0)
        os.close(writer)
        self._end = os.fdopen(reader, "rb")

    def tallies(self) -> Iterator[Tally]:
        """As they come."""
        with self._end:
            try:
                while True:
                    yield pickle.load(self._end)  # noqa: S301 - our own
            except EOFError:
                os.waitpid(self.number, 0)


def compared(seeds: range) -> Tally:
    """All of them; two blocks at a time."""
    total = Tally()
    waiting = [
        range(first, min(first + BLOCK, seeds.stop))
        for first in range(seeds.start, seeds.stop, BLOCK)
    ][::-1]
    running: list[Block] = []
    while waiting or running:
        while waiting and len(running) < 2:
            running.append(Block(waiting.pop()))
        block = running.pop(0)
        done = 0
        for tally in block.tallies():
            total.update(tally)
            done += 1
        if done < len(block.seeds):
            print(f"seed {block.seeds[done]}: the process ended", flush=True)
            total.counts["processes that ended"] += 1
            if rest := block.seeds[done + 1 :]:
                waiting.append(rest)
    return total


def main() -> None:
    """Compare so many modules and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="how many modules")
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of the first; each of the others has the next"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    total = compared(range(options.seed, options.seed + options.count))
    print(f"{options.count} modules in {time.perf_counter() - start:.0f} s")
    for name, number in total.counts.items():
        print(f"{number:7} {name}")
    for reason, number in total.known.most_common():
        print(f"{number:7} known: {reason}")
    for refusal, number in total.refusals.most_common(20):
        print(f"{number:7} refused: {refusal}")
    sys.exit(bool(total.counts["modules with differences"]))


if __name__ == "__main__":
    main()
