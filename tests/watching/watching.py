"""``watch`` with a worker that is forked from a process that has imported torch.

By default each run starts an interpreter of its own, which imports torch for a second or two. That is tested in
``test_lost_steps.py``, in some cases of ``test_frameworks.py``, and wherever a test starts a program.
"""

from __future__ import annotations

import os
from functools import partial

import tests.forked  # noqa: F401 - says what the process imports that workers are forked from
import torchscan

os.environ["DO_NOT_TRACK"] = "true"  # packages that runs are sent to report no use

watch = partial(torchscan.watch, start="forkserver")
