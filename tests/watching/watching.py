"""``watch`` with a worker that is forked from a process that has imported torch.

By default each run starts an interpreter of its own, which imports torch for a second or two. That is tested in
``test_lost_steps.py``, ``test_frameworks.py`` and wherever a test starts a program.
"""

from __future__ import annotations

import multiprocessing
import os
from functools import partial

import torchscan

os.environ["DO_NOT_TRACK"] = "true"  # packages that runs are sent to report no use
multiprocessing.set_forkserver_preload(
    ["torch", "torchscan.watching.worker", "torchscan.watching.digest"]
)

watch = partial(torchscan.watch, start="forkserver")
