"""Measures the models whose names arrive on standard input, one a line, and answers with a line of JSON for each."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for tests.torchvision_cpu

import torch  # noqa: E402


def main() -> None:
    """Answer until nothing more arrives. What the libraries print goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from field_measuring import measure
    from field_models import cases

    known = {case.name: case for case in cases()}
    answers.write(json.dumps(list(known)) + "\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(measure(known[line.strip()])) + "\n")
        answers.flush()
        gc.collect()  # models and caches refer to themselves


if __name__ == "__main__":
    main()
