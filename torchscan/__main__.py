"""``python -m torchscan``."""

import sys

from torchscan.cli.main import main

sys.exit(main())
