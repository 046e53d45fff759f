"""How faults planted in training programs are named by the default command: ``python scripts/benchmark_faults.py [FOLDER]``.

Each program runs by ``torchscan inspect -- python PROGRAM``: those of ``tests/inspecting/planted.py`` and, without an
expectation other than those below, those of a folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torchscan
from tests.inspecting.planted import PLANTED

#: by the stem of a program: the step (None: nothing may be reported), and parts of the sentence
KNOWN: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "f01_step37": (37, ("1 (Normalize)", "aten.div", "f01_step37.py:5 ")),
    "f03_loss": (20, ("loss", "aten.log", "f03_loss.py:9 ")),
    "f03b_loss": (20, ("loss", "aten.log", "f03b_loss.py:9 ")),
    "f04_input": (18, ("in the input of the model", "1 NaN")),
    "f06_rootop": (9, ("the model (Net)", "aten.acos", "f06_rootop.py:9 ")),
    "f07_fp16": (13, ("1 (Attn)", "f07_fp16.py:")),
    "f08_thread": (0, ("bad (Branch)", "aten.log", "f08_thread.py:6 ")),
    "f09_masked": (10, ("attn (Attn)", "softmax", "f09_masked.py:8 ")),
    "f10_legit": (None, ()),
    "f14_clip": (11, ("gradient of 0.weight", "SGD.step()", "f14_clip.py:9 ")),
    "f15_adam": (0, ("RMS.step()", "its gradient is finite")),
    "f17_gan": (15, ("3 (Exp) of G", "aten.exp", "f17_gan.py:6 ")),
}
TITLES = f"{'program':52}{'is named':14}{'in step':>8}  sentence"


@dataclass(frozen=True)
class Outcome:
    """What the command said of a program."""

    verdict: str
    step: int | None
    sentence: str


def main(folder: Path | None) -> None:
    """Print a table."""
    print(TITLES)
    with tempfile.TemporaryDirectory() as place:
        for name, planted in PLANTED.items():
            program = Path(place) / "program.py"
            program.write_text(planted.program)
            says = (
                planted.says
                if planted.line is None
                else (*planted.says, f"program.py:{planted.line} ")
            )
            _print(name, _outcome(program, planted.step, says))
    for program in sorted(folder.glob("f*.py")) if folder is not None else []:
        step, says = KNOWN.get(program.stem, (-1, ()))
        _print(program.stem, _outcome(program, step, says))


def _outcome(program: Path, step: int | None, says: tuple[str, ...]) -> Outcome:
    with tempfile.TemporaryDirectory() as place:
        saved = Path(place) / "run.json"
        call = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "torchscan",
            "inspect",
            "--save",
            str(saved),
            "--",
            str(program),
        ]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if not saved.exists():
            return Outcome("failed", None, done.stderr[-200:])
        found = torchscan.open_run(saved).facts.nonfinite
    text = "; ".join(map(str, found))
    first = found[0].step if found else None
    if step == -1:
        return Outcome("?", first, text)
    if step is None:
        return Outcome("false alarm" if found else "right", None, text)
    if first is None:
        return Outcome("not at all", None, "")
    if first != step:
        return Outcome("late" if first > step else "early", first, text)
    is_right = all(part in text for part in says)
    return Outcome("right" if is_right else "in part", first, text)


def _print(name: str, outcome: Outcome) -> None:
    step = "" if outcome.step is None else str(outcome.step)
    print(f"{name[:50]:52}{outcome.verdict:14}{step:>8}  {outcome.sentence}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
